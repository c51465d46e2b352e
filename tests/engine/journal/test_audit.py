"""The audit trail: written with the event it records, chained, and never retired."""

from datetime import timedelta

import pytest

from hpctl.engine.journal.audit_chain import find_audit_row_with_wrong_digest
from hpctl.engine.journal.events import ConfigurationTaken
from hpctl.engine.journal.rows import DaemonIdentity
from tests.engine.journal.events import NOW, signal, taken

pytestmark = [pytest.mark.integration, pytest.mark.contract]


def filled(database):
    journal = database.open()
    journal.append([signal(1), taken(1), ConfigurationTaken(NOW, {"mode": '"own"'}, "root")])
    journal.append([taken(2, "refused ✓"), signal(2)])
    return database


def test_audit_lists_all_requests_in_order(database):
    trail = filled(database).read().audit_trail()
    assert [row.kind for row in trail] == ["RequestTaken", "ConfigurationTaken", "RequestTaken"]
    assert trail[2].event == taken(2, "refused ✓")
    assert find_audit_row_with_wrong_digest(trail) is None
    assert len({row.digest for row in trail}) == 3


@pytest.mark.parametrize(
    ("tampering", "found"),
    [
        ("UPDATE hpctl_audit SET payload = REPLACE(payload, 'ann', 'eve') WHERE seq = 1", 1),
        ("DELETE FROM hpctl_audit WHERE seq = 2", 3),
        ("DELETE FROM hpctl_audit WHERE seq = 1", 2),
        ("UPDATE hpctl_audit SET kind = 'DaemonStarted' WHERE seq = 3", 3),
    ],
)
def test_a_changed_or_missing_row_is_found(database, tampering, found):
    filled(database).execute(tampering)
    assert find_audit_row_with_wrong_digest(database.read().audit_trail()).seq == found


def test_retirement_keeps_the_audit_trail(database):
    journal = filled(database).open()
    assert journal.retire(lambda _: NOW) > 0
    journal.forget(NOW + timedelta(days=2))
    assert len(journal.audit_trail()) == 3
    journal.append([taken(3)])
    assert find_audit_row_with_wrong_digest(journal.audit_trail()) is None


def test_a_batch_that_is_not_stored_leaves_no_row(database):
    journal = filled(database).open()
    rival = database.open()
    journal.take_lease(DaemonIdentity("a", 1, "0", "own", ""), journal.daemon(), NOW, 0.0)
    rival.take_lease(
        DaemonIdentity("b", 2, "0", "own", ""), rival.daemon(), NOW + timedelta(seconds=1), 60.0
    )
    with pytest.raises(Exception, match="took over the journal"):
        journal.append([taken(3)])
    assert len(rival.audit_trail()) == 3


def test_a_journal_of_an_earlier_release_has_no_trail(database):
    database.open().append([signal(1)])
    database.execute("DROP TABLE hpctl_audit")
    assert database.read().audit_trail() == []
