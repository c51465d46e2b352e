"""What people are told, in bursts: nothing urgent is lost, and no sink hears more than its rate."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.engine.config import ConfigError, NotificationSection, parse_config
from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.journal.state import EngineState
from hpctl.service.notify import outbox as notify_outbox
from hpctl.service.notify.decide import Notice, make_event_notice
from hpctl.service.notify.outbox import (
    NotificationMessage,
    Outbox,
    OutboxEntry,
    compose_sink_message,
    select_due_notices,
)
from hpctl.vocabulary.identity import JobId, RuleId
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.examples import examples
from tests.fakes.values import T0, at, slurm_job, slurm_node

KINDS = ("escalated", "budget", "node_back", "job_resumed")
BURSTS = st.lists(
    st.tuples(st.floats(0, 1500), st.sampled_from(KINDS), st.integers(1, 40)), max_size=25
)


def sample_notice(
    kind: str = "escalated", target: str = "n1", seconds: float = 0, text: str = ""
) -> Notice:
    person = "on-call to look" if kind in ("escalated", "budget") else ""
    what = text or f"{target} is sick."
    return Notice(kind, target, f"{target}{seconds}", at(seconds), what, "hpctl nodes", person)  # type: ignore[arg-type]


@settings(max_examples=examples(60))
@given(BURSTS, st.integers(2, 12), st.booleans())
def test_a_burst_loses_nothing_urgent_and_keeps_the_rate(bursts, per_hour, quiet):
    outbox, urgent, sent = Outbox(0), set[str](), list[datetime]()
    heard, seconds = set[str](), 0.0
    for pause, kind, count in [*bursts, *[(599.0, "", 0)] * 20]:
        fresh = [sample_notice(kind, f"{kind}{n}", seconds) for n in range(count)]
        urgent |= {n.key for n in fresh if n.urgent}
        rows = [OutboxEntry("ops", "", n, at(seconds)) for n in fresh]
        outbox = outbox.add(outbox.position + 1, rows, at(seconds))
        end = seconds + pause + 1
        while seconds < end:
            group = select_due_notices(outbox.posted, per_hour, at(seconds), quiet=quiet)
            if group:
                assert not quiet or all(p.notice.urgent for p in group)
                assert {p.to for p in group} == {""}
                heard |= {p.notice.key for p in group}
                sent.append(at(seconds))
                outbox = outbox.mark(group, at(seconds))
            seconds += 1 if group else min(20.0, max(end - seconds, 0.1))
    hour = timedelta(hours=1)
    assert all(sum(t <= s < t + hour for s in sent) <= per_hour for t in sent)
    assert urgent <= heard
    assert outbox.posted == () or max(p.at for p in outbox.posted) > at(seconds - 4 * 86400)


def test_what_is_sent_once_an_hour_and_what_leaves() -> None:
    def row(key: str, target: str, seconds: float, sink: str = "ops") -> OutboxEntry:
        of = Notice("mass_event", target, key, at(seconds), "w", "n", "p")
        return OutboxEntry(sink, "", of, at(seconds))

    box = Outbox(0).add(1, [row("k", "n1", 0), row("k", "n1", 0), row("k", "n2", 0)], at(0))
    assert [p.notice.target for p in box.posted] == ["n1", "n2"]
    assert select_due_notices(box.posted, 30, at(1)) == ()
    box = box.mark(select_due_notices(box.posted, 30, at(2)), at(2))
    assert select_due_notices(box.posted, 30, at(9)) == ()
    again = [row("k", "n3", 60), row("other", "n3", 60), row("k", "n3", 60, "mail")]
    box = box.add(2, again, at(60))
    assert [(p.sink, p.notice.key) for p in box.posted if not p.sent] == [
        ("ops", "other"),
        ("mail", "k"),
    ]
    box = box.add(3, [row("k", "n3", 3700)], at(3700))
    assert [p.notice.key for p in box.posted] == ["other", "k", "k"], "the sent ones have left"
    box = box.add(4, [], at(4 * 86400))
    assert len(box.posted) == 3, "the clock may have been set forward for a moment"
    assert box.add(5, [], at(4 * 86400 + 3599)).posted == box.posted
    marked = box.add(5, [], at(3800)).mark(box.posted, at(3800)).posted
    assert [p.sent for p in marked] == [at(3800)] * 3
    box = box.add(5, [], at(3800)).add(6, [], at(5 * 86400))
    assert len(box.posted) == 3, "twice"
    assert box.add(7, [], at(5 * 86400 + 3600)).posted == ()
    calm = OutboxEntry("ops", "", sample_notice("node_back"), T0)
    assert Outbox(0, (calm,)).add(1, [], at(4 * 86400)).posted == ()
    flood = [
        OutboxEntry("ops", "", sample_notice("node_back", f"n{n}"), T0)
        for n in range(notify_outbox.MOST + 5)
    ]
    full = Outbox(0).add(1, [*flood, OutboxEntry("ops", "", sample_notice(), T0)], T0)
    assert len(full.posted) == notify_outbox.MOST + 1
    assert full.posted[-1].notice.urgent


@pytest.mark.parametrize("back_s", [7200.0, 30 * 86400.0])
def test_a_clock_that_is_set_back_stops_nothing(back_s: float) -> None:
    """Neither what waits, nor the rate, nor what was told before, waits for the time to come."""
    start = 40 * 86400.0
    sent = [
        OutboxEntry("ops", "", sample_notice("budget", f"b{n}"), at(start), at(start + n))
        for n in range(2)
    ]
    waits = OutboxEntry("ops", "", sample_notice(), at(start))
    box, now = Outbox(1, (*sent, waits)), start - back_s
    assert select_due_notices(box.posted, 2, at(now + 61))
    box = box.mark(select_due_notices(box.posted, 30, at(now + 61)), at(now + 61))
    assert box.posted[-1].sent == at(now + 61)
    again = OutboxEntry("ops", "", sent[0].notice, at(now + 90))
    assert box.add(2, [again], at(now + 90)).posted[0].sent == min(at(start), at(now + 90))
    box = box.add(2, [again], at(now + 90))
    assert [p for p in box.posted if not p.sent] == [], "told within the hour"
    box = box.add(3, [again], at(now + 90 + 3601))
    assert select_due_notices(box.posted, 2, at(now + 90 + 3700)) == (again,), "told an hour after"


@settings(max_examples=examples(30))
@given(st.lists(st.text(max_size=80), min_size=1, max_size=30))
def test_hostile_text_stays_on_its_line(texts: list[str]) -> None:
    texts = [f"{text}\r\nBcc: x@y <!here> \x1b[2J{'x' * 600}" for text in texts]
    sent: NotificationMessage = compose_sink_message(
        "c\n", [sample_notice(target=text, text=text) for text in texts]
    )
    assert len(sent.title) <= 150
    assert sent.title.isprintable() or "\ufffd" in sent.title
    assert not set("\r\n\x1b@<>") & set(sent.title)
    assert not set("\r\x1b@<>") & set(sent.body)
    lines = sent.body.splitlines()
    assert all(len(line) <= notify_outbox.MAX_LINE for line in lines)
    assert len(lines) == min(len(texts), 10) + (len(texts) > 10) + 3


@pytest.mark.parametrize(
    ("gate", "rule", "target", "kind", "person", "next_"),
    [
        ("budget", "xid-79", "n1", "budget", "approve n1", "hpctl explain n1"),
        ("launch_breaker", "xid-79", "n1", "breaker", "approve", "hpctl explain n1"),
        ("offender", "xid-79", "n1", "held", "approve", "hpctl explain n1"),
        ("observing", "xid-79", "7", "held", "", "hpctl explain 7"),
        ("hang", "run-hang", "7", "job_hung", "the job's owner", "hpctl explain 7"),
        ("internal_error", "internal-error", "n1", "quarantined", "", "hpctl explain n1"),
        ("internal_error", "internal-error-lasts", "n1", "quarantined", "daemon's log", "hpctl"),
    ],
)
def test_holds(gate: str, rule: str, target: str, kind: str, person: str, next_: str) -> None:
    slurm = SchedulerView(T0, {slurm_node().name: slurm_node()}, {JobId(7): slurm_job(7)})
    approvable = gate in ("budget", "launch_breaker", "offender")
    hold = GateBlocked(T0, target, gate, "why it is", RuleId(rule), approvable)
    found = make_event_notice(hold, EngineState(), slurm, RecoveryPolicy())
    assert found is not None
    assert found.kind == kind
    assert person in found.person
    assert bool(person) is found.urgent
    assert next_ in found.next
    assert "why it is" in found.what
    assert found.job == (7 if target == "7" else None)
    for passing in ("stale_facts", "hang_of_others"):
        noted = GateBlocked(T0, target, passing, "", RuleId(rule))
        assert make_event_notice(noted, EngineState(), slurm, RecoveryPolicy()) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sinks: {ops: 'slack://tokentoken'}", "file of mode 0640"),
        ("sinks: {Ops: /x}", "no name"),
        ("routes: [{to: [nobody]}]", "no sink is called nobody"),
        ("sinks: {a: /x}, routes: [{to: [a], kinds: [escalatd]}]", "escalatd"),
        ("users: nobody", "no sink is called nobody"),
        ("quiet: 22-6", "quiet"),
        ("per_hour: 1", "per_hour"),
    ],
)
def test_a_wrong_configuration_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(f"notify: {{{text}}}")
    assert problem in str(raised.value.problems)
    assert "tokentoken" not in str(raised.value)


@pytest.mark.parametrize(
    ("hours", "hour", "quiet"),
    [
        ("", 3, False), ("22:00-06:00", 3, True), ("22:00-06:00", 6, False),
        ("12:00-13:30", 13, True), ("12:00-13:30", 11, False),
    ],
)  # fmt: skip
def test_quiet_hours(hours: str, hour: int, quiet: bool) -> None:
    assert (
        NotificationSection(quiet=hours).is_in_quiet_hours(datetime(2026, 3, 1, hour).astimezone())
        is quiet
    )
