"""The marks of HyperPod's health monitoring agent (HMA) on nodes in Slurm, read as findings.

HMA sets a node FAIL or DRAIN with `Reason=Action:Reboot` or `Action:Replace`, 5 to 30 s after a
fault (awslabs/awsome-distributed-ai, hyperpod-mental-model.md). HyperPod matches the Reason to the
letter, so everything else is a user's own words. slurmctld appends to a Reason (` : Not
responding`, set_node_reason in node_mgr.c), and that is still the mark. Anybody may set one by
hand: AWS documents it as a way to ask for the same.

What slurmctld 22.05.8 makes of it: FAIL clears DRAIN and replaces the Reason; DRAIN clears FAIL;
DOWN keeps FAIL; RESUME and UNDRAIN clear FAIL; FAIL stays when another instance registers.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from hpctl.vocabulary.cloud_facts import Instance
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName, RuleId
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode

MARKS: Final[Mapping[str, str]] = {"Action:Reboot": "reboot", "Action:Replace": "replace"}
"""The Reasons, to the letter, and the code of the finding that each is."""
CHECK: Final = "hma"
SPENT: Final = "spent"
REQUESTS: Final = frozenset(RuleId(f"{CHECK}-{code}") for code in MARKS.values())
"""The catalogue's rows of marks that ask for what has not been done yet."""
RULES: Final = REQUESTS | {RuleId(f"{CHECK}-{SPENT}")}
"""The catalogue's rows that rest on Slurm's word, whatever the node's agent says."""


def find_hma_reason_mark(node: SlurmNode | None) -> str:
    """Return the mark that a closed node bears; "" where it bears none."""
    if node is None or not node.reason or not (node.closed or node.down):
        return ""
    return parse_hma_mark_from_reason(node.reason)


def parse_hma_mark_from_reason(reason: str) -> str:
    """Return the mark that a Reason is, whatever slurmctld appended; "" where it is none."""
    mark = reason.partition(" : ")[0]
    return mark if mark in MARKS else ""


def is_hma_mark_fulfilled(node: SlurmNode, instance: Instance | None = None) -> bool:
    """Return whether what a mark asks for was done since: a boot, or where it is known another
    instance.

    slurmctld's clock and the node's, both in whole seconds.
    """
    if node.reason_at is None:
        return False
    launched = instance.launched if instance is not None else None
    if launched is not None and launched > node.reason_at:
        return True  # FAIL stays when another instance comes, and until that has registered
    if launched is not None and find_hma_reason_mark(node) == "Action:Replace":
        return False
    return node.boot_time is not None and node.reason_at <= node.boot_time


def preserve_fulfilled_hma_marks(before: SchedulerView, after: SchedulerView) -> SchedulerView:
    """Return the newer view in which a mark that was spent still is.

    slurmctld computes the boot time of a node from its own clock at each registration, so a clock
    that is set back moves the boot to before the mark, and the node would be rebooted again. While
    a node bears the same mark of the same second, its boot time moves forward only.
    """
    kept: dict[NodeName, SlurmNode] = {}
    for name, node in after.nodes.items():
        known = before.nodes.get(name)
        if (
            known is None
            or known is node
            or known.boot_time is None
            or not find_hma_reason_mark(node)
        ):
            continue
        is_same = (known.reason_at, find_hma_reason_mark(known)) == (
            node.reason_at,
            find_hma_reason_mark(node),
        )
        if is_same and (node.boot_time is None or node.boot_time < known.boot_time):
            kept[name] = replace(node, boot_time=known.boot_time)
    return replace(after, nodes={**after.nodes, **kept}) if kept else after


def add_hma_mark_findings(
    health: Mapping[NodeName, NodeHealth],
    slurm: SchedulerView | None,
    instances: Mapping[NodeName, Instance],
) -> dict[NodeName, NodeHealth]:
    """Return what is known of the nodes, HMA's marks included.

    A node that was never heard is known by its mark alone. A mark whose time Slurm does not tell
    is as old as the view.
    """
    found = dict(health)
    if slurm is None:
        return found
    seen = slurm.as_of
    for name, node in slurm.nodes.items():
        mark = find_hma_reason_mark(node)
        if not mark:
            continue
        known, instance = found.get(name), instances.get(name)
        if known is None:
            who = NodeGeneration(name, instance.id if instance else InstanceId(""), BootId(""))
            known = NodeHealth(who, seen)
        code = SPENT if is_hma_mark_fulfilled(node, instance) else MARKS[mark]
        finding = _make_hma_mark_finding(node, mark, code, seen)
        found[name] = replace(known, findings=(*known.findings, finding))
    return found


_WITHIN: Final = timedelta(microseconds=999_999)
"""Slurm tells whole seconds. A mark is younger than what ended earlier in the same one: giving a
node back takes the old mark off."""


def _make_hma_mark_finding(node: SlurmNode, mark: str, code: str, seen: datetime) -> Finding:
    at = node.reason_at + _WITHIN if node.reason_at else seen
    state = "+".join([node.state, *sorted(node.flags)])
    evidence = f"State={state} Reason={node.reason}"
    return Finding(
        CHECK,
        DeviceVerdict.FAIL,
        at,
        at,
        code=code,
        detail=mark,
        evidence=evidence,
        clears=ClearCondition.GONE,
    )
