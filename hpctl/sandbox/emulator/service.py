"""The emulator as a whole: dispatch of checked calls, faults, and the service's own actions.

HTTP: SageMaker's JSON 1.1 protocol for clients, and the calls so far for tests of other processes.
"""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from hpctl.sandbox.emulator import shapes
from hpctl.sandbox.emulator.capacity import EmulatedCapacity
from hpctl.sandbox.emulator.clusters import (
    ClusterOperations,
    DescribeClusterOperation,
    TagOperations,
)
from hpctl.sandbox.emulator.faults import (
    ApiError,
    FaultInjector,
    FaultKind,
    make_access_denied_error,
    make_internal_error,
    make_throttling_error,
    make_validation_error,
)
from hpctl.sandbox.emulator.history import EventHistory
from hpctl.sandbox.emulator.launch import (
    GroupScaler,
    InstanceLauncher,
    NodeTransitions,
    ServiceTimings,
)
from hpctl.sandbox.emulator.nodes import (
    BatchNodeOperations,
    DeepHealthCheckOperations,
    NodeOperations,
)
from hpctl.sandbox.emulator.shapes import SERVICES, Body, Parameters
from hpctl.sandbox.emulator.state import (
    Allocate,
    EmulatedAwsRegion,
    EmulatedCluster,
    EmulatedNode,
    StoppableThreads,
    make_loopback_address_allocator,
    make_operation_id,
)
from hpctl.sandbox.emulator.updates import ClusterSoftwareUpdateOperation, ClusterUpdateOperation
from hpctl.sandbox.machines import EmulatedMachine, MachineBackend
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import InstanceId

MAX_BODY = 4 * 1024 * 1024
CALLS = "/_emulator/calls"
"""The path below which GET answers with the calls so far: all, or those of `/OPERATION`."""

log = logging.getLogger(__name__)


class EmulatorHttpResponse(Struct, frozen=True):
    """What goes back over the wire. `body` None: the connection is closed without a reply."""

    request_id: str
    status: int
    body: Body | None


class _HttpServer(ThreadingHTTPServer):
    """The listening socket. One connection a call, so that no idle one outlives the server."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, emulator: "HyperPodEmulator", port: int, access_key: str) -> None:
        """`access_key`: the only one that is accepted; where it is empty, any is."""
        super().__init__(("127.0.0.1", port), _ApiHandler)
        self.emulator = emulator
        self.access_key = access_key

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is worth its traceback."""
        log.debug("connection from %s ended", client_address, exc_info=True)


class _ApiHandler(BaseHTTPRequestHandler):
    server: _HttpServer
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.client_address[0], format % args)

    def do_GET(self) -> None:
        """The calls so far."""
        path, _, operation = self.path.removeprefix(CALLS).partition("/")
        if not self.path.startswith(CALLS) or path:
            self._send_http_response(
                EmulatorHttpResponse("", 404, {"error": f"no route GET {self.path}"})
            )
        else:
            self._send_http_response(
                EmulatorHttpResponse("", 200, {"calls": self.server.emulator.calls.all(operation)})
            )

    def do_POST(self) -> None:
        """A call of the API."""
        try:
            self._send_http_response(self.server.emulator.handle(*self._parse_request()))
        except ApiError as error:
            self._send_http_response(_make_api_error_response(error, ""))

    def _parse_request(self) -> tuple[str, Body, str]:
        """Return the operation, the request and the service. Raises ApiError."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise ApiError("RequestEntityTooLarge", "body too large", 413)
        # All of it before any refusal: what is left unread resets the connection.
        raw = self.rfile.read(int(length))
        target = self.headers.get("X-Amz-Target", "")
        prefix, _, operation = target.partition(".")
        if prefix not in SERVICES:
            raise ApiError(
                "UnknownOperationException", f"X-Amz-Target {target!r} is not SageMaker's."
            )
        signed, key = self.headers.get("Authorization", ""), self.server.access_key
        if not signed.startswith("AWS4-HMAC-SHA256 "):
            raise ApiError(
                "MissingAuthenticationTokenException",
                "Request is missing Authentication Token: give the client any credentials.",
                403,
            )
        if key and f"Credential={key}/" not in signed:
            raise ApiError(
                "UnrecognizedClientException",
                "The security token included in the request is invalid: hpctl sandbox env prints"
                " the keys of this sandbox.",
                403,
            )
        try:
            request = json.loads(raw or b"{}")
        except ValueError as error:
            raise ApiError("SerializationException", f"The body is not JSON: {error}") from error
        if not isinstance(request, dict):
            raise ApiError("SerializationException", "The body is not a JSON object.")
        return operation, request, SERVICES[prefix]

    def _send_http_response(self, answer: EmulatorHttpResponse) -> None:
        if answer.body is None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        data = msgspec.json.encode(answer.body)
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(data)))
        if answer.request_id:
            self.send_header("x-amzn-RequestId", answer.request_id)
        self.end_headers()
        self.wfile.write(data)


def _make_api_error_response(error: ApiError, request_id: str) -> EmulatorHttpResponse:
    wire = {"__type": error.code, "message": error.message, "Message": error.message}
    return EmulatorHttpResponse(request_id, error.status, wire)


class ApiCall(Struct):
    """One call. `error` is the code it was refused with, `replied` false if the reply was lost.

    A call whose reply was lost has a `response`: the operation was accepted.
    """

    at: datetime
    operation: str
    request: Body
    response: Body | None = None
    error: str = ""
    replied: bool = True

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Return the instance ids that the call named, of whichever operation."""
        named = self.request.get("NodeIds", ())
        return tuple(named) if isinstance(named, list) else ()


class ApiCallLog:
    """Every call in the order of arrival; safe to read from any thread."""

    def __init__(self) -> None:
        self._calls: list[ApiCall] = []

    def add(self, call: ApiCall) -> ApiCall:
        """Note a call that arrived; who answers it fills in how it ended."""
        self._calls.append(call)
        return call

    def all(self, operation: str = "") -> tuple[ApiCall, ...]:
        """Return the calls so far, of one operation where it is named."""
        return tuple(c for c in tuple(self._calls) if operation in ("", c.operation))

    def count(self, operation: str) -> int:
        """Return how often an operation was called, refusals included."""
        return len(self.all(operation))


@dataclass(frozen=True, kw_only=True)
class EmulatorSandboxOptions:
    """What a sandbox adds to a plain emulator."""

    access_key: str = ""
    """Refuse all that is not signed with this key; empty: accept every request."""
    places: int | None = None
    """Most instances there can be."""
    zones: Mapping[str, str] = field(default_factory=dict)
    """Availability zones by subnet."""
    moved: Callable[[str], str] = lambda address: address
    """The address of an instance that replaces one at an address."""
    give_notice: Callable[[EmulatedMachine, datetime], None] = lambda _machine, _at: None
    """Takes a spot instance's own notice: its metadata service."""


class HyperPodEmulator:
    """SageMaker's HyperPod cluster API on a loopback port, in front of `machines`.

    `boot_time_s` is how long a replacement or an added node is Pending before it boots,
    `create_time_s` the same for a new cluster, `retry_time_s` after how long a launch that failed
    under continuous provisioning is tried again (None: never), `health_check_time_s` how long
    deep health checks take. `allocate` gives a new place its address and Slurm
    node name; `parameters` reads the provisioning_parameters.json beside a group's scripts. With
    `watch_interval_s` the service itself looks whether instances live, and with
    NodeRecovery=Automatic replaces those that do not.
    """

    def __init__(  # noqa: PLR0913 -- settings of the emulator, by keyword with defaults
        self,
        machines: MachineBackend,
        *,
        region: str = "us-west-2",
        account: str = "000000000000",
        boot_time_s: float = 1.0,
        create_time_s: float = 0.0,
        allocate: Allocate | None = None,
        parameters: Parameters = lambda _spec: None,
        port: int = 0,
        watch_interval_s: float | None = None,
        parallel_boots: int = 4,
        retry_time_s: float | None = None,
        health_check_time_s: float = 0.0,
        site: EmulatorSandboxOptions | None = None,
    ) -> None:
        site = site or EmulatorSandboxOptions()
        self.world = EmulatedAwsRegion(
            region,
            account,
            allocate or make_loopback_address_allocator(),
            moved=site.moved,
            zones=site.zones,
        )
        self.faults = FaultInjector()
        self.calls = ApiCallLog()
        self.events = EventHistory(self.world)
        self.response_errors: list[str] = []
        self.capacity = EmulatedCapacity(self.world, places=site.places)
        self.threads = StoppableThreads(self.world)
        self.launches = InstanceLauncher(
            self.world,
            machines,
            self.faults,
            self.events,
            self.capacity,
            self.threads,
            ServiceTimings(
                create_s=create_time_s,
                boot_s=boot_time_s,
                retry_s=retry_time_s,
                health_check_s=health_check_time_s,
            ),
            parallel_boots,
        )
        self.walks = NodeTransitions(self.launches)
        self.handlers = self._make_operation_handlers(parameters)
        self.give_notice = site.give_notice
        self._watch_interval_s = watch_interval_s
        self._http = _HttpServer(self, port, site.access_key)
        self._serving = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def _make_operation_handlers(self, parameters: Parameters) -> dict[str, Callable[[Body], Body]]:
        world, walks = self.world, self.walks
        scaling = GroupScaler(self.launches, walks)
        clusters = ClusterOperations(world, walks, scaling, parameters)
        nodes = NodeOperations(world, self.faults)
        batch = BatchNodeOperations(world, walks, scaling)
        tags = TagOperations(world)
        checks = DeepHealthCheckOperations(world, walks)
        return {
            "ListServiceQuotas": self.capacity.list_quotas,
            "ListAWSDefaultServiceQuotas": self.capacity.list_quotas,
            "CreateCluster": clusters.create_cluster,
            "DescribeCluster": DescribeClusterOperation(self.launches).describe_cluster,
            "ListClusters": clusters.list_clusters,
            "UpdateCluster": ClusterUpdateOperation(
                world, walks, scaling, parameters
            ).update_cluster,
            "UpdateClusterSoftware": ClusterSoftwareUpdateOperation(
                world, walks, scaling
            ).update_cluster_software,
            "StartClusterHealthCheck": checks.start,
            "ListClusterOperations": checks.list_operations,
            "DescribeTrainingPlan": self.capacity.describe_training_plan,
            "AddTags": tags.add,
            "ListTags": tags.list,
            "DeleteTags": tags.delete,
            "DeleteCluster": clusters.delete_cluster,
            "ListClusterNodes": nodes.list_nodes,
            "DescribeClusterNode": nodes.describe_node,
            "BatchReplaceClusterNodes": batch.replace,
            "BatchRebootClusterNodes": batch.reboot,
            "BatchDeleteClusterNodes": batch.delete,
            "BatchAddClusterNodes": batch.add,
            "ListClusterEvents": self.events.list_events,
            "DescribeClusterEvent": self.events.describe_event,
        }

    @property
    def endpoint_url(self) -> str:
        """Return what to give boto3 as `endpoint_url`, the AWS CLI as `--endpoint-url`."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def start(self) -> None:
        """Serve, in threads of this process."""
        self._serving.start()
        if self._watch_interval_s is not None:
            interval = self._watch_interval_s
            self.threads.spawn(lambda: self._recover_dead_instances_periodically(interval), "watch")

    def stop(self) -> None:
        """Stop serving and end every operation where it is. Machines are left as they are."""
        self.threads.stop()
        if self._serving.is_alive():
            self._http.shutdown()
            self._serving.join(5)
        self._http.server_close()

    def create(self, spec: Mapping[str, Any]) -> str:
        """CreateCluster without HTTP; the ARN. Raises ApiError. Not in the log of calls."""
        return str(self._run_and_validate_operation("CreateCluster", dict(spec))["ClusterArn"])

    def delete(self, cluster: str) -> None:
        """DeleteCluster without HTTP. Raises ApiError."""
        self._run_and_validate_operation("DeleteCluster", {"ClusterName": cluster})

    def find_cluster_of_node(self, logical_id: str) -> EmulatedCluster | None:
        """Return the cluster of a node, by its logical id. Hold the world's lock."""
        for cluster in self.world.clusters.values():
            if logical_id in cluster.nodes:
                return cluster
        return None

    def wait_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something about the world to hold; false where the time ran out."""
        with self.world.changed:
            return self.world.changed.wait_for(done, timeout_s)

    def wait_until_cluster_in_service(self, cluster: str, timeout_s: float = 60.0) -> None:
        """Wait until a cluster is InService and all its nodes settled. Raises HpctlError."""

        def has_cluster_reached_final_status() -> bool:
            found = self.world.cluster(cluster)
            busy = any(n.operation for n in found.nodes.values())
            return found.status == "Failed" or (found.status == "InService" and not busy)

        done = self.wait_until(has_cluster_reached_final_status, timeout_s)
        found = self.world.cluster(cluster)
        if not done or found.status == "Failed":
            raise HpctlError(
                f"cluster {cluster} did not become InService within {timeout_s:g} s, its status "
                f"is {found.status}: "
                f"{found.trouble or found.failure}",
                "read the lifecycle scripts' log in the sandbox's state directory",
            )

    def start_unrequested_recovery(self, instance_id: str, how: str = "replace") -> bool:
        """Replace or reboot an instance with no call of the customer's.

        False where it cannot: no such instance, a controller, or an operation is in progress.
        """
        with self.world.lock:
            found = self._find_cluster_and_node(instance_id)
            if found is None or found[1].operation or found[1].group.role == "controller":
                return False
            self.launches.claim(found[1], how.capitalize())
            if how == "reboot":
                self.walks.reboot(*found)
            else:
                self.walks.replace(*found, by="service")
            return True

    def mark_instance_unhealthy(self, instance_id: str) -> bool:
        """Have the service's health agent condemn an instance.

        With NodeRecovery=Automatic it is replaced; otherwise it is only marked. True where a
        replacement began.
        """
        with self.world.lock:
            found = self._find_cluster_and_node(instance_id)
            if found is None:
                return False
            cluster, node = found
            self.events.record(cluster, "Instance is unhealthy.", node=node)
            return cluster.automatic and self.start_unrequested_recovery(instance_id)

    def interrupt(self, instance_id: str, notice_s: float = 120.0) -> bool:
        """Spot capacity is taken back, `notice_s` after an event that announces it.

        False where that is no spot instance.
        """
        with self.world.lock:
            found = self._find_cluster_and_node(instance_id)
            if found is None or not found[1].spot:
                return False
            cluster, node = found
            what = f"Spot instance {instance_id} will be interrupted in {notice_s:g} s."
            self.events.record(cluster, what, node=node, level="Warn")
            self.give_notice(node.machine(), self.world.now() + timedelta(seconds=notice_s))

        def reclaim_instance() -> None:
            self.threads.stopping.wait(notice_s)
            with self.world.lock:
                if cluster.find_node_of_instance(instance_id) is not node or node.operation:
                    return
                self.launches.claim(node, "Reclaim")
                self.walks.start_spot_reclaim(cluster, node)

        self.threads.spawn(reclaim_instance, f"interrupt-{instance_id}")
        return True

    def publish(self, version: str) -> None:
        """HyperPod has a newer AMI from now on."""
        with self.world.lock:
            self.world.releases.append(version)

    def _find_cluster_and_node(
        self, instance_id: str
    ) -> tuple[EmulatedCluster, EmulatedNode] | None:
        for cluster in self.world.clusters.values():
            node = cluster.find_node_of_instance(instance_id)
            if node:
                return cluster, node
        return None

    def _recover_dead_instances_periodically(self, interval_s: float) -> None:
        while not self.threads.stopping.wait(interval_s):
            for instance in self._list_dead_instances():
                log.info("instance %s does not live; the service acts", instance)
                self.mark_instance_unhealthy(instance)

    def _list_dead_instances(self) -> list[InstanceId]:
        with self.world.lock:
            clusters = self.world.clusters.values()
            nodes = chain.from_iterable(cluster.nodes.values() for cluster in clusters)
            watched = [
                node.machine()
                for node in nodes
                if not node.operation and node.state.status is InstanceStatus.RUNNING
            ]
        return [m.instance_id for m in watched if not self.launches.machines.alive(m)]

    def handle(
        self, operation: str, request: Body, service: str = shapes.SAGEMAKER
    ) -> EmulatorHttpResponse:
        """Answer one call: faults first, then the checks, then the operation."""
        request_id = make_operation_id()
        call = self.calls.add(ApiCall(self.world.now(), operation, request))
        try:
            call.response = self._run_operation_with_faults(operation, request, service)
        except ApiError as error:
            call.error = error.code
            return _make_api_error_response(error, request_id)
        call.replied = not self.faults.take(FaultKind.DROP_REPLY, operation=operation)
        return EmulatorHttpResponse(request_id, 200, call.response if call.replied else None)

    def _run_operation_with_faults(self, operation: str, request: Body, service: str) -> Body:
        late = self.faults.take(FaultKind.LATENCY, operation=operation)
        if late:
            self.threads.stopping.wait(late.seconds)
        if self.faults.take(FaultKind.THROTTLE, operation=operation):
            raise make_throttling_error()
        if self.faults.take(FaultKind.ACCESS_DENIED, operation=operation):
            raise make_access_denied_error(f"{service.replace('-', '')}:{operation}")
        broken = self.faults.take(FaultKind.INTERNAL_ERROR, operation=operation)
        if broken:
            if broken.accepted:
                self._run_and_validate_operation(operation, request, service)
            raise make_internal_error()
        return self._run_and_validate_operation(operation, request, service)

    def _run_and_validate_operation(
        self, operation: str, request: Body, service: str = shapes.SAGEMAKER
    ) -> Body:
        """Run an operation between the two checks against the service model."""
        model = shapes.load_operation_model(operation, service)
        handler = self.handlers.get(operation)
        if handler is None or model is None:
            raise _make_unknown_operation_error(operation, service, known=model is not None)
        wrong = shapes.find_request_errors(model, request)
        if wrong:
            count = f"{len(wrong)} validation error{'s' if len(wrong) > 1 else ''} detected: "
            raise make_validation_error(count + "; ".join(wrong))
        with self.world.lock:
            body = handler(shapes.decode_request_timestamps(model, request))
        drifted = shapes.find_response_errors(model, body)
        if drifted:
            self.response_errors += [f"{operation}: {line}" for line in drifted]
            log.error("%s answered what the service model forbids: %s", operation, drifted)
            raise make_internal_error(
                f"emulator bug: {operation} broke the service model: {drifted[0]}"
            )
        return shapes.encode_response_timestamps(model, body)


def _make_unknown_operation_error(operation: str, service: str, *, known: bool) -> ApiError:
    if not known:
        return ApiError("UnknownOperationException", f"{service} has no operation {operation!r}.")
    return ApiError(
        "UnknownOperationException",
        f"{operation} is an operation of {service} that this emulator does not offer: it speaks "
        "the HyperPod cluster operations only.",
    )
