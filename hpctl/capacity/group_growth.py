"""A group of instances grows."""

from __future__ import annotations

from hpctl.capacity.change_facts import ChangeCase, is_last_change_step_accepted
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.change import ClusterChangeSignal
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryPhaseMove,
    StepKind,
    WaitDecision,
)


def plan_instance_request(c: ChangeCase) -> Next:
    """Return the step that asks the service for more instances, or the move once it was taken."""
    about = c.rec.opened
    if is_last_change_step_accepted(c, StepKind.ADD):
        return RecoveryPhaseMove(
            ClusterChangeSignal.ORDER_TAKEN, f"the service took the order for {about.count} more"
        )
    if c.facts.unwanted:
        return RecoveryPhaseMove(ClusterChangeSignal.REFUSED, c.facts.unwanted)
    if not c.facts.cloud_fresh:
        return c.wait("the cloud's view is too old to act on", RecheckInterval.SLOWLY)
    cannot, size = f"cannot add to {about.group}", {"count": about.count, "size": about.size}
    return c.take(StepKind.ADD, about.group, ClusterChangeSignal.REFUSED, cannot, about.why, **size)


def plan_node_registration_wait(c: ChangeCase) -> Next:
    """Wait until the new instances are registered in Slurm."""
    about, group = c.rec.opened, c.facts.group
    if c.facts.cloud_at <= c.rec.since or group is None:
        return c.wait("the cloud was not read since", RecheckInterval.SLOWLY)
    if group.target < about.size:
        # Not ordered yet; or the service accepted only a part, or another user reverted it. That is
        # not to be ordered again at once.
        why = f"{about.group} is ordered to have {group.target}, not {about.size}"
        settled = add_seconds_within_bounds(c.rec.since, c.policy.node.doubt_window_s)
        return (
            RecoveryPhaseMove(ClusterChangeSignal.REFUSED, why)
            if c.now >= settled
            else WaitDecision(settled, why, RecheckInterval.SLOWLY)
        )
    running = [i for i in c.facts.instances if i.status is InstanceStatus.RUNNING]
    if len(running) < about.size:
        waits = [i for i in c.facts.instances if i.status is not InstanceStatus.RUNNING]
        message = next((i.message for i in waits if i.message), "")
        why = f"{len(running)} of {about.size} instances of {about.group} run. {message}"
        return c.wait(why.strip(), RecheckInterval.SLOWLY)
    if c.facts.unregistered:
        names = ",".join(c.facts.unregistered)
        return c.wait(f"{names} not in Slurm yet", RecheckInterval.SLOWLY)
    return RecoveryPhaseMove(
        ClusterChangeSignal.ARRIVED, f"{len(running)} instances of {about.group} run"
    )
