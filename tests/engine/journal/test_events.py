"""Events go in whole batches, in order, and come back as they were."""

from datetime import datetime, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpctl.engine.journal.events import EVENT_TYPES, Event, GateBlocked
from hpctl.engine.journal.rows import decode_event, encode_event
from hpctl.vocabulary.identity import RuleId
from tests.engine.journal.beds import AnyJournal, Bed, DatabaseBed
from tests.engine.journal.events import numbers, signal, taken, values

pytestmark = [pytest.mark.integration, pytest.mark.contract]

BRIEF = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
POISON = {
    "sqlite": "CREATE TRIGGER t BEFORE INSERT ON hpctl_events WHEN NEW.payload LIKE '%number 13%'"
    " BEGIN SELECT RAISE(ABORT, 'no'); END",
    "server": "ALTER TABLE hpctl_events ADD CONSTRAINT t CHECK (payload NOT LIKE '%number 13%')",
}


def test_event_is_the_one_that_the_daemon_asks_for(journal: AnyJournal) -> None:
    port = journal
    assert list(port.events()) == []
    assert port.health() == {}


def test_events_come_back_in_order(bed: Bed) -> None:
    journal = bed.open()
    for first in range(0, 9, 3):
        journal.append([signal(n) for n in range(first, first + 3)])
    journal.append([])
    assert numbers(journal.events()) == list(range(9))
    assert numbers(bed.open().events()) == list(range(9)), "another handle reads the same"


def test_events_after_a_number_are_the_newer_ones(journal: AnyJournal) -> None:
    journal.append([signal(n) for n in range(1, 6)])
    assert numbers(journal.events(after=3)) == [4, 5]
    assert numbers(journal.events(after=5)) == []
    journal.append([signal(6)])
    assert numbers(journal.events(after=5)) == [6]


@BRIEF
@given(batch=st.tuples(*(values(kind) for kind in EVENT_TYPES.values())))
def test_every_event_comes_back_exactly(journal: AnyJournal, batch: tuple[Event, ...]) -> None:
    before = len(list(journal.events()))
    journal.append(batch)
    assert tuple(journal.events(after=before)) == batch


def test_a_long_event_is_not_cut(journal: AnyJournal) -> None:
    long = taken(1, "ü" * 200_000)
    journal.append([long])
    assert list(journal.events()) == [long]


def test_reading_may_stop_early(journal: AnyJournal) -> None:
    journal.append([signal(n) for n in range(500)])
    found = iter(journal.events())
    assert numbers([next(found), next(found)]) == [0, 1]
    journal.append([signal(500)])
    found.close()
    assert len(list(journal.events())) == 501


def test_a_batch_that_fails_in_the_middle_leaves_nothing(database: DatabaseBed) -> None:
    journal = database.open()
    journal.append([signal(1)])
    number = journal.ask("pause", "", "ann", signal(1).at)
    database.execute(POISON["server" if database.server else "sqlite"])
    with pytest.raises(OSError, match="the journal cannot be written"):
        journal.append([signal(2), taken(number), signal(13), signal(4)])
    assert numbers(journal.events()) == [1]
    assert [r.id for r in journal.requests()] == [number]
    assert journal.answer(number) is None
    journal.append([signal(2)])
    assert numbers(journal.events()) == [1, 2]


def test_gate_blocked_keeps_its_stored_name():
    event = GateBlocked(
        datetime(2026, 1, 1, tzinfo=timezone.utc), "n1", "budget", "4 are closed", RuleId("xid-79")
    )
    kind, payload = encode_event(event)
    assert kind == "HoldNoted"
    assert decode_event(1, kind, payload) == event
