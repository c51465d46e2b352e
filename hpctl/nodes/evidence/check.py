"""Check that the head and the agents name the same place for evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from hpctl.engine.config import Config
from hpctl.engine.view import is_timestamp_fresh
from hpctl.engine.world_reader import read_world_once
from hpctl.nodes.evidence.bucket import open_evidence_bucket
from hpctl.toolkit.checks_view import CheckView
from hpctl.toolkit.hostlist import format_node_names
from hpctl.vocabulary.evidence import PLACE_CHECK, is_s3_location
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding, NodeHealth

NAME: Final = "evidence"
_MOST_PLACES: Final = 8
"""Places other than the head's that are listed."""
_MOST_NAME: Final = 256
"""Characters of a place that an agent reports."""


def check_evidence_destinations(config: Config, now: datetime) -> Iterator[CheckView]:
    """Check that evidence of nodes goes where the head node looks for it. Raises Unavailable."""
    world = read_world_once(config, now)
    fresh = {
        node: health
        for node, health in world.health.items()
        if is_timestamp_fresh(health.last_heard, config.ages.silent_s, now)
    }
    yield from compare_evidence_destinations(config.evidence.directory, fresh)
    if is_s3_location(config.evidence.directory):
        yield from _check_bucket_access(config)


def compare_evidence_destinations(
    place: str, heard: Mapping[NodeName, NodeHealth]
) -> Iterator[CheckView]:
    """Compare the head's place with that of each agent that is heard."""
    nodes = _group_nodes_by_evidence_destination(heard)
    same, silent = nodes.pop(place[:_MOST_NAME], []), nodes.pop("", [])
    if not place:
        yield from _explain_missing_head_destination(nodes)
        return
    yield from _explain_mismatched_destinations(place, nodes)
    if silent:
        what = (
            f"the agents of {_fold_nodes_to_hostlist(silent)} name no evidence.directory:"
            " nothing is "
            f"kept of them"
        )
        yield CheckView(NAME, "warn", what, _describe_destination_fix(place))
    if same and not nodes and not silent:
        yield CheckView(NAME, "ok", f"{place}, as the agents of {len(same)} nodes have it", "")


def _group_nodes_by_evidence_destination(
    heard: Mapping[NodeName, NodeHealth],
) -> dict[str, list[NodeName]]:
    """Return the nodes by the place that their agent names; under "" those that name none, or whose
    agent is of a release that does not say."""
    nodes: dict[str, list[NodeName]] = defaultdict(list)
    for node, health in heard.items():
        nodes[_find_reported_evidence_destination(health.findings)].append(node)
    return nodes


def _find_reported_evidence_destination(findings: Iterable[Finding]) -> str:
    return next((f.detail for f in findings if f.check == PLACE_CHECK), "")


def _explain_missing_head_destination(nodes: Mapping[str, list[NodeName]]) -> Iterator[CheckView]:
    """Yield what to do where agents name a place and the head names none."""
    for other, names in sorted(nodes.items())[:_MOST_PLACES]:
        what = (
            f"the agents of {_fold_nodes_to_hostlist(names)} name {other}, this configuration"
            " names "
            f"nothing"
        )
        fix = f"set `evidence: {{directory: {other}}}` here, then systemctl reload hpctl-daemon"
        yield CheckView(NAME, "warn", f"{what}: no evidence is kept", fix)


def _explain_mismatched_destinations(
    place: str, nodes: Mapping[str, list[NodeName]]
) -> Iterator[CheckView]:
    """Yield what to do where agents name another place than the head."""
    for other, names in sorted(nodes.items())[:_MOST_PLACES]:
        what = (
            f"the agents of {_fold_nodes_to_hostlist(names)} name {other}, this configuration"
            " names "
            f"{place}"
        )
        yield CheckView(
            NAME, "warn", f"{what}: their evidence is not found", _describe_destination_fix(place)
        )


def _describe_destination_fix(place: str) -> str:
    return (
        f"set `evidence: {{directory: {place}}}` in /etc/hpctl/agent.yaml there, then systemctl"
        " restart hpctl-agent"
    )


def _fold_nodes_to_hostlist(names: Iterable[NodeName]) -> str:
    return format_node_names(sorted(names))


def _check_bucket_access(config: Config) -> Iterator[CheckView]:
    """Read the bucket once with this host's credentials."""
    place, cluster = config.evidence.directory, config.cluster
    try:
        open_evidence_bucket(
            place, profile=cluster.profile, region=cluster.region
        ).check_read_access()
    except OSError as error:
        fix = "allow s3:ListBucket, s3:GetObject and s3:DeleteObject on it (docs/evidence.md)"
        yield CheckView(NAME, "fail", f"{place}: {error.strerror or error}", fix)
