"""Where a step resumes, and what counts as a newer checkpoint."""

import pytest

from hpctl.checkpoints.resume import NothingWhole, ResumePoint, beside, newest, resume_point
from hpctl.jobs.run.settings import settings
from hpctl.jobs.run.srun import parse_srun
from tests.checkpoints.checkpoint_files import generic


def save(root, step, whole=True):
    directory = generic(root, f"step-{step}", step)
    if not whole:
        (directory / "data").write_bytes(b"x")


def given(directory, **environ):
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "HOME": "/nowhere"} | environ
    if directory is not None:
        env["HPCTL_CHECKPOINT_DIR"] = str(directory)
    return settings(parse_srun(["x"]), env)


def resume(given, sleep=lambda _: None):
    return resume_point(given.resume_directory, given.search, sleep)


def test_a_first_start_has_nothing_to_resume_from(tmp_path) -> None:
    assert resume(given(tmp_path)) == ResumePoint()
    assert resume(given(None)).judged is False
    save(tmp_path, 7)
    assert resume(given(tmp_path, HPCTL_RESUME="scratch")).path is None
    # What a step itself saves goes into its directory: that is what counts as newer.
    assert beside(ResumePoint("s3://b/step-9", 9), tmp_path).step == 7


def test_damaged_ones_alone_are_no_reason_to_start_from_scratch(tmp_path) -> None:
    save(tmp_path, 8, whole=False)
    pauses: list[float] = []
    with pytest.raises(NothingWhole, match="step-8"):
        resume(given(tmp_path), pauses.append)
    assert pauses == [0.0]
    assert newest(tmp_path).judged is False


def test_a_directory_that_is_away_is_waited_for(tmp_path) -> None:
    away, pauses = tmp_path / "mount", []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            save(away, 7)

    assert (resume(given(away), sleep).step, pauses) == (7, [0.0, 2.0, 5.0])
    with pytest.raises(NothingWhole, match="cannot be read"):
        resume(given(tmp_path / "never"), lambda _: None)
