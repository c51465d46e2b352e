"""One daemon for a state directory, and one for a cluster: advisory locks."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from hpctl.toolkit.errors import HpctlError
from hpctl.wire.heads import find_slurm_conf


class DaemonAlreadyRunningError(HpctlError):
    """Another daemon works in this state directory, or on this cluster.

    The lock of a state directory and the lease of a shared database tell daemons that share either
    from each other. Two that share neither still share slurm.conf: each holds an advisory lock on
    it. A user who may read the file may lock it, and would keep hpctl from starting: only where
    /proc/locks shows that the holder is an hpctl daemon of root's or of our own user is the second
    one refused. Any other holder, one on another host with the same file over NFS among them, is
    reported.
    """


def lock_state_dir(state_dir: Path) -> IO[str]:
    """Take the directory's advisory lock; kept until the process ends. Raises
    DaemonAlreadyRunningError, OSError."""
    state_dir.mkdir(parents=True, exist_ok=True)
    # Where root starts a daemon in another user's directory, a link there leads nowhere.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(state_dir / "daemon.lock", flags, 0o666)
    handle = os.fdopen(descriptor, "r+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = handle.read().strip() or "another process"
        handle.close()
        raise DaemonAlreadyRunningError(
            f"cannot start: another hpctl daemon uses the directory {state_dir}: {holder}",
            "stop the other daemon: only one can use a state directory",
        ) from None
    _write_lock_holder_identity(descriptor)
    return handle


def _write_lock_holder_identity(descriptor: int) -> None:
    """Write who holds a lock, over what was there: a full disk has no block for it elsewhere. Where
    it cannot be written, the lock holds all the same."""
    text = f"pid {os.getpid()} on {socket.gethostname()}\n".encode()
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))


class SlurmClusterLock:
    """The lock of one cluster's slurm.conf, kept until the process ends."""

    def __init__(self, conf: Path | None) -> None:
        """Take the lock where it is free. Raises DaemonAlreadyRunningError where another daemon has
        it."""
        self._conf = conf
        self._fd = -1
        trouble = self.trouble
        daemon = _find_locking_daemon(self._conf) if self._conf and trouble else ""
        if daemon:
            raise DaemonAlreadyRunningError(
                f"cannot start: another hpctl daemon (pid {daemon}) works on the cluster of "
                f"{self._conf},"
                " with another state_dir",
                f"only one daemon may work on a cluster; look at the other one (ps -fp {daemon}) "
                "and stop one of them",
            )

    @property
    def trouble(self) -> str:
        """Return what to tell the operator; empty while no other daemon is known of."""
        self._conf = self._conf or find_slurm_conf()
        if self._conf is None or self._is_slurm_conf_locked(self._conf):
            return ""
        self.close()
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

    def _is_slurm_conf_locked(self, conf: Path) -> bool:
        """Return whether the file is the one that was locked: slurmd and editors replace it by
        another."""
        with contextlib.suppress(OSError):
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), conf.stat())
        return self._fd >= 0

    def close(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _find_locking_daemon(conf: Path) -> str:
    """Return the process id of the hpctl daemon that has locked a file on this host; empty for
    none.

    Source: Linux, proc_locks(5): number, FLOCK, ADVISORY, WRITE, pid, major:minor:inode, range.
    The pid is 0 for a process of another namespace. Devices are not compared: overlayfs
    reports another one to stat(2).
    """
    with contextlib.suppress(OSError):
        inode = str(conf.stat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[1:2] != ["FLOCK"] or fields[5].rpartition(":")[2] != inode:
                continue
            process = Path("/proc", fields[4])
            with contextlib.suppress(OSError):
                ours = process.stat().st_uid in (0, os.geteuid())
                if ours and b"hpctl" in process.joinpath("cmdline").read_bytes():
                    return process.name
    return ""
