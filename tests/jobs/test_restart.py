"""The way in which the ranks of each kind of job are restarted, wherever it is asked for."""

import pytest

from hpctl.jobs.restart import RestartSetup, RestartWay, choose_restart, choose_restart_way
from hpctl.jobs.run.settings import TorchRanks, read_settings
from hpctl.jobs.run.srun import parse_srun
from hpctl.vocabulary.registration import read_comment
from tests.jobs.sbatch.test_jobs_submit import submit

ENVIRONMENT = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "HOME": "/nowhere"}


@pytest.mark.parametrize(
    ("setup", "way"),
    [
        (RestartSetup(), RestartWay.REQUEUE),
        (RestartSetup(False, True, True), RestartWay.REQUEUE),
        (RestartSetup(True), RestartWay.STEP),
        (RestartSetup(True, False, True), RestartWay.STEP),
        (RestartSetup(True, True), RestartWay.PROCESS),
        (RestartSetup(True, True, True), RestartWay.IN_PROCESS),
    ],
)
def test_each_kind_of_job_has_one_way(setup: RestartSetup, way: RestartWay) -> None:
    assert choose_restart(setup) is way
    assert way.has_supervisor == (way is not RestartWay.REQUEUE)
    assert way.has_launcher == (way in (RestartWay.PROCESS, RestartWay.IN_PROCESS))


@pytest.mark.parametrize(
    ("line", "torch", "supervisors", "daemons"),
    [
        ("srun ./train", None, None, RestartWay.REQUEUE),
        ("hpctl run ./train", None, RestartWay.STEP, RestartWay.STEP),
        ("hpctl run --torch ./train", TorchRanks(8), RestartWay.PROCESS, RestartWay.STEP),
        (
            "hpctl run --torch --in-process ./train",
            TorchRanks(8, True),
            RestartWay.IN_PROCESS,
            RestartWay.STEP,
        ),
    ],
)
def test_submission_supervisor_and_daemon_agree(line, torch, supervisors, daemons) -> None:
    """The daemon knows of a launcher only that its supervisor has it."""
    submitted = submit("--checkpoint-dir /c", f"#!/bin/sh\n{line}\n")
    (comment,) = (w for w in submitted.options if w.startswith("--comment="))
    registered = read_comment(comment.partition("=")[2])
    assert registered is not None
    assert choose_restart_way(registered) is daemons
    if supervisors is not None:
        run = read_settings(parse_srun(["./train"]), ENVIRONMENT, torch=torch)
        assert run.restart_way is supervisors
        assert run.restart_way.has_supervisor == choose_restart_way(registered).has_supervisor
