"""The times of an open recovery, moved to a clock that was set."""

from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.recovery import RecoveryStepRecord

R = TypeVar("R", NodeRecovery, JobRecovery, ClusterChange)


def shift_recovery_times(recovery: R, seconds: float) -> R:
    """Return a recovery or change whose waits follow a clock that was set so far forward.

    The trail stays: it tells what the clock said then.
    """

    def shift_time(at: datetime | None) -> datetime | None:
        return None if at is None else add_seconds_within_bounds(at, seconds)

    def shift_step_times(step: RecoveryStepRecord) -> RecoveryStepRecord:
        return replace(step, started=shift_time(step.started), resolved=shift_time(step.resolved))

    changes: dict[str, Any] = {"steps": tuple(shift_step_times(step) for step in recovery.steps)}
    for name in ("since", "opened", "start_at"):
        at = getattr(recovery, name, None)
        if isinstance(at, datetime):
            changes[name] = shift_time(at)
    return replace(recovery, **changes)
