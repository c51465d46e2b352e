"""The emulator's wire: the service model held against it, faults, the admin route."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError

from hpctl.sandbox.emulator import Emulator, NullMachines, shapes
from tests.contract.provider.beds import cluster


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    found = Emulator(NullMachines(), boot_time_s=0.02)
    found.start()
    yield found
    found.stop()


def client(emulator: Emulator) -> Any:
    return boto3.client(
        "sagemaker",
        endpoint_url=emulator.endpoint_url,
        region_name="us-west-2",
        aws_access_key_id="sandbox",
        aws_secret_access_key="sandbox",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=10),
    )


def ask(emulator: Emulator, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """A bare HTTP request; (status, decoded body)."""
    where = urlsplit(emulator.endpoint_url)
    assert where.hostname is not None
    link = http.client.HTTPConnection(where.hostname, where.port, timeout=10)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        link.request(method, path, data, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        link.close()


def in_service(emulator: Emulator, workers: int = 2) -> None:
    emulator.create(cluster("demo", workers=workers))
    emulator.wait_in_service("demo", 20)


# --- the service model ------------------------------------------------------------------------


def test_boto3_pages_through_250_nodes(emulator: Emulator) -> None:
    in_service(emulator, workers=250)
    pages = list(client(emulator).get_paginator("list_cluster_nodes").paginate(ClusterName="demo"))
    nodes = [n for page in pages for n in page["ClusterNodeSummaries"]]
    assert [len(p["ClusterNodeSummaries"]) for p in pages] == [100, 100, 51]
    assert len({n["InstanceId"] for n in nodes}) == 251
    assert nodes[0]["LaunchTime"].tzinfo is not None
    assert emulator.response_errors == []


@pytest.mark.parametrize(
    ("drift", "found"),
    [
        ({"ClusterStatus": "Splendid"}, "enum value set"),
        ({"ClusterArn": None}, "Invalid type"),
        ({"ClusterArn": "arn:aws:s3:::bucket"}, "regular expression"),
        ({"Colour": "blue"}, "Unknown parameter"),
        ({"CreationTime": "soon"}, "Invalid type"),
        ({"InstanceGroups": [{"TargetCount": 9999}]}, "less than or equal to 6758"),
        ({"InstanceGroups": "many"}, "Invalid type"),
    ],
)
def test_an_answer_that_drifts_from_the_model_is_caught(
    emulator: Emulator, drift: dict[str, Any], found: str
) -> None:
    in_service(emulator)
    real = emulator.handlers["DescribeCluster"]
    emulator.handlers["DescribeCluster"] = lambda request: {**real(request), **drift}
    with pytest.raises(ClientError) as caught:
        client(emulator).describe_cluster(ClusterName="demo")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert "emulator bug" in str(caught.value)
    assert any(found in line for line in emulator.response_errors)


def test_an_answer_without_a_required_member_is_caught(emulator: Emulator) -> None:
    in_service(emulator)
    emulator.handlers["DescribeCluster"] = lambda _request: {"ClusterStatus": "InService"}
    answer = emulator.handle("DescribeCluster", {"ClusterName": "demo"})
    assert answer.status == 500
    assert any("Missing required parameter" in line for line in emulator.response_errors)


def test_a_request_is_checked_by_the_same_model() -> None:
    model = shapes.operation_model("BatchReplaceClusterNodes")
    assert model is not None
    errors = shapes.request_errors(model, {"ClusterName": "demo", "NodeIds": ["ip-10-0-0-1"] * 26})
    assert any("less than or equal to 25" in e for e in errors)
    assert any("i-[a-f0-9]{8}" in e for e in errors)
    good = {"ClusterName": "demo", "NodeIds": ["i-0123456789abcdef0"]}
    assert shapes.request_errors(model, good) == []


def test_operations_that_are_not_offered_say_so(emulator: Emulator) -> None:
    with pytest.raises(ClientError, match="does not offer") as caught:
        client(emulator).list_training_jobs()
    assert caught.value.response["Error"]["Code"] == "UnknownOperationException"
    assert "no operation 'Dance'" in str(emulator.handle("Dance", {}).body)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{}", {"X_Amz_Target": "EC2.Run"}, 400, "UnknownOperationException"),
        (b"{}", {"X_Amz_Target": "SageMaker.ListClusters"}, 403, "MissingAuthenticationToken"),
        (b"{", {"X_Amz_Target": "SageMaker.ListClusters", "Authorization": "ok"}, 400, "Serial"),
        (b"[]", {"X_Amz_Target": "SageMaker.ListClusters", "Authorization": "ok"}, 400, "Serial"),
    ],
)
def test_what_is_no_call_is_refused(
    emulator: Emulator, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    if headers.get("Authorization"):
        headers = {**headers, "Authorization": "AWS4-HMAC-SHA256 Credential=x"}
    got, answer = ask(emulator, "POST", "/", body, **headers)
    assert got == status
    assert answer["__type"].startswith(code)


# --- faults and the log of calls --------------------------------------------------------------


def test_a_dropped_reply_was_accepted_and_is_logged_so(emulator: Emulator) -> None:
    in_service(emulator)
    victim = emulator.machines_of("demo")[1].instance_id
    emulator.faults.add("drop_reply", calls=1, operations=["BatchReplaceClusterNodes"])
    with pytest.raises(ConnectionClosedError):
        client(emulator).batch_replace_cluster_nodes(ClusterName="demo", NodeIds=[victim])
    (call,) = emulator.calls.all("BatchReplaceClusterNodes")
    assert (call.replied, call.error, call.node_ids) == (False, "", (victim,))
    assert call.response == {"Successful": [victim]}
    emulator.wait_in_service("demo", 10)
    assert victim not in [m.instance_id for m in emulator.machines_of("demo")]


def test_throttling_is_logged_as_refused(emulator: Emulator) -> None:
    emulator.faults.add("throttle", calls=2)
    codes = []
    for _ in range(3):
        try:
            client(emulator).list_clusters()
            codes.append("fine")
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])
    assert codes == ["ThrottlingException", "ThrottlingException", "fine"]
    assert [c.error for c in emulator.calls.all()] == [*codes[:2], ""]
    assert len({c.request_id for c in emulator.calls.all()}) == 3


# --- the admin route --------------------------------------------------------------------------


def test_another_process_reads_calls_and_sets_faults(emulator: Emulator) -> None:
    in_service(emulator)
    status, answer = ask(emulator, "POST", "/_emulator/faults", {"kind": "throttle", "calls": 1})
    assert (status, answer["faults"][0]["left"]) == (200, 1)
    with pytest.raises(ClientError, match="Rate exceeded"):
        client(emulator).list_clusters()
    client(emulator).describe_cluster(ClusterName="demo")
    _, log = ask(emulator, "GET", "/_emulator/calls")
    assert [(c["operation"], c["error"]) for c in log["calls"]] == [
        ("ListClusters", "ThrottlingException"),
        ("DescribeCluster", ""),
    ]
    _, some = ask(emulator, "GET", "/_emulator/calls/DescribeCluster")
    assert len(some["calls"]) == 1
    ask(emulator, "POST", "/_emulator/faults", {"kind": "stuck"})
    assert ask(emulator, "DELETE", "/_emulator/faults/stuck") == (200, {"faults": []})
    assert ask(emulator, "GET", "/_emulator/health") == (200, {"response_errors": []})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/_emulator/faults", {"kind": "gremlins"}, 400),
        ("POST", "/_emulator/faults", b"{", 400),
        ("POST", "/_emulator/act", {}, 400),
        ("DELETE", "/_emulator/faults/gremlins", None, 400),
        ("GET", "/_emulator/nothing", None, 404),
        ("GET", "/", None, 404),
    ],
)
def test_the_admin_route_refuses_with_a_reason(
    emulator: Emulator, method: str, path: str, body: Any, status: int
) -> None:
    got, answer = ask(emulator, method, path, body)
    assert got == status
    assert answer["error"]
