"""The one place that starts Slurm's commands: bounded in time and output, typed result.

A command that outlives its timeout is killed with its whole process group. scontrol retries a
missing slurm.conf for 60 s, so the file is looked for first.

What Slurm's error texts mean for an order is here, too: the one table that turns them into
Outcomes. The texts are those of `slurm_errtab` (src/common/slurm_errno.c), which 22.05 to 26.05
share but for a few; the codes are Slurm's own names.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.outcome import Outcome

MAX_OUTPUT = 256 * 1024 * 1024
"""Bytes of standard output after which a command is killed: 10 000 nodes are 8 MB of text."""

MAX_ERROR = 64 * 1024

ASK_EVERY_S = 0.02
"""How often a command asks whether it is to be given up."""

_OWN_SETTINGS = ("SLURM_", "SCONTROL_", "SCANCEL_", "SQUEUE_", "SINFO_", "SBATCH_")
_WHICH_SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET")
"""Where slurm.conf is, and by what to prove who asks: without them no command would answer."""


class CommandEndKind(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    TOO_LONG = "too_long"
    NOT_STARTED = "not_started"
    GIVEN_UP = "given_up"


class CommandResult(Struct, frozen=True):
    """What became of one command. `code` is its exit status, negative for a signal."""

    command: tuple[str, ...]
    end: CommandEndKind
    code: int
    out: bytes
    err: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Return whether it ran to its end and reported exit status 0."""
        return self.end is CommandEndKind.EXITED and self.code == 0

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.out.decode("utf-8", "replace")

    @property
    def message(self) -> str:
        """Return what to show a person: the error text, or how it ended."""
        if self.end is CommandEndKind.EXITED:
            return self.err.strip() or self.text.strip() or f"exit status {self.code}"
        return {
            CommandEndKind.TIMED_OUT: f"no end after {self.seconds:.1f} s",
            CommandEndKind.TOO_LONG: f"more than {MAX_OUTPUT} bytes of output",
            CommandEndKind.NOT_STARTED: self.err,
            CommandEndKind.GIVEN_UP: f"given up after {self.seconds:.1f} s",
        }[self.end]


class SlurmCommandRunner(Struct, frozen=True):
    """Runs the commands of one Slurm installation against one cluster.

    `bin_dir` is where scontrol is (None: PATH), `conf` the slurm.conf (None: Slurm's own
    default), `timeout` in seconds holds for every command that does not bring its own.
    """

    conf: Path | None = None
    bin_dir: Path | None = None
    timeout: float = 15.0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(
        self,
        name: str,
        *args: str,
        timeout: float | None = None,
        environ: Mapping[str, str] | None = None,
        give_up: Callable[[], bool] | None = None,
    ) -> CommandResult:
        """Run one command, with `environ` beside its ordinary environment.

        Never raises for what the command does. It is killed once `give_up` says so.
        """
        program = str(self.bin_dir / name) if self.bin_dir else name
        command = (program, *args)
        conf = self.env().get("SLURM_CONF")
        if conf and not Path(conf).is_file():
            whose = "" if self.conf else ", which SLURM_CONF names"
            return _make_command_not_started_result(command, f"there is no {conf}{whose}")
        if any("\0" in word for word in command):
            return _make_command_not_started_result(command, "a NUL character in an argument")
        try:
            proc = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.env() | dict(environ or {}),
                start_new_session=True,
            )
        except OSError as error:
            return _make_command_not_started_result(
                command, f"cannot start {program}: {error.strerror}"
            )
        with proc:
            return _collect_command_output(command, proc, timeout or self.timeout, give_up)

    def env(self) -> dict[str, str]:
        """Return the environment: the caller's own, less whatever would change what Slurm
        prints."""
        env = {
            name: value
            for name, value in self.environ.items()
            if name in _WHICH_SLURM or not name.startswith(_OWN_SETTINGS)
        }
        env |= {"LC_ALL": "C", "TZ": "UTC"}
        if self.conf is not None:
            env["SLURM_CONF"] = str(self.conf)
        return env


def _make_command_not_started_result(command: Sequence[str], why: str) -> CommandResult:
    return CommandResult(tuple(command), CommandEndKind.NOT_STARTED, -1, b"", why, 0.0)


def _collect_command_output(
    command: tuple[str, ...],
    proc: subprocess.Popen[bytes],
    timeout: float,
    give_up: Callable[[], bool] | None,
) -> CommandResult:
    """Read both pipes to their end, or kill the process group at a limit."""
    started = time.monotonic()
    out, err = bytearray(), bytearray()
    end = _read_command_pipes(proc, out, err, started + timeout, give_up)
    if end is CommandEndKind.EXITED:
        try:
            proc.wait(max(started + timeout - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            end = CommandEndKind.TIMED_OUT
    if end is not CommandEndKind.EXITED:
        _kill_process_group(proc)
    seconds = time.monotonic() - started
    return CommandResult(
        command, end, proc.returncode, bytes(out), err.decode("utf-8", "replace"), seconds
    )


def _read_command_pipes(
    proc: subprocess.Popen[bytes],
    out: bytearray,
    err: bytearray,
    until: float,
    give_up: Callable[[], bool] | None,
) -> CommandEndKind:
    """Fill `out` and `err` until both pipes end, or a limit is reached."""
    end = CommandEndKind.EXITED
    with selectors.DefaultSelector() as pipes:
        for pipe, sink in ((proc.stdout, out), (proc.stderr, err)):
            if pipe is not None:
                pipes.register(pipe, selectors.EVENT_READ, sink)
        while pipes.get_map() and end is CommandEndKind.EXITED:
            left = until - time.monotonic()
            wait_s = left if give_up is None else min(left, ASK_EVERY_S)
            for key, _ in pipes.select(max(wait_s, 0)):
                chunk = os.read(key.fd, 1 << 20)
                if not chunk:
                    pipes.unregister(key.fileobj)
                elif key.data is out or len(err) < MAX_ERROR:
                    key.data.extend(chunk)
            if len(out) > MAX_OUTPUT:
                end = CommandEndKind.TOO_LONG
            elif left <= 0 and pipes.get_map():
                end = CommandEndKind.TIMED_OUT
            elif give_up is not None and pipes.get_map() and give_up():
                end = CommandEndKind.GIVEN_UP
    return end


def _kill_process_group(proc: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to all that the command started; it leads a separate session."""
    try:
        os.killpg(proc.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        proc.wait()


UNAVAILABLE = "unavailable"


_NOT_SENT = {
    "Unable to contact slurm controller (connect failure)": UNAVAILABLE,
    "Unable to establish controller machine": UNAVAILABLE,
    "Slurm backup controller in standby mode": "ESLURM_IN_STANDBY_MODE",
    "Unable to process configuration file": "configuration",
    "Protocol authentication error": "ESLURM_PROTOCOL_AUTHENTICATION",
}
_MAYBE_DONE = {
    "Unable to contact slurm controller": UNAVAILABLE,
    "Socket timed out on send/recv operation": "timeout",
    "Zero Bytes were transmitted or received": "connection_lost",
    "Transport endpoint is not connected": "connection_lost",
    "Connection reset by peer": "connection_lost",
    "Unexpected message received": "connection_lost",
}
_REFUSED = {
    "Invalid job id specified": "ESLURM_INVALID_JOB_ID",
    "Invalid node name specified": "ESLURM_INVALID_NODE_NAME",
    "Invalid node state specified": "ESLURM_INVALID_NODE_STATE",
    "Job is pending execution": "ESLURM_JOB_PENDING",
    "Job/step already completing or completed": "ESLURM_ALREADY_DONE",
    "Requested operation is presently disabled": "ESLURM_DISABLED",
    "Job cannot be requeued": "ESLURM_DISABLED",
    "Requested operation not supported for this job": "ESLURM_BATCH_ONLY",
    "Only batch jobs are accepted or processed": "ESLURM_BATCH_ONLY",
    "Access/permission denied": "ESLURM_ACCESS_DENIED",
    "User does not have permission": "ESLURM_ACCESS_DENIED",
    # In the word of the look before the order (`hpctl.slurm.rules`): the job began in between, or
    # slurmctld died and came back with it as running.
    "Job is no longer pending execution": "not_pending",
    "Job is not pending nor running": "ESLURM_JOB_NOT_PENDING_NOR_RUNNING",
    "Requested nodes are busy": "ESLURM_NODES_BUSY",
    "Requested reservation is in use": "ESLURM_RESERVATION_BUSY",
    "Requested reservation overlaps": "ESLURM_RESERVATION_OVERLAP",
    "Duplicate reservation name": "ESLURM_RESERVATION_NAME_DUP",
    "Requested reservation is invalid": "ESLURM_RESERVATION_INVALID",
    "Job is in transitional state, retry": "ESLURM_TRANSITION_STATE_NO_UPDATE",
    "Requested operation is not supported": "ESLURM_NOT_SUPPORTED",
    "Unspecified error": "SLURM_ERROR",
}
_FOR_NOW = frozenset(
    {
        "ESLURM_NODES_BUSY",
        "ESLURM_RESERVATION_BUSY",
        "ESLURM_RESERVATION_OVERLAP",
        "ESLURM_RESERVATION_NAME_DUP",
        "ESLURM_TRANSITION_STATE_NO_UPDATE",
    }
)


def classify_command_result(ran: CommandResult) -> Outcome:
    """Return what a mutating command's end says of its order.

    Exit status 0 is Accepted. A command that could not be started or could not connect did
    nothing: Rejected, transient. One that had to be killed, or lost the controller after
    connecting, is Ambiguous. Any other error text is slurmctld's refusal.
    """
    if ran.ok:
        return Outcome.accepted()
    if ran.end is CommandEndKind.NOT_STARTED:
        return Outcome.rejected("not_started", ran.message, transient=True)
    if ran.end is not CommandEndKind.EXITED:
        return Outcome.ambiguous("timeout", ran.message)
    if ran.code < 0:
        return Outcome.ambiguous("killed", f"{ran.command[0]} ended by signal {-ran.code}")
    if not ran.err.strip():
        return Outcome.ambiguous("exit_status", ran.message)
    return classify_slurm_error_text(ran.message)


def classify_slurm_error_text(message: str) -> Outcome:
    """Return what slurmctld's or libslurm's error text says of the order that it answers."""
    for text, code in _NOT_SENT.items():
        if text in message:
            return Outcome.rejected(code, message, transient=True)
    for text, code in _MAYBE_DONE.items():
        if text in message:
            return Outcome.ambiguous(code, message)
    code = next((code for text, code in _REFUSED.items() if text in message), "SLURM_ERROR")
    return Outcome.rejected(code, message, transient=code in _FOR_NOW)
