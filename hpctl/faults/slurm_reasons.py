"""The Reasons that Slurm's own programs give to a node, found in the fault table (outside.md).

slurmctld keeps who set a Reason: SlurmUser for what it does itself, root for what a slurmd, a
slurmstepd or a HealthCheckProgram asks for. A person's own account under the same words is a
person's drain. slurmctld appends to a Reason (` : Not responding`, set_node_reason in node_mgr.c),
so the beginning decides; `reboot timed out` alone is looked for behind a person's words as well,
because `scontrol reboot` begins with them.
"""

from __future__ import annotations

import functools
from itertools import chain
from typing import TYPE_CHECKING, Final

from hpctl.vocabulary.identity import RuleId
from hpctl.vocabulary.slurm_facts import SlurmNode

if TYPE_CHECKING:
    from hpctl.faults.table import FaultRow

CHECK: Final = "slurm"
_LOST: Final = frozenset({"down", "rebooted"})
_APPENDED: Final = "boot"


@functools.cache
def list_slurm_reason_fault_rows() -> tuple[FaultRow, ...]:
    """Return the rows that a Reason names, in order of precedence.

    Few nodes have such a Reason, and a command that finds none reads no fault table.
    """
    from hpctl.faults.table import list_check_fault_rows

    return tuple(row for row in list_check_fault_rows(CHECK) if row.reason)


@functools.cache
def list_drained_node_fault_rows() -> tuple[FaultRow, ...]:
    """Return the rows of what Slurm closes a node for though its slurmd answers."""
    return tuple(row for row in list_slurm_reason_fault_rows() if row.code not in _LOST)


@functools.cache
def list_drained_node_fault_rules() -> frozenset[RuleId]:
    """Return the rules of these rows."""
    return frozenset(
        map(RuleId, chain.from_iterable(row.rules for row in list_drained_node_fault_rows()))
    )


def find_slurm_reason_fault_row(node: SlurmNode) -> FaultRow | None:
    """Return the row of the Reason that a program of Slurm's gave to a node; None: no such one."""
    if not node.reason or node.reason_by:
        return None
    last = node.reason.rpartition(" : ")[2]
    for row in list_slurm_reason_fault_rows():
        if node.reason.startswith(row.reason) or (row.code == _APPENDED and last in row.reason):
            return row
    return None


def is_node_drained_by_slurm(node: SlurmNode) -> bool:
    """Return whether a program of Slurm's drained the node, for which no person has to answer."""
    return node.drained and find_slurm_reason_fault_row(node) is not None


def find_drained_node_fault_row(node: SlurmNode | None) -> FaultRow | None:
    """Return the row of what Slurm closed a node for; None where it is open or others closed it."""
    if node is None or not (node.drained or node.down):
        return None
    row = find_slurm_reason_fault_row(node)
    return row if row is not None and row in list_drained_node_fault_rows() else None


def describe_action_for_drained_node(node: SlurmNode) -> str:
    """Say what a person does about a node that Slurm itself closed; "" for another node."""
    row = find_drained_node_fault_row(node)
    if row is None:
        return ""
    return row.advice.replace(
        "scontrol update State", f"scontrol update NodeName={node.name} State"
    )
