"""Reports and heartbeats of a node, and the storage of a health that is not stored."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import AgentReport, Finding, NodeHealth
from hpctl.wire import reports as wire

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def report(node: str = "n1", seq: int = 1, start: datetime = NOON) -> AgentReport:
    return AgentReport(node, "i-0123456789abcdef0", "b-1", seq, NOON, start)


def beat(node: str = "n1", seq: int = 1, findings: tuple[Finding, ...] = ()) -> wire.Heartbeat:
    sent = report(node, seq)
    return wire.Heartbeat(
        sent.node,
        sent.instance,
        sent.boot,
        seq,
        NOON,
        sent.agent_start,
        wire.compute_findings_digest(findings),
    )


class Rows:
    """Health that is stored nowhere."""

    def record(self, rows: Sequence[NodeHealth]) -> None:
        """Forget them."""

    def store_last_heard_times(self, heard: Mapping[str, datetime]) -> None:
        """Forget it."""
