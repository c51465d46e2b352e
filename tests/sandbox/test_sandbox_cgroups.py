"""The sandbox starts whatever the machine's cgroups are: v1 and hybrid, or v2 as in a container.

On a machine with cgroup v2 and systemd there is a system bus as well, at which slurmd can ask for a
scope. With the sandbox's cgroup.conf it asks nobody.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import become_ordinary_user, room, run_text
from tests.stubs.container import container

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and become somebody else"),
]

ROOT = Path(__file__).resolve().parents[2]

SESSION = """
hpctl() { "$PYTHON" -m hpctl sandbox "$@"; }
trap 'hpctl down >&2' EXIT
hpctl up --nodes 2 >&2
eval "$(hpctl env)"
state=${SLURM_CONF%/etc/slurm.conf}
srun -N2 --gres=gpu:8 true
srun -N1 --gres=gpu:8 sh -c 'echo "step $(id -u) $(cat /proc/self/cgroup)"'
out="$XDG_STATE_HOME/job.out"
job=$(sbatch --parsable -D / -o "$out" --gres=gpu:8 --wrap 'echo "job $(id -u)"')
ended='JobState=\\(COMPLETED\\|FAILED\\)'
until scontrol show job "$job" | grep -o "$ended"; do sleep 0.2; done
cat "$out"
"""
"""A user's session: a sandbox, a step on both nodes, a batch job to its end, and `down`."""

WITHOUT_CGROUP_CONF = """
mkdir "$XDG_STATE_HOME/etc" "$XDG_STATE_HOME/spool"
cp "$state/etc/gres.conf" "$XDG_STATE_HOME/etc"
sed "s|$state/spool|$XDG_STATE_HOME/spool|" "$SLURM_CONF" >"$XDG_STATE_HOME/etc/slurm.conf"
code=0
timeout 30 slurmd -D -N ip-127-0-1-1 -f "$XDG_STATE_HOME/etc/slurm.conf" >&2 || code=$?
echo "slurmd alone $code"
"""
"""The same slurmd with no cgroup.conf beside its slurm.conf: what the sandbox did before."""


COUNT_CONNECTIONS = """
echo "connections: $(wc -l <"$XDG_STATE_HOME/connections")"
"""


class Bus:
    """A system bus that closes every connection, and writes a line to `connections` for each."""

    def __init__(self, path: Path) -> None:
        self._connections = path.with_name("connections")
        self._connections.touch()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        path.chmod(0o777)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with self._connections.open("a") as log:
                    log.write("one\n")
                connection.close()


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that the sandbox's user may write to."""
    with room() as path:
        path.chmod(0o1777)
        yield path


def session(home: Path, script: str, become: list[str], **env: str) -> tuple[list[str], str]:
    """Run a script in a container; the lines it printed, and what it said besides."""
    with container(home) as inside:
        done = run_text(
            inside.command([*become, "sh", "-ec", script]),
            timeout=150,
            cwd="/",
            env={
                **os.environ,
                **env,
                "PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "HOME": "/nonexistent",
                "XDG_STATE_HOME": str(home),
            },
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr


def ran(uid: int) -> list[str]:
    """What SESSION prints when all went well."""
    return [f"step {uid} 0::/", "JobState=COMPLETED", f"job {uid}"]


@pytest.mark.parametrize(
    ("become", "uid"),
    [pytest.param([], 0, id="root"), pytest.param(become_ordinary_user(), 1, id="ordinary user")],
)
def test_it_starts_in_a_container_and_runs_jobs(home, become, uid):
    printed, said = session(home, SESSION + WITHOUT_CGROUP_CONF, become)
    assert printed == [*ran(uid), "slurmd alone 1"], said
    # Without the file slurmd ends there: the container is one that needs it.
    assert "for slurmstepd could not be set" in said


def test_slurmd_asks_no_systemd_where_there_is_one(home):
    Bus(home / "bus")
    script = SESSION + COUNT_CONNECTIONS + WITHOUT_CGROUP_CONF + COUNT_CONNECTIONS
    where = f"unix:path={home}/bus"
    printed, said = session(home, script, [], DBUS_SYSTEM_BUS_ADDRESS=where)
    # Without the file it asks, so that a question before that would have been counted.
    alone = ["connections: 0", "slurmd alone 1", "connections: 1"]
    assert printed == [*ran(0), *alone], said
