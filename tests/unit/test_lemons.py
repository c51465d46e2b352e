"""Which histories make a lemon, and which only look like one."""

from hpctl.core.assess import assess
from hpctl.core.catalogue import rules
from hpctl.core.journal import Event, SignalSeen, replay
from hpctl.core.lemons import CHECK, DEFAULT, Lemon, finding, lemons, scores
from hpctl.core.model import Condition, Generation, Health
from tests.fakes.values import N1, generation, node_name, opened
from tests.fakes.values import at as seconds

DAY = 86400.0


def treated(day, number=0, node=1, end="operator_cancelled", **changes):
    """A recovery of that day, and its end."""
    rid = f"n-{node}-{number}-{day}"
    first = opened(rid, node_name(node), day * DAY, **changes)
    return [first, SignalSeen(seconds(day * DAY + 60), rid, end, "")]


def scored(*events: list[Event], day: float = 30) -> tuple[Lemon, ...]:
    return scores(replay([e for some in events for e in some]), seconds(day * DAY))


def test_three_recoveries_within_two_weeks_by_one_rule_are_a_lemon() -> None:
    events = [e for n in (10, 16, 22) for e in treated(n)]
    (lemon,) = lemons(replay(events), seconds(24 * DAY))
    assert (lemon.node, lemon.recoveries) == (N1, 3)
    assert lemon.why == "3 recoveries within 12 d (xid-79 (3))"


def test_two_are_none_and_time_forgives() -> None:
    two = [e for n in (16, 22) for e in treated(n)]
    assert lemons(replay(two), seconds(24 * DAY)) == ()
    three = replay([e for n in (10, 16, 22) for e in treated(n)])
    assert lemons(three, seconds(60 * DAY)) == ()


def test_a_replaced_instance_takes_its_history_with_it() -> None:
    events = [e for n in (10, 16) for e in treated(n)]
    rid = "n-last"
    events.append(opened("n-last", N1, 22 * DAY))
    for n, signal in enumerate(("cordon_seen", "jobs_gone", "remedy_accepted")):
        events.append(SignalSeen(seconds(22 * DAY + n), rid, signal, ""))
    assert len(lemons(replay(events), seconds(23 * DAY))) == 1
    new = generation(N1, 2, instance="i-other")
    events.append(SignalSeen(seconds(22 * DAY + 9), rid, "new_generation_seen", "", new))
    assert scores(replay(events), seconds(23 * DAY)) == ()


def test_a_mass_event_is_nobodys_own_fault() -> None:
    alone = scored(treated(10))[0].score
    mass = scored(*(treated(10 + n / 10_000, node=n) for n in range(1, 6)))
    assert len(mass) == 5
    assert all(abs(lemon.score - alone * DEFAULT.mass) < 0.01 for lemon in mass)


def test_an_operators_order_counts_half_and_a_person_more() -> None:
    plain = scored(treated(10))[0].score
    assert scored(treated(10, by="alice"))[0].score < plain
    asked = scored(treated(10, end="needs_human"))[0]
    assert asked.score > plain
    assert asked.why == "1 recovery (xid-79), 1 needed a person"


def test_the_advice_is_shown_and_leaves_the_node_in_service() -> None:
    state = replay([e for n in (10, 16, 22) for e in treated(n)])
    now = seconds(24 * DAY)
    answer = finding(lemons(state, now)[0])
    assert answer.check == CHECK
    health = Health(Generation(N1, generation().instance, generation().boot), now, (answer,))
    judged = assess(health, rules(), now)
    assert (judged.condition, judged.findings) == (Condition.HEALTHY, (answer,))
    assert "[history-lemon]" in judged.why
