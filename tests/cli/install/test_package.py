"""The Debian package and `hpctl install` on a clean machine, where systemd does not run."""

import json
import time

import pytest

from hpctl.cli.install_layout import DROP_IN
from tests.cli.install.package import build, give
from tests.clusters.lifecycle import chroot
from tests.clusters.lifecycle.chroot import Machine

MISSING = chroot.missing() or chroot.WRONG_PYTHON
pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.slurm,  # where root and Slurm's packages are at hand
    pytest.mark.skipif(bool(MISSING), reason=f"PACKAGE NOT TESTED: {MISSING}"),
]

CONF = "SlurmctldHost=ip-10-9-0-5(10.9.0.5)\nSlurmUser=slurm\nProlog=/etc/slurm/site.sh\n"
SHARED = {
    "/usr/share/bash-completion/completions/hpctl",
    "/usr/share/doc/hpctl/NOTICE",
    "/usr/share/doc/hpctl/changelog.gz",
    "/usr/share/doc/hpctl/copyright",
    "/usr/share/fish/vendor_completions.d/hpctl.fish",
    "/usr/share/man/man1/hpctl.1.gz",
    "/usr/share/zsh/vendor-completions/_hpctl",
}
KEPT = ("/etc/hpctl", "/var/lib/hpctl")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return build(tmp_path_factory.mktemp("package"), "0.1.0")


@pytest.fixture
def machine(tmp_path, package):
    with Machine(tmp_path / "machine") as clean:
        clean.write("/etc/slurm/slurm.conf", CONF)
        give(clean, package)
        yield clean


def installed(machine: Machine) -> str:
    return machine.says("dpkg", "--install", "/root/hpctl_0.1.0_amd64.deb")


def as_user(machine: Machine, line: str) -> str:
    return machine.says("runuser", "-u", "nobody", "--", "sh", "-c", line)


def steps(machine: Machine, *text: str) -> dict[str, set[str]]:
    """What became of the steps, by state."""
    answer = json.loads(machine.says("hpctl", *text, "--json"))
    found: dict[str, set[str]] = {}
    for step in answer["steps"]:
        found.setdefault(step["state"], set()).add(step["name"])
    return found


def files(machine: Machine) -> str:
    """All that lies where any of it may."""
    places = ("/etc", "/opt", "/usr/local", "/var/lib/hpctl")
    places = tuple(place for place in places if machine.path(place).exists())
    return machine.says("find", *places, "-printf", "%p %M %s %T@ %l\n")


def test_it_installs_without_a_network_for_every_user_and_changes_nothing_else(machine):
    assert "Next, as root: hpctl install head, or node, or login" in installed(machine)
    assert as_user(machine, "hpctl --version") == "hpctl, version 0.1.0"
    assert chroot.HERE in as_user(machine, "/opt/hpctl/bin/python -V")
    as_user(machine, "/opt/hpctl/bin/python -c 'import hpctl.daemon.main, boto3'")
    units = [
        f"/usr/lib/systemd/system/hpctl{name}" for name in ("-agent.service", "-daemon.service")
    ]
    machine.says("systemd-analyze", "verify", "--man=no", *units)
    assert machine.run("systemctl", "is-enabled", "hpctl-daemon")[1].strip() == "disabled"
    assert not any(machine.path(place).exists() for place in KEPT)
    assert set(machine.says("dpkg", "--listfiles", "hpctl").splitlines()) >= SHARED


def test_a_head_node_is_set_up_once_and_taken_down_but_for_its_journal(machine):
    installed(machine)
    before = files(machine)
    args = ("install", "head", "--cluster", "demo", "--region", "us-east-1", "--slurm")
    would = steps(machine, *args, "--dry-run")
    assert would["would"] == {"configuration", "journal", "service", "Slurm plugins"}
    assert files(machine) == before
    assert steps(machine, *args) == {"done": would["would"], "already": would["already"]}
    assert machine.says("systemctl", "is-enabled", "hpctl-daemon") == "enabled"
    assert machine.says("stat", "-c", "%U", "/var/lib/hpctl/journal.db") == "slurm"
    machine.says("rm", "/var/lib/hpctl/journal.db")  # as where its file system is not mounted
    assert steps(machine, *args)["skipped"] == {"journal"}
    conf = machine.path("/etc/slurm/slurm.conf")
    assert conf.read_text() == CONF + (
        "EpilogSlurmctld=/opt/hpctl/slurm/epilog_slurmctld.sh\n"
        "SchedulerParameters=batch_sched_delay=0\n"
    )
    machine.says("/opt/hpctl/slurm/epilog_slurmctld.sh")
    assert "fine (mode observe, provider sagemaker)" in machine.says("hpctl", "config", "check")
    machine.write("/etc/hpctl/hpctl.yaml", "mode: assist\n")
    machine.write("/var/lib/hpctl/journal.db", "all that was decided")
    assert set(steps(machine, *args)) == {"already"}
    installed(machine)  # the same once more: nothing is made again
    assert set(steps(machine, *args)) == {"already"}

    machine.says("dpkg", "--remove", "hpctl")
    assert conf.read_text() == CONF
    assert "enabled" not in machine.run("systemctl", "is-enabled", "hpctl-daemon")[1]
    assert machine.path("/etc/hpctl/hpctl.yaml").read_text() == "mode: assist\n"
    assert machine.path("/var/lib/hpctl/journal.db").exists()
    assert not [line for line in files(machine).splitlines() if line.startswith("/opt/hpctl")]
    machine.says("dpkg", "--purge", "hpctl")
    assert not any(machine.path(place).exists() for place in KEPT)
    assert "hpctl" not in files(machine)


def test_a_slurm_user_of_another_name_gets_the_daemon_and_its_secrets(machine):
    installed(machine)
    machine.says("useradd", "--gid", "games", "slurmadm")
    conf, token = machine.path("/etc/slurm/slurm.conf"), "/etc/hpctl/token"
    conf.write_text(CONF.replace("SlurmUser=slurm", "slurmuser = slurmadm # of the site"))
    machine.write(token, "0123456789abcdef\n", 0o644)
    settings = f"database_url: mariadb://u:secret@db/x\nalerts: {{token_file: {token}}}\n"
    machine.write("/etc/hpctl/hpctl.yaml", settings)
    would = steps(machine, "install", "head", "--dry-run")["would"]
    assert would == {"file", "daemon's user", "service"}
    assert not machine.path(DROP_IN).exists()
    assert steps(machine, "install", "head")["done"] == would
    assert machine.path(DROP_IN).read_text() == "# SlurmUser\n[Service]\nUser=slurmadm\n"
    for path in ("/etc/hpctl/hpctl.yaml", token):
        assert machine.says("stat", "-c", "%U %G %a", path) == "root games 640"
    assert set(steps(machine, "install", "head")) == {"already"}
    # Another group's file stays that group's; who cannot get to a file is told where it stops.
    machine.says("chgrp", "users", token)
    code, text = machine.run("hpctl", "install", "daemon-user")
    assert (code, f"cannot read {token}: the file belongs to another group" in text) == (1, True), (
        text
    )
    machine.says("chgrp", "root", token)
    machine.says("chmod", "0700", "/etc/hpctl")
    code, text = machine.run("hpctl", "install", "daemon-user")
    assert (code, "user slurmadm cannot reach /etc/hpctl" in text) == (1, True), text
    machine.says("chmod", "0755", "/etc/hpctl")
    # Slurm's own default.
    conf.write_text(CONF.replace("SlurmUser=slurm\n", ""))
    steps(machine, "install", "daemon-user")
    assert "\nUser=root\n" in machine.path(DROP_IN).read_text()
    machine.says("dpkg", "--purge", "hpctl")
    assert not machine.path(DROP_IN).parent.exists()


def test_a_compute_node_must_be_given_its_head(machine):
    installed(machine)
    code, text = machine.run("hpctl", "install", "node")
    assert (code, "--head HOST" in text) == (1, True)
    assert steps(machine, "install", "node", "--head", "ctl,10.9.0.6:99")["done"] == {
        "file",
        "service",
    }
    environment = machine.path("/etc/hpctl/agent.env")
    assert environment.read_text() == "HPCTL_AGENT_HEAD=http://ctl:8470,http://10.9.0.6:99\n"
    environment.write_text(environment.read_text() + "HPCTL_AGENT_NODE=gpu-1\n")
    assert steps(machine, "install", "node", "--head", "ctl")["done"] == {"file", "service"}
    assert environment.read_text() == "HPCTL_AGENT_HEAD=http://ctl:8470\nHPCTL_AGENT_NODE=gpu-1\n"
    assert set(steps(machine, "install", "node")) == {"already"}


def test_a_python_that_it_is_not_made_for_is_named(machine):
    machine.says("dpkg", "--unpack", "/root/hpctl_0.1.0_amd64.deb")
    machine.write("/usr/lib/hpctl/pythons", "3.7\n3.8\n")
    code, text = machine.run("dpkg", "--configure", "hpctl")
    assert code == 1
    assert (
        f"hpctl: this package runs on Python 3.7 3.8, and this machine has Python {chroot.HERE}"
        in text
    )
    machine.write("/usr/lib/hpctl/pythons", f"{chroot.HERE}\n")
    machine.says("dpkg", "--configure", "hpctl")
    assert as_user(machine, "hpctl --version") == "hpctl, version 0.1.0"


def test_a_machine_that_lost_its_power_meanwhile_continues(machine):
    running = machine.start("dpkg", "--install", "/root/hpctl_0.1.0_amd64.deb")
    while not list(machine.path("/opt").glob("hpctl/versions/*/lib/python*/site-packages/click")):
        assert running.poll() is None, running.communicate()
        time.sleep(0.005)
    machine.kill_everything()
    running.communicate(timeout=30)
    assert not machine.path("/opt/hpctl/bin").exists()
    machine.says("dpkg", "--configure", "--pending")
    as_user(machine, "/opt/hpctl/bin/python -c 'import hpctl.daemon.main, boto3'")
    assert as_user(machine, "hpctl --version") == "hpctl, version 0.1.0"


def test_from_a_wheel_in_any_environment_it_gets_a_separate_place(machine):
    machine.says("dpkg-deb", "--extract", "/root/hpctl_0.1.0_amd64.deb", "/root/package")
    wheels = "/root/package/usr/lib/hpctl/wheels"
    make = f"python3 -m venv --without-pip /root/v && /root/v/bin/python $(echo {wheels}/pip-*)/pip"
    machine.says("sh", "-c", f"{make} install -q --no-index --find-links {wheels} hpctl pip")
    assert "done      program" in machine.says("/root/v/bin/hpctl", "install", "login")
    assert as_user(machine, "/usr/local/bin/hpctl --version") == "hpctl, version 0.1.0"
    assert "done " not in machine.says("/opt/hpctl/bin/hpctl", "install", "login")
    machine.says("/opt/hpctl/bin/hpctl", "uninstall", "--yes")
    assert "hpctl" not in files(machine)
