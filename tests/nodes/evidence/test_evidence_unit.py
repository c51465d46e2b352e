"""Every collector under the agent's unit as shipped, on a machine that systemd has booted.

Of NVIDIA's and Mellanox's programs, stand-ins are there, which need what the real ones need. The
machine's own journalctl, systemctl, ps and logger are real.
"""

import json
import shutil
import tarfile
from pathlib import Path

import msgspec
import pytest

import hpctl
from tests.clusters.lifecycle import booted
from tests.clusters.lifecycle.booted import Booted
from tests.nodes.evidence.test_gather import SAYS, SECRETS

MISSING = booted.missing()

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"THE AGENT'S UNIT IS NOT TESTED: {MISSING}"),
]

UNIT = Path(__file__).resolve().parents[3] / "lifecycle_scripts/systemd/hpctl-agent.service"
LIBRARY = "/opt/hpctl/library"
PLACE = "/fsx/hpctl/evidence"
RESULTS = "/var/lib/hpctl/agent/answers.json"

# The agent's own code in the agent's place: it keeps evidence in the directory, and then for S3.
KEEP = """
import json, os, sys, threading
from pathlib import Path
from hpctl.detection.config import AgentConfig, EvidenceStorageConfig
from hpctl.detection.settings import AgentSettings
from hpctl.nodes.evidence.agent import NodeEvidenceRunner
from hpctl.vocabulary.evidence import EvidenceCollectionOrder
from hpctl.vocabulary.identity import NodeGeneration

answers = {}
commands = {"ethtool": ["/usr/local/bin/read-counters"]}
for recovery, place in (("n-1", "/fsx/hpctl/evidence"), ("n-2", "s3://no-such-bucket/evidence")):
    config = AgentConfig(evidence=EvidenceStorageConfig(directory=place, commands=commands))
    settings = AgentSettings((), "n1", "i-1", "boot-1", config=config)
    done = threading.Event()
    def report(found):
        answers[found[0].device] = [found[0].code, found[0].detail, found[0].evidence]
        done.set()
    order = EvidenceCollectionOrder(
        recovery, NodeGeneration("n1", "i-1", "boot-1"), 2e9, 1.7e9, "reboot",
        "xid-79:\\noff the bus",
    )
    NodeEvidenceRunner(settings, report, ()).begin(order)
    assert done.wait(100)
Path("/var/lib/hpctl/agent/answers.json").write_text(json.dumps(answers))
"""

DROP_IN = f"""
[Service]
Type=oneshot
Restart=no
WatchdogSec=0
ExecStart=
ExecStart=/usr/bin/python3 -c 'exec(open("/srv/keep.py").read())'
Environment=PYTHONPATH={LIBRARY}
"""

PYTHON = "#!/usr/bin/python3\n"
# dmesg needs CAP_SYSLOG where kernel.dmesg_restrict is set; this action of syslog(2) always does.
DMESG = (
    PYTHON
    + """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print("unread" if libc.klogctl(9, None, 0) >= 0 else os.strerror(ctypes.get_errno()))
"""
)
# The driver's devices are opened for reading and writing; NVIDIA's tools speak over local sockets.
NVIDIA_SMI = (
    PYTHON
    + """
import os, socket
os.close(os.open("/dev/null", os.O_RDWR))
socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()
print("driver open")
"""
)
# DCGM's daemon listens on loopback, here on no port: refused, and not forbidden.
DCGMI = (
    PYTHON
    + """
import socket
try:
    socket.create_connection(("127.0.0.1", 5555), 2)
except ConnectionRefusedError:
    print("refused")
"""
)
# rdma(8) asks the kernel over netlink, without a capability.
RDMA = (
    PYTHON
    + """
import socket
one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
one.bind((0, 0))
print("netlink bound")
"""
)
# ETHTOOL_GSTATS is allowed to everybody (net/core/dev_ioctl.c): lo has none, which is no EPERM.
ETHTOOL = (
    PYTHON
    + """
import errno, fcntl, socket, struct, ctypes
counters = ctypes.create_string_buffer(struct.pack("III", 0x1d, 0, 0), 64)
wanted = struct.pack("16sP", b"lo", ctypes.addressof(counters)) + bytes(16)
try:
    fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, wanted)
except OSError as error:
    print("forbidden" if error.errno == errno.EPERM else "asked")
"""
)
# More than 64 bytes of a device's configuration need CAP_SYS_ADMIN (drivers/pci/pci-sysfs.c).
LSPCI = (
    PYTHON
    + """
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print("whole" if int(status["CapEff"], 16) >> 21 & 1 else "first 64 bytes")
"""
)
BUG_REPORT = f"""#!/bin/sh
[ "$(id -u)" = 0 ] || {{ echo not root; exit 1; }}
while [ "$1" != --output-file ]; do shift; done
{{
  {SAYS}
  touch here && echo "working directory written"
  scratch=$(mktemp) && echo "temporary file written"
  cat /var/log/nvidia-installer.log && echo "log of another user read"
  touch /usr/lib/nvidia 2>&1 || echo "system not written"
  cat /proc/1/mountinfo > /dev/null && echo "mounts of systemd read"
  env
}} > "$2"
gzip "$2"
"""
PROGRAMS = {
    "dmesg": DMESG, "nvidia-smi": NVIDIA_SMI, "dcgmi": DCGMI, "rdma": RDMA, "lspci": LSPCI,
    "nvidia-bug-report.sh": BUG_REPORT,
}  # fmt: skip


def furnish(machine: Booted) -> None:
    """Install hpctl's code, the unit as shipped, and the stand-ins."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyi")
    for package in (hpctl, msgspec):
        source = Path(package.__file__).parent
        shutil.copytree(source, machine.path(f"{LIBRARY}/{source.name}"), ignore=ignore)
    for name, body in PROGRAMS.items():
        machine.path(f"/usr/sbin/{name}").unlink(missing_ok=True)
        machine.write(f"/usr/sbin/{name}", body, 0o755)
    machine.write("/usr/local/bin/read-counters", ETHTOOL, 0o755)
    machine.write("/var/log/nvidia-installer.log", "installed\n", 0o600)
    machine.says("chown", "games:", "/var/log/nvidia-installer.log")
    machine.says("install", "-d", "-m", "0770", PLACE)
    machine.write("/etc/hpctl/agent.env", "HPCTL_AGENT_HEAD=http://127.0.0.1:8470\n")
    machine.write("/srv/keep.py", KEEP)
    machine.write("/etc/systemd/system/hpctl-agent.service", UNIT.read_text())
    machine.write("/etc/systemd/system/hpctl-agent.service.d/test.conf", DROP_IN)
    machine.says("logger", "--tag", "driver", "a line of the journal")
    machine.says("systemctl", "daemon-reload")


def read_texts(path: Path) -> dict[str, str]:
    with tarfile.open(path) as packed:
        return {
            Path(m.name).stem: packed.extractfile(m).read().decode() for m in packed.getmembers()
        }


@pytest.mark.timeout(600)
def test_every_collector_works_under_the_unit_and_the_node_says_why(tmp_path):
    with Booted(tmp_path / "n", "10.9.1.30", tmp_path / "shared") as machine:
        furnish(machine)
        code, said = machine.run("systemctl", "start", "hpctl-agent.service")
        assert code == 0, said + machine.run("journalctl", "-u", "hpctl-agent.service")[1]
        answers = json.loads(machine.path(RESULTS).read_text())
        code, detail, _ = answers["n-1"]
        assert code == "kept", detail
        texts = read_texts(machine.path(f"{PLACE}/n-1.tar.gz"))
        assert texts["dmesg"] == "unread\n"
        assert texts["nvidia-smi"] == "driver open\n"
        assert texts["dcgm-health"] == texts["dcgm-discovery"] == "refused\n"
        assert texts["rdma"] == "netlink bound\n"
        assert texts["site-ethtool"] == "asked\n"
        # The two that the unit keeps from it; docs/evidence.md says so.
        assert texts["lspci"] == "first 64 bytes\n"
        assert "nvidia-fabricmanager.service could not be found" in texts["fabricmanager"]
        assert "a line of the journal" in texts["journal"]
        assert "systemd" in texts["processes"]
        report = texts["nvidia-bug-report"]
        for line in (
            "working directory written", "temporary file written", "log of another user read",
            "system not written", "mounts of systemd read",
        ):  # fmt: skip
            assert line in report
        assert not any(secret in text for text in texts.values() for secret in SECRETS)
        # The archive for S3 waits in the spool, which the unit lets the agent write to.
        code, detail, _ = answers["n-2"]
        left = machine.path("/var/lib/hpctl/agent/evidence/n-2.tar.gz")
        assert code == "not_kept"
        assert "no S3 client" in detail
        assert "/var/lib/hpctl/agent/evidence/n-2.tar.gz" in detail
        assert "dmesg" in read_texts(left)
        # What `logger` would say: who reboots this node, and why; one line for each order.
        lines = machine.says("journalctl", "--output=cat", "-t", "hpctl-agent").splitlines()
        assert lines == [
            f"hpctl is about to reboot this node: recovery {name}, xid-79:\ufffdoff the bus"
            for name in ("n-1", "n-2")
        ]
        assert machine.path(f"{PLACE}/n-1.tar.gz").stat().st_size > 500
        assert [p.name for p in machine.path(PLACE).iterdir()] == ["n-1.tar.gz"]
        _try_without_syslog(machine)


def _try_without_syslog(machine: Booted) -> None:
    """The capability is what the unit gives dmesg: without it the same run has an error in its
    place."""
    machine.path(f"{PLACE}/n-1.tar.gz").unlink()
    lacking = "[Service]\nCapabilityBoundingSet=~CAP_SYSLOG\n"
    machine.write("/etc/systemd/system/hpctl-agent.service.d/z.conf", lacking)
    machine.says("systemctl", "daemon-reload")
    machine.says("systemctl", "start", "hpctl-agent.service")
    texts = read_texts(machine.path(f"{PLACE}/n-1.tar.gz"))
    assert texts["dmesg"] == "Operation not permitted\n"
