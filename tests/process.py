"""Commands as the tests run them: to their end, bounded in time, with their output as text."""

import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from hpctl.sandbox.spec import find_free_sandbox_ports
from tests.waiting import PATIENCE_S


def run_text(args, timeout=60, check=False, **more):
    """`subprocess.run` with the output captured as text."""
    return subprocess.run(
        args, timeout=timeout, check=check, capture_output=True, text=True, **more
    )


def free_port() -> int:
    """Return a TCP port that no process listens on, and that none gets before it is bound.

    A port of the kernel's choice (bind to 0) may be the source of an outgoing connection or the
    choice of another test a moment later. This one is claimed, with its neighbors, as a sandbox
    claims its own.
    """
    return find_free_sandbox_ports(0).slurmctld


def promtool(*arguments, timeout=120, **more) -> str:
    """What Prometheus' own judge says of something that it must find sound."""
    found = shutil.which("promtool")
    assert found, "make test-packages installs it"
    done = run_text([found, *arguments], timeout=timeout, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def room():
    """A directory that other users may enter, with a path short enough for unix sockets: pytest's
    own are neither."""
    path = Path(tempfile.mkdtemp(prefix="hpctl-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def become_ordinary_user() -> list[str]:
    """What goes before a command that root runs as an ordinary user, `daemon`.

    It may read our interpreter and checkout, which may lie in root's home, and nothing more.
    """
    somebody = pwd.getpwnam("daemon")  # on every Debian; Slurm 26.05 refuses `nobody`
    read = "+dac_read_search"
    identity = [f"--reuid={somebody.pw_uid}", f"--regid={somebody.pw_gid}", "--clear-groups"]
    return ["setpriv", *identity, f"--inh-caps={read}", f"--ambient-caps={read}", "--"]


def ended(pid: int) -> bool:
    """Killed by us; a zombie that init has not yet reaped is dead too."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # the second: it ends while it is read
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
