"""StartClusterHealthCheck: deep health checks on demand, one request a cluster at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator.errors import conflict, not_found, validation
from hpctl.sandbox.emulator.faults import FaultKind
from hpctl.sandbox.emulator.operations import DONE
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import Cluster, Node, World
from hpctl.sandbox.emulator.walks import Walks

Log = Callable[[Cluster, Node, str], None]
"""Where a check's own words go: the stream DeepHealthCheckResults/<instance id>."""


@dataclass(slots=True)
class HealthCheckOperation:
    """StartClusterHealthCheck. A node that fails is rebooted or replaced, as the service does."""

    world: World
    walks: Walks
    write: Log = lambda _cluster, _node, _text: None

    def start(self, request: Body) -> Body:
        """StartClusterHealthCheck: workers only; nodes that are busy are skipped."""
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status != "InService":
            raise validation(f"Cluster {cluster.name} is {cluster.status}; it must be InService.")
        operations = self.walks.launches.operations
        if operations.active(cluster, "DeepHealthCheck"):
            raise conflict(f"Deep health checks are in progress on cluster {cluster.name}.")
        wanted = request["DeepHealthCheckConfigurations"]
        nodes = [n for config in wanted for n in self._nodes(cluster, config)]
        operation = operations.health_check(cluster, wanted)
        free = [n for n in nodes if not n.operation and n.state.status is InstanceStatus.RUNNING]
        for node in free:
            self.walks.launches.claim(node, "DeepHealthCheck")
            self.walks.launches.change(
                cluster, node, InstanceStatus.DEEP_HEALTH_CHECK, "Deep health checks began."
            )

        def work() -> None:
            self.walks.launches.threads.stopping.wait(self.walks.launches.timings.health_check_s)
            for node in free:
                self._judge(cluster, node)
            with self.world.changed:
                operation.status = DONE
                self.world.changed.notify_all()

        self.walks.launches.threads.spawn(work, f"health-check-{cluster.name}")
        return {"ClusterArn": cluster.arn}

    # --- inside -------------------------------------------------------------------------------

    def _nodes(self, cluster: Cluster, config: Body) -> list[Node]:
        name = config["InstanceGroupName"]
        group = cluster.groups.get(name)
        if group is None:
            raise not_found(f"Instance group {name} not found in cluster {cluster.name}.")
        if group.role != "compute":
            raise validation(f"Instance group {name}: deep health checks are for workers only.")
        members = [n for n in cluster.nodes.values() if n.group is group]
        if "InstanceIds" not in config:
            return members
        by_id = {n.state.instance_id: n for n in members}
        for instance in config["InstanceIds"]:
            if instance not in by_id:
                raise not_found(f"Instance {instance} not found in instance group {name}.")
        return [by_id[instance] for instance in config["InstanceIds"]]

    def _judge(self, cluster: Cluster, node: Node) -> None:
        launches = self.walks.launches
        if node.doomed:
            launches.release(cluster, node)
            return
        fault = launches.faults.take(FaultKind.FAIL_HEALTH_CHECK, names=node.names)
        remedy = (fault.code if fault.code in ("reboot", "replace") else "replace") if fault else ""
        verdict = f"replacementRequired: {remedy == 'replace'} rebootRequired: {remedy == 'reboot'}"
        self.write(cluster, node, verdict.lower().replace("required", "Required"))
        launches.change(cluster, node, InstanceStatus.RUNNING, "Deep health checks ended.")
        if not remedy:
            launches.release(cluster, node)
            return
        failure = f"Deep health checks failed: {verdict.lower().replace('required', 'Required')}"
        launches.events.record(cluster, "Deep health check failed.", node=node, failure=failure)
        launches.claim(node, remedy.capitalize())
        if remedy == "reboot":
            self.walks.reboot(cluster, node)
        else:
            self.walks.replace(cluster, node, by="deep health check")
