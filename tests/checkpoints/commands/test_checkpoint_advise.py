"""`hpctl checkpoint advise`: from the journal and the files, and what it says where they lack."""

import json
from datetime import datetime

import pytest
from msgspec.structs import replace

from hpctl.checkpoints.run_records import HISTORIES
from hpctl.jobs.run.history import JobHistory
from hpctl.toolkit.compat import UTC
from tests.checkpoints.test_jobs_save_interval import saved
from tests.cli.test_golden import compare

pytestmark = pytest.mark.integration


@pytest.fixture
def checkpoints(history):
    directory = history.dir / "ckpt"
    for number in range(6):
        saved(directory, 500 * (number + 1), 1_790_000_000 + 1800 * number, 40)
    return directory


def submitted(head, directory):
    """Job 4242 was submitted with this directory."""
    jobs = dict(head.slurm.jobs)
    comment = "hpctl:" + json.dumps({"ckpt": directory})
    jobs[4242] = replace(jobs[4242], comment=comment)
    head.slurm = replace(head.slurm, jobs=jobs)


def test_text_and_json_are_as_before(history, checkpoints):
    submitted(history, str(checkpoints))
    for name, text in (("txt", ()), ("json", ("--json",))):
        result = history.run("checkpoint", "advise", "4242", *text, width=200)
        assert result.exit_code == 0, result.output
        compare(f"checkpoint-advise.{name}", result.stdout.replace(str(checkpoints), "DIR"))


def test_what_is_given_counts_before_what_the_program_reported_and_that_before_its_files(
    history, checkpoints
):
    for job, took in (("a-1", 3.0), ("a-2", 5.0)):
        (checkpoints / HISTORIES).mkdir(exist_ok=True)
        answer = JobHistory.open(checkpoints / HISTORIES / f"run-{job}.jsonl")
        answer.record_checkpoint_save_durations(1, datetime(2026, 11, 21, tzinfo=UTC), [took])
    args = ("checkpoint", "advise", str(checkpoints), "--nodes", "64", "--json")
    shown = json.loads(history.run(*args).stdout)
    assert shown["save_s"] == 4
    assert shown["save_from"] == "median of 2 as the program reported to hpctl run"
    costs = ("--save-cost", "2s", "--restart-cost", "1m", "--mtbf", "4h")
    shown = json.loads(history.run(*args, *costs).stdout)
    assert (shown["save_s"], shown["restart_s"], shown["mtbf_s"]) == (2, 60, 14_400)
    assert shown["interval_s"] == pytest.approx(240, rel=0.02)
    assert shown["failures"] is None


def test_without_a_journal_the_published_rate_is_taken_and_said(head, tmp_path):
    saved(tmp_path / "ckpt", 500, 1_790_000_000, 40)
    result = head.run("checkpoint", "advise", str(tmp_path / "ckpt"), "--nodes", "8", width=200)
    assert result.exit_code == 0, result.output
    assert "has no journal" in result.stdout
    assert "6.50 per 1000 node-days" in result.stdout
