"""Every operation can be throttled, denied, broken, slow and unanswered; 32 calls go at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError

from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.contract.provider.beds import cluster, group

NODES = 128
AT_ONCE = 32
DELAY_S = 0.05
ARN = "arn:aws:sagemaker:us-west-2:000000000000:cluster/0123456789ab"
CHECKS = [{"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}]
NAMED = {"ClusterName": "demo"}
ONE = {**NAMED, "NodeIds": ["i-00000000"]}
CALLS: dict[str, dict[str, Any]] = {
    "create_cluster": cluster("other"),
    "describe_cluster": NAMED,
    "list_clusters": {},
    "update_cluster": {**NAMED, "InstanceGroups": [group("workers", "Compute", NODES)]},
    "update_cluster_software": NAMED,
    "delete_cluster": NAMED,
    "list_cluster_nodes": NAMED,
    "describe_cluster_node": {**NAMED, "NodeId": "i-00000000"},
    "batch_replace_cluster_nodes": ONE,
    "batch_reboot_cluster_nodes": ONE,
    "batch_delete_cluster_nodes": ONE,
    "batch_add_cluster_nodes": {
        **NAMED,
        "NodesToAdd": [{"InstanceGroupName": "workers", "IncrementTargetCountBy": 1}],
    },
    "start_cluster_health_check": {**NAMED, "DeepHealthCheckConfigurations": CHECKS},
    "list_cluster_events": NAMED,
    "describe_cluster_event": {**NAMED, "EventId": "0" * 8 + "-0000-0000-0000-" + "0" * 12},
    "list_cluster_operations": NAMED,
    "describe_cluster_operation": {**NAMED, "OperationId": "o" * 12},
    "list_training_plans": {},
    "describe_training_plan": {"TrainingPlanName": "plan"},
    "add_tags": {"ResourceArn": ARN, "Tags": []},
    "list_tags": {"ResourceArn": ARN},
    "delete_tags": {"ResourceArn": ARN, "TagKeys": ["a"]},
}
REFUSALS = {
    "throttle": "ThrottlingException",
    "access_denied": "AccessDeniedException",
    "internal_error": "InternalFailure",
}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    one = Emulator(NullMachines(), boot_time_s=0.0)
    one.start()
    one.create(cluster("demo", workers=NODES))
    one.wait_in_service("demo", 30)
    yield one
    one.stop()
    assert one.response_errors == []


@pytest.fixture(scope="module")
def client(emulator: Emulator, _aws: None) -> Any:
    make: Callable[..., Any] = boto3.client
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=AT_ONCE)
    url = emulator.endpoint_url
    return make("sagemaker", endpoint_url=url, region_name="us-west-2", config=config)


@pytest.mark.parametrize("call", CALLS)
def test_every_operation_can_fail_in_every_way(emulator: Emulator, client: Any, call: str) -> None:
    operation = client.meta.method_to_api_mapping[call]
    ask = getattr(client, call)
    try:
        for kind, code in REFUSALS.items():
            emulator.faults.add(kind, operations=[operation], calls=1)
            with pytest.raises(ClientError) as caught:
                ask(**CALLS[call])
            assert caught.value.response["Error"]["Code"] == code
        assert "demo" in {c.name for c in emulator.world.clusters.values()}, "nothing was done"
        emulator.faults.add("latency", operations=[operation], seconds=0.05, calls=1)
        emulator.faults.add("throttle", operations=[operation], calls=1)
        began = time.monotonic()
        with pytest.raises(ClientError):
            ask(**CALLS[call])
        assert time.monotonic() - began >= 0.05
    finally:
        emulator.faults.clear()


def test_a_reply_is_lost_after_the_operation_was_taken(emulator: Emulator, client: Any) -> None:
    emulator.faults.add("drop_reply", operations=["UpdateCluster"], calls=1)
    with pytest.raises((ConnectionClosedError, BotoCoreError)):
        client.update_cluster(ClusterName="demo", NodeRecovery="Automatic")
    assert client.describe_cluster(ClusterName="demo")["NodeRecovery"] == "Automatic"


def test_32_connections_at_once_share_the_latency(emulator: Emulator, client: Any) -> None:
    instances = [m.instance_id for m in emulator.machines_of("demo")]
    emulator.faults.add("latency", seconds=DELAY_S)
    try:
        began = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(
                pool.map(
                    lambda i: client.describe_cluster_node(ClusterName="demo", NodeId=i),
                    instances,
                )
            )
        took = time.monotonic() - began
    finally:
        emulator.faults.clear()
    assert [f["NodeDetails"]["InstanceId"] for f in found] == instances
    one_by_one = len(instances) * DELAY_S
    assert took < one_by_one / 4, f"{took:.2f} s for what takes {one_by_one:.2f} s one by one"
