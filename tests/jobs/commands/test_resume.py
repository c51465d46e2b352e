"""`hpctl resume JOB --from-step N`: what it finds, does, says and refuses."""

import json
import os
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpctl.checkpoints import search
from hpctl.jobs import resume_command
from hpctl.jobs.resume_command import act_as_user, resume
from hpctl.slurm.records import SlurmJobRecord
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.registration import JobRegistration, format_registration_comment
from hpctl.vocabulary.slurm_facts import SlurmJob
from tests.checkpoints.checkpoint_files import generic
from tests.cli.test_json_contract import holds

AT = datetime(2026, 11, 28, tzinfo=UTC)


class Desk:
    """A job in a Slurm that records its orders, and the job's checkpoint directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        comment = format_registration_comment(JobRegistration(ckpt=str(root)))
        self.job = SlurmJob(
            JobId(12), "RUNNING", AT, comment=comment, uid=os.geteuid(), user="alice"
        )
        self.slurm = Mock()
        self.slurm.view = lambda: Mock(jobs={self.job.id: self.job})
        self.slurm.requeue.return_value = Outcome.accepted()
        self.slurm.start_pending_job.return_value = Outcome.accepted()
        self.slurm.order.return_value = Outcome.accepted()

    def run(self, *arguments: object, stdin: str = ""):
        return CliRunner().invoke(resume, [*map(str, arguments)], input=stdin)

    @property
    def newest(self) -> int | None:
        found = search.find_newest_complete_checkpoint_in_tiers(self.root).found
        return found.step if found else None


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Desk:
    made = Desk(tmp_path)
    for step in (10, 20, 30, 40):
        generic(tmp_path, f"step-{step}", step)
    made.slurm.job.side_effect = lambda _: SlurmJobRecord(made.job)
    monkeypatch.setattr("hpctl.engine.adapters.make_slurm_command_client", lambda _: made.slurm)
    monkeypatch.setattr(resume_command.time, "sleep", lambda _: None)
    monkeypatch.setenv("COLUMNS", "1000")  # no line wraps, however long the directory's name
    return made


def test_a_running_job_is_requeued_and_says_from_where(desk):
    done = desk.run(12, "--from-step", 25, "--why", "NaN", "--skip-batches", 3, "--yes")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "job 12: its next run resumes from step 20, the newest complete checkpoint at or before"
        f" step 25 ({desk.root}/step-20)",
        "passed over, with what its run saves before it ends: step-40, step-30; nothing is deleted",
        "its environment has HPCTL_SKIP=25:28: a program that does not read it takes these batches"
        " again",
        "job 12: requeued; it starts when Slurm has nodes for it",
    ]
    assert desk.newest == 20
    assert search.find_newest_complete_checkpoint_in_tiers(desk.root).skip == "25:28"
    desk.slurm.requeue.assert_called_once_with(desk.job.attempt)
    desk.slurm.start_pending_job.assert_called_once_with(desk.job.id, ())


def test_the_json_is_documented(desk):
    done = desk.run(12, "--from-step", 20, "--yes", "--json")
    holds("resume", done.stdout)
    view = json.loads(done.stdout)
    assert (view["step"], view["action"], view["ok"]) == (20, "requeue", True)
    assert view["later"] == [f"{desk.root}/step-40", f"{desk.root}/step-30"]
    assert Path(view["mark"]).is_file()


def test_a_dry_run_and_a_no_do_nothing(desk):
    dry = desk.run(12, "--from-step", 20, "--dry-run")
    assert (dry.exit_code, dry.stdout.splitlines()[-1]) == (0, "Dry run: nothing was done.")
    asked = desk.run(12, "--from-step", 20, stdin="n\n")
    assert asked.exit_code == 1
    assert "requeue job 12, which is running?" in asked.stderr
    assert desk.newest == 40
    assert not desk.slurm.requeue.called


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "job_requeued_in_held_state"])
def test_a_held_job_is_released(desk, reason):
    desk.job = replace(desk.job, state="PENDING", reason=reason)
    done = desk.run(12, "--from-step", 20)
    assert done.stdout.splitlines()[-1] == (
        "job 12: released; it resumes from there when it starts"
    )
    desk.slurm.order.assert_called_once_with("scontrol", "release", "12")
    assert desk.newest == 20


def test_pending_job_gets_only_the_mark(desk):
    desk.job = replace(desk.job, state="PENDING", reason="Resources")
    done = desk.run(12, "--from-step", 20)
    assert done.stdout.splitlines()[-1].startswith("job 12: it waits in the queue")
    assert (desk.newest, desk.slurm.order.called, desk.slurm.requeue.called) == (20, False, False)


def test_a_job_that_completes_is_waited_for(desk):
    completing = Outcome.rejected("completing", "the job is COMPLETING", transient=True)
    desk.slurm.requeue.side_effect = [completing, completing, Outcome.accepted()]
    pending = Outcome.rejected("not_pending", "the job is RUNNING")
    desk.slurm.start_pending_job.side_effect = [pending, completing, Outcome.accepted()]
    assert desk.run(12, "--from-step", 20, "--yes").exit_code == 0
    assert (desk.slurm.requeue.call_count, desk.slurm.start_pending_job.call_count) == (3, 3)


def test_a_requeue_that_slurm_refuses_says_what_is_done_and_what_to_do(desk):
    desk.slurm.requeue.return_value = Outcome.rejected("denied", "Access denied")
    done = desk.run(12, "--from-step", 20, "--yes")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == (
        "job 12: the requeue was refused: Access denied. Its checkpoints are marked:"
        " `scontrol requeue 12` starts it from there"
    )


def refused(desk: Desk, *arguments: object) -> tuple[str, str]:
    """The message of an error and its hint."""
    error = desk.run(*arguments).exception
    assert isinstance(error, HpctlError), error
    assert not desk.slurm.requeue.called
    assert desk.newest == 40
    return str(error), error.hint


def test_a_step_before_all_checkpoints_names_those_that_there_are(desk):
    said, hint = refused(desk, 12, "--from-step", 5, "--yes")
    assert said == f"there is no complete checkpoint at or before step 5 in {desk.root}"
    assert hint == "There are steps 40, 30, 20, 10."


def test_a_job_that_slurm_does_not_know(desk):
    said, hint = refused(desk, 13, "--from-step", 20, "--yes")
    assert said == "Slurm does not know job 13: it does not exist, or ended too long ago"
    assert "hpctl checkpoint mark DIR STEP" in hint


def test_a_job_that_did_not_register_or_has_no_checkpoints(desk):
    desk.job = replace(desk.job, comment="mine")
    assert refused(desk, 12, "--from-step", 20)[0] == (
        "cannot choose where job 12 resumes: it was not submitted with hpctl sbatch"
    )
    desk.job = replace(desk.job, comment=format_registration_comment(JobRegistration(spares=1)))
    assert "without --checkpoint-dir" in refused(desk, 12, "--from-step", 20)[0]


def test_a_job_of_another_user(desk, monkeypatch):
    desk.job = replace(desk.job, uid=4242)
    monkeypatch.setattr(resume_command.os, "geteuid", lambda: 4243)
    said, hint = refused(desk, 12, "--from-step", 20)
    assert (said, hint) == (
        "job 12 belongs to alice: only its owner can resume it",
        "Ask its owner, or run the command as root.",
    )


def test_a_job_that_slurm_runs_no_second_time(desk):
    desk.job = replace(desk.job, requeue=False)
    assert "submitted with --no-requeue" in refused(desk, 12, "--from-step", 20)[0]


def test_an_array_needs_one_of_its_tasks(desk):
    desk.job = replace(desk.job, array_job=12, array_task="1-3", state="PENDING")
    said, hint = refused(desk, 12, "--from-step", 20)
    assert (said, hint) == (
        ("job 12 is an array of several tasks, and hpctl resumes one task at a time"),
        "Name one task, such as 12_0.",
    )


def test_a_job_without_a_step_and_a_step_without_a_job(desk):
    alone = desk.run(12)
    assert (alone.exit_code, "--from-step N" in alone.stderr) == (2, True)
    assert "hpctl unpause" in alone.stderr
    assert "the command names no job" in desk.run("--from-step", 20).stderr
    assert "is not a job id" in desk.run("train", "--from-step", 20).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other rights")
def test_root_looks_and_writes_with_the_owners_rights(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    with act_as_user(65534):
        assert os.geteuid() == 65534
        with pytest.raises(PermissionError):
            os.listdir(tmp_path / "theirs")
    assert (os.geteuid(), os.listdir(tmp_path / "theirs")) == (0, [])
