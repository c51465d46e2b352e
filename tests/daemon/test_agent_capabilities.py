"""The agent's unit: each capability that it has is used, and each feature has what it needs.

A test that runs as root has all capabilities and hides one that the unit lacks, so that the
features run here with those of the unit alone.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "lifecycle_scripts/systemd/hpctl-agent.service"
OTHER = 65534

FEATURES = {
    # Results of acceptance tests are written by the daemon's user.
    "CAP_CHOWN": """
from hpctl.nodes.acceptance import result
result.list_trusted_head_node_uids = lambda: {0, 65534}
result.AcceptanceResultInbox(place / "spool").prepare()
folder = place / "spool" / result.FOLDER
assert folder.stat().st_uid == 65534, folder.stat()
""",
    # The kernel's log, as dmesg reads it: how much is unread, which asks for the capability whether
    # kernel.dmesg_restrict is set or not (kernel/printk/printk.c, check_syslog_permissions).
    "CAP_SYSLOG": """
import ctypes
SIZE_UNREAD = 9
assert ctypes.CDLL(None).klogctl(SIZE_UNREAD, None, 0) >= 0
""",
    # A user's process that holds a GPU is ended before the GPU's reset.
    "CAP_KILL": """
import os, signal
os.kill(other, signal.SIGTERM)
""",
    # A folder that is closed to others.
    "CAP_DAC_READ_SEARCH": """
assert (place / "closed/file").read_text() == "yes"
""",
    # The program of another user's process, and where it sleeps in the kernel.
    "CAP_SYS_PTRACE": """
import os
assert os.path.basename(os.readlink(f"/proc/{other}/exe")) == "sleep"
open(f"/proc/{other}/wchan").read()
""",
}


def capabilities_of_unit() -> set[str]:
    """Return what the unit as shipped keeps of root's powers."""
    for line in UNIT.read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "CapabilityBoundingSet":
            return set(value.split())
    raise AssertionError(f"{UNIT} bounds no capabilities")


def try_feature(feature: str, place: Path, other: int, kept: set[str]) -> bool:
    """Return whether a feature works for root with these capabilities and no others."""
    names = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in sorted(kept))
    bare = ["setpriv", f"--bounding-set=-all,{names}", "--inh-caps=-all", "--no-new-privs"]
    start = f"from pathlib import Path\nplace, other = Path({str(place)!r}), {other}\n"
    done = subprocess.run(
        [*bare, sys.executable, "-c", start + FEATURES[feature]],
        check=False,
        timeout=120,
        capture_output=True,
    )
    return done.returncode == 0


@pytest.fixture
def place(tmp_path):
    """A directory with one folder that is closed to root without its powers."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "file").write_text("yes")
    for path in (closed / "file", closed):
        path.chmod(0o700)
        os.chown(path, OTHER, OTHER)
    return tmp_path


@pytest.fixture
def other():
    """A process of another user."""
    with subprocess.Popen(["sleep", "600"], user=OTHER, group=OTHER, extra_groups=[]) as started:
        yield started.pid
        started.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="the capabilities are root's")
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_has_the_capability_that_it_needs(feature, place, other):
    kept = capabilities_of_unit()
    assert not try_feature(feature, place, other, kept - {feature})
    assert try_feature(feature, place, other, kept)


def test_each_capability_is_of_a_feature():
    assert capabilities_of_unit() == {*FEATURES}
