"""When Slurm is read: at each cycle while anything happens, and rarely at rest.

A reading of the whole costs slurmctld four RPCs, one of them a list of all nodes. A cluster at rest
gives the same answer each time, and slurmctld's log says when that ends. So a reading is due

| what is known since the last reading | after |
|---|---|
| an event woke the loop (an agent, a job, an operator, the cloud) | at once |
| something is open, in doubt, or Slurm did not answer; or the log cannot be followed | each cycle |
| the log has a line about a node | NODE_S |
| the log has a line about a job | JOB_S |
| nothing, but the jobs that wait decide on capacity | `loop.reconcile_s` |
| nothing | `loop.rest_s` |

Cycles go on at their own pace and decide on what was read, which the log vouches for. A decision
to act is never made so: the loop then reads Slurm and decides again.

In doubt is a node whose agent became silent less than SILENCE ago: slurmctld's log says late that
a node does not respond. So is a log that is found to keep something back: where a reading shows
another state of a node than the last, and no line of the log said so, nothing is left to it for
DISTRUST_S.

Pure: no clock, no I/O.
"""

import math
from datetime import timedelta

from msgspec import Struct

from hpctl.engine.config import RecoveryLoopSection
from hpctl.vocabulary.controller_news import SlurmctldLogEvent
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode

NODE_S = 2.0
"""A line about a node is answered by a reading at once, but no sooner than this after the last."""
JOB_S = 10.0
"""The same for a job: users' jobs may start and end by the hundred, which then costs slurmctld 24
RPCs a minute. So much is what hpctl shows of a job behind what squeue shows."""
SILENCE = timedelta(minutes=10)
"""For so long a silent agent keeps the readings frequent; slurmctld notices within SlurmdTimeout,
300 s unless slurm.conf says otherwise."""
DISTRUST_S = 600.0
"""For so long Slurm is read at each cycle after the log has kept something back."""


class SlurmReadingAge(Struct, frozen=True):
    """What is known since Slurm was read last. `age_s`: since when that was, in seconds."""

    age_s: float
    busy: bool
    """Something is open or in doubt, or Slurm did not answer."""
    followed: bool
    """slurmctld's log is followed and trusted."""
    news: SlurmctldLogEvent
    """The most urgent of its lines since then."""
    sizes_capacity: bool = False
    """The jobs that wait decide on capacity. A job's time to begin comes without a line."""


def is_slurm_reading_due(since: SlurmReadingAge, pace: RecoveryLoopSection) -> bool:
    """Return whether a cycle that no event woke has to read Slurm."""
    if since.busy or not since.followed:
        return True
    if since.news is SlurmctldLogEvent.NONE and not since.sizes_capacity:
        return since.age_s >= max(pace.rest_s, pace.reconcile_s)
    return since.age_s >= pace.reconcile_s or should_wake_loop_for_log_event(since)


def should_wake_loop_for_log_event(since: SlurmReadingAge) -> bool:
    """Return whether slurmctld's log ends the loop's sleep."""
    after_s = {SlurmctldLogEvent.NODE: NODE_S, SlurmctldLogEvent.JOB: JOB_S}
    return since.age_s >= after_s.get(since.news, math.inf)


def find_nodes_with_service_changes(before: SchedulerView, after: SchedulerView) -> list[NodeName]:
    """Return the nodes that went into or out of service, or have another Reason, from one reading
    to the next. slurmctld writes a line for each."""
    return [
        name
        for name, node in after.nodes.items()
        if name in before.nodes
        and _get_node_service_state(before.nodes[name]) != _get_node_service_state(node)
    ]


def _get_node_service_state(node: SlurmNode) -> tuple[bool, bool, bool, str]:
    return node.down, node.drained, node.closed, node.reason
