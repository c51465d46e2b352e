"""Where a step resumes, and what counts as a newer checkpoint."""

import json
import sys

import pytest
from click.testing import CliRunner

from hpctl.checkpoints.command import checkpoint
from hpctl.checkpoints.resume import (
    NoCompleteCheckpointError,
    ResumePoint,
    find_baseline_resume_point_of_step,
    find_newest_resume_point,
    find_resume_point,
    find_resume_point_of_rank_generation,
)
from hpctl.jobs.elastic import in_process
from hpctl.jobs.run.settings import read_run_settings
from hpctl.jobs.run.srun import parse_srun_command
from tests.checkpoints.checkpoint_files import generic


def save(root, step, whole=True):
    directory = generic(root, f"step-{step}", step)
    if not whole:
        (directory / "data").write_bytes(b"x")


def given(directory, **environ):
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "HOME": "/nowhere"} | environ
    if directory is not None:
        env["HPCTL_CHECKPOINT_DIR"] = str(directory)
    return read_run_settings(parse_srun_command(["x"]), env)


def resume(given, sleep=lambda _: None):
    return find_resume_point(given.resume_checkpoint_locations, sleep=sleep)


def test_a_first_start_has_nothing_to_resume_from(tmp_path) -> None:
    assert resume(given(tmp_path)) == ResumePoint()
    assert resume(given(None)).judged is False
    save(tmp_path, 7)
    assert resume(given(tmp_path, HPCTL_RESUME="scratch")).path is None
    # What a step itself saves goes into its directory: that is what counts as newer.
    assert find_baseline_resume_point_of_step(ResumePoint("s3://b/step-9", 9), tmp_path).step == 7


def test_damaged_ones_alone_are_no_reason_to_start_from_scratch(tmp_path) -> None:
    save(tmp_path, 8, whole=False)
    pauses: list[float] = []
    with pytest.raises(NoCompleteCheckpointError, match="step-8"):
        resume(given(tmp_path), pauses.append)
    assert pauses == [0.0]
    assert find_newest_resume_point(tmp_path).judged is False


def test_a_directory_that_is_away_is_waited_for(tmp_path) -> None:
    away, pauses = tmp_path / "mount", []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            save(away, 7)

    assert (resume(given(away), sleep).step, pauses) == (7, [0.0, 2.0, 5.0])
    with pytest.raises(NoCompleteCheckpointError, match="cannot be read"):
        resume(given(tmp_path / "never"), lambda _: None)


def ask_each(environment: dict[str, str]) -> dict[str, str]:
    """What each asker of the look-up is told: a path, "" for the beginning, or "refused"."""

    def command() -> str:
        found = CliRunner(env=environment).invoke(
            checkpoint, ["last", "--export", environment["HPCTL_CHECKPOINT_DIR"]]
            + [f"--tier={tier}" for tier in json.loads(environment["HPCTL_TIERS"])],
        )  # fmt: skip
        verdict, _, path = found.stdout.strip().partition(" ")
        return {"found": path, "none": ""}.get(verdict, "refused")

    def step() -> str:
        run = read_run_settings(parse_srun_command(["x"]), environment)
        return find_resume_point(run.resume_checkpoint_locations, sleep=lambda _: None).path or ""

    def generation() -> str:
        return find_resume_point_of_rank_generation(environment, 1, was_empty=False).path or ""

    def process() -> str:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setenv("HPCTL_PYTHON", sys.executable)
            return in_process.find_resume_checkpoint(1, began=False)

    def describe_answer(ask) -> str:
        try:
            return ask()
        except (NoCompleteCheckpointError, OSError):
            return "refused"

    askers = {"command": command, "step": step, "generation": generation, "process": process}
    return {name: describe_answer(ask) for name, ask in askers.items()}


@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize(
    ("shared", "tier", "local"),
    [
        ((), (), ()),
        ((3, 5), (), ()),
        ((3,), (4,), ()),
        ((3,), (), (6,)),
        ((3, -5), (), ()),
        ((-5,), (), ()),
        ((-5,), (2,), (-9,)),
        ((), (), (-9,)),
    ],
)
def test_every_caller_gets_the_same_answer(tmp_path, shared, tier, local, nodes, monkeypatch):
    """Steps below zero are damaged. The sleeps of a directory that is away are another test's."""
    monkeypatch.setattr("hpctl.checkpoints.resume.PAUSES_S", ())
    places = [tmp_path / name for name in ("shared", "tier", "local")]
    for place, steps in zip(places, (shared, tier, local), strict=True):
        place.mkdir()
        for number in steps:
            save(place, abs(number), whole=number > 0)
    told = ask_each(
        {
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_NUM_NODES": nodes,
            "HOME": "/nowhere",
            "HPCTL_CHECKPOINT_DIR": str(places[0]),
            "HPCTL_TIERS": json.dumps([str(places[1]), f"local:{places[2]}"]),
        }
    )
    assert len(set(told.values())) == 1, told
