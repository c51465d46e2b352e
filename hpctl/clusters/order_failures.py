"""Why the new instance of an order failed."""

from hpctl.clusters import failures
from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.node_order_plan import NodeOrderTarget
from hpctl.clusters.progress import FAILURE
from hpctl.sagemaker.failure_causes import InstancePlacement, NodeFailureKind, explain_node_failure
from hpctl.vocabulary.ports import AwsClientFactory


class InstanceFailureExplainer:
    """Explains each failed instance once: its log is read over the network."""

    def __init__(self, aws: AwsClientFactory, arn: str, cluster: str) -> None:
        self._aws, self._arn, self._cluster = aws, arn, cluster
        self._known: dict[str, tuple[str, str]] = {}

    def explain(self, target: NodeOrderTarget, row: NodeRow | None) -> tuple[str, str]:
        """Return what a failure was, with the line of its lifecycle log, and its fix.

        Two empty texts where there is no new instance, or it has not failed.
        """
        if row is None or row.status not in FAILURE or row.instance_id == target.instance:
            return "", ""
        if row.instance_id not in self._known:
            self._known[row.instance_id] = self._read(row)
        return self._known[row.instance_id]

    def _read(self, row: NodeRow) -> tuple[str, str]:
        cause = explain_node_failure(row.message, InstancePlacement((row.instance_type,)))
        text = row.message or "the new instance failed"
        if cause.cause is NodeFailureKind.LIFECYCLE:
            where = failures.locate_lifecycle_log(
                self._arn, self._cluster, row.group, row.instance_id
            )
            read = failures.read_lifecycle_failure_log_line(self._aws, where)
            text = f"{text} The log {where}: {read.line or read.unread}"
        return text, cause.fix
