"""The reservation of spare nodes is set."""

from __future__ import annotations

from msgspec.structs import replace

from hpctl.capacity.change_facts import ChangeCase
from hpctl.vocabulary.change import ClusterChangeSignal
from hpctl.vocabulary.recovery import Next, RecoveryPhaseMove, StepKind, StepRetryRule


def plan_spare_reservation_update(c: ChangeCase) -> Next:
    """Return the step that sets the reservation, or the move once it holds the nodes."""
    about = c.rec.opened
    if c.facts.reserved == frozenset(about.nodes):
        return RecoveryPhaseMove(
            ClusterChangeSignal.SET_SEEN,
            f"the reservation holds {','.join(about.nodes) or 'nothing'}",
        )
    if c.facts.busy:
        # slurmctld would refuse it whole, and a victim must not wait while it is asked again.
        return RecoveryPhaseMove(ClusterChangeSignal.REFUSED, c.facts.busy)
    retry_s, cannot = c.policy.job.step_retry_s, "slurmctld will not reserve"
    c = replace(c, repeat=StepRetryRule(retry_s, c.policy.node.step_attempts, retry_s))
    nodes = about.nodes
    return c.take(
        StepKind.RESERVE, about.group, ClusterChangeSignal.REFUSED, cannot, about.why, nodes=nodes
    )
