"""The keeper: the small process above a sandbox that outlives its death by a moment.

    python -m hpctl.sandbox.keeper STATE COMMAND...

It starts the supervisor, adopts whatever the supervisor's tree loses, and when the supervisor
is gone, for whatever reason, kills all that is left and ends. Its standard input is the
lifeline: end of file before the line `detach` means that the starter died, and so does the
sandbox. If the keeper itself is killed, the supervisor gets SIGTERM and ends the sandbox.
"""

import os
import select
import signal
import subprocess
import sys

from hpctl.sandbox.proctree import become_subreaper, kill_descendants

GRACE_S = 15.0


def main(command: list[str]) -> int:
    """Run the supervisor to its end and leave nothing of it; its exit status."""
    become_subreaper()
    os.umask(0o022)  # munged and slurmctld refuse directories that a group may write to
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    ended = False

    def record_termination_signal(number: int, _frame: object) -> None:
        nonlocal ended
        ended = ended or number != signal.SIGCHLD

    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, record_termination_signal)
    # Popen's own wait would race with reaping adopted orphans, so pids are reaped by number.
    supervisor = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
    lifeline = [0]
    status: int | None = None
    while status is None and not ended:
        ready, _, _ = select.select([wake_read, *lifeline], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        if lifeline and 0 in ready:
            word = os.read(0, 64)
            ended = not word
            lifeline = []
        status = _reap_zombies(supervisor)
    if status is None:
        os.kill(supervisor, signal.SIGTERM)
        signal.alarm(int(GRACE_S))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(supervisor, signal.SIGKILL))
        status = _wait_for_supervisor(supervisor)
    kill_descendants(os.getpid())
    return status


def _reap_zombies(supervisor: int) -> int | None:
    """Collect every zombie; the supervisor's exit code if it was among them."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == supervisor:
            status = os.waitstatus_to_exitcode(raw)


def _wait_for_supervisor(supervisor: int) -> int:
    while True:
        pid, raw = os.waitpid(-1, 0)
        if pid == supervisor:
            signal.alarm(0)
            return os.waitstatus_to_exitcode(raw)


if __name__ == "__main__":
    sys.exit(abs(main(sys.argv[2:])))
