"""What is made of slurmctld's answer, or of none, to the question about our own job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.core.model import JobId
from hpctl.errors import Unavailable
from hpctl.jobs.run.allocation import NoSuchJob, Questions
from hpctl.slurm.run import Runner

PROGRAM = """#!/bin/sh
case "$*" in
*version*) echo "slurm 25.11.7" ;;
*) echo "{said}" >&2; exit 1 ;;
esac
"""


def asked(directory: Path, said: str) -> Unavailable:
    for name in ("scontrol", "squeue"):
        path = directory / name
        path.write_text(PROGRAM.format(said=said))
        path.chmod(0o755)
    with pytest.raises(Unavailable) as error:
        Questions(JobId(999), Runner(bin_dir=directory)).allocation()
    return error.value


def test_no_such_job_is_told_from_a_controller_that_is_away(tmp_path: Path) -> None:
    unknown = asked(tmp_path, "slurm_load_jobs error: Invalid job id specified")
    assert isinstance(unknown, NoSuchJob)
    away = asked(tmp_path, "slurm_load_jobs error: Unable to contact slurm controller")
    assert not isinstance(away, NoSuchJob)
