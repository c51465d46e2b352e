"""The loop: observe, take requests, plan, advance, execute. Read this file first.

Level-triggered: each cycle looks at the whole world again. A start-up is just a cycle: what was
in doubt when the last daemon died is in the journal, and `advance` treats it like any input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hpctl.core.advance import Progress, advance_all
from hpctl.core.catalogue import Rules
from hpctl.core.journal import Event, HoldLifted, HoldNoted, JobReported, State, replay
from hpctl.core.plan import plan
from hpctl.core.plan_capacity import plan_capacity
from hpctl.core.policy import Mode, Policy
from hpctl.core.quarantine import quarantined
from hpctl.core.recovery import Look
from hpctl.core.requests import taken
from hpctl.core.view import Request, View, jobs_on
from hpctl.core.walls import Flaw, each
from hpctl.daemon.execute import Executor
from hpctl.ports import Clock, Journal

MAX_PASSES = 50
"""A recovery has fewer phases than this: more passes in one cycle is a bug, not a recovery."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When the next cycle should come, if nothing wakes the loop before."""

    acted: bool
    look: Look
    until: datetime | None


class Loop:
    """What one daemon remembers, and the cycle that it repeats."""

    def __init__(
        self,
        journal: Journal,
        make_executor: Callable[[Callable[[Sequence[Event]], None]], Executor],
        look: Callable[[State, Rules, bool], View],
        requests: Callable[[], Sequence[Request]],
        clock: Clock,
        told: Callable[[], Sequence[JobReported]] = tuple,
    ) -> None:
        """Replay the journal. Raises JournalCorrupt, core.journal.Corrupt.

        `look` is told whether the mode lets hpctl act. `told`: what the intake has written to the
        journal since the last cycle.
        """
        self._told = told
        self._journal = journal
        self._look = look
        self._requests = requests
        self._clock = clock
        self._executor = make_executor(self.append)
        self.state = self._remembered()
        self.flaws: tuple[Flaw, ...] = ()
        """What could not be handled in the last cycle, each by itself."""

    def reread(self) -> None:
        """Take the journal's word again, after a write whose end nobody could tell.

        Raises Unavailable, JournalCorrupt, core.journal.Corrupt.
        """
        self.state = self._remembered()

    def _remembered(self) -> State:
        state = replay(self._journal.events())
        state.retired = self._journal.retired()
        return state

    def append(self, events: Sequence[Event]) -> None:
        """Journal first, memory second: what is not on disk has not happened."""
        self._journal.append(events)
        for event in events:
            self.state.fold(event)

    def cycle(self, policy: Policy, rules: Rules) -> Pace:
        """Once round. Raises what the journal raises; what raises about one thing is its flaw."""
        self._executor.collect()
        _, of_words = each("fold", self._told(), lambda e: e.report.job, self.state.fold)
        view = self._look(self.state, rules, policy.mode is not Mode.OBSERVE)
        now = self._clock.now()
        for request in self._requests():
            self.append(taken(request, view, policy, now))
        here = jobs_on(list(self.state.open_nodes), view.scheduler.jobs)
        decided = plan(view, policy, rules, here, now)
        self.append(decided.opens)
        capacity, of_capacity = plan_capacity(view, policy, now)
        self.append(capacity)
        before = self._open()
        progress = self._advance(view, policy, now)
        begun = self._executor.run(progress.due)
        flaws = [*view.flaws.values(), *of_words, *decided.flaws, *of_capacity, *progress.flaws]
        self.flaws = (*flaws, *self._executor.flaws())
        holds = quarantined(self.flaws, decided.holds, self.state.holds, now)
        self.append(self._changed(holds, now))
        # What has ended may be decided on anew: a run that failed again, say.
        ended = self._open() < before
        return _pace(progress, view, begun or ended or bool(decided.opens or capacity))

    def _open(self) -> int:
        state = self.state
        return len(state.open_nodes) + len(state.open_jobs) + len(state.open_changes)

    def _advance(self, view: View, policy: Policy, now: datetime) -> Progress:
        for _ in range(MAX_PASSES):
            progress = advance_all(view, policy, now)
            if not progress.moves:
                return progress
            self.append(progress.moves)
        raise RuntimeError(f"recoveries still move after {MAX_PASSES} passes: {progress.moves}")

    def _changed(self, holds: Sequence[HoldNoted], now: datetime) -> list[Event]:
        """Holds are written once per change of reason, not once per cycle."""
        known = self.state.holds
        new = [
            h
            for h in holds
            if h.target not in known
            or (known[h.target].gate, known[h.target].rule) != (h.gate, h.rule)
        ]
        current = {h.target for h in holds}
        return [*new, *(HoldLifted(now, t) for t in sorted(known) if t not in current)]


_SOONEST = (Look.SOON, Look.SLOWLY, Look.WOKEN)


def _pace(progress: Progress, view: View, acted: bool) -> Pace:
    look = min((w.look for w in progress.waits), key=_SOONEST.index, default=Look.WOKEN)
    times = [w.until for w in progress.waits]
    times += [a.until for a in view.assessments.values() if a.until is not None]
    if view.silent_at is not None:
        times.append(view.silent_at)
    return Pace(acted, look, min(times, default=None))
