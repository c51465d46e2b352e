"""Requests of strangers, and rows that nobody proved, on each database that heads may share."""

import pytest

from hpctl.engine.journal.audit_chain import find_audit_row_with_wrong_digest
from hpctl.engine.journal.events import RequestTaken
from hpctl.engine.request_intake import OperatorRequestHandler
from tests.engine.journal.conftest import database as database
from tests.engine.journal.conftest import mariadb as mariadb
from tests.engine.journal.conftest import postgresql as postgresql
from tests.engine.test_requests_desk import NOON, Head
from tests.munged import realm

pytestmark = [pytest.mark.adversary, pytest.mark.timeout(120), pytest.mark.integration]
INJECTED = ("n1'; DROP TABLE hpctl_events; --", 'n1" OR ""="', "n1\\' OR 1=1 -- ", "n%s%(x)s:p")


@pytest.fixture
def head(database):
    with realm() as munges:
        running = Head(munges, database.url)
        running.server.start()
        yield running
        running.server.stop()
        running.store.close()


@pytest.mark.parametrize("target", INJECTED)
def test_a_target_that_is_a_statement_is_a_text(head: Head, target: str) -> None:
    """Stored as it is, or refused; the tables are as they were, and the trail is whole."""
    status, _ = head.ask(0, "replace", target)
    pending = head.desk.pending()
    assert (status, [r.target for r in pending]) in ((200, [target]), (422, []))
    head.store.append(
        [RequestTaken(NOON, r.id, r.verb, r.target, r.by, "no", False) for r in pending]
    )
    assert len(head.store.audit_trail()) == len(pending)
    assert find_audit_row_with_wrong_digest(head.store.audit_trail()) is None
    assert len(list(head.store.events())) == len(pending)


def test_who_may_write_to_the_database_proves_nothing(head, database):
    """A shared one is written to by whoever has its URL; a file is root's or the daemon's own."""
    head.store.ask("replace", "n1", "root", NOON)
    (request,) = head.desk.pending()
    shared = not database.url.startswith("sqlite")
    assert bool(request.proof) is not shared


@pytest.mark.parametrize("tampered", [False, True])
def test_the_next_leader_believes_what_the_former_one_took(head, database, tampered):
    """A request is as good after a fail-over, unless somebody changed its row meanwhile."""
    assert head.ask(0, "replace", "n1", by="carol")[0] == 200
    if tampered:
        database.execute("UPDATE hpctl_requests SET target = 'n2'")
    successor = OperatorRequestHandler(head.store, head.port, head.live, None, head.munges.head)
    for _ in range(2):
        (request,) = successor.pending()
        if database.url.startswith("sqlite"):
            assert request.proof
        else:
            assert request.proof.startswith("" if tampered else "MUNGE uid 0 from ")
            assert bool(request.proof) is not tampered
    head.store.append([RequestTaken(NOON, request.id, "replace", "n1", "carol", "no", False)])
    assert (successor.pending(), head.store.proofs()) == ([], {})
