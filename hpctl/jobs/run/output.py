"""What a step says while it runs: its output as it grows, and what its ranks report.

Of the output: what srun says in it, the log rules, and its last lines. Where stdout and stderr are
files, as in every batch job, srun writes them itself and they are followed from outside: a
supervisor that is slow or dead never blocks a rank. Where they are pipes or a terminal, a thread
passes each block on and looks at it afterwards, so that the ranks wait for the reader of that pipe
only, as they would under srun without hpctl.

Of the ranks: what they say of their progress, and what their silence means.
"""

import contextlib
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.jobs.hangs.ras_judge import HangWithRasEvidence, RasHangInvestigation
from hpctl.jobs.hangs.ras_report import RasAddress
from hpctl.jobs.log_end import LogTailBuffer
from hpctl.jobs.logs.engine import LineSplitter, LogFollower, LogRuleEngine, LogRuleVerdict
from hpctl.jobs.logs.rules import LogRuleSet
from hpctl.jobs.run import progress_notes, srun
from hpctl.jobs.run.history import LOG_PREFIX
from hpctl.jobs.run.progress import RunProgress, StepTimeHistory
from hpctl.jobs.run.progress_notes import (
    KEPT,
    ProgressNote,
    ProgressNoteFileReader,
    ProgressNoteListener,
    ReceivedProgressNote,
    open_progress_note_listener,
)
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

EVERY_S = 0.1
"""How often a file is looked at: what a crash waits for before it is noticed."""
SETTLE_S = 5.0
"""How long the output's end is read for after srun's end; the rest is left unread."""
STOPPED_S = 1.0
"""What the time between two looks counts at most for the rules: they are a tenth of a second apart,
and where it is longer we were slow, or stopped ourselves."""
LONGEST = 2000
"""Characters of a line of the tail."""

COLLECTIVE_TIMED_OUT = b"Watchdog caught collective operation timeout"
"""What torch's watchdog prints of a collective that timed out (ProcessGroupNCCL.cpp)."""

_OWN = re.compile(b"^" + LOG_PREFIX.encode() + b".*\n", re.MULTILINE)


class StepOutput(Struct):
    """What was read of one attempt's output so far."""

    ends: list[srun.SrunTaskEnd] = field(default_factory=list)
    failed: list[srun.SrunLaunchFailure] = field(default_factory=list)
    tail: LogTailBuffer = field(default_factory=LogTailBuffer)
    engine: LogRuleEngine | None = None
    ranks_tail: LogTailBuffer = field(default_factory=LogTailBuffer)
    """The lines since the ranks of the attempt were started last."""

    def hear(self, block: bytes) -> list[srun.SrunLine]:
        """Take in whole lines of output, and return srun's among them."""
        found = list(srun.parse_srun_lines(block))
        self.tail.add_log_block(block, LONGEST)
        self.ranks_tail.add_log_block(block, LONGEST)
        self.ends += [line for line in found if isinstance(line, srun.SrunTaskEnd)]
        self.failed += [line for line in found if isinstance(line, srun.SrunLaunchFailure)]
        return found


def remove_hpctl_output_lines(block: bytes) -> bytes:
    """Return whole lines of output without those that hpctl wrote."""
    return _OWN.sub(b"", block) if LOG_PREFIX.encode() in block else block


class SrunOutputListener(Protocol):
    """A receiver of what a job's output contains. Called from a thread; must not wait."""

    def handle_srun_line(self, line: srun.SrunLine) -> None:
        """Take a line of srun's."""

    def handle_rule_verdict(self, verdict: LogRuleVerdict) -> None:
        """Take the verdict of a log rule that fired."""

    def handle_progress_note(self, note: progress_notes.ProgressNote) -> None:
        """Take a line of progress."""

    def handle_collective_timeout(self) -> None:
        """Handle a rank's report that a collective timed out."""


class SrunOutputReader:
    """A reader that follows the output, and passes on what it finds."""

    def __init__(
        self,
        rules: LogRuleSet | None,
        listener: SrunOutputListener,
        *,
        fds: tuple[int, int] = (1, 2),
        also: tuple[Path, ...] = (),
    ) -> None:
        """`fds`: where srun writes. `also`: further files that are read."""
        self._rules, self._listener = rules, listener
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.heard = StepOutput()
        paths = [*(_find_descriptor_path(fd) for fd in fds), *also]
        self._followers = [LogFollower(path, at_end=True) for path in dict.fromkeys(paths) if path]
        self._pumped = [fd for fd in fds if _find_descriptor_path(fd) is None]
        self._fds = fds
        self._pumps: list[threading.Thread] = []
        self._ends: list[int] = []
        self._awake, self._looked = time.time(), time.monotonic()
        self._poll_output_files()
        threading.Thread(target=self._follow_output_files, name="output", daemon=True).start()

    def begin(self) -> tuple[int, int]:
        """Begin a new attempt and return the descriptors for its srun. The old ones' copies are
        closed with `close_output_descriptors`."""
        with self._lock:
            engine = (
                LogRuleEngine(self._rules, self._read_log_rule_clock()) if self._rules else None
            )
            self.heard = StepOutput(engine=engine)
        self._pumps = []
        sinks = [
            fd if fd not in self._pumped else self._start_output_forwarding_thread(fd)
            for fd in self._fds
        ]
        return sinks[0], sinks[1]

    def close_output_descriptors(self) -> None:
        """Note that srun has its own copies of what `begin` gave."""
        for fd in self._ends:
            os.close(fd)
        self._ends = []

    def renew(self) -> None:
        """Begin again for new ranks in the same step: the log rules restart, as with a new step."""
        with self._lock:
            self.heard.engine = (
                LogRuleEngine(self._rules, self._read_log_rule_clock()) if self._rules else None
            )
            self.heard.ranks_tail.clear()

    def copy_rank_output_tail(self) -> list[str]:
        """Return the lines of the ranks that run now that explain an end, as far as they have been
        read."""
        with self._lock:
            return self.heard.ranks_tail.list_lines()

    def settle(self) -> StepOutput:
        """Read to the end of what srun left, and return all that was read."""
        limit = time.monotonic() + SETTLE_S
        for pump in self._pumps:
            pump.join(max(0.0, limit - time.monotonic()))
        while not self._poll_output_files() and time.monotonic() < limit:
            pass
        with self._lock:
            return self.heard

    def _start_output_forwarding_thread(self, fd: int) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        self._ends.append(write)
        thread = threading.Thread(target=self._forward_srun_output, args=(read, fd), daemon=True)
        thread.start()
        self._pumps.append(thread)
        return write

    def _forward_srun_output(self, read: int, to: int) -> None:
        lines = LineSplitter()
        with open(read, "rb", buffering=0) as source:
            while block := source.read(1 << 16):
                _write_block_to_descriptor(to, block)
                self._process_output_block(lines.cut(block))
        self._process_output_block(lines.finish())

    def _follow_output_files(self) -> None:
        while True:
            time.sleep(EVERY_S)
            whole = self._poll_output_files()
            with self._lock:
                engine, now = self.heard.engine, self._read_log_rule_clock()
                hangs = engine.look(now) if engine is not None and whole else []
            self._send_rule_verdicts_to_listener(hangs)

    def _read_log_rule_clock(self) -> float:
        """Return the rules' clock, to be read with the lock held: a wall clock that is set, or a
        job that is suspended and we with it, is no silence of the ranks."""
        now = time.monotonic()
        self._awake += min(now - self._looked, STOPPED_S)
        self._looked = now
        return self._awake

    def _send_rule_verdicts_to_listener(self, verdicts: list[LogRuleVerdict]) -> None:
        for verdict in verdicts:
            self._listener.handle_rule_verdict(replace(verdict, at=time.time()))

    def _poll_output_files(self) -> bool:
        """Read each file once; return whether that was all there is. What is read is taken in
        order."""
        with self._reading:
            return self._read_output_files()

    def _read_output_files(self) -> bool:
        whole = True
        for follower in self._followers:
            try:
                block, all_of_it = follower.read()
            except HpctlError:
                continue  # a file system that fails now may come back; the job's own end shows it
            whole = whole and all_of_it
            self._process_output_block(block)
        return whole

    def _process_output_block(self, block: bytes) -> None:
        block = remove_hpctl_output_lines(block)
        if not block:
            return
        with self._lock:
            heard = self.heard
            found = heard.hear(block)
            verdicts = heard.engine.feed(block, self._read_log_rule_clock()) if heard.engine else []
        # Notes first: an end that comes with them is judged by what was reported before it.
        for note in progress_notes.find_progress_notes_in_log(block):
            self._listener.handle_progress_note(note)
        if COLLECTIVE_TIMED_OUT in block:
            self._listener.handle_collective_timeout()
        for line in found:
            self._listener.handle_srun_line(line)
        self._send_rule_verdicts_to_listener(verdicts)


def _find_descriptor_path(fd: int) -> Path | None:
    """Return the path of a descriptor that is a regular file, None for a pipe, a terminal,
    /dev/null."""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return None
    return path if path.is_file() else None


def _write_block_to_descriptor(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return  # its reader has gone; the job continues, as under srun with nohup


RANKS_STOPPED_S = 10.0
"""Between two looks, which are half a second apart."""


class RankProgressListener:
    """A listener, renewed for each step: what an older step's ranks still report is not for this
    one.

    A rank may say it to the socket, in the file that the user named, or in the job's log. A program
    that reports nothing is judged only by its log and its end. Of a hang NCCL is asked first, where
    the ranks use it, and their stacks are read: that may take half a minute, so a thread does it.
    It puts the hang with a name to it, or nothing where NCCL shows that it is none.
    """

    def __init__(
        self,
        policy: RunPolicy,
        ras: RasAddress,
        put: Callable[[Trouble], object],
        explain: Callable[[HangWithRasEvidence], Trouble] = lambda hang: hang.trouble,
    ) -> None:
        """`explain` names whom the ranks of a hang wait for; it may take a minute."""
        self._policy, self._ras, self._put, self._explain = policy, ras, put, explain
        self._source: ProgressNoteListener | ProgressNoteFileReader | None = None
        self._logged: deque[ReceivedProgressNote] = deque(maxlen=KEPT)
        self._pace: StepTimeHistory | None = None
        self._inquiry: RasHangInvestigation | None = None
        self._asking: threading.Thread | None = None
        self._looked = 0.0
        self.progress: RunProgress | None = None
        self.heard = False
        """Whether a step of this run has reported anything: from then on, so does each of them."""
        self.listen_error = ""
        """Why no report can be received, where that is so."""

    def pop_problem(self) -> str:
        """Return why no report can be received, once; empty where that is not so."""
        problem, self.listen_error = self.listen_error, ""
        return problem

    def configure(self, policy: RunPolicy) -> None:
        """Take another policy, for the step that runs, too."""
        self._policy = policy
        if self.progress is not None:
            self.progress.configure(policy)

    def begin(self, hosts: Mapping[str, NodeName], *, here: bool, file: Path | None = None) -> str:
        """Begin a new step and return the address for its ranks, empty where there is none.

        `hosts` are the addresses of its nodes; `here`: all of its ranks run on this one. `file`:
        where the user wants it written to, in place of the socket.
        """
        self.end()
        now = self._looked = time.monotonic()
        self.progress = RunProgress(self._policy, now, datetime.now(UTC), pace=self._pace)
        self._inquiry = RasHangInvestigation(self._ras, hosts)
        if file is not None:
            self._source = ProgressNoteFileReader(file, at_end=True)
            self._source.take()  # what is in it now is an older step's
            return self._source.address
        try:
            self._source = open_progress_note_listener(() if here else list(hosts))
        except HpctlError as error:
            self.listen_error = f"{error}: {error.hint}"
            return ""
        return self._source.address

    def add_progress_note_from_log(self, note: ProgressNote) -> None:
        """Handle a note from the job's log. May be called from any thread."""
        self._logged.append(ReceivedProgressNote(note, time.monotonic()))

    def look(self) -> Trouble | None:
        """Take in what was reported; what is wrong by it.

        Silence counts after the run's first report, in a later step from its start: ranks may hang
        before their first step.
        """
        if self.progress is None or self._inquiry is None:
            return None
        now = time.monotonic()
        stopped, self._looked = now - self._looked > RANKS_STOPPED_S, now
        if self._asking is not None and self._asking.is_alive():
            return None  # it reads the progress; what the ranks report meanwhile is kept
        for heard in self._collect_new_progress_notes():
            self.progress.add(heard.note, heard.at)
            self.heard = True
        if not self.heard:
            return None
        if stopped:
            # We were stopped ourselves (a suspended job, a frozen machine), and so were they.
            self.progress.alive(now)
        self._inquiry.watch(self.progress, now)
        trouble = self.progress.trouble(now)
        if trouble is None or trouble.kind is not TroubleKind.HANG:
            return trouble
        self._asking = threading.Thread(
            target=self._explain_hang_of_current_step,
            args=(self._inquiry, self.progress, trouble),
            name="hang",
            daemon=True,
        )
        self._asking.start()
        return None

    def _collect_new_progress_notes(self) -> list[ReceivedProgressNote]:
        """Return what came since the last look, from wherever."""
        received = self._source.take() if self._source is not None else []
        # Only as many as there are now: the log's thread may add to them meanwhile.
        return received + [self._logged.popleft() for _ in range(len(self._logged))]

    def _explain_hang_of_current_step(
        self, inquiry: RasHangInvestigation, progress: RunProgress, trouble: Trouble
    ) -> None:
        """Explain a hang, unless the step has ended meanwhile."""
        hang = inquiry.explain(progress, trouble)
        if hang is None or self.progress is not progress:
            return
        explained = self._explain(hang)
        if self.progress is not progress:
            return
        # The witnesses take a minute, in which a run that waited for its storage may move again.
        for heard in self._collect_new_progress_notes():
            progress.add(heard.note, heard.at)
        if progress.hang(time.monotonic()) is not None:
            self._put(explained)

    def renew(self) -> None:
        """Begin again, because all ranks are restarted inside the step. A run that was done stays
        so: the end of a short one may have been read before the restart was seen."""
        if self.progress is not None and not self.progress.done:
            self.progress.reset_after_rank_restart(time.monotonic())

    @property
    def step(self) -> int | None:
        """Return the last training step of this start."""
        return self.progress.step if self.progress else None

    def saves(self) -> list[float]:
        """Return what saves took that were reported since the last call, in seconds."""
        saves = self.progress.saves if self.progress else ()
        return [saves.popleft() for _ in range(len(saves))] if saves else []

    @property
    def done(self) -> bool:
        """Return whether the program reported its end."""
        return self.progress is not None and self.progress.done

    def end(self) -> None:
        """End the step. What was learned of its pace is kept."""
        if self.progress is not None:
            self._pace = self.progress.pace.copy_for_next_start()
        source, self._source = self._source, None
        # The progress goes too, and with it what an inquiry into the old step still finds.
        self.progress = self._inquiry = None
        self._asking = None
        self._logged.clear()
        if source is not None:
            # It may take a second to let go, which the next step need not wait for.
            threading.Thread(
                target=_close_progress_note_source, args=(source,), daemon=True
            ).start()


def _close_progress_note_source(source: ProgressNoteListener | ProgressNoteFileReader) -> None:
    with contextlib.suppress(OSError):
        source.close()
