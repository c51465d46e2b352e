"""Repeat offenders: instances that break again and again, though each time they come back.

A score over weeks from the journal's own history, halved every four weeks. It is advice, never a
cause of its own: a person tests such an instance, or gives it back to the provider. Meta's lemon
nodes (arXiv 2410.21680) are found by the same kind of features; removing them took failures of
large jobs there from 14 to 4 per cent.

What counts is the instance and not the node's name: after a replacement the name starts anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from hpctl.core.bounds import span
from hpctl.core.journal import State
from hpctl.core.model import Clears, Finding, InstanceId, NodeName, RecoveryId, Verdict
from hpctl.core.node_recovery import NodeRecovery, Phase

CHECK = "history.lemon"


class Weights(Struct, frozen=True):
    """What one recovery adds to the score of its instance, and when the score is a lemon's.

    `limit` is about three recoveries by one rule within two weeks. A recovery is worth
    `recovery` points, of an operator's own order `ordered`; in a mass event (`mass_nodes` nodes
    by one rule within `mass_window_s`) it counts by `mass`, for the cause is elsewhere. On top
    come its jobs that were moved (`job` each, two at most), an end that needed a person, each
    kind of fault beyond the first, and a rule that struck there before (`again`).
    """

    limit: float = 3.25
    half_life_s: float = 28 * 86400.0
    recovery: float = 1.0
    ordered: float = 0.5
    job: float = 0.25
    escalated: float = 0.5
    variety: float = 0.25
    again: float = 0.5
    mass: float = 0.25
    mass_nodes: int = 3
    mass_window_s: float = 600.0


DEFAULT = Weights()


class Lemon(Struct, frozen=True):
    """One instance's history: its score, and what it is made of. `rules` by how often."""

    node: NodeName
    instance: InstanceId
    score: float
    recoveries: int
    jobs: int
    escalated: int
    rules: Mapping[str, int]
    first: datetime
    last: datetime

    @property
    def why(self) -> str:
        """What the score is made of, in words."""
        days = (self.last - self.first) / timedelta(days=1)
        within = f" within {max(1, round(days))} d" * (self.recoveries > 1)
        causes = ", ".join(f"{rule} ({n})" if n > 1 else rule for rule, n in self.rules.items())
        moved = f", {_counted(self.jobs, 'job')} moved" * bool(self.jobs)
        asked = f", {self.escalated} needed a person" * bool(self.escalated)
        treated = _counted(self.recoveries, "recovery", "recoveries")
        return f"{treated}{within} ({causes}){moved}{asked}"


class _Sum(Struct):
    score: float = 0.0
    jobs: int = 0
    escalated: int = 0
    rules: dict[str, int] = field(default_factory=dict)
    faults: set[tuple[str, str]] = field(default_factory=set)
    seen: list[NodeRecovery] = field(default_factory=list)


def lemons(state: State, now: datetime, weights: Weights = DEFAULT) -> tuple[Lemon, ...]:
    """The instances whose score is at the limit, worst first."""
    return tuple(lemon for lemon in scores(state, now, weights) if lemon.score >= weights.limit)


def scores(state: State, now: datetime, weights: Weights = DEFAULT) -> tuple[Lemon, ...]:
    """Every instance that was ever treated and is still there, worst first."""
    past = [r for r in state.nodes.values() if not r.withdrawn and r.opened <= now]
    gone = {r.opened_for.instance for r in past if r.generation.instance != r.opened_for.instance}
    mass = _mass(past, weights)
    moved: dict[RecoveryId, int] = {}
    for job in state.jobs.values():
        moved[job.cause] = moved.get(job.cause, 0) + 1
    sums: dict[InstanceId, _Sum] = {}
    for rec in past:
        if rec.opened_for.instance not in gone:
            total = sums.setdefault(rec.opened_for.instance, _Sum())
            _add(total, rec, moved.get(rec.id, 0), rec.id in mass, now, weights)
    found = [_lemon(total) for total in sums.values()]
    return tuple(sorted(found, key=lambda lemon: (-lemon.score, lemon.node)))


def finding(lemon: Lemon) -> Finding:
    """The advice as a finding of the head node: WARN, and never a reason to act."""
    return Finding(
        check=CHECK,
        verdict=Verdict.WARN,
        first=lemon.first,
        last=lemon.last,
        evidence=f"score {lemon.score:.2f}: {lemon.why}",
        count=lemon.recoveries,
        clears=Clears.GONE,
    )


def _add(
    total: _Sum, rec: NodeRecovery, jobs: int, shared: bool, now: datetime, weights: Weights
) -> None:
    points = weights.ordered if rec.by else weights.recovery
    points += weights.job * min(jobs, 2)
    points += weights.escalated * (rec.phase is Phase.ESCALATED)
    kinds = {(f.check, f.code) for f in rec.findings if f.verdict is Verdict.FAIL}
    if total.seen:
        points += weights.variety * len(kinds - total.faults)
    total.faults |= kinds
    points += weights.again * (rec.rule in total.rules and not rec.by)
    age = (now - rec.opened).total_seconds()
    total.score += points * (weights.mass if shared else 1.0) * 0.5 ** (age / weights.half_life_s)
    total.jobs += jobs
    total.escalated += rec.phase is Phase.ESCALATED
    total.rules[rec.rule] = total.rules.get(rec.rule, 0) + 1
    total.seen.append(rec)


def _lemon(total: _Sum) -> Lemon:
    ordered = sorted(total.seen, key=lambda r: r.opened)
    last = ordered[-1]
    return Lemon(
        node=last.node,
        instance=last.opened_for.instance,
        score=total.score,
        recoveries=len(ordered),
        jobs=total.jobs,
        escalated=total.escalated,
        rules=dict(sorted(total.rules.items(), key=lambda item: (-item[1], item[0]))),
        first=ordered[0].opened,
        last=last.opened,
    )


def _mass(past: Iterable[NodeRecovery], weights: Weights) -> set[RecoveryId]:
    """The recoveries that were one event of many nodes."""
    by_rule: dict[str, list[NodeRecovery]] = {}
    for rec in past:
        by_rule.setdefault(rec.rule, []).append(rec)
    window = span(weights.mass_window_s)
    shared: set[RecoveryId] = set()
    for recs in by_rule.values():
        recs.sort(key=lambda r: r.opened)
        first = 0
        for place, rec in enumerate(recs):
            while rec.opened - recs[first].opened > window:
                first += 1
            together = recs[first : place + 1]
            if _nodes(together) >= weights.mass_nodes:
                shared.update(r.id for r in together)
    return shared


def _nodes(recs: Sequence[NodeRecovery]) -> int:
    return len({r.node for r in recs})


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
