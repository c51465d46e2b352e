"""The begin delay that came back is seen by its time, whatever the Reason says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from hpctl.core.compat import UTC
from hpctl.core.job_advance import JobFacts, advance
from hpctl.core.job_recovery import JobRecovery, Phase
from hpctl.core.model import Attempt, JobId, Outcome, RecoveryId, SlurmJob
from hpctl.core.policy import Policy
from hpctl.core.recovery import Do, StepKind, StepRecord, Wait

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = T0 + timedelta(seconds=10)
SENT = StepRecord(StepKind.START_NOW, 1, "7", T0, Outcome.accepted(), T0)
REC = JobRecovery(
    RecoveryId("j-1"), Attempt(JobId(7), T0, 0), RecoveryId("n-1"), (), T0, Phase.STARTING, T0
)
REC = replace(REC, steps=(SENT,))


def waiting(reason: str, eligible: datetime) -> JobFacts:
    return JobFacts(SlurmJob(JobId(7), "PENDING", T0, 1, reason=reason, eligible=eligible))


@pytest.mark.parametrize("reason", ["BeginTime", "None", "NonZeroExitCode", ""])
def test_a_delay_that_came_back_is_cleared_again(reason: str) -> None:
    answer = advance(REC, waiting(reason, T0 + timedelta(seconds=121)), Policy(), LATER)
    assert isinstance(answer, Do)
    assert (answer.kind, answer.attempt) == (StepKind.START_NOW, 2)


def test_a_job_that_is_eligible_merely_waits() -> None:
    assert isinstance(advance(REC, waiting("Resources", T0), Policy(), LATER), Wait)
