"""How right the verdicts are: precision, recall, and which class was taken for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from hpctl.core.model import Assessment, Condition
from tests.corpus.case import Case, Expect
from tests.corpus.play import Played, Player, acts

NONE = "no action"


class Result(Struct, frozen=True):
    """A case beside what was made of it."""

    case: Case
    played: Played

    @property
    def verdict(self) -> Assessment:
        """What the head node made of it."""
        return self.played.verdict

    @property
    def acted(self) -> bool:
        """Whether the node would be touched."""
        return acts(self.verdict)

    @property
    def right(self) -> bool:
        """The expected action and first remedy, by the expected rule where one is named."""
        expect = self.case.expect
        if not isinstance(expect, Expect):
            suspect = self.verdict.condition is Condition.SUSPECT
            return not self.acted and (suspect or expect != "suspect")
        fault = self.verdict.fault
        if not self.acted or fault is None:
            return False
        said = (str(fault.urgency), str(fault.ladder[0]))
        return said == (expect.urgency, expect.remedy) and expect.rule in ("", fault.rule)

    @property
    def told(self) -> str:
        """The verdict in a few words."""
        fault = self.verdict.fault
        if not self.acted or fault is None:
            return f"{NONE} ({self.verdict.condition}; {self.verdict.why or 'nothing found'})"
        return f"{fault.urgency}/{fault.ladder[0]} by {fault.rule}"


class Score(Struct):
    """All results, counted. A positive is a node action."""

    results: list[Result] = field(default_factory=list)

    @classmethod
    def of(cls, cases: Iterable[Case]) -> Score:
        """Play every case."""
        player = Player()
        return cls([Result(case, player.verdict(case)) for case in cases])

    @property
    def wrong(self) -> list[Result]:
        """The cases with another verdict than expected."""
        return [result for result in self.results if not result.right]

    @property
    def benign(self) -> list[Result]:
        """The cases in which the node must be left alone."""
        return [result for result in self.results if result.case.benign]

    @property
    def false_actions(self) -> list[Result]:
        """Nodes touched for nothing."""
        return [result for result in self.benign if result.acted]

    @property
    def precision(self) -> float:
        """Of the node actions, how many were due."""
        acted = [r for r in self.results if r.acted]
        return sum(not r.case.benign for r in acted) / len(acted) if acted else 1.0

    @property
    def recall(self) -> float:
        """Of the faults that need an action, how many got one."""
        due = [r for r in self.results if not r.case.benign]
        return sum(r.acted for r in due) / len(due) if due else 1.0

    @property
    def right_remedy(self) -> float:
        """Of the faults that need an action, how many got the right one."""
        due = [r for r in self.results if not r.case.benign]
        return sum(r.right for r in due) / len(due) if due else 1.0

    def delays(self) -> list[tuple[str, list[float]]]:
        """For each fault class that is acted on, how soon: seconds, sorted."""
        rows: dict[str, list[float]] = {}
        for result in self.results:
            if result.played.delay_s is not None:
                rows.setdefault(result.case.kind, []).append(result.played.delay_s)
        return [(name, sorted(delays)) for name, delays in sorted(rows.items())]

    def confusion(self) -> list[tuple[str, int, Counter[str]]]:
        """For each fault class: its name, its cases, and how many verdicts of which kind."""
        rows: dict[str, Counter[str]] = {}
        for result in self.results:
            fault = result.verdict.fault
            verdict = str(fault.ladder[0]) if result.acted and fault is not None else NONE
            rows.setdefault(result.case.kind, Counter())[verdict] += 1
        return [(name, sum(row.values()), row) for name, row in sorted(rows.items())]
