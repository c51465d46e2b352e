"""What `hpctl explain` says of a job's checkpoints."""

import os

import pytest

from hpctl.checkpoints import search
from hpctl.checkpoints.explain import describe_newest_checkpoint
from hpctl.engine.explain_view import JobToExplain
from hpctl.vocabulary.registration import JobRegistration
from hpctl.vocabulary.run_policy import RunPolicy
from tests.cli.worlds import world
from tests.fakes.values import slurm_job


@pytest.mark.parametrize(
    ("asks", "owner", "looks"),
    [(0, 1666, False), (0, None, False), (0, 0, True), (1666, 1666, True)],
)
def test_root_opens_no_checkpoint_of_a_user(monkeypatch, tmp_path, asks, owner, looks):
    opened = []

    def look(place, *, declared):
        opened.append(place)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(search, "find_newest_complete_checkpoint_in_tiers", look)
    monkeypatch.setattr(os, "geteuid", lambda: asks)
    asked = JobToExplain(
        world([]), slurm_job(uid=owner), JobRegistration(ckpt=str(tmp_path)), RunPolicy()
    )
    text = describe_newest_checkpoint(asked)
    assert (opened == [tmp_path]) is looks
    assert ("hpctl checkpoint last" in text) is not looks
