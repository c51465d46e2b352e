"""The way in which the ranks of each kind of job are restarted, wherever it is asked for."""

import pytest

from hpctl.jobs.restart import (
    JobRestartSetup,
    RestartMethod,
    choose_first_restart_method,
    choose_restart_method,
)
from hpctl.jobs.run.settings import RankLauncherSettings, read_run_settings
from hpctl.jobs.run.srun import parse_srun_command
from hpctl.vocabulary.registration import parse_registration_comment
from tests.jobs.sbatch.test_jobs_submit import submit

ENVIRONMENT = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "HOME": "/nowhere"}


@pytest.mark.parametrize(
    ("setup", "way"),
    [
        (JobRestartSetup(), RestartMethod.REQUEUE),
        (JobRestartSetup(False, True, True), RestartMethod.REQUEUE),
        (JobRestartSetup(True), RestartMethod.STEP),
        (JobRestartSetup(True, False, True), RestartMethod.STEP),
        (JobRestartSetup(True, True), RestartMethod.PROCESS),
        (JobRestartSetup(True, True, True), RestartMethod.IN_PROCESS),
    ],
)
def test_each_kind_of_job_has_one_way(setup: JobRestartSetup, way: RestartMethod) -> None:
    assert choose_first_restart_method(setup) is way
    assert way.has_supervisor == (way is not RestartMethod.REQUEUE)
    assert way.has_launcher == (way in (RestartMethod.PROCESS, RestartMethod.IN_PROCESS))


@pytest.mark.parametrize(
    ("line", "torch", "supervisors", "daemons"),
    [
        ("srun ./train", None, None, RestartMethod.REQUEUE),
        ("hpctl run ./train", None, RestartMethod.STEP, RestartMethod.STEP),
        (
            "hpctl run --torch ./train",
            RankLauncherSettings(8),
            RestartMethod.PROCESS,
            RestartMethod.STEP,
        ),
        (
            "hpctl run --torch --in-process ./train",
            RankLauncherSettings(8, True),
            RestartMethod.IN_PROCESS,
            RestartMethod.STEP,
        ),
    ],
)
def test_submission_supervisor_and_daemon_agree(line, torch, supervisors, daemons) -> None:
    """The daemon knows of a launcher only that its supervisor has it."""
    submitted = submit("--checkpoint-dir /c", f"#!/bin/sh\n{line}\n")
    (comment,) = (w for w in submitted.options if w.startswith("--comment="))
    registered = parse_registration_comment(comment.partition("=")[2])
    assert registered is not None
    assert choose_restart_method(registered) is daemons
    if supervisors is not None:
        run = read_run_settings(parse_srun_command(["./train"]), ENVIRONMENT, torch=torch)
        assert run.restart_method is supervisors
        assert run.restart_method.has_supervisor == choose_restart_method(registered).has_supervisor
