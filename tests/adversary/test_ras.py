"""A service of another user on the port of a job's RAS service: its word about the ranks."""

import os

import pytest

from hpctl.jobs.hangs.ras_judge import RasHangInvestigation
from hpctl.jobs.hangs.ras_report import RasAddress, RasQueryError, query_ras_service
from tests.adversary.bed import STRANGER, begin
from tests.jobs.hangs.test_ras_explain import hung, trouble_of
from tests.stubs.ras.job import NEWEST, as_json, job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.adversary,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as another user"),
]


def test_another_user_names_no_rank_of_a_hang() -> None:
    state = job()
    state.communicators[0].step(times=100)
    state.communicators[0].step(but=(5,))
    progress = hung(state)
    stranger = begin("answer_as_ras", document=as_json(state, NEWEST), seconds=4.0)
    where = RasAddress("localhost", int(stranger.process.stdout.readline()))
    # What it says would be believed of a service of the ranks' own user.
    assert query_ras_service(where, owner=STRANGER.pw_uid).communicators
    with pytest.raises(
        RasQueryError, match=f"runs as uid {STRANGER.pw_uid}, not as the job's owner"
    ):
        query_ras_service(where)
    hang = RasHangInvestigation(where, apart_s=0.1).explain(progress, trouble_of(progress))
    assert hang is not None
    assert hang.finding is None
    assert hang.trouble.rank is None
    assert "runs as uid" in hang.trouble.evidence
    assert stranger.result() == 1
