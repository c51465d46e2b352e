"""Who canceled a job, by sacct."""

from pathlib import Path

import pytest

from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.run import SlurmCommandRunner
from tests.fakes.values import slurm_job


def find(folder: Path, script: str) -> str:
    """Return whom the reader finds where sacct is this script."""
    sacct = folder / "sacct"
    sacct.write_text(f"#!/bin/sh\n{script}\n")
    sacct.chmod(0o755)
    return SlurmCommandReader(SlurmCommandRunner(bin_dir=folder)).find_job_canceler(
        slurm_job(state="CANCELLED")
    )


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'CANCELLED by 0'", "root"),
        ("echo 'CANCELLED by 4294967290'", "uid 4294967290"),
        ("echo 'CANCELLED by 99999999999999999999'", ""),
        ("echo CANCELLED", ""),
        ("echo RUNNING", ""),
        ("printf 'COMPLETED\\nCANCELLED by 0\\n'", "root"),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", ""),
        ('[ "$*" = "${*%--jobs 1}" ] || echo "CANCELLED by 0"', "root"),
    ],
)
def test_accounting_names_the_account(tmp_path: Path, script: str, found: str) -> None:
    assert find(tmp_path, script) == found


def test_a_machine_without_sacct_names_no_one(tmp_path: Path) -> None:
    assert (
        SlurmCommandReader(SlurmCommandRunner(bin_dir=tmp_path)).find_job_canceler(slurm_job())
        == ""
    )
