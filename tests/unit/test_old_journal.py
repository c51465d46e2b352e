"""A journal of an earlier release is still read: what it did not say has the meaning of then."""

import json

from hpctl.core.journal import JobRecoveryOpened, JobReported
from hpctl.core.run_policy import Action
from hpctl.store.rows import decode, encode
from tests.cli.worlds import hung

OLD = {
    "at": "2026-03-01T12:00:00Z",
    "recovery": "j-1",
    "attempt": {"job": 7, "submit": "2026-03-01T11:00:00Z", "restarts": 0},
    "cause": "n-1",
    "bad_nodes": ["n1"],
    "why": "its node n1: GPU fell off the bus",
    "name": "train",
    "user": "ada",
    "partition": "all",
    "save_signal": "",
    "over_budget": "",
}


def test_a_job_recovery_of_old_has_no_trouble() -> None:
    event = decode(1, "JobRecoveryOpened", json.dumps(OLD))
    assert isinstance(event, JobRecoveryOpened)
    assert (event.trouble, event.action, event.exclude) == (None, Action.NONE, ())
    assert (event.start_at, event.supervised, event.ran_on) == (None, False, ())


def test_what_is_new_survives_the_way_to_the_disk_and_back() -> None:
    told, opened, *_ = hung()
    assert isinstance(told, JobReported)
    assert isinstance(opened, JobRecoveryOpened)
    for event in (told, opened):
        assert decode(1, *encode(event)) == event
