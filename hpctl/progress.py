"""Report a job's progress to its watchers: `from hpctl import progress; progress.step(n, loss=x)`.

Call it from any rank, at every step. It sends one line and waits for nothing: no thread, no lock,
no answer. Where `HPCTL_PROGRESS` is not set it does nothing. It never raises and never blocks: a
line that finds no reader, or a full socket, is dropped and counted, and the next one says how many
were. It may be called from threads and after a fork. The wire format and the other languages' ways
are in `docs/progress.md`; only the standard library is used, and nothing is imported that costs.

Where hpctl is not installed, the distribution hpctl-client has this file as `hpctl_client.progress`
(hence the relative import), and `hpctl checkpoint progress > hpctl_progress.py` makes one file of
it. Both are for Python 3.8 or later.

`HPCTL_PROGRESS` is `unix:/path` or `udp:ADDRESS:PORT,TOKEN` (datagrams), or `file:/path` (lines are
appended; a local file, since a write to a dead network file system would wait).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import SupportsFloat, SupportsInt

from .toolkit.token_bucket import TokenBucket

VARIABLE = "HPCTL_PROGRESS"
LONGEST = 1200
"""Bytes of a line: it fits one Ethernet frame, so that it arrives whole or not at all."""
RATE, BURST = 200.0, 400.0
"""Lines a second that a process sends, and how many at once. Steps of 5 ms go out one and all."""
FILE_RATE = 20.0
_VARIABLES_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_VARIABLES_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_VARIABLES_GPU = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS")


class Reporter:
    """Where one process's lines go. The module's functions use one made from `os.environ`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.dropped = 0
        """Lines that did not go out: the reader was not there, too slow, or too much was said."""
        self._lost = 0
        self._lines = TokenBucket(BURST, RATE)
        self._pid, self._who = 0, ""
        self._whose = _format_sender_identity(environ)
        self._head = ""
        self._write: Callable[[bytes], object] | None = None
        self._close: Callable[[], None] | None = None
        try:
            self._open(environ.get(VARIABLE, ""))
        except (OSError, ValueError, OverflowError):
            self.close()

    @property
    def on(self) -> bool:
        """Whether there is anywhere to send to."""
        return self._write is not None

    def close(self) -> None:
        """Let go of the socket or file: what is said from now on goes nowhere."""
        close, self._write, self._close = self._close, None, None
        if close is not None:
            close()

    def _open(self, address: str) -> None:
        kind, _, where = address.partition(":")
        if kind == "file" and where:
            # Not blocking, so that a FIFO without a reader is an error and not a wait.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(where, flags, 0o600)
            self._lines = TokenBucket(BURST, FILE_RATE)
            self._write = lambda line: os.write(fd, line)
            self._close = lambda: os.close(fd)
        elif kind in ("unix", "udp") and where:
            self._write = self._open_datagram_sender(kind, where)

    def _open_datagram_sender(self, kind: str, where: str) -> Callable[[bytes], object]:
        # Only where it is needed: it takes a millisecond, and most programs import it anyway.
        import socket

        if kind == "unix":
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            unix.setblocking(False)
            self._close = unix.close
            # By its path each time: a reader that was started again has the same path.
            return lambda line: unix.sendto(line, where)
        place, _, token = where.partition(",")
        host, _, port = place.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        udp = socket.socket(family, socket.SOCK_DGRAM)
        udp.setblocking(False)
        self._close = udp.close
        # Numeric only: a look-up in the DNS could wait.
        socket.inet_pton(family, host)
        udp.connect((host, int(port)))
        self._head = f"token={token} "
        return udp.send

    def step(
        self,
        n: SupportsInt,
        loss: SupportsFloat | None,
        tokens: SupportsFloat | None,
        numbers: Mapping[str, SupportsFloat],
    ) -> None:
        """Step `n` is done."""
        if self._write is None:
            return
        urgent = False
        text = f"step={int(n)}"
        if loss is not None:
            value = float(loss)
            # True of NaN and of both infinities: these are never held back.
            urgent = value - value != 0.0
            text += f" loss={value:.9g}"
        if tokens is not None:
            text += f" tokens={float(tokens):.9g}"
        for name, number in numbers.items():
            text += f" {name}={float(number):.9g}"
        self.say(text, urgent=urgent)

    def checkpoint(
        self, path: str | os.PathLike[str], step: SupportsInt, seconds: SupportsFloat | None
    ) -> None:
        """A save is finished."""
        took = "" if seconds is None else f" seconds={float(seconds):.9g}"
        self.say(f"checkpoint={quoted(os.fspath(path))} step={int(step)}{took}")

    def phase(self, name: str) -> None:
        """This rank does something else now."""
        self.say(f"phase={quoted(str(name)) or '-'}", urgent=False)

    def say(self, text: str, *, urgent: bool = True) -> None:
        """Send one line. What is not urgent is held to so many lines a second, and counted."""
        write = self._write
        if write is None:
            return
        now = time.monotonic()
        if not self._lines.take(now):
            if not urgent:
                self._lost += 1
                self.dropped += 1
                return
            self._lines.spend(now, self._lines.available(now))
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._who = f"{self._whose} pid={self._pid}\n"
        lost = f" lost={self._lost}" if self._lost else ""
        line = f"{self._head}{text}{lost}{self._who}".encode(errors="replace")
        try:
            if len(line) > LONGEST:
                raise OSError
            write(line)
            self._lost = 0
        except OSError:
            self._lost += 1
            self.dropped += 1


class Saving:
    """What `saving()` returns, so that `with progress.saving():` says when the save is over."""

    def __enter__(self) -> None:
        """Nothing: `saving()` has said it."""

    def __exit__(self, *error: object) -> None:
        """The save is over, also where it failed."""
        saving(False)


_reporter: Reporter | None = None
_off = False
"""No process listens, as the first call found: the others have nothing to do."""
_SAVING = Saving()


def _get_reporter() -> Reporter:
    global _reporter, _off
    if _reporter is None:
        _reporter = Reporter(os.environ)
        _off = not _reporter.on
    return _reporter


def step(
    n: SupportsInt,
    loss: SupportsFloat | None = None,
    tokens: SupportsFloat | None = None,
    **numbers: SupportsFloat,
) -> None:
    """Step `n` of the training is done.

    `tokens` (or samples) are those of this step, over all ranks; throughput is judged by them.
    `numbers` are for people to look at. Give numbers that the host has already: `float()` of a
    tensor on a GPU waits for the GPU.
    """
    if not _off:
        _call_reporter_safely(Reporter.step, n, loss, tokens, numbers)


def checkpoint(path: str | os.PathLike[str], step: int, seconds: float | None = None) -> None:
    """A checkpoint of `step` is finished at `path`; saving it took `seconds`."""
    _call_reporter_safely(Reporter.checkpoint, path, step, seconds)


def saving(on: bool = True) -> Saving:
    """A save begins (or ends): no steps are awaited meanwhile. `with progress.saving(): ...`."""
    _call_reporter_safely(Reporter.say, f"saving={int(bool(on))}")
    return _SAVING


def phase(name: str) -> None:
    """What this rank does from now on, one word: `data`, `backward`, `eval`.

    A phase without steps in it, such as an evaluation, gets as much time as its own past explains.
    In a hang, the rank that is in another phase than the others is named.
    """
    _call_reporter_safely(Reporter.phase, name)


def done() -> None:
    """The run has reached its end: exit code 0 is a success."""
    for _ in range(3):  # Datagrams get lost, and no later one would say it.
        _call_reporter_safely(Reporter.say, "done=1")


def restarting() -> None:
    """For launchers: all ranks are about to be started again inside the same step."""
    _call_reporter_safely(Reporter.say, "restart=1")


def _call_reporter_safely(method: Callable[..., None], *arguments: object) -> None:
    try:
        method(_reporter or _get_reporter(), *arguments)
    # Whatever a caller's tensor type raises, a training run must not end by telling of itself.
    except Exception:  # noqa: BLE001
        if _reporter is not None:
            _reporter.dropped += 1


def dropped() -> int:
    """How many lines of this process did not go out."""
    return _get_reporter().dropped


def quoted(text: str) -> str:
    """Text as one word: `%`, spaces, control and other unprintable characters become `%XX`."""
    if text.isprintable() and " " not in text and "%" not in text:
        return text
    return "".join(
        char if char.isprintable() and char not in " %" else _percent_encode(char) for char in text
    )


def _percent_encode(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="replace"))


def _format_sender_identity(environ: Mapping[str, str]) -> str:
    """Who says it, as the end of every line: rank, node, and the GPU where the job says which."""
    found = ""
    rank = _find_first_variable(environ, _VARIABLES_RANK)
    if rank.isdigit():
        found += f" rank={rank}"
    found += f" node={quoted(environ.get('SLURMD_NODENAME') or os.uname().nodename)}"
    local = _find_first_variable(environ, _VARIABLES_LOCAL)
    gpus = _find_first_variable(environ, _VARIABLES_GPU).split(",")
    if local.isdigit() and gpus != [""]:
        # One GPU visible: it is this rank's. Several: the local rank's, as launchers have it.
        at = 0 if len(gpus) == 1 else int(local)
        if at < len(gpus):
            found += f" gpu={quoted(gpus[at].strip())}"
    return found


def _find_first_variable(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def main(arguments: list[str]) -> int:
    """`python -m hpctl.progress step=12 loss=0.3`: one line, for shells. 1 without a listener."""
    reporter = _get_reporter()
    reporter.say(" ".join(word for word in arguments if "=" in word))
    return 0 if reporter.on and not reporter.dropped else 1


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
