"""The daemon as its unit runs it: SlurmUser, no capability, no way to more. It heals a node."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctl.wire.heads import SLURM_USER
from tests.live import until
from tests.process import run_text

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]

BARE = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
Hpctl = Callable[..., Any]


def user() -> list[str]:
    """What makes a command SlurmUser's without capabilities. Where that user cannot read this
    checkout, it stays root's, and root without capabilities is a user like any other."""
    if os.geteuid() != 0:
        return []
    slurm = pwd.getpwnam(SLURM_USER)
    whole = [*BARE, f"--reuid={slurm.pw_uid}", f"--regid={slurm.pw_gid}", "--clear-groups"]
    tried = subprocess.run(
        [*whole, sys.executable, "-P", "-c", "import hpctl.cli.main"], check=False, timeout=60
    )
    return whole if tried.returncode == 0 else BARE


@pytest.fixture
def hpctl():
    """hpctl beside a sandbox of that user's; all of the sandbox is theirs."""
    who, home = user(), Path(tempfile.mkdtemp(prefix="hpb-", dir="/tmp"))
    home.chmod(0o711)
    if any(word.startswith("--reuid") for word in who):
        shutil.chown(home, SLURM_USER, SLURM_USER)
    # Close to the root: a socket's path is short.
    env = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_STATE_HOME")}
    env |= {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}

    def run(*text: str, check: bool = True):
        done = run_text([*who, sys.executable, "-P", "-m", "hpctl", *text], env=env, cwd=home)
        assert not check or done.returncode == 0 or done.stdout, done.stderr
        return json.loads(done.stdout) if "--json" in text else done.stdout

    try:
        up = ("up", "--name=bare", "--nodes=3", "--mode=own", "--daemon", "--no-moto", "--json")
        run("sandbox", *up)
        for line in run("sandbox", "env", "--name=bare").splitlines():
            key, _, value = line.removeprefix("export ").partition("=")
            env[key] = value.strip("'")
        yield run
    finally:
        run("sandbox", "down", "--name=bare", check=False)
        shutil.rmtree(home, ignore_errors=True)


def daemons() -> list[Path]:
    """The processes of the daemon of this sandbox, its intake's among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"hpctl\0daemon\0run" in line and b"/tmp/hpb-" in line:
            found.append(process)
    return found


def test_unprivileged_daemon_heals_a_node(hpctl: Hpctl) -> None:
    (daemon,) = daemons()
    status = dict(
        line.split(":\t", 1)
        for line in (daemon / "status").read_text().splitlines()
        if ":\t" in line
    )
    if os.geteuid() == 0:
        assert (
            int(status["CapEff"], 16) == int(status["CapBnd"], 16) == int(status["CapPrm"], 16) == 0
        )
        assert status["NoNewPrivs"] == "1"
    node = hpctl("nodes", "--json")["nodes"][0]["name"]
    hpctl("sandbox", "inject", "--name=bare", node, "xid", "79")

    def healed() -> bool:
        rows = hpctl("recoveries", "--all", "--json")["nodes"]
        return any(row["node"] == node and row["phase"] == "returned" for row in rows)

    until(healed, 120, "the node is replaced or rebooted, and back")
