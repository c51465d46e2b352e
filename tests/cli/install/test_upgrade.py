"""A package upgrade with a recovery under way: systemd, slurmctld, slurmd, daemon and agent run.

The daemon before it is root's, as older releases ran it; the one after it is SlurmUser's.
"""

import contextlib
import json

import pytest

from tests.cli.install.package import build, give
from tests.clusters.lifecycle import booted, chroot, live
from tests.clusters.lifecycle.booted import Booted
from tests.clusters.lifecycle.live import eventually

MISSING = booted.missing() or chroot.WRONG_PYTHON
pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"PACKAGE NOT TESTED WITH SYSTEMD: {MISSING}"),
]

ADDRESS = "10.9.0.5"
NODE = "ip-10-9-0-5"
BOOT_ID, KMSG = "/etc/hpctl/boot-id", "/etc/hpctl/kmsg"
UNITS = ("hpctl-daemon", "hpctl-agent")
STATE, YAML, TOKEN = "/var/lib/hpctl", "/etc/hpctl/hpctl.yaml", "/etc/hpctl/token"
OF_ROOT = "/run/systemd/system/hpctl-daemon.service.d/of-root.conf"
SETTINGS = """\
mode: assist
cluster: {provider: none}
alerts: {token_file: /etc/hpctl/token}
loop: {reconcile_s: 1.0}
node: {verify_healthy_s: 0.5}
ages: {silent_s: 2.0}
catalogue:
  report-scratch:
    meaning: the scratch disk is full
    urgency: after_jobs
    ladder: [await]
    settle_s: 0.0
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    room = tmp_path_factory.mktemp("packages")
    return build(room, "0.1.0"), build(room, "0.1.1")


@pytest.fixture
def machine(tmp_path):
    """Head and compute node in one, with a Slurm that runs."""
    with Booted(tmp_path / "m", ADDRESS, tmp_path / "shared") as one:
        live.connect(one, one)
        live.furnish(one, True)
        kept = [line for line in live.SLURM_CONF.splitlines() if not line.startswith("NodeName=")]
        conf = "\n".join(kept).replace("Nodes=ip-10-9-1-20", f"Nodes={NODE}")
        one.write("/etc/slurm/slurm.conf", f"{conf}\nNodeName={NODE} NodeAddr={ADDRESS}\n")
        # Debian's own: the one of a node without a slurm.conf would remove it.
        one.path("/etc/systemd/system/slurmd.service").unlink()
        one.says("systemctl", "daemon-reload")
        one.says("systemctl", "restart", "munge")
        one.says("systemctl", "start", "slurmctld", "slurmd")
        eventually(lambda: one.run("sinfo", "-hn", NODE, "-o", "%T")[1].strip() == "idle")
        yield one


def pids(machine: Booted) -> list[str]:
    text = machine.says("systemctl", "show", *UNITS, "--property=MainPID", "--value")
    return text.split()


def recovery(machine):
    text = machine.run("hpctl", "recoveries", "--all", "--json")[1]
    found = json.loads(text)["nodes"]
    return found[0] if found else None


def report(machine: Booted, verdict: str) -> None:
    lines = ("--check", "scratch", "--verdict", verdict)
    machine.says("hpctl", "agent", "report", *lines, "--strict")


def set_up(machine: Booted, package: str) -> None:
    """Daemon and agent, from the package by hand; the daemon is root's, and so is all it has."""
    machine.says("dpkg", "--install", package)
    machine.write(YAML, SETTINGS)
    machine.write(TOKEN, "0123456789abcdef\n", 0o600)
    capable = "CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_DAC_OVERRIDE"
    machine.write(OF_ROOT, f"[Service]\nUser=root\nGroup=root\n{capable}\n")
    answer = json.loads(machine.run("hpctl", "install", "head", "--slurm", "--json")[1])
    assert ("daemon", "ok") in {(check["name"], check["verdict"]) for check in answer["checks"]}, (
        answer
    )
    # The machine has no /dev/kmsg, and the boot id of the one that it is played on.
    machine.write(KMSG, "")
    own = f"HPCTL_AGENT_BOOT_ID_FILE={BOOT_ID}\nHPCTL_AGENT_KMSG={KMSG}\n"
    machine.write("/etc/hpctl/agent.env", own + "HPCTL_AGENT_HEARTBEAT_S=1\n")
    machine.write(BOOT_ID, "11111111-1111-4111-8111-111111111111\n")
    code, text = machine.run("hpctl", "install", "node", "--head", ADDRESS)
    assert (code, "a daemon listens at" in text) == (0, True), text
    eventually(lambda: machine.run("hpctl", "nodes", NODE, "--json")[1].count('"last_heard": "2'))


def as_before(machine: Booted) -> None:
    """What an older release leaves: files that are root's alone, and a daemon that runs as root."""
    for path in (YAML, TOKEN):
        machine.says("chown", "root:root", path)
        machine.says("chmod", "0600", path)
    assert set(owners(machine)) == {"root"}
    assert machine.says("stat", "-c", "%U %a", f"{STATE}/journal.db") == "root 600"
    machine.path(OF_ROOT).unlink()


def owners(machine: Booted) -> list[str]:
    files = ("journal.db", "journal.db-wal", "daemon.lock", "wake")
    return machine.says("stat", "-c", "%U", STATE, *(f"{STATE}/{name}" for name in files)).split()


def is_slurms(machine: Booted) -> None:
    """The daemon is SlurmUser's, has its files, reads its secrets, and nobody beside it does."""
    (daemon, _) = pids(machine)
    assert machine.says("ps", "-o", "user=", "-p", daemon).strip() == "slurm"
    assert set(owners(machine)) == {"slurm"}
    for path, mode in ((YAML, "640"), (TOKEN, "640")):
        assert machine.says("stat", "-c", "%U %G %a", path) == f"root slurm {mode}"
    answer = read_user_check(machine)
    assert answer["verdict"] == "ok", answer
    machine.says("chmod", "0644", TOKEN)
    assert TOKEN in read_user_check(machine)["what"]
    machine.says("chmod", "0600", TOKEN)
    assert read_user_check(machine)["verdict"] == "fail"
    machine.says("hpctl", "install", "daemon-user")
    assert read_user_check(machine)["verdict"] == "ok"
    # A daemon that somebody started by hand as root.
    machine.write(f"{STATE}/alerts.json", "{}", 0o600)
    assert "chown root:" in read_user_check(machine)["fix"]
    machine.path(f"{STATE}/alerts.json").unlink()
    machine.write(OF_ROOT, "[Service]\nUser=munge\n")
    machine.says("systemctl", "daemon-reload")
    assert "as munge, and SlurmUser is slurm" in read_user_check(machine)["what"]
    machine.path(OF_ROOT).unlink()
    machine.says("systemctl", "daemon-reload")


def read_user_check(machine: Booted) -> dict[str, str]:
    """What `hpctl doctor` says of the daemon's user."""
    checks = json.loads(machine.run("hpctl", "doctor", "--json")[1])["checks"]
    return next(check for check in checks if check["name"] == "daemon's user")


def removed(machine: Booted) -> None:
    """Gone but for the journal, and Slurm none the worse."""
    machine.says("dpkg", "--remove", "hpctl")
    assert "hpctl" not in machine.says("systemctl", "list-units", "--plain", "hpctl*")
    assert "/opt/hpctl" not in machine.says("scontrol", "show", "config")
    assert machine.path("/var/lib/hpctl/journal.db").stat().st_size > 0
    assert machine.says("systemctl", "is-system-running") == "running"


def test_a_recovery_that_is_open_continues_after_an_upgrade(machine, packages):
    old, new = (give(machine, package) for package in packages)
    set_up(machine, old)
    job = machine.says("sbatch", "--parsable", "--no-requeue", "--wrap", "sleep 300")
    eventually(lambda: machine.says("squeue", "-ho", "%T") == "RUNNING")
    report(machine, "fail")
    eventually(lambda: machine.says("sinfo", "-hn", NODE, "-o", "%T") in ("draining", "draining@"))
    before, open_ = pids(machine), recovery(machine)
    assert open_["phase"] == "cordoned"

    as_before(machine)
    machine.says("dpkg", "--install", new)
    assert machine.says("hpctl", "--version") == "hpctl, version 0.1.1"
    after = pids(machine)
    assert "0" not in after
    assert not set(before) & set(after)
    assert machine.says("squeue", "-ho", "%i %T") == f"{job} RUNNING"
    is_slurms(machine)
    machine.says("scancel", job)
    eventually(lambda: (recovery(machine) or {})["phase"] == "remedying")
    # What a reboot is to the daemon, and the disk is empty again.
    report(machine, "ok")
    machine.write(BOOT_ID, "22222222-2222-4222-8222-222222222222\n")
    machine.says("systemctl", "restart", "hpctl-agent")

    with contextlib.suppress(AssertionError):
        eventually(lambda: (recovery(machine) or {})["ended"], within=40)
    ended = recovery(machine) or {}
    assert ended["ended"], machine.run("hpctl", "nodes", NODE, "--json")[1]
    assert (ended["id"], ended["phase"]) == (open_["id"], "returned")
    assert machine.says("sinfo", "-hn", NODE, "-o", "%T") == "idle"
    # What runs on from before the upgrade keeps its files; what is older goes.
    assert len(machine.says("ls", "/opt/hpctl/versions").split()) == 2

    machine.says("systemctl", "disable", "--now", "hpctl-agent")
    machine.says("dpkg", "--install", old)
    daemon, agent = pids(machine)
    assert daemon not in ("0", *before, *after)
    assert agent == "0"  # who was stopped is not started
    removed(machine)
