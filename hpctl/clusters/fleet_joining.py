"""What Slurm, the agents and EC2 know of each node, beside what the API says."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from hpctl.clusters.fleet import NOT_FOUND, PROTECTED, NodeRow
from hpctl.engine.instance_resolver import match_instances_to_nodes_once
from hpctl.engine.view import group_jobs_by_node
from hpctl.vocabulary.assessment import NodeAssessment
from hpctl.vocabulary.cloud_facts import LEAVING, CloudProviderView, Instance, InstanceStatus
from hpctl.vocabulary.identity import InstanceId, NodeName
from hpctl.vocabulary.slurm_facts import SchedulerView


def add_slurm_states_to_node_rows(
    rows: Iterable[NodeRow], slurm: SchedulerView
) -> tuple[NodeRow, ...]:
    """Return the rows with Slurm's name, state, reason and running jobs, joined as the daemon joins
    them.

    A node in a partition is a compute node, where the API gives no roles.
    """
    listed = list(rows)
    alive, going = InstanceStatus.RUNNING, InstanceStatus.SHUTTING_DOWN
    at = [InstanceId(row.instance_id or row.logical_id or f"{n}") for n, row in enumerate(listed)]
    answer = {
        key: Instance(
            key, going if row.status in LEAVING else alive, node=NodeName(row.node) or None,
            launched=row.launched, address=row.ip, dns=row.dns,
        )
        for key, row in zip(at, listed, strict=True)
    }  # fmt: skip
    provider, join = match_instances_to_nodes_once(
        CloudProviderView(slurm.as_of, instances=answer), slurm
    )
    names = [provider.instances[key].node or NodeName("") for key in at]
    holding = group_jobs_by_node([name for name in names if name in slurm.nodes], slurm.jobs)
    joined = []
    for key, name, row in zip(at, names, listed, strict=True):
        node = slurm.nodes.get(name)
        if node is None:
            # Head nodes are in slurm.conf only where they also run jobs.
            state = "" if row.role in PROTECTED else NOT_FOUND
            why = "; ".join(filter(None, (row.unread, join.unjoined.get(key, ""))))
            joined.append(replace(row, node=name, slurm_state=state, unread=why))
            continue
        jobs = (j.id for j in holding[node.name] if j.running or j.completing)
        joined.append(
            replace(
                row,
                node=str(node.name),
                role=row.role or ("compute" if node.partitions else ""),
                slurm_state=node.state,
                slurm_flags=tuple(sorted(node.flags)),
                slurm_reason=node.reason,
                jobs=tuple(sorted(int(job) for job in jobs)),
            )
        )
    return tuple(joined)


def add_health_to_node_rows(
    rows: Iterable[NodeRow], assessments: Mapping[NodeName, NodeAssessment]
) -> tuple[NodeRow, ...]:
    """Return the rows with what hpctl's daemon makes of each node's own instance."""
    joined = []
    for row in rows:
        judged = assessments.get(NodeName(row.node))
        if judged is None:
            joined.append(replace(row, health_why="no agent has reported"))
        elif judged.generation.instance not in ("", row.instance_id):
            why = f"the last report is of {judged.generation.instance}, which was here before"
            joined.append(replace(row, health_why=why))
        else:
            joined.append(replace(row, health=judged.condition.value, health_why=judged.why))
    return tuple(joined)


def add_instance_names_to_rows(
    rows: Iterable[NodeRow], resource_config: Mapping[str, Any]
) -> tuple[NodeRow, ...]:
    """Return the rows with `<group>-<n>` from a node's resource_config.json: by instance id, else
    address.

    A replaced node keeps its address, and the file may be older than the replacement.
    """
    by_id: dict[str, str] = {}
    by_ip: dict[tuple[str, str], str] = {}
    for group in resource_config.get("InstanceGroups") or ():
        for instance in group.get("Instances") or ():
            name = str(instance.get("InstanceName") or "")
            by_id[str(instance.get("InstanceId"))] = name
            by_ip[str(group.get("Name")), str(instance.get("CustomerIpAddress"))] = name
    return tuple(
        replace(row, instance_name=by_id.get(row.instance_id) or by_ip.get((row.group, row.ip), ""))
        for row in rows
    )


_NODE_SHAPE = re.compile(r"i-[0-9a-f]{8,17}|ip-\d+-\d+-\d+-[\d\[\],-]+(\..+)?|\d+\.\d+\.\d+\.\d+")


def looks_like_node_name(name: str) -> bool:
    """Return whether it can hardly be anything but a node's name: an instance id, an ip-... name or
    a hostlist of them, an address."""
    return _NODE_SHAPE.fullmatch(name) is not None
