"""The verdict on this node that a prolog requests."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import FaultRules
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.identity import NodeGeneration, NodeName
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth

#
# The agent's verdict on its own node, for prologs and epilogs, by hpctl's own rules.
#
# Nothing is probed: a prolog that waits for hardware hangs jobs (docs/adr/0009). It is judged by
# the same function as on the head node, so an application's Xid 13 keeps no job off the node. Nodes
# do not know what a site overrides on the head node: the head node's verdict decides, and this one
# only keeps a job from a node that is about to be drained.

LINE = "hpctl.line/1"
"""Begins the one-line form of a verdict, which slurm_plugins/hpctl_verdict.c reads."""


SEVERITIES = {
    NodeCondition.HEALTHY: "PASS",
    NodeCondition.SUSPECT: "WARNING",
    NodeCondition.FAULTY: "CRITICAL",
    NodeCondition.UNKNOWN: "UNKNOWN",
}
"""A condition in the levels of NVIDIA Health Validation's verdict, which has INFO besides.

Source: docs.nvidia.com/health-validation, pages overview and faq: `overall_severity` has one of
these, and PASS, INFO and WARNING leave the node in service.
"""


MAX_SHOWN = 16


_EVIDENCE_CHARS = 256


_LINE_CHARS = 512


class VerdictFindingSummary(Struct, frozen=True):
    """One finding, in short."""

    check: str
    code: str
    device: str
    verdict: DeviceVerdict
    detail: str
    evidence: str
    count: int
    first: datetime
    last: datetime


class NodeVerdict(Struct, frozen=True):
    """The answer. `as_of` is when the agent last looked; `rule` is empty unless FAULTY."""

    node: NodeName
    condition: NodeCondition
    overall_severity: str
    as_of: datetime
    since: datetime
    rule: str
    why: str
    findings: tuple[VerdictFindingSummary, ...]


def compute_node_verdict(
    generation: NodeGeneration,
    findings: Sequence[Finding],
    as_of: datetime,
    rules: FaultRules,
    now: datetime,
) -> NodeVerdict:
    """Return the verdict at `now` of the findings that the agent has at `as_of`.

    UNKNOWN for an agent without results for longer than `rules.silent_after`, except for a fault
    that is proven.
    """
    found = assess_health(NodeHealth(generation, as_of, tuple(findings)), rules, now)
    return NodeVerdict(
        node=generation.node,
        condition=found.condition,
        overall_severity=SEVERITIES[found.condition],
        as_of=as_of,
        since=found.since,
        rule=found.fault.rule if found.fault else "",
        why=found.why,
        findings=tuple(
            _make_verdict_finding_summary(finding) for finding in found.findings[:MAX_SHOWN]
        ),
    )


def format_node_verdict_line(verdict: NodeVerdict) -> bytes:
    """Return the verdict as one line: LINE, the severity and a text without control characters."""
    text = f"{verdict.node} is {verdict.condition}"
    if verdict.why:
        text += f": {verdict.why}"
    plain = "".join(char if char.isprintable() else " " for char in text)
    return f"{LINE} {verdict.overall_severity} {plain[:_LINE_CHARS]}".encode("ascii", "replace")


def _make_verdict_finding_summary(f: Finding) -> VerdictFindingSummary:
    evidence = f.evidence[:_EVIDENCE_CHARS]
    return VerdictFindingSummary(
        f.check, f.code, f.device, f.verdict, f.detail, evidence, f.count, f.first, f.last
    )
