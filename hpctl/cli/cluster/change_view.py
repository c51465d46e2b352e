"""What the commands that change a cluster tell when they end: one view for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hpctl.clusters.diff import Change
from hpctl.clusters.progress import GroupProgress, NodeProgress, Progress, Verdict


@dataclass(frozen=True, slots=True)
class CallView:
    """One call of the API that is, or would be, made."""

    operation: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RemovalView:
    """One node that goes, why it is this one, and what became of it.

    `phase` is empty where nothing was done yet; `left_drained` the Reason that Slurm still has.
    """

    node: str
    instance_id: str
    logical_id: str
    group: str
    why: str
    jobs: tuple[int, ...]
    phase: str = ""
    text: str = ""
    code: str = ""
    mend: str = ""
    left_drained: str = ""


@dataclass(frozen=True, slots=True)
class ClusterChangeView:
    """What `hpctl cluster create|update|scale|delete|wait` shows.

    `outcome` is `dry_run`, `unchanged`, `ordered` (--no-wait), `reached`, `failed`, `in_doubt`,
    `deadline` or `interrupted`; `pick_up` is the command that follows what goes on.
    """

    as_of: datetime
    command: str
    cluster: str
    outcome: str
    why: str = ""
    arn: str = ""
    status: str = ""
    changes: tuple[Change, ...] = ()
    orders: tuple[CallView, ...] = ()
    removals: tuple[RemovalView, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    failed_nodes: tuple[NodeProgress, ...] = ()
    waited_s: float = 0.0
    pick_up: str = ""


def followed(p: Progress | None) -> dict[str, Any]:
    """The fields of a view that a wait has the last word on."""
    if p is None:
        return {"outcome": "ordered"}
    return {
        "outcome": p.verdict.value if p.verdict is not Verdict.WAITING else "interrupted",
        "why": p.why,
        "arn": p.arn,
        "status": p.status,
        "groups": p.groups,
        "failed_nodes": p.failures,
        "waited_s": round(p.waited_s, 1),
    }
