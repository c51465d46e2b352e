"""Every user of the cluster reads what hpctl knows, and none can touch the journal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adversary.bed import STRANGER, Siege, attack, drop
from tests.live import until
from tests.process import run_text

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(300),
]

READS = (
    ("status",),
    ("nodes",),
    ("jobs",),
    ("recoveries",),
    ("cluster", "forecast"),
    ("journal", "audit"),
)
# What a package below somebody's home needs is imported before the user is changed.
AS_USER = """
import json, os, sys
from click.testing import CliRunner
from hpctl.cli.main import cli
from hpctl.wire import heads
from hpctl.wire import munge
asked, uid = json.loads(sys.argv[1]), int(sys.argv[2])
for words in asked:
    CliRunner().invoke(cli, words)
if os.geteuid() == 0:
    import hpctl.slurm.cli, http.client
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
print(json.dumps([[r.exit_code, r.output, repr(r.exception)]
    for r in (CliRunner().invoke(cli, words) for words in asked)]))
"""


def reads(siege, *asked):
    """Commands as the stranger runs them: exit code, output and exception of each."""
    config = {"HPCTL_CONFIG": str(siege.sandbox.spec.layout.config)}
    done = run_text(
        [sys.executable, "-P", "-c", AS_USER, json.dumps(asked), str(STRANGER.pw_uid)],
        env={**os.environ, **siege.sandbox.exports, **config},
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def closed(siege: Siege) -> Path:
    """The daemon's state directory with the modes of its unit: StateDirectoryMode and UMask."""
    home = siege.sandbox.spec.layout.daemon
    home.chmod(0o711)
    for file in home.glob("journal.db*"):
        file.chmod(0o600)
    return home


def test_a_user_reads_what_root_reads(siege: Siege, closed: Path) -> None:
    if os.geteuid() == 0:
        assert attack("write", path=str(closed / "journal.db"), text="") == "PermissionError"
    node = siege.sandbox.nodes[0]
    for words, (code, text, error) in zip(
        (*READS, ("explain", node)), reads(siege, *READS, ("explain", node)), strict=True
    ):
        assert code in (0, 1), (words, text, error)
        assert error == "None" or error.startswith("SystemExit"), (words, error)
        assert text


@pytest.mark.nightly
def test_what_a_user_reads_is_of_now(siege: Siege, closed: Path) -> None:
    siege.live.hpctl("pause")
    try:
        until(
            lambda: "pause" in reads(siege, ("journal", "audit"))[0][1],
            10,
            "the copy has the request",
        )
    finally:
        siege.live.hpctl("unpause")


@pytest.mark.nightly
def test_a_lock_on_the_copy_delays_nothing(siege: Siege, closed: Path) -> None:
    """On the journal itself the same lock keeps the daemon from writing."""
    copy = closed / "public" / "journal.db"
    reads(siege, ("status",))
    before = copy.stat().st_ino
    code = f"import fcntl,time; fcntl.lockf(open({str(copy)!r}),1); print(1, flush=True)"
    code = f"{code}; time.sleep(60)"
    command = [os.path.realpath(sys.executable), "-I", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/", **drop()) as holder:
        try:
            assert holder.stdout.readline() == b"1\n"
            if os.geteuid() == 0:
                until(lambda: _newer(siege, copy, before), 15, "a copy in place of the locked one")
            siege.holds()
        finally:
            holder.kill()
    if os.geteuid() == 0:
        assert attack("write", path=str(copy), text="") == "PermissionError"


def _newer(siege: Siege, copy: Path, before: int) -> bool:
    return reads(siege, ("status",))[0][0] in (0, 1) and copy.stat().st_ino != before
