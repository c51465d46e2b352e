"""When the time limit is near."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest

from hpctl.core.compat import UTC
from hpctl.core.trouble import Kind
from hpctl.jobs.run.allocation import AllocationState
from hpctl.jobs.run.settings import RunSettings, settings
from hpctl.jobs.run.srun import parse_srun
from hpctl.jobs.run.supervise import StepTimers
from hpctl.policies import PolicyFile

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass
class Limits:
    """What the ground says of the time limit."""

    left: float | None
    whole_s: float | None

    def left_s(self, _now: datetime) -> float | None:
        return self.left


def given(tmp_path: Path, saves: bool = True) -> RunSettings:
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "HOME": str(tmp_path)}
    if saves:
        environ["HPCTL_CHECKPOINT_DIR"] = str(tmp_path)
    return settings(parse_srun(["x"]), environ, [PolicyFile(save_grace_s=60)])


@pytest.mark.parametrize(
    ("left", "whole", "near"),
    [
        (3600.0, 7200.0, False),
        (89.0, 7200.0, True),
        (91.0, 7200.0, False),
        (89.0, 120.0, False),  # a job of two minutes is not near its end all the time
        (29.0, 120.0, True),
        (None, None, False),
    ],
)
def test_it_is_near_when_a_save_and_a_requeue_just_fit(
    tmp_path: Path, left: float | None, whole: float | None, near: bool
) -> None:
    clocks = StepTimers(given(tmp_path))
    trouble = clocks.time_limit(cast(AllocationState, Limits(left, whole)), NOW)
    assert (trouble is not None and trouble.kind is Kind.TIME_LIMIT) is near


def test_it_is_told_once_and_only_to_who_can_save(tmp_path: Path) -> None:
    ground = cast(AllocationState, Limits(50.0, 7200.0))
    clocks = StepTimers(given(tmp_path))
    assert clocks.time_limit(ground, NOW) is not None
    assert clocks.time_limit(ground, NOW) is None
    assert StepTimers(given(tmp_path, saves=False)).time_limit(ground, NOW) is None
