"""Whether another daemon, of another state directory, works on the same cluster.

The lock of a state directory and the lease of a shared database tell daemons that share either from
each other. Two that share neither still share slurm.conf: each daemon holds an advisory lock on it.
Whoever may read the file may lock it, so that a lock is a reason to say so, and none to stand by.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

DEFAULT_CONF = Path("/etc/slurm/slurm.conf")


class Alone:
    """The lock of one cluster's slurm.conf, kept until the process ends."""

    def __init__(self, conf: Path | None) -> None:
        self._conf = conf or Path(os.environ.get("SLURM_CONF") or DEFAULT_CONF)
        self._fd = -1

    @property
    def trouble(self) -> str:
        """What to tell the operator; empty while no other daemon is known of."""
        if self._fd >= 0:
            return ""
        with contextlib.suppress(OSError):
            fd = os.open(self._conf, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return (
                    f"another process holds {self._conf}: if it is an hpctl daemon with another"
                    f" state_dir, both act on this cluster; stop one (fuser -v {self._conf})"
                )
            except OSError:
                os.close(fd)  # a file system without locks: nothing is known
                return ""
            self._fd = fd
        return ""

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
