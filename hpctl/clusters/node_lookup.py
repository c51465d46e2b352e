"""The node that any of its names means."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from hpctl.clusters.fleet import NodeLookupError, NodeRow
from hpctl.toolkit.errors import ResourceNotFound
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist


def find_instance_group(description: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a group of a described cluster. Raises ResourceNotFound with the nearest that there
    are."""
    groups: dict[str, Mapping[str, Any]] = {
        str(group["InstanceGroupName"]): group for group in description.get("InstanceGroups", ())
    }
    if name not in groups:
        near = difflib.get_close_matches(name, groups, n=2)
        fix = f"did you mean {' or '.join(near)}? " if near else ""
        raise ResourceNotFound(
            f"cluster {description['ClusterName']} has no instance group {name!r}",
            f"{fix}its groups are: {', '.join(groups)}",
        )
    return groups[name]


def resolve_node_by_name(
    rows: Sequence[NodeRow], name: str, known: Mapping[str, Sequence[NodeRow]] | None = None
) -> NodeRow:
    """Return the one node of this name, of whatever kind the name is. Raises NodeLookupError.

    Upper and lower case are one. The error names near misses, or those that share the name.
    `known` is `by_name` of the rows, for who resolves many.
    """
    wanted = name.strip().casefold()
    found = (group_nodes_by_name(rows) if known is None else known).get(wanted, ())
    if len(found) == 1:
        return found[0]
    if found:
        every = ", ".join(row.instance_id or row.logical_id for row in found)
        raise NodeLookupError(
            f"the name {name!r} fits {len(found)} nodes: {every}",
            "give the instance id of one of them",
        )
    in_group = [row.display_name for row in rows if row.group.casefold() == wanted]
    if in_group:
        some = ", ".join(in_group[:3]) + (", ..." if len(in_group) > 3 else "")
        raise NodeLookupError(
            f"{name!r} is an instance group, not a node", f"name one of its nodes: {some}"
        )
    every_name = list(chain.from_iterable(row.names for row in rows))
    near = difflib.get_close_matches(name, every_name, n=3, cutoff=0.75)
    fix = f"did you mean {' or '.join(near)}?" if near else "`hpctl cluster instances` lists them"
    raise NodeLookupError(f"the cluster has no node {name!r}", fix)


def group_nodes_by_name(rows: Iterable[NodeRow]) -> dict[str, list[NodeRow]]:
    """Return the nodes of each name, in lower case."""
    found: dict[str, list[NodeRow]] = {}
    for row in rows:
        for name in {name.casefold() for name in row.names}:
            found.setdefault(name, []).append(row)
    return found


def resolve_nodes_by_names(rows: Sequence[NodeRow], names: Collection[str]) -> tuple[NodeRow, ...]:
    """Return each node once, in the order named; a name may be a Slurm hostlist. Raises
    NodeLookupError.

    The error tells of every name that is wrong.
    """
    found: dict[NodeRow, None] = {}
    wrong: list[str] = []
    known = group_nodes_by_name(rows)
    for name in names:
        try:
            for one in expand_hostlist(name):
                found[resolve_node_by_name(rows, one, known)] = None
        except HostlistError as error:
            wrong.append(f"{name}: {error}")
        except NodeLookupError as error:
            wrong.append(f"{error}: {error.hint}")
    if wrong:
        raise NodeLookupError("\n  ".join(wrong))
    return tuple(found)
