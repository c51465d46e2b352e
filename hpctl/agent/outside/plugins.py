"""A site's own checks: executables in a directory, each run every so often and asked for JSON.

Each is a check like the agent's own, named `plugin.<file>`: CheckSpec, `gather` and `judge`. A file
that root alone has not written is never run, for the agent is root; that is a finding of the
check `agent.plugins`, which also says when a file is new. What a plugin finds is shown and acts
on nothing until the site has written a rule for it (docs/plugins.md).
"""

import contextlib
import os
import re
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpctl.agent.check import CannotTell, Judged, Limits, Machine, Observation
from hpctl.agent.outside.trust import why_not, why_not_directory
from hpctl.core.faults import CheckSpec
from hpctl.core.model import Clears, Verdict
from hpctl.protocol import reports as wire

# --- plugin json ---
#
# The JSON that a plugin prints: what it is with `--describe`, what it sees without.

MAX_FINDINGS = 64
MAX_DETAIL = 256
WEEK_S = 7 * 86400.0
_FIX = 'print {"findings": []} or findings as docs/plugins.md says'

_Seconds = Annotated[float, Meta(ge=1, le=WEEK_S)]
_Word = Annotated[str, Meta(max_length=256)]


class _Finding(Struct, frozen=True, forbid_unknown_fields=True):
    code: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:+-]{0,64}\Z")] = ""
    verdict: Verdict = Verdict.FAIL
    device: _Word = ""
    detail: _Word = ""
    evidence: Annotated[str, Meta(max_length=wire.MAX_EVIDENCE)] = ""
    job: Annotated[str, Meta(pattern=r"^[0-9_+]{0,32}\Z")] = ""
    clears: Clears | None = None
    gone_s: _Seconds | None = None


class _Findings(Struct, frozen=True, forbid_unknown_fields=True):
    findings: Annotated[tuple[_Finding, ...], Meta(max_length=MAX_FINDINGS)]


class Description(Struct, frozen=True, forbid_unknown_fields=True):
    """What a plugin says of itself; each part may be left out. Times in seconds.

    `seen` is N of M: reported when N of the last M runs saw it. `timeout_s` is its deadline.
    """

    what: _Word = ""
    every_s: Annotated[float, Meta(ge=5, le=WEEK_S)] = 60.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=20)] = 10.0
    seen: tuple[Annotated[int, Meta(ge=1, le=20)], Annotated[int, Meta(ge=1, le=20)]] = (1, 1)
    clears: Clears = Clears.GONE
    gone_s: _Seconds | None = None
    grace_s: Annotated[float, Meta(ge=0, le=WEEK_S)] = 0.0


_findings = msgspec.json.Decoder(_Findings)
_description = msgspec.json.Decoder(Description)


def findings(output: bytes) -> tuple[Observation, ...]:
    """What a run printed. Raises CannotTell with the place and a hint."""
    try:
        found = _findings.decode(output)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CannotTell(f"{_wrong(output, error)}; {_FIX}") from error
    return tuple(
        Observation(f.code, f.device, f.verdict, f.detail, f.evidence, f.job, f.clears, f.gone_s)
        for f in found.findings
    )


def description(output: bytes) -> Description:
    """What `--describe` printed. Raises CannotTell.

    A plugin that prints nothing, or its findings as ever, knows no `--describe`: the defaults.
    """
    if not output.strip():
        return Description()
    try:
        description = _description.decode(output)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        try:
            _findings.decode(output)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise CannotTell(f"--describe: {_wrong(output, error)}") from error
        return Description()
    if description.seen[0] > description.seen[1]:
        raise CannotTell("--describe: seen is N of M with N up to M - at `$.seen`")
    return description


def _wrong(output: bytes, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return f"its JSON is not as it must be: {error}"
    start = output[:40].decode(errors="replace").strip()
    return f"prints no JSON but {start!r}" if start else "prints nothing"


DIRECTORY = Path("/etc/hpctl/checks.d")
MAX_PLUGINS = 32
DESCRIBE_S = 5.0
"""How long one may take over `--describe`."""
CHECK_DIRECTORY = "agent.plugins"
_NAME = re.compile(r"[a-z][a-z0-9_.]{0,55}")
_IGNORED = (".", "README")
_OWN_IT = "chown root and chmod go-w it; nothing in it is run until then"
_NEW = "is new or was corrected: restart the agent to run it"
_MISSED_RUNS = 3
"""A plugin's finding is gone when so many runs no longer saw it, unless it says otherwise."""


class Refusal(Struct, frozen=True):
    """A file that is not run, and why, with a hint."""

    file: str
    why: str


class Plugin:
    """One executable as a check. Its `gather` takes up to its own `timeout_s`."""

    def __init__(self, path: Path, description: Description) -> None:
        self.path, self.timeout_s = path, description.timeout_s
        gone_s = description.gone_s or _MISSED_RUNS * description.every_s
        self.spec = CheckSpec(
            name=check_name(path.name),
            what=description.what or f"this site's own check {path.name}",
            source=str(path),
            every_s=description.every_s,
            seen=description.seen,
            clears=description.clears,
            gone_s=gone_s,
            grace_s=description.grace_s,
            shed=2,
        )
        self._child = Child([os.fspath(path)], description.timeout_s)

    def gather(self, machine: Machine) -> tuple[Observation, ...]:
        """Run it once. Raises CannotTell, with a hint."""
        if trouble := _untrusted(self.path):
            raise CannotTell(trouble)
        try:
            ended = self._child.run()
            if ended.status != 0:
                raise CannotTell(f"ended with {_status(ended.status)}{_last(ended.complaint)}")
            return findings(ended.output)
        except CannotTell as error:
            raise CannotTell(f"{self.path.name} {error}"[:MAX_DETAIL]) from error

    def judge(self, seen: Sequence[Observation], before: object, limits: Limits) -> Judged:
        """What it reported, but what is well: that needs no finding."""
        return tuple(observation for observation in seen if observation.verdict is not Verdict.OK)


class PluginDirectory:
    """The directory itself as a check: what it holds that is not run.

    `refused` are those whose trouble does not show in the file itself.
    """

    spec = CheckSpec(
        name=CHECK_DIRECTORY,
        what="files in the directory of this site's checks that the agent does not run",
        source="hpctl",
        every_s=60.0,
        clears=Clears.GONE,
        gone_s=60.0,
        shed=1,
    )

    def __init__(self, directory: Path, refused: Sequence[Refusal], running: Iterable[str]) -> None:
        self._directory = directory
        self._refused = {refusal.file: refusal.why for refusal in refused}
        self._running = frozenset(running)

    def gather(self, machine: Machine) -> tuple[Refusal, ...]:
        """Look at the directory as it is now; nothing in it is run. Raises CannotTell."""
        try:
            if trouble := why_not_directory(self._directory):
                return (Refusal(str(self._directory), f"{trouble}: {_OWN_IT}"),)
            found = _files(self._directory)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CannotTell(f"{self._directory}: {error.strerror}") from error
        return tuple(
            Refusal(path.name, _untrusted(path) or self._refused.get(path.name, _NEW))
            for path in found
            if path.name not in self._running
        )

    def judge(self, seen: Sequence[Refusal], before: object, limits: Limits) -> Judged:
        """One observation for each file that is not run."""
        return tuple(
            Observation("refused", r.file[:256], Verdict.WARN, r.why[:MAX_DETAIL]) for r in seen
        )


Check = Plugin | PluginDirectory


def specs_and_checks(directory: Path = DIRECTORY) -> tuple[Check, ...]:
    """Every plugin of a directory, by name, and the directory's own check; never raises.

    Each is asked for `--describe` once, for DESCRIBE_S at most, several at a time: call it off the
    agent's main thread. Without a directory there is nothing but its own check.
    """
    refused: list[Refusal] = []
    taken: dict[str, Path] = {}
    for path in _trusted(directory):
        if trouble := _misnamed(path, taken):
            refused.append(Refusal(path.name, trouble))
        elif len(taken) >= MAX_PLUGINS:
            refused.append(Refusal(path.name, f"is one too many: the limit is {MAX_PLUGINS}"))
        else:
            taken[check_name(path.name)] = path
    with ThreadPoolExecutor(8, thread_name_prefix="describe") as pool:
        asked = list(pool.map(_load, taken.values()))
    plugins = [made for made in asked if isinstance(made, Plugin)]
    refused += [made for made in asked if isinstance(made, Refusal)]
    running = (plugin.path.name for plugin in plugins)
    return (*plugins, PluginDirectory(directory, refused, running))


def check_name(file: str) -> str:
    """The check's name: `nhc-disk.sh` is `plugin.nhc.disk`, and its rules are plugin-nhc-disk."""
    stem = file.rpartition(".")[0] or file
    return "plugin." + stem.replace("-", ".")


def _load(path: Path) -> Plugin | Refusal:
    try:
        ended = Child([os.fspath(path), "--describe"], DESCRIBE_S).run()
        if ended.status != 0:
            raise CannotTell(
                f"--describe ended with {_status(ended.status)}{_last(ended.complaint)}"
            )
        return Plugin(path, description(ended.output))
    except CannotTell as error:
        return Refusal(path.name, f"{error}; it may also ignore its arguments")


def _trusted(directory: Path) -> list[Path]:
    """The files that may be run; why the others may not, PluginDirectory's gather says."""
    try:
        if why_not_directory(directory):
            return []
        return [path for path in _files(directory) if not _untrusted(path)]
    except OSError:
        return []


def _files(directory: Path) -> list[Path]:
    """What is meant to be run: no hidden files, no README, no directories. Raises OSError."""
    return sorted(
        path
        for path in directory.iterdir()
        if not path.name.startswith(_IGNORED) and not stat.S_ISDIR(path.lstat().st_mode)
    )


def _untrusted(path: Path) -> str:
    """Why a file is not run, with a hint; empty where it may be."""
    try:
        status = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if trouble := why_not(path, status):
        return f"{trouble}: copy it there, chown root, chmod 0755"
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is no regular file: remove it"
    if not status.st_mode & stat.S_IXUSR:
        return f"{path} is not executable: chmod 0755"
    return ""


def _misnamed(path: Path, taken: dict[str, Path]) -> str:
    name = check_name(path.name)
    if not _NAME.fullmatch(name.removeprefix("plugin.")):
        return f"{path.name}: small letters, digits, _ . and - only, a letter first: rename it"
    if name in taken:
        return f"{path.name} and {taken[name].name} are both {name}: rename one"
    return ""


def _status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}, not 0"


def _last(complaint: str) -> str:
    return f": {complaint.splitlines()[-1][:120]}" if complaint else ""


# --- child ----------
# Running somebody else's program with a deadline, a bound on its output, and no survivors.

MAX_OUTPUT = 64 * 1024
_STDERR_KEPT = 2048
_END_S = 1.0
"""How long a killed child may take to die; one in an uninterruptible call never does."""
_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}


class Ended(Struct, frozen=True):
    """How a program ended: its exit status (negative: the signal) and what it printed."""

    status: int
    output: bytes
    complaint: str


class Child:
    """One program, run again and again, never twice at once.

    `environment` and `most` (bytes of output) are a plugin's unless others are given.
    """

    def __init__(
        self,
        command: Sequence[str],
        timeout_s: float,
        environment: Mapping[str, str] = _ENVIRONMENT,
        most: int = MAX_OUTPUT,
    ) -> None:
        self._command, self._timeout_s = tuple(command), timeout_s
        self._environment, self._most = environment, most
        self._stuck: subprocess.Popen[bytes] | None = None

    def run(self) -> Ended:
        """Run it to its end; whatever it leaves in its process group is killed.

        Raises CannotTell where it cannot be started, prints more than it may, is not done in
        time, or still hangs from an earlier run.
        """
        if self._stuck is not None and self._stuck.poll() is None:
            raise CannotTell("still hangs from an earlier run and cannot be killed")
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise CannotTell(f"cannot be run: {error.strerror}") from error
        with child.stdout, child.stderr:  # type: ignore[union-attr]
            try:
                output, complaint = self._listen(child)
            finally:
                self._end(child)
        return Ended(child.returncode, output, complaint)

    def _listen(self, child: subprocess.Popen[bytes]) -> tuple[bytes, str]:
        """Read until it has ended, not until its output has: a grandchild may keep that open."""
        assert child.stdout is not None
        assert child.stderr is not None
        end = time.monotonic() + self._timeout_s
        output, complaint = bytearray(), bytearray()
        ended = os.pidfd_open(child.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for pipe, into in ((child.stdout, output), (child.stderr, complaint)):
                    os.set_blocking(pipe.fileno(), False)
                    selector.register(pipe, selectors.EVENT_READ, into)
                selector.register(ended, selectors.EVENT_READ)
                over = False
                while not over:
                    left = end - time.monotonic()
                    if left <= 0:
                        raise CannotTell(f"was not done within {self._timeout_s:g} s and is killed")
                    ready = selector.select(left)
                    over = any(key.fileobj == ended for key, _ in ready)
                    for key, _ in ready:
                        if key.fileobj != ended and not self._take_in(key.fd, key.data):
                            selector.unregister(key.fileobj)
                for pipe, into in ((child.stdout, output), (child.stderr, complaint)):
                    while self._take_in(pipe.fileno(), into):
                        pass
        finally:
            os.close(ended)
        del complaint[:-_STDERR_KEPT]
        return bytes(output), complaint.decode(errors="replace").strip()

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._stuck = child

    def _take_in(self, fd: int, into: bytearray) -> bool:
        """Take in what is there; False where there is no more. Raises CannotTell past `most`."""
        try:
            chunk = os.read(fd, 16384)
        except BlockingIOError:
            return False
        into += chunk
        if len(into) > self._most:
            raise CannotTell(f"prints more than {self._most} bytes and is killed")
        return bool(chunk)
