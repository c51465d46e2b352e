"""Every script as root on a clean machine: real useradd, ssh-keygen, mount, systemctl and pip."""

import json
import random
import re
import shutil
import time

import pytest

from hpctl.clusters.bundle import (
    LifecycleBundle,
    find_lifecycle_script_directory,
    write_bundle_manifest,
)
from hpctl.engine.config import parse_config
from tests.clusters.lifecycle import chroot
from tests.clusters.lifecycle.chroot import PYTHON, Machine
from tests.clusters.lifecycle.node import (
    ADDRESSES,
    BUCKET,
    ENVIRONMENT,
    PARAMETERS,
    bundle,
    command,
    furnish,
    states,
    wheelhouse,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,  # where root and Slurm's packages are at hand
    pytest.mark.timeout(chroot.BUILD_S + 300),  # the first test of all makes the root
    pytest.mark.skipif(bool(chroot.missing()), reason=f"LIFECYCLE NOT TESTED: {chroot.missing()}"),
]

DOES = {
    "controller": {
        *("mount_fsx", "mount_openzfs", "users", "ssh_keys", "known_hosts", "accounting"),
        *("slurm_plugins", "slurm", "hpctl", "log_rotation"),
    },
    "login": {
        *("mount_fsx", "mount_openzfs", "users", "ssh_keys", "known_hosts", "slurm_plugins"),
        *("slurm", "hpctl", "log_rotation"),
    },
}
DOES["compute"] = DOES["login"] | {"observability"}
DROP_IN = "/etc/systemd/system/slurmd.service.d/hpctl.conf"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> LifecycleBundle:
    room = tmp_path_factory.mktemp("bundle")
    return bundle(
        room / "bundle",
        wheelhouse(room / "wheels"),
        **{
            "config.json": json.dumps(
                {"failure_wait_s": 0, "steps": {"observability": "optional"}}
            ),
            "exporters/node_exporter.compute": "#!/bin/sh\n",
        },
    )


@pytest.fixture
def machine(tmp_path, made: LifecycleBundle):
    with Machine(tmp_path / "machine") as clean:
        furnish(clean, made)
        yield clean


def birth(machine: Machine, role: str) -> str:
    """Run the entry script to its good end; its log."""
    code, out = machine.run(*command(role), env=ENVIRONMENT)
    assert code == 0, out
    return out


def last_line(out: str) -> str:
    return out.rstrip().rpartition("\n")[2]


@pytest.mark.parametrize(
    "role", [r if r != "login" else pytest.param(r, marks=pytest.mark.nightly) for r in ADDRESSES]
)
def test_a_node_comes_up_and_a_second_run_finds_nothing_to_do(machine, role):
    name = "ip-" + ADDRESSES[role].replace(".", "-")
    output = last_line(birth(machine, role))
    did = f"steps={len(DOES[role])} in"
    assert output.startswith(f"hpctl lifecycle: OK node={name} role={role} {did}"), output
    ran = states(machine)
    assert {step for step, one in ran.items() if one["state"] == "done"} == {*DOES[role], "run"}

    assert machine.says("id", "ada") == "uid=2001(ada) gid=2001(ada) groups=2001(ada)"
    assert machine.says("stat", "-c", "%U %a", "/home/ada", "/home/ada/.ssh").split() == (
        ["ada", "700", "ada", "700"]
    )
    assert machine.says("getent", "passwd", "ubuntu").split(":")[5] == "/home/ubuntu"
    assert "10.9.9.9" not in machine.path("/etc/fstab").read_text()
    assert "fs-0aaaaaaaaaaaaaaaa.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh /fsx lustre" in (
        machine.path("/etc/fstab").read_text()
    )
    assert machine.says("runuser", "-lc", "hpctl --version", "ada") == "hpctl, version 0.1.0"
    machine.says("logrotate", "--debug", "/etc/logrotate.d/hpctl-slurm")
    own, other = ("slurmctld", "slurmd") if role == "controller" else ("slurmd", "slurmctld")
    assert machine.says("systemctl", "is-enabled", own) == "enabled"
    assert machine.run("systemctl", "is-enabled", other)[1].strip() == "masked"
    CHECKS[role](machine)

    again = birth(machine, role)
    assert again.count("already done") == len(DOES[role])
    assert " done in" not in again


def _controller(machine: Machine) -> None:
    assert machine.says("systemctl", "is-enabled", "hpctl-daemon", "slurmdbd", "mariadb") == (
        "enabled\nenabled\nenabled"
    )
    settings = parse_config(machine.path("/etc/hpctl/hpctl.yaml").read_text())
    assert (settings.cluster.name, settings.cluster.region) == ("demo", "us-east-1")
    assert (settings.mode, settings.intake.listen) == ("observe", "0.0.0.0:8470")
    assert machine.path("/etc/slurm/slurmdbd.conf").stat().st_mode & 0o777 == 0o600
    conf = machine.path("/etc/slurm/slurm.conf").read_text()
    assert "\ninclude accounting.conf\n" in conf
    assert "EpilogSlurmctld=/opt/hpctl/slurm/epilog_slurmctld.sh" in conf
    assert "SchedulerParameters=batch_sched_delay=0\n" in conf
    assert "HealthCheckProgram=/opt/hpctl/slurm/health_check.sh\nHealthCheckInterval=60\n" in conf
    assert "\nProlog=" not in conf
    machine.says("/opt/hpctl/slurm/epilog_slurmctld.sh")


def _compute(machine: Machine) -> None:
    assert machine.says("systemctl", "is-enabled", "hpctl-agent") == "enabled"
    environment = machine.path("/etc/hpctl/agent.env").read_text()
    assert "HPCTL_AGENT_HEAD=http://10.9.0.5:8470\n" in environment
    assert "HPCTL_AGENT_NODE" not in environment, "the agent asks Slurm for its name"
    assert "--conf-server 10.9.0.5" in machine.path(DROP_IN).read_text()
    assert machine.says("systemctl", "is-enabled", "hpctl-node_exporter") == "enabled"
    machine.says("/opt/hpctl/exporters/node_exporter")


def _login(machine: Machine) -> None:
    assert not machine.path("/etc/systemd/system/hpctl-agent.service").exists()
    assert "--conf-server 10.9.0.5" in machine.path(DROP_IN).read_text()


CHECKS = {"controller": _controller, "compute": _compute, "login": _login}


def tree(machine: Machine) -> dict[str, str]:
    """What the scripts made: path -> mode, owner and text, but for what differs by itself."""
    listed = machine.says(
        *("find", "/etc", "/home", "/fsx", "/opt", "/var/lib/hpctl", "-xdev", "-not", "-type", "d"),
        *("-not", "-path", "*/__pycache__/*", "-printf", "%p %M %U %G %l\\n"),
    )
    found = {}
    for line in listed.splitlines():
        path, _, rest = line.partition(" ")
        file = machine.path(path)
        secret = any(part in path for part in ("/.ssh/", "ssh_host", "slurmdbd.conf", "shadow"))
        own = path.startswith(("/var/lib/hpctl/lifecycle", "/etc/.pwd", "/etc/mtab"))
        if own or path.endswith("-"):
            continue
        text = "" if secret or not file.is_file() or file.is_symlink() else _text(file)
        found[path] = f"{rest} {text}"
    return found


def _text(file):
    return file.read_bytes().decode(errors="replace")


EXTERNAL = {
    "slurm_database_endpoint": "db.example",
    "slurm_database_secret_arn": "arn:aws:secretsmanager:us-east-1:000000000000:secret:db",
}
AWS = """#!/bin/sh
# Plays Secrets Manager.
[ "$1 $2 $5" = "secretsmanager get-secret-value --secret-id" ] || exit 9
echo '{"username": "admin", "password": "not-to-be-printed"}'
"""


KILLED = {
    "controller": DOES["controller"] | {"shared_state", "containers", "site"},
    "compute": {"pam", "observability"},
}
"""Every step but accounting_users, which asks a running slurmdbd."""


TABLE = find_lifecycle_script_directory() / "lifecycle/steps/__init__.py"
ORDER = re.findall(r'Step\("(\w+)"', TABLE.read_text())


def _with_everything(machine: Machine, made: LifecycleBundle, role: str) -> None:
    furnish(machine, made)
    if "hpctl" not in KILLED[role]:
        shutil.rmtree(machine.path(f"{BUCKET}/wheels"))
    shared = {**EXTERNAL, "slurm_shared_directory": "/fsx"}
    parameters = {**PARAMETERS, "slurm_configurations": shared}
    machine.write(f"{BUCKET}/provisioning_parameters.json", json.dumps(parameters))
    machine.write(f"{BUCKET}/site.d/1.sh", "#!/bin/sh\nsleep 0.2; echo here >/etc/site\n")
    weights = {"pam": "required", "observability": "required"}
    machine.write(f"{BUCKET}/config.json", json.dumps({"failure_wait_s": 0, "steps": weights}))
    write_bundle_manifest(machine.path(BUCKET))
    machine.write("/usr/bin/aws", AWS, 0o755)
    machine.write("/etc/enroot/enroot.conf", "ENROOT_CACHE_PATH  /opt/enroot\n")
    machine.write("/etc/slurm/cgroup.conf", "ConstrainCores=yes\n")
    machine.write("/etc/pam.d/sshd", "account required pam_unix.so\n")
    machine.write("/usr/lib/x86_64-linux-gnu/security/pam_slurm_adopt.so", "")


@pytest.mark.nightly
@pytest.mark.parametrize("role", KILLED)
def test_killed_in_every_step_it_finishes_when_it_is_run_again(made, tmp_path, role):
    with Machine(tmp_path / "calm") as calm:
        _with_everything(calm, made, role)
        birth(calm, role)
        wanted = tree(calm)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with Machine(tmp_path / "machine") as machine:
        _with_everything(machine, made, role)
        # In the table's order: the step that is killed is the first that has work to do.
        ordered = [step for step in ORDER if step in KILLED[role]]
        killed = sum(killed_in(machine, role, step, dice) for step in ordered)
        print(f"killed {killed}")
        # Up to three steps end within one wait, and their turn is over with it.
        assert killed >= max(1, len(KILLED[role]) // 4)
        birth(machine, role)
        assert tree(machine) == wanted
        assert not [path for path in tree(machine) if ".hpctl-" in path or path.endswith(".part")]


def killed_in(machine: Machine, role: str, step: str, dice: random.Random) -> bool:
    """Run until a step is come to, and turn the power off somewhere in it.

    A step that an earlier run has finished is not tried: that run would go on to its good end,
    and no other step could be killed after it.
    """
    if states(machine).get(step, {}).get("state") == "done":
        return False
    running = machine.start(*command(role), env=ENVIRONMENT)
    state = machine.path(f"/var/lib/hpctl/lifecycle/{step}.json")
    before = state.read_text() if state.exists() else ""
    while running.poll() is None and (not state.exists() or state.read_text() == before):
        time.sleep(0.002)
    # A try is a process: it needs some 0.1 s to start, and most do their work in as much.
    time.sleep(dice.uniform(0.05, 2.0 if step == "hpctl" else 0.35))
    in_time = running.poll() is None
    machine.kill_everything()
    running.communicate(timeout=30)
    return in_time


BARE = """#!/bin/sh
echo hpctl, version 0.1.0
exit $(cat /root/broken 2>/dev/null || echo 0)
"""


@pytest.mark.nightly
def test_a_node_that_ends_without_hpctl_is_incomplete_and_stays_in_the_cluster(machine):
    shutil.rmtree(machine.path(f"{BUCKET}/wheels"))
    write_bundle_manifest(machine.path(BUCKET))
    fix = "hpctl cluster lifecycle bundle --wheels"
    why = f": no hpctl on this node: no wheels in this bundle: {fix}"
    output = last_line(birth(machine, "compute"))
    assert output.startswith("hpctl lifecycle: INCOMPLETE node=ip-10-9-1-20 role=compute "), output
    assert output.endswith(why)
    assert states(machine)["run"]["why"] == why[2:]
    machine.write("/usr/local/bin/hpctl", BARE, 0o755)
    assert last_line(birth(machine, "compute")).startswith("hpctl lifecycle: OK ")
    machine.write("/root/broken", "1")
    assert last_line(birth(machine, "compute")).endswith(why)
    weights = {"failure_wait_s": 0, "steps": {"hpctl": "off"}}
    machine.write(f"{BUCKET}/config.json", json.dumps(weights))
    write_bundle_manifest(machine.path(BUCKET))
    output = last_line(birth(machine, "compute"))
    assert "INCOMPLETE" in output
    assert output.endswith("config.json turns the step off: delete hpctl from its steps")


@pytest.mark.nightly
def test_a_replaced_node_finds_its_home_and_is_forgotten_by_its_old_key(machine):
    birth(machine, "compute")
    key = machine.path("/home/ada/.ssh/id_ed25519.pub").read_text()
    old = machine.path("/etc/ssh/ssh_host_ed25519_key.pub").read_text()
    machine.write("/home/ada/.ssh/known_hosts", f"ip-10-9-1-20 {old}ip-10-9-1-21 {old}")
    machine.says("chown", "ada:ada", "/home/ada/.ssh/known_hosts")
    # A new instance: accounts, host keys and mounts are gone, the file systems have kept theirs.
    machine.says("sh", "-c", "umount /fsx /home && userdel ada && rm /etc/ssh/ssh_host_*")
    machine.says("rm", "-r", "/var/lib/hpctl", "/opt/hpctl", "/etc/fstab")
    machine.says("ssh-keygen", "-A")
    birth(machine, "compute")
    assert machine.path("/home/ada/.ssh/id_ed25519.pub").read_text() == key
    known = machine.path("/home/ada/.ssh/known_hosts").read_text().splitlines()
    assert [line.split()[0] for line in known] == ["ip-10-9-1-21"]
    assert machine.says("stat", "-c", "%U", "/home/ada/.ssh/known_hosts") == "ada"


@pytest.mark.nightly
def test_a_python_in_the_bundle_runs_hpctl_and_a_newer_one_takes_its_place(machine):
    """The root's own stands for a relocatable build: it finds its library beside itself."""
    packed, home = f"{BUCKET}/python.tar.gz", f"/usr/lib/python{PYTHON}"
    pack = ("tar", "-C", "/usr", "-I", "gzip -1", "--exclude=__pycache__", "-cf", packed)
    pack += (f"bin/python{PYTHON}", "bin/python3", f"lib/python{PYTHON}")
    where = ("/opt/hpctl/bin/python", "-c", "import sys; print(sys.base_prefix)")
    for mark in ("older", "newer"):
        machine.write(f"{home}/mark.py", mark)
        machine.says(*pack)
        write_bundle_manifest(machine.path(BUCKET))
        birth(machine, "login")
        assert machine.says(*where) == "/opt/hpctl-python"
        assert machine.path(f"/opt/hpctl-python/lib/python{PYTHON}/mark.py").read_text() == mark
        assert machine.says("/opt/hpctl/bin/hpctl", "--version") == "hpctl, version 0.1.0"


@pytest.mark.nightly
def test_where_the_ami_has_set_slurm_up_it_is_left_alone(machine):
    machine.says("systemctl", "enable", "slurmd")
    code, out = machine.run(*command("compute", "on_init_complete.sh"), env=ENVIRONMENT)
    assert code == 0, out
    ran = states(machine)
    assert ran["ssh_keys"]["why"] == "the AMI has made keys (OnInitComplete)"
    assert ran["slurm"]["state"] == ran["hpctl"]["state"] == "done"
    assert not machine.path("/etc/systemd/system/slurmd.service.d").exists()
    assert "masked" not in machine.run("systemctl", "is-enabled", "slurmctld")[1]
