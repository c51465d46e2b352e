"""What the ranks of one step say of their progress, and what their silence means."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpctl.core.compat import UTC
from hpctl.core.model import NodeName
from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import Kind, Trouble
from hpctl.errors import HpctlError
from hpctl.jobs.progress_notes import KEPT, Note, NoteFileReader, NoteListener, ReceivedNote, listen
from hpctl.jobs.ras_judge import Inquiry
from hpctl.jobs.ras_report import Address
from hpctl.jobs.run_progress import RunPace, RunProgress

STOPPED_S = 10.0
"""Between two looks, which are half a second apart."""


class RankProgress:
    """Listens anew for each step: what an older step's ranks still report is not for this one.

    A rank may say it to the socket, in the file that the user named, or in the job's log.
    A program that reports nothing is judged by its log and its end alone. Of a hang NCCL is asked
    first, where the ranks use it, and their stacks are read: that may take half a minute, so a
    thread does it. It puts the hang with a name to it, or nothing where NCCL shows that it is none.
    """

    def __init__(
        self,
        policy: RunPolicy,
        ras: Address,
        put: Callable[[Trouble], object],
        stacks: Callable[[Trouble, Sequence[NodeName]], Trouble] = lambda trouble, _: trouble,
    ) -> None:
        """`stacks` adds to a hang what the ranks on some nodes do; it may take half a minute."""
        self._policy, self._ras, self._put, self._stacks = policy, ras, put, stacks
        self._nodes: tuple[NodeName, ...] = ()
        self._source: NoteListener | NoteFileReader | None = None
        self._logged: deque[ReceivedNote] = deque(maxlen=KEPT)
        self._pace: RunPace | None = None
        self._inquiry: Inquiry | None = None
        self._asking: threading.Thread | None = None
        self._looked = 0.0
        self.progress: RunProgress | None = None
        self.heard = False
        """Whether a step of this run has reported anything: from then on, so does each of them."""
        self.listen_error = ""
        """Why nothing can be heard, where that is so."""

    def configure(self, policy: RunPolicy) -> None:
        """Take another policy, for the step that runs, too."""
        self._policy = policy
        if self.progress is not None:
            self.progress.policy = policy

    def begin(self, hosts: Mapping[str, NodeName], *, here: bool, file: Path | None = None) -> str:
        """A new step: the address for its ranks, empty where there is none.

        `hosts` are the addresses of its nodes; `here`: all of its ranks run on this one. `file`:
        where the user wants it written to, in place of the socket.
        """
        self.end()
        now = self._looked = time.monotonic()
        self.progress = RunProgress(self._policy, now, datetime.now(UTC), pace=self._pace)
        self._inquiry = Inquiry(self._ras, hosts)
        self._nodes = tuple(sorted(set(hosts.values())))
        if file is not None:
            self._source = NoteFileReader(file, at_end=True)
            self._source.take()  # what stands in it now is an older step's
            return self._source.address
        try:
            self._source = listen(() if here else list(hosts))
        except HpctlError as error:
            self.listen_error = f"{error}: {error.hint}"
            return ""
        return self._source.address

    def logged(self, note: Note) -> None:
        """A note stood in the job's log. May be called from any thread."""
        self._logged.append(ReceivedNote(note, time.monotonic()))

    def look(self) -> Trouble | None:
        """Take in what was reported; what is wrong by it.

        Silence counts after the run's first report, in a later step from its start: ranks may hang
        before their first step.
        """
        if self.progress is None or self._inquiry is None:
            return None
        now = time.monotonic()
        stopped, self._looked = now - self._looked > STOPPED_S, now
        if self._asking is not None and self._asking.is_alive():
            return None  # it reads the progress; what the ranks report meanwhile is kept
        for heard in self._received():
            self.progress.add(heard.note, heard.at)
            self.heard = True
        if not self.heard:
            return None
        if stopped:
            # We were stopped ourselves (a suspended job, a frozen machine), and so were they.
            self.progress.alive(now)
        self._inquiry.watch(self.progress, now)
        trouble = self.progress.trouble(now)
        if trouble is None or trouble.kind is not Kind.HANG:
            return trouble
        self._asking = threading.Thread(
            target=self._ask, args=(self._inquiry, self.progress, trouble), name="hang", daemon=True
        )
        self._asking.start()
        return None

    def _received(self) -> list[ReceivedNote]:
        """What came since the last look, from wherever."""
        received = self._source.take() if self._source is not None else []
        # No more than there are now: the log's thread may add to them meanwhile.
        return received + [self._logged.popleft() for _ in range(len(self._logged))]

    def _ask(self, inquiry: Inquiry, progress: RunProgress, trouble: Trouble) -> None:
        """Explain a hang, unless the step has ended meanwhile."""
        nodes, explained = self._nodes, inquiry.explain(progress, trouble)
        if explained is not None and self.progress is progress:
            explained = self._stacks(explained, nodes)
        if explained is not None and self.progress is progress:
            self._put(explained)

    def renew(self) -> None:
        """All ranks are started anew inside the step. A run that was done stays so: the end of a
        short one may have been heard before the restart was seen."""
        if self.progress is not None and not self.progress.done:
            self.progress.restarted(time.monotonic())

    @property
    def step(self) -> int | None:
        """The last training step of this start."""
        return self.progress.step if self.progress else None

    def saves(self) -> list[float]:
        """What saves took that were reported since the last call, in seconds."""
        saves = self.progress.saves if self.progress else ()
        return [saves.popleft() for _ in range(len(saves))] if saves else []

    @property
    def done(self) -> bool:
        """The program reported its end."""
        return self.progress is not None and self.progress.done

    def end(self) -> None:
        """The step is over. What was learnt of its pace is kept."""
        if self.progress is not None:
            self._pace = self.progress.pace.renewed()
        source, self._source = self._source, None
        # The progress goes too, and with it what an inquiry into the old step still finds.
        self.progress = self._inquiry = None
        self._asking = None
        self._logged.clear()
        if source is not None:
            # It may take a second to let go, which the next step need not wait for.
            threading.Thread(target=_close, args=(source,), daemon=True).start()


def _close(source: NoteListener | NoteFileReader) -> None:
    with contextlib.suppress(OSError):
        source.close()
