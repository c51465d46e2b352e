"""What ended long ago is set apart, is still found there, and is deleted in the end."""

from datetime import datetime, timedelta

import pytest

from hpctl.engine.journal.events import Event, SignalSeen
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import LeaseLostError
from tests.engine.journal.beds import DatabaseBed
from tests.engine.journal.events import NOW, numbers, signal, taken

pytestmark = [pytest.mark.integration, pytest.mark.contract]

DAY = timedelta(days=1)
POISON = {
    "sqlite": "CREATE TRIGGER t BEFORE INSERT ON hpctl_past WHEN NEW.payload LIKE '%number 13%'"
    " BEGIN SELECT RAISE(ABORT, 'no'); END",
    "server": "ALTER TABLE hpctl_past ADD CONSTRAINT t CHECK (payload NOT LIKE '%number 13%')",
}


def ended(ends):
    """When `signal`'s events of these numbers were over; all others stay."""

    def over(event: Event) -> datetime | None:
        return ends.get(numbers([event])[0]) if isinstance(event, SignalSeen) else None

    return over


def test_retired_recovery_is_found_but_not_replayed(database: DatabaseBed) -> None:
    journal = database.open()
    # Of one recovery and another in turn, more than go in one statement.
    journal.append([signal(n % 4) for n in range(1300)])
    assert journal.list_retired_recovery_ids() == frozenset()
    assert journal.retire(ended({1: NOW, 2: NOW - DAY})) == 650
    assert set(numbers(journal.events())) == {0, 3}
    assert numbers(database.open().events(past=True)) == [n % 4 for n in range(1300)], "in order"
    assert journal.list_retired_recovery_ids() == {"r-1", "r-2"}
    assert journal.retire(ended({1: NOW, 2: NOW - DAY})) == 0
    journal.append([signal(4)])
    assert numbers(journal.events(after=1300)) == [4], "no number is given twice"


def test_whole_days_are_moved_the_oldest_first_until_it_is_enough(database: DatabaseBed) -> None:
    journal = database.open()
    journal.append([signal(n % 4) for n in range(8)])
    over = ended({1: NOW, 2: NOW - DAY, 3: NOW - 2 * DAY})
    assert journal.retire(over, most=3) == 4
    assert journal.list_retired_recovery_ids() == {"r-3", "r-2"}
    assert journal.retire(over, most=2) == 2
    assert journal.retire(over, most=2) == 0
    assert numbers(journal.events()) == [0, 0]


def test_event_without_a_recovery_has_no_id(database: DatabaseBed) -> None:
    journal = database.open()
    journal.append([taken(1)])
    assert journal.retire(lambda _: NOW) == 1
    assert (list(journal.events()), journal.list_retired_recovery_ids()) == ([], frozenset())
    assert list(journal.events(past=True)) == [taken(1)]


def test_the_past_is_deleted_by_the_day_of_its_end(database: DatabaseBed) -> None:
    journal = database.open()
    journal.append([signal(n) for n in range(4)])
    journal.retire(ended({1: NOW - 2 * DAY, 2: NOW - DAY, 3: NOW}))
    journal.forget(NOW - DAY)
    assert numbers(journal.events(past=True)) == [0, 2, 3], "the day itself stays"
    assert journal.list_retired_recovery_ids() == {"r-2", "r-3"}
    journal.forget(NOW + 1000 * DAY)
    assert numbers(journal.events(past=True)) == [0], "what is not past is never deleted"


def test_only_old_requests_that_were_answered_are_deleted(database: DatabaseBed) -> None:
    journal = database.open()
    old, waiting = (journal.ask("pause", "", "ann", NOW - DAY) for _ in range(2))
    new = journal.ask("pause", "", "ann", NOW + DAY)
    journal.append([taken(old), taken(new)])
    journal.forget(NOW)
    assert [r.id for r in journal.requests()] == [waiting]
    assert journal.answer(new) is not None
    assert journal.answer(old) is None


def test_store_without_the_lease_retires_nothing(database: DatabaseBed) -> None:
    first, second = database.open(), database.open()
    first.take_lease(DaemonIdentity("head-1", 7, "0.1", "own", ""), first.daemon(), NOW, 30)
    first.append([signal(1), signal(2)])
    first.retire(ended({1: NOW}))
    second.take_lease(DaemonIdentity("head-2", 7, "0.1", "own", ""), second.daemon(), NOW + DAY, 30)
    with pytest.raises(LeaseLostError):
        first.retire(ended({2: NOW}))
    with pytest.raises(LeaseLostError):
        first.forget(NOW + DAY)
    assert numbers(second.events()) == [2]
    assert numbers(second.events(past=True)) == [1, 2]


def test_a_recovery_is_moved_whole_or_not_at_all(database: DatabaseBed) -> None:
    """A daemon that dies between two days' moves leaves a journal that can be replayed."""
    journal = database.open()
    journal.append([signal(1), signal(2), signal(13), signal(1), signal(2), signal(13)])
    database.execute(POISON["server" if database.server else "sqlite"])
    with pytest.raises(OSError, match="the journal cannot be written"):
        journal.retire(ended({1: NOW - DAY, 2: NOW, 13: NOW}))
    assert numbers(journal.events()) == [2, 13, 2, 13]
    assert numbers(journal.events(past=True)) == [1, 2, 13, 1, 2, 13]


def test_a_journal_of_an_earlier_release_has_no_past(database: DatabaseBed) -> None:
    database.open().append([signal(1)])
    database.execute("DROP TABLE hpctl_past")
    reader = database.read()
    assert numbers(reader.events(past=True)) == [1]
    assert database.open().retire(ended({1: NOW})) == 1
    assert numbers(reader.events(past=True)) == [1]
