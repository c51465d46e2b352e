"""Which idle node is tested because the verdicts on several jobs name it.

The verdicts rest on what jobs report, so a user can cause such a test. It therefore waits for no
job to end, runs on one node of the cluster at a time, and on each node once a day. The gates that
an operator's order passes do not hold it up, so it stops itself: after one test that left its node
to a person, no other begins for a day (ADR 0123).
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from hpctl.engine.power_saving import describe_node_power_saving
from hpctl.engine.test_reservation import SUSPECTED
from hpctl.engine.view import (
    PlanningView,
    RecoveryCandidate,
    group_jobs_by_node,
    is_timestamp_fresh,
)
from hpctl.nodes.testing import FindSuspicions, SuspectedNode
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmNode

AGAIN_S: Final = 86400.0
"""Seconds after which a node can be tested because of a suspicion again."""


def explain_test_refusal(node: SlurmNode, view: PlanningView) -> str:
    """Return why a node cannot be tested now: a test takes a whole node, and waits for no job."""
    here = group_jobs_by_node([node.name], view.scheduler.jobs)[node.name]
    job = next((j for j in here if j.running or j.completing), None)
    if job is not None:
        return f"job {job.shown} is on {node.name}: ask again when it has ended"
    if node.closed and parse_recovery_id_from_reason(node.reason) is None:
        return f"{node.name} is closed by another operator or tool (Reason {node.reason!r})"
    if node.down or not node.responding:
        return f"the slurmd of {node.name} does not answer"
    if node.name not in view.health:
        return f"no agent speaks for {node.name}, and it is the agent that tells the result"
    return ""


def find_suspected_node_candidates(
    view: PlanningView,
    policy: RecoveryPolicy,
    treated: Collection[NodeName],
    find_suspicions: FindSuspicions,
    now: datetime,
) -> list[RecoveryCandidate]:
    """Return the node that is tested next because of a suspicion, if there is one.

    A treatment or a boot after the newest failure ends the suspicion.
    """
    if policy.mode is OperatingMode.OBSERVE or policy.acceptance.suspected == "off":
        return []
    tests = [rec for rec in view.state.nodes.values() if rec.rule == SUSPECTED.rule]
    if any(not rec.ended for rec in tests):
        return []
    of_today = [rec for rec in tests if now < add_seconds_within_bounds(rec.opened, AGAIN_S)]
    if any(rec.phase is NodeRecoveryPhase.ESCALATED for rec in of_today):
        return []
    recent = {rec.node for rec in of_today}
    for suspicion in sorted(find_suspicions(view, now), key=lambda one: one.since):
        name = suspicion.node
        if name in treated or name in recent or view.is_quarantined(name):
            continue
        candidate = _make_test_candidate(suspicion, view, policy, now)
        if candidate is not None:
            return [candidate]
    return []


def _make_test_candidate(
    suspicion: SuspectedNode, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> RecoveryCandidate | None:
    """Return the candidate for a node that is idle, whose agent answers, and that is as it was when
    the jobs failed."""
    node = view.scheduler.nodes.get(suspicion.node)
    health = view.health.get(suspicion.node)
    if node is None or health is None or not node.in_service or explain_test_refusal(node, view):
        return None
    if not is_timestamp_fresh(health.last_heard, policy.ages.report_s, now):
        return None
    # Its next boot ends the suspicion.
    if describe_node_power_saving(node) or node.is_about_to_reboot:
        return None
    last = _find_last_recovery(node.name, view)
    if last is not None and last.opened >= suspicion.since and not last.withdrawn:
        return None
    if node.boot_time is not None and node.boot_time > suspicion.since:
        return None
    return RecoveryCandidate(
        health.generation,
        node,
        SUSPECTED,
        suspicion.since,
        suspicion.why,
        heard=health.last_heard,
        by="hpctl",
    )


def _find_last_recovery(name: NodeName, view: PlanningView) -> NodeRecovery | None:
    last = view.state.last_of_node.get(name)
    return None if last is None else view.state.nodes[last]
