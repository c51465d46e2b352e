"""What is made of slurmctld's answer, or of none, to the question about our own job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.core.model import JobId
from hpctl.jobs.run.allocation import NoSuchJob, Questions
from hpctl.ports import Unavailable
from hpctl.slurm.run import Runner

SCONTROL = """#!/bin/sh
case "$*" in
*version*) echo "slurm 25.11.7" ;;
*json*) echo '{{"jobs": [], "errors": [], "warnings": []}}' ;;
*) echo "{said}" >&2; exit 1 ;;
esac
"""


def asked(directory: Path, said: str) -> Unavailable:
    path = directory / "scontrol"
    path.write_text(SCONTROL.format(said=said))
    path.chmod(0o755)
    with pytest.raises(Unavailable) as error:
        Questions(JobId(999), Runner(bin_dir=directory)).allocation()
    return error.value


def test_an_empty_list_means_no_such_job_only_where_the_text_says_so(tmp_path: Path) -> None:
    unknown = asked(tmp_path, "slurm_load_jobs error: Invalid job id specified")
    assert isinstance(unknown, NoSuchJob)
    away = asked(tmp_path, "slurm_load_jobs error: Unable to contact slurm controller")
    assert not isinstance(away, NoSuchJob)
