"""Made-up histories: three months of recoveries on a cluster with a few lemons in it.

Ordinary nodes break at the rates that Meta published (2.3 and 6.5 failures per 1 000 node-days,
arXiv 2410.21680); a lemon every three to twelve days from the day it turned; one
that has not broken three times yet is no repeat offender that anybody could know. Beside them: mass
events (a switch, a bad driver), operators who replace a node for their own reasons, recoveries
that were withdrawn, and replacements that end a lemon under the same node name.
"""

from datetime import datetime, timedelta
from random import Random

from msgspec import Struct

from hpctl.engine.journal.events import Event, JobRecoveryOpened, NodeRecoveryOpened, SignalSeen
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeGeneration, NodeName, RuleId
from hpctl.vocabulary.model import DeviceVerdict, Finding

T0 = datetime(2026, 1, 1, tzinfo=UTC)
CODES = ("79", "119", "48", "95", "64", "74", "140")


class Past(Struct, frozen=True):
    """Events in order of time, and the instances that are lemons at the end."""

    events: tuple[Event, ...]
    lemons: frozenset[str]
    now: datetime
    nodes: tuple[NodeName, ...]


class _Case(Struct, frozen=True):
    at: float
    node: int
    code: str
    by: str = ""
    withdrawn: bool = False
    lemon: bool = False


def past(seed: int, *, nodes: int = 400, days: float = 90.0) -> Past:
    """The history of one seed."""
    random = Random(f"history {seed}")
    rate = random.choice((2.3e-3, 6.5e-3))
    turned = {n: random.uniform(10, days - 40) for n in range(nodes) if random.random() < 0.015}
    every = {n: random.uniform(3, 12) for n in turned}
    cases = []
    for n in range(nodes):
        usual = random.choice(CODES)
        at = random.expovariate(rate)
        while at < days:
            cases.append(_Case(at, n, random.choice(CODES)))
            at += random.expovariate(rate)
        at = turned.get(n, days) + random.expovariate(1 / every[n]) if n in turned else days
        while at < days:
            code = usual if random.random() < 0.7 else random.choice(CODES)
            cases.append(_Case(at, n, code, lemon=True))
            at += random.expovariate(1 / every[n])
    for _ in range(random.randint(1, 4)):
        at, code = random.uniform(0, days), random.choice(CODES)
        hit = random.sample(range(nodes), random.randint(4, 25))
        cases += [
            _Case(at + random.uniform(0, 240) / 86400, n, code, "", random.random() < 0.5)
            for n in hit
        ]
    for _ in range(random.randint(0, 8)):
        cases.append(_Case(random.uniform(0, days), random.randrange(nodes), "", "alice"))
    return _make_past(random, cases, set(turned), days, nodes)


def _make_past(
    random: Random, cases: list[_Case], lemons: set[int], days: float, nodes: int
) -> Past:
    """The journal's events; a replaced instance is another one, and no lemon."""
    events: list[Event] = []
    born: dict[int, int] = {}
    busy: dict[int, float] = {}
    broke: dict[int, int] = {}
    for number, case in enumerate(sorted(cases, key=lambda c: c.at)):
        if busy.get(case.node, 0.0) > case.at or (case.lemon and born.get(case.node)):
            continue
        broke[case.node] = broke.get(case.node, 0) + case.lemon
        busy[case.node] = case.at + 0.05
        instance = f"i-{case.node}-{born.get(case.node, 0)}"
        here = NodeGeneration(f"n{case.node}", instance, f"b{number}")
        asks = random.random() < 0.08
        replaced = not (case.withdrawn or asks) and random.random() < (0.9 if case.by else 0.12)
        if replaced:
            born[case.node] = born.get(case.node, 0) + 1
        events += _recovery(random, number, case, here, born.get(case.node, 0), asks)
    ill = {f"i-{n}-0" for n in lemons if not born.get(n) and broke.get(n, 0) >= 3}
    events.sort(key=lambda e: e.at)
    names = tuple(NodeName(f"n{n}") for n in range(nodes))
    return Past(tuple(events), frozenset(ill), T0 + timedelta(days=days), names)


def _recovery(random, number, case, here, life, asks):
    at = T0 + timedelta(days=case.at)
    rid = f"n-{number}"
    seen = (
        (Finding("kernel.xid", DeviceVerdict.FAIL, at, at, "0000:18:00", case.code),)
        if case.code
        else ()
    )
    opened = NodeRecoveryOpened(
        at, rid, here, RuleId(f"xid-{case.code}" if case.code else "operator"), "", Urgency.NOW,
        (Remedy.REBOOT, Remedy.REPLACE), "", "own", by=case.by, findings=seen,
    )  # fmt: skip
    events: list[Event] = [opened]

    def then(minutes: float, signal: str, now_is: NodeGeneration | None = None) -> None:
        events.append(SignalSeen(at + timedelta(minutes=minutes), rid, signal, "", now_is))

    then(0.1, "cordon_seen")
    if case.withdrawn:
        then(0.5, "withdrawn")
        return events
    for job in range(random.choice((0, 0, 1, 1, 2))):
        jid = f"j-{number}-{job}"
        attempt = JobAttempt(JobId(number * 10 + job), at, 0)
        events.append(JobRecoveryOpened(at, jid, attempt, rid, (here.node,), ""))
        events.append(SignalSeen(at + timedelta(minutes=1), jid, "operator_cancelled", ""))
    then(1, "jobs_gone")
    if asks:
        then(2, "needs_human")
        return events
    fresh = NodeGeneration(here.node, f"i-{case.node}-{life}", f"b{number}+")
    then(2, "remedy_accepted")
    then(10, "new_generation_seen", fresh)
    then(12, "rejoined")
    then(13, "return_seen")
    return events
