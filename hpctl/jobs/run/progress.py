"""What all ranks reported, kept in bounded memory, and what is wrong with the run by it.

No clock, no socket: notes and times go in, Troubles come out. Times are seconds of one monotonic
clock, so that a wall clock which is set does not make a hang. The loss and the throughput are
judged against the run's own past, by the judges of the log rules. The ranks' side is
`hpctl.progress`; `progress_notes` receives and parses their reports.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from statistics import median

from msgspec import Struct, field

from hpctl.jobs.logs.engine import MedianOutlierBaseline
from hpctl.jobs.logs.rules import LogRule
from hpctl.jobs.run.progress_notes import ProgressNote
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

WINDOW = 64
FEWEST = 3
"""Silences between steps that must be known before they explain anything."""
SAVE_FLOOR_S = START_FLOOR_S = 600.0
SAVE_FACTOR = 3.0
PAUSE_FACTOR = 1.5
MOST_PHASES = 64


class StepTimeHistory(Struct):
    """The past that a hang is judged by. Durations in seconds."""

    silences: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Between one report of a new step and the next, whatever number of steps lay between."""
    longest_pause: float = 0.0
    """The longest such silence that ended without help."""
    longest_start: float = 0.0
    """The longest from a start to its first step."""
    longest_early: float = 0.0
    """The longest of the first silences of a start: compiling, allocating, warming up."""
    longest_save: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """The longest that each phase without steps has lasted."""
    past: float | None = None
    """The median silence of the start before this one."""

    def copy_for_next_start(self) -> StepTimeHistory:
        """Return what the next start of the same run may go by."""
        return StepTimeHistory(
            longest_start=self.longest_start,
            longest_early=self.longest_early,
            longest_save=self.longest_save,
            phases=dict(self.phases),
            past=self.median() or self.past,
        )

    def median(self) -> float | None:
        """Return the run's own median silence between steps, None while too little is known."""
        return median(self.silences) if len(self.silences) >= FEWEST else None

    def record_step_duration(self, silence: float, *, excused: bool) -> None:
        """Record that a new step came after so many seconds; `excused` where a save or another
        phase lay between."""
        if len(self.silences) < FEWEST:
            self.longest_early = max(self.longest_early, silence)
        elif not excused:
            self.longest_pause = max(self.longest_pause, silence)
        self.silences.append(silence)

    def left(self, phase: str, seconds: float) -> None:
        """Record the end of a phase without a step in it."""
        if phase in self.phases or len(self.phases) < MOST_PHASES:
            self.phases[phase] = max(self.phases.get(phase, 0.0), seconds)

    def compute_start_timeout_s(self, policy: RunPolicy) -> float:
        """Return seconds to the first step that are explained, by an earlier start where there was
        one."""
        if not self.longest_start:
            return policy.hang_start_s
        own = max(START_FLOOR_S, policy.hang_factor * self.longest_start)
        return min(own, policy.hang_start_s)

    def compute_step_timeout_s(self, policy: RunPolicy) -> float:
        """Return seconds without a step that are still explained."""
        own = self.median()
        if own is None:
            if self.past is None:
                # The first steps compile, allocate and warm up: they explain nothing yet.
                return policy.hang_start_s
            early = policy.hang_factor * max(self.past, self.longest_early)
            return max(policy.hang_floor_s, min(early, policy.hang_start_s))
        paused = min(PAUSE_FACTOR * self.longest_pause, policy.hang_start_s)
        return max(policy.hang_floor_s, policy.hang_factor * own, paused)

    def compute_save_timeout_s(self) -> float:
        """Return seconds that a save may take."""
        return max(SAVE_FLOOR_S, SAVE_FACTOR * self.longest_save)

    def compute_phase_timeout_s(self, phase: str, policy: RunPolicy) -> float:
        """Return seconds that a phase without steps may take; the start's where it never ended
        before."""
        longest = self.phases.get(phase)
        if longest is None:
            return policy.hang_start_s
        return max(self.compute_step_timeout_s(policy), policy.hang_factor * longest)


# A pattern is part of every rule; these judge numbers that came without a line.
_SPIKE = LogRule(name="loss", logPattern="(.)", kind="spike")
_SLOW = LogRule(name="throughput", logPattern="(.)", kind="slow")


class ConsecutiveOutlierDetector:
    """True once as many values running as the rule wants are far off the run's own past."""

    def __init__(self, rule: LogRule) -> None:
        self._rule, self._baseline, self._bad = rule, MedianOutlierBaseline(rule), 0

    def __call__(self, value: float) -> bool:
        """Take the next value."""
        bad = self._baseline(value)
        if bad is not None:
            self._bad = self._bad + 1 if bad else 0
        return bool(bad) and self._bad == self._rule.points


MOST_RANKS = 1 << 16
MOST_NAMED = 8
"""Ranks that a sentence names one by one."""


class TrackedRankProgress(Struct):
    """One rank as it last reported. Times are `RunProgress`'s seconds."""

    rank: int
    at: float
    """When it last reported."""
    node: NodeName | None = None
    pid: int | None = None
    gpu: str = ""
    step: int | None = None
    phase: str = ""
    phase_at: float = 0.0
    stepping: bool = False
    """A step was reported within its phase: the phase is not one without steps."""
    saving_at: float | None = None
    """Since when it saves."""
    stride: int = 0
    """Steps between its last two reports, where it had to leave some out; 0 where it did not."""

    def hear(self, note: ProgressNote, at: float) -> None:
        """Read from a note which rank it is; what it did is for `RunProgress`."""
        self.at = at
        self.node = note.node or self.node
        self.pid = note.pid or self.pid
        self.gpu = note.gpu or self.gpu

    def __str__(self) -> str:
        """Return `rank 3 on node-2 (GPU 5)`."""
        node = f" on {self.node}" if self.node else ""
        gpu = f" (GPU {self.gpu})" if self.gpu else ""
        return f"rank {self.rank}{node}{gpu}"


class LaggingRanks(Struct, frozen=True):
    """The ranks that the others wait for, and how that shows. Empty: the notes do not show it."""

    ranks: tuple[TrackedRankProgress, ...] = ()
    why: str = ""


def find_lagging_ranks(ranks: Mapping[int, TrackedRankProgress], since: float) -> LaggingRanks:
    """Return who is behind: by step; else in another phase than most; else without any report.

    Only what was reported after `since`, when the run last went back, is compared. A lag that may
    be a report left out by a rank that steps faster than it may report is none.
    """
    fresh = [rank for rank in ranks.values() if rank.at >= since]
    stepped = [rank for rank in fresh if rank.step is not None]
    if len(stepped) > 1:
        front = max(_get_rank_step(rank) for rank in stepped)
        lowest = min(stepped, key=_get_rank_step)
        slack = max(rank.stride for rank in stepped)
        if _get_rank_step(lowest) < front - slack:
            late = [rank for rank in stepped if rank.step == lowest.step]
            if 2 * len(late) <= len(stepped):
                there = f"at step {lowest.step}, the furthest at {front}"
                return LaggingRanks(
                    tuple(late),
                    f"{format_rank_list(late)} {_choose_singular_or_plural_verb(late)} {there}",
                )
    return _find_ranks_in_other_phase(fresh) or LaggingRanks()


def _find_ranks_in_other_phase(fresh: list[TrackedRankProgress]) -> LaggingRanks | None:
    """Return ranks in another phase than most, where few enough are."""
    phases = Counter(rank.phase for rank in fresh if rank.phase)
    if len(phases) < 2:
        return None
    most, times = phases.most_common(1)[0]
    others = [rank for rank in fresh if rank.phase and rank.phase != most]
    if len(others) >= times:
        return None
    where = ", ".join(sorted({rank.phase for rank in others})[:MOST_NAMED])
    return LaggingRanks(
        tuple(others),
        f"{format_rank_list(others)} {_choose_singular_or_plural_verb(others)} in {where}, the"
        f" other {times} "
        f"in {most}",
    )


def format_rank_list(ranks: Iterable[TrackedRankProgress]) -> str:
    """Return the ranks as text, the first few of many."""
    found = sorted(ranks, key=lambda rank: rank.rank)
    text = ", ".join(str(rank) for rank in found[:MOST_NAMED])
    more = len(found) - MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text


def _choose_singular_or_plural_verb(ranks: list[TrackedRankProgress]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _get_rank_step(rank: TrackedRankProgress) -> int:
    assert rank.step is not None
    return rank.step


REORDERED_S, REORDERED_STEPS = 1.0, 8
"""A report so little older than the last one is a datagram that was overtaken, and no restart."""
NO_RANK = 0
"""Notes without a rank are taken for this one's: programs that have only one."""
MOST_PENDING = 16
KEPT_SAVES = 16


class RunProgress:
    """One start of a run: from the launch of its ranks until they are gone."""

    def __init__(
        self,
        policy: RunPolicy,
        started: float,
        began: datetime,
        *,
        pace: StepTimeHistory | None = None,
    ) -> None:
        """`started` and `began` are the same moment, by the monotonic and by the wall clock.

        `ranks` is how many there are, None if unknown. `pace` is what an earlier start of the same
        run has taught (`pace.derive_next()` of its progress).
        """
        self.policy, self.started, self._began = policy, started, began
        self.ranks: dict[int, TrackedRankProgress] = {}
        self.pace = pace or StepTimeHistory()
        self.step: int | None = None
        """The furthest step of this start, or since the run last went back."""
        self.checkpoint: tuple[str, int | None] | None = None
        self.saves: deque[float] = deque(maxlen=KEPT_SAVES)
        """What saves took, as the program reported: `saves` of `RankProgressListener` takes
        them."""
        """Path and step of the last save that a rank called finished."""
        self.done = False
        """The run reported its end."""
        self._lowest = MOST_RANKS * MOST_RANKS
        """The lowest rank that reported: its loss is taken as the run's."""
        self._moved = started
        self.finite_at = began
        """Until when all losses that were reported were finite numbers."""
        self._stepped: float | None = None
        self._stepped_at = started
        self._start: float | None = started
        """When a start began that has made no step yet."""
        self._excused = False
        self._since = started
        self._reported_at: float | None = None
        self._pending: deque[Trouble] = deque(maxlen=MOST_PENDING)
        self._jumps, self._slows = (
            ConsecutiveOutlierDetector(_SPIKE),
            ConsecutiveOutlierDetector(_SLOW),
        )
        self._by_tokens = False
        self._lost: set[int] = set()
        """Ranks whose loss is no finite number."""

    def configure(self, policy: RunPolicy) -> None:
        """Take another policy from now on."""
        self.policy = policy

    def convert_monotonic_to_datetime(self, at: float) -> datetime:
        """Return the monotonic seconds as a date."""
        return self._began + timedelta(seconds=at - self.started)

    def add(self, note: ProgressNote, at: float) -> None:
        """Take in one note, received at `at`."""
        if note.restart:
            self.reset_after_rank_restart(at)
            return
        number = NO_RANK if note.rank is None else note.rank
        rank = self.ranks.get(number)
        if rank is None:
            if len(self.ranks) >= MOST_RANKS:
                return
            rank = self.ranks[number] = TrackedRankProgress(number, at)
            self._lowest = min(self._lowest, number)
        if note.pid is not None and rank.pid not in (None, note.pid):
            # Another process has its place: its ranks were restarted inside the step.
            self._return_to_earlier_step(at)
            rank.step, rank.phase, rank.saving_at = None, "", None
        before = rank.at
        rank.hear(note, at)
        if note.phase:
            self._record_rank_phase(rank, note.phase, at)
        if note.saving is not None:
            self._record_checkpoint_save_state(rank, note.saving, at)
        if note.checkpoint:
            self._record_checkpoint(note, at)
        elif note.step is not None:
            self._record_step(rank, note, note.step, at, at - before)
        if note.done:
            self.done, self._moved = True, at

    def reset_after_rank_restart(self, at: float) -> None:
        """Begin again, because all ranks are restarted inside the step: what they last did no
        longer counts."""
        self._return_to_earlier_step(at)
        self.ranks.clear()
        self.done, self.pace, self._start = False, self.pace.copy_for_next_start(), at

    def trouble(self, now: float) -> Trouble | None:
        """Return what is wrong, each thing once; a hang again only after something moved in
        between."""
        if self._pending:
            return self._pending.popleft()
        hang = self.hang(now)
        if hang is None or self._reported_at == self._moved:
            return None
        self._reported_at = self._moved
        return hang

    def hang(self, now: float) -> Trouble | None:
        """Return the present hang, however often it was reported. Changes nothing."""
        if now - self._moved <= self.bound(now):
            return None
        late = self.behind()
        only = late.ranks[0] if len(late.ranks) == 1 else None
        silence = self.silence(now)
        return Trouble(
            TroubleKind.HANG,
            self.convert_monotonic_to_datetime(now),
            f"{late.why}; {silence}" if late.why else silence,
            signature=f"hang: no {self._describe_awaited_event()}",
            node=self._find_common_node_of_lagging_ranks(late),
            rank=only.rank if only else None,
            device=f"GPU {only.gpu}" if only and only.gpu else "",
            evidence=self.summary(now),
            step=self.step,
            progress=self.checkpoint[1] if self.checkpoint else None,
        )

    def silence(self, now: float) -> str:
        """Return the silence as text: `no step for 62 s since step 50 (its median is 1 s, bound 60
        s)`."""
        own = self.pace.median()
        usual = f"its median is {own:.3g} s, " if own is not None else ""
        since = f" since step {self.step}" if self.step is not None else ""
        passed = f"{now - self._moved:.0f} s"
        bound = f"{self.bound(now):.0f} s"
        return f"no {self._describe_awaited_event()} for {passed}{since} ({usual}bound {bound})"

    def suspect(self, now: float) -> bool:
        """Return whether half of the explained silence is over: time for a first look from
        outside."""
        return now - self._moved > self.bound(now) / 2

    def behind(self) -> LaggingRanks:
        """Return the ranks that the others wait for, by their own notes."""
        return find_lagging_ranks(self.ranks, self._since)

    @property
    def last_progress_at(self) -> float:
        """Return when anything last advanced: a step, a phase, a save."""
        return self._moved

    @property
    def last_step_at(self) -> float:
        """Return when a step was last reported; the start where none was yet."""
        return self._stepped_at

    def alive(self, at: float) -> None:
        """Record that something outside the notes shows that the run continues: its silence counts
        from here."""
        self._moved, self._excused = at, True

    def bound(self, now: float) -> float:
        """Return seconds of silence, counted from `last_progress_at`, that are explained now."""
        if self.done:
            bound = self.policy.hang_start_s
        elif self._start is not None:
            bound = self.pace.compute_start_timeout_s(self.policy)
        else:
            bound = self.pace.compute_step_timeout_s(self.policy)
        explained = self.pace.compute_save_timeout_s()
        for rank in self.ranks.values():
            if rank.saving_at is not None and now - rank.saving_at <= explained:
                return max(bound, explained)
            if rank.phase and not rank.stepping and rank.at >= self._since:
                bound = max(bound, self.pace.compute_phase_timeout_s(rank.phase, self.policy))
        return bound

    def summary(self, now: float) -> str:
        """Return a few lines for a person: what each group of ranks last did."""
        groups: dict[tuple[int | None, str, bool], list[TrackedRankProgress]] = {}
        for rank in self.ranks.values():
            groups.setdefault((rank.step, rank.phase, rank.saving_at is not None), []).append(rank)
        lines = []
        for (step, phase, saving), ranks in sorted(groups.items(), key=lambda g: len(g[1]))[:8]:
            last = max(rank.at for rank in ranks)
            where = f"step {step}" if step is not None else "no step"
            doing = f", in {phase}" if phase else ""
            doing += ", saving" if saving else ""
            lines.append(f"{where}{doing}, heard {now - last:.0f} s ago: {format_rank_list(ranks)}")
        return "\n".join(lines)

    def _record_step(
        self, rank: TrackedRankProgress, note: ProgressNote, step: int, at: float, since: float
    ) -> None:
        last = rank.step
        if last is not None and step < last:
            if since <= REORDERED_S and last - step <= REORDERED_STEPS:
                return
            self._return_to_earlier_step(at)
        rank.stride = max(step - last, 0) if note.lost and last is not None else 0
        if rank.phase and not rank.stepping:
            self.pace.left(rank.phase, at - rank.phase_at)
        rank.step, rank.stepping = step, True
        if last != step:
            self._moved = self._stepped_at = at
        if self.step is None or step > self.step:
            self._advance_to_step(step, note.tokens, at)
        if note.loss is not None:
            self._record_training_loss(rank, note.loss, at)

    def _advance_to_step(self, step: int, tokens: float | None, at: float) -> None:
        if self.step is not None and self._stepped is not None:
            silence = at - self._stepped
            self.pace.record_step_duration(silence, excused=self._excused)
            if silence > 0:
                self._record_step_rate(silence, step - self.step, tokens, at)
        elif self._start is not None:
            self.pace.longest_start = max(self.pace.longest_start, at - self._start)
        self._start = None
        self.step, self._stepped, self._excused = step, at, False

    def _return_to_earlier_step(self, at: float) -> None:
        """Handle a run that was resumed at an earlier step, or that counts its steps from the
        beginning."""
        self._since, self.step, self._stepped, self._moved = at, None, None, at

    def _record_step_rate(
        self, silence: float, steps: int, tokens: float | None, at: float
    ) -> None:
        """Note the rate of so many steps in so many seconds, with the tokens of each where they
        are reported."""
        if (tokens is not None) != self._by_tokens:
            self._slows, self._by_tokens = ConsecutiveOutlierDetector(_SLOW), tokens is not None
        rate = steps * (1.0 if tokens is None else tokens) / silence
        if self._slows(rate):
            unit = "steps/s" if tokens is None else "tokens/s"
            why = f"{rate:.4g} {unit} is far under the run's own median"
            signature = "throughput far under the run's own past"
            self._queue_detected_failure(
                TroubleKind.SLOW, f"{why}, {_SLOW.points} times running", at, signature
            )

    def _record_training_loss(self, rank: TrackedRankProgress, loss: float, at: float) -> None:
        """Note a loss that is no number: of the first rank, until all are numbers again."""
        if not math.isfinite(loss):
            if not self._lost:
                why = f"{rank}: the loss is {loss}"
                self._queue_detected_failure(
                    TroubleKind.NAN, why, at, "loss is no finite number", rank
                )
            self._lost.add(rank.rank)
            return
        self._lost.discard(rank.rank)
        if not self._lost:
            self.finite_at = self.convert_monotonic_to_datetime(at)
        if rank.rank == self._lowest and self._jumps(loss):
            why = f"the loss is {loss:.6g}, far over the run's own median"
            signature = "loss far over the run's own past"
            self._queue_detected_failure(
                TroubleKind.SPIKE, f"{why}, {_SPIKE.points} times running", at, signature
            )

    def _record_rank_phase(self, rank: TrackedRankProgress, phase: str, at: float) -> None:
        if phase == rank.phase:
            return
        if rank.phase and not rank.stepping:
            self.pace.left(rank.phase, at - rank.phase_at)
        rank.phase, rank.phase_at, rank.stepping = ("" if phase == "-" else phase), at, False
        self._moved, self._excused = at, True

    def _record_checkpoint_save_state(self, rank: TrackedRankProgress, on: bool, at: float) -> None:
        if on:
            rank.saving_at = at if rank.saving_at is None else rank.saving_at
        elif rank.saving_at is not None:
            self.pace.longest_save = max(self.pace.longest_save, at - rank.saving_at)
            rank.saving_at = None
        self._moved, self._excused = at, True

    def _record_checkpoint(self, note: ProgressNote, at: float) -> None:
        self.checkpoint = (note.checkpoint, note.step)
        if note.seconds is not None and 0 <= note.seconds < self.policy.window_s:
            self.pace.longest_save = max(self.pace.longest_save, note.seconds)
            self.saves.append(note.seconds)
        self._moved, self._excused = at, True

    def _queue_detected_failure(
        self,
        kind: TroubleKind,
        why: str,
        at: float,
        signature: str,
        rank: TrackedRankProgress | None = None,
    ) -> None:
        step = self.step if rank is None else rank.step
        self._pending.append(
            Trouble(
                kind,
                self.convert_monotonic_to_datetime(at),
                f"{why} (step {step})",
                signature=signature,
                node=rank.node if rank else None,
                rank=rank.rank if rank else None,
                device=f"GPU {rank.gpu}" if rank and rank.gpu else "",
                step=step,
                progress=self.checkpoint[1] if self.checkpoint else None,
            )
        )

    def _describe_awaited_event(self) -> str:
        if self.done:
            return "end after the run said that it was done"
        if any(rank.saving_at is not None for rank in self.ranks.values()):
            return "end of a save"
        return "first step" if self.step is None else "step"

    @staticmethod
    def _find_common_node_of_lagging_ranks(late: LaggingRanks) -> NodeName | None:
        nodes = {rank.node for rank in late.ranks}
        return nodes.pop() if len(nodes) == 1 else None
