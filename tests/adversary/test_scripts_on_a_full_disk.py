"""Prolog, EpilogSlurmctld and HealthCheckProgram on a node whose disk a user has filled.

A Prolog or a HealthCheckProgram that fails drains the node, and a Prolog fails the job too. So they
fail for no full disk, wherever they may want to write: stdout, stderr, $TMPDIR, the directory that
they run in.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.adversary.bed import drop

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("prolog.sh", "epilog_slurmctld.sh", "health_check.sh")
REAL = f'cd {ROOT} && exec {sys.executable} -m hpctl "$@"'
"""hpctl as it is; no agent runs."""
FAULTY = "echo n1 is faulty: Xid 79; exit 1"
BROKEN = "exec /nonexistent/python"
FILL = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        file.write(bytes(65536))
"""


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small disk without room, which an unprivileged user has filled."""
    point = Path(tempfile.mkdtemp(prefix="hpctl-full-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=8,mode=1777", "tmpfs", str(point)]
    subprocess.run(mount, check=True)
    try:
        fill = ["/usr/bin/python3", "-I", "-c", FILL, str(point / "ballast")]
        done = subprocess.run(fill, capture_output=True, text=True, check=False, **drop())
        assert "No space left" in done.stderr
        with suppress(OSError):
            for number in range(16):
                (point / f"file-{number}").touch()
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)
        point.rmdir()


@pytest.mark.parametrize("body", [REAL, FAULTY, BROKEN], ids=["real", "faulty", "broken"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_slurm_s_fails_no_job_and_drains_no_node(
    script: str, body: str, disk: Path, tmp_path: Path
) -> None:
    hpctl = tmp_path / "hpctl"
    hpctl.write_text(f"#!/bin/sh\n{body}\n")
    hpctl.chmod(0o755)
    (tmp_path / "slurm.conf").write_text("SchedulerParameters=defer\n")
    environ = {
        "PATH": os.environ["PATH"],
        "HPCTL": str(hpctl),
        "HPCTL_AGENT_SOCKET": str(disk / "agent.sock"),
        "HPCTL_STATE_DIR": str(disk),
        "HOME": str(disk),
        "TMPDIR": str(disk),
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "SLURM_JOB_STDIN": "/dev/null",
    }
    # Without O_CREAT: where fs.protected_regular is 2, as Debian sets it, root may not give it for
    # another user's file in such a directory (proc(5)).
    with open(os.open(disk / "ballast", os.O_WRONLY | os.O_APPEND), "ab") as said:
        done = subprocess.run(
            [str(ROOT / "slurm_plugins" / script)],
            env=environ,
            cwd=disk,
            stdout=said,
            stderr=said,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0
