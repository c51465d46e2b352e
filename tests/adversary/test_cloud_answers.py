"""Hostile and broken answers of the cloud, over HTTP by real boto3: trouble or a view.

Whatever stands where the SageMaker API should, the adapter answers with what it could read, or
raises Unavailable, in bounded time and memory; what it orders, it orders of its own ids alone.
"""

import json
import pickle
import resource
import time
from datetime import datetime
from functools import cached_property
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from hpctl.sagemaker import provider as sagemaker_provider
from hpctl.sagemaker.aws import AwsAccount
from hpctl.sagemaker.provider import SageMakerProvider
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown, ServiceUnavailable
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.outcome import OutcomeKind
from tests.aws_wire import Answer, answering
from tests.examples import sliced

pytestmark = [pytest.mark.adversary, pytest.mark.timeout(120), pytest.mark.integration]

GOOD_ID, OTHER_ID = "i-0123456789abcdef0", "i-0ffffffffffffffff"
CLUSTER: dict[str, Any] = {
    "ClusterArn": "arn:aws:sagemaker:us-east-1:000000000000:cluster/abcdefghijkl",
    "ClusterName": "c",
    "ClusterStatus": "InService",
    "NodeRecovery": "None",
    "InstanceGroups": [
        {"InstanceGroupName": "w", "CurrentCount": 1, "TargetCount": 1, "InstanceType": "ml.p5"}
    ],
}
NODE: dict[str, Any] = {
    "InstanceGroupName": "w", "InstanceId": GOOD_ID, "InstanceType": "ml.p5.48xlarge",
    "LaunchTime": 1767225600, "InstanceStatus": {"Status": "Running", "Message": ""},
    "PrivateDnsHostname": "ip-10-0-0-1.ec2.internal",
}  # fmt: skip
LIST: dict[str, Any] = {"ClusterNodeSummaries": [NODE]}
DEEP = b'{"ClusterStatus":' + b"[" * 50_000
LONG = "A" * 5_000_000


class Cloud:
    """What answers in place of the service, by operation."""

    def __init__(self) -> None:
        self.answers = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.url = ""

    def answer(self, operation: str, body: dict[str, Any]) -> Answer:
        self.asked.append((operation, body))
        return self.answers[operation](body)

    def say(self, operation: str, answer, status: int = 200) -> None:
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.answers[operation] = lambda _: (status, raw)

    @cached_property
    def provider(self) -> SageMakerProvider:
        return SageMakerProvider(
            "c", region="us-east-1", endpoint_url=self.url, read_attempts=2, read_timeout_s=5,
            mutate_timeout_s=5, sleep=lambda _: None,
        )  # fmt: skip

    def view(self) -> CloudProviderView | None:
        """What the adapter makes of it; None where it says that it cannot be read."""
        begun = time.monotonic()
        try:
            return self.provider.view()
        except ServiceUnavailable:
            return None
        finally:
            assert time.monotonic() - begun < 60


@pytest.fixture(scope="module")
def service():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        cloud = Cloud()
        with answering(cloud.answer) as cloud.url:
            yield cloud


@pytest.fixture
def cloud(service: Cloud) -> Cloud:
    service.say("DescribeCluster", CLUSTER)
    service.say("ListClusterNodes", LIST)
    service.say("DescribeClusterNode", {"NodeDetails": NODE})
    service.asked.clear()
    return service


def test_a_good_answer_is_read(cloud):
    """So that a refusal below is one of the answer, and not of the test's own service."""
    view = cloud.view()
    assert list(view.instances) == [GOOD_ID]
    assert not view.automatic


BROKEN: dict[str, object] = {
    "html": b"<html><body>502 Bad Gateway</body></html>", "nothing": b"", "null": b"null",
    "a list": b"[]", "a text": b'"InService"', "a number": b"7",
    "half": b'{"ClusterStatus": "InServ',
    "bytes that are no text": b'{"ClusterStatus": "\xff\xfe\x80"}',
    "nested fifty thousand deep": DEEP, "a pickle": pickle.dumps({"ClusterStatus": print}),
    "an empty object": {},
}  # fmt: skip


@pytest.mark.parametrize("operation", ["DescribeCluster", "ListClusterNodes"])
@pytest.mark.parametrize("name", sorted(BROKEN))
def test_what_is_no_answer_is_trouble(cloud, operation, name):
    cloud.say(operation, BROKEN[name])
    assert cloud.view() is None


@pytest.mark.parametrize("status", [301, 400, 403, 404, 418, 429, 500, 503])
@pytest.mark.parametrize("operation", ["DescribeCluster", "ListClusterNodes"])
def test_a_page_of_a_proxy_is_trouble(cloud, operation, status):
    cloud.say(operation, b"<html>sign in first</html>", status)
    assert cloud.view() is None


NUMBERS = [7, -1, 1e308, float("nan"), 10**400]
WRONG = [None, *NUMBERS, True, "x", "", [], [None], [7], {}, {"a": {}}, LONG]
"""One of each type that JSON has, at its extremes."""


GROUP_FIELDS = ("CurrentCount", "TargetCount", "InstanceGroupName", "SlurmConfig")
PLACES = [
    *(("DescribeCluster", field) for field in ("ClusterStatus", "InstanceGroups", "NodeRecovery")),
    *(("DescribeCluster", field) for field in GROUP_FIELDS),
    *(("ListClusterNodes", field) for field in ("ClusterNodeSummaries", "NextToken")),
]


@pytest.mark.parametrize("value", sliced(WRONG, 3), ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize(("operation", "field"), PLACES)
def test_a_field_of_a_wrong_type_is_trouble_or_read(cloud, operation, field, value):
    if field == "NextToken" and isinstance(value, str) and value:
        return  # a token like any other: pages that never end, below
    whole, wrong = {"DescribeCluster": CLUSTER, "ListClusterNodes": LIST}[operation], {field: value}
    if field in GROUP_FIELDS:
        wrong = {"InstanceGroups": [{**CLUSTER["InstanceGroups"][0], **wrong}]}
    cloud.say(operation, {**whole, **wrong})
    view = cloud.view()
    # Who cannot read it must not take it for a cluster that leaves replacing to hpctl.
    if view is not None and field == "NodeRecovery":
        assert view.automatic


@pytest.mark.parametrize("value", sliced(WRONG, 3), ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize("field", sorted(NODE))
def test_one_node_that_cannot_be_read_costs_no_other_its_place(cloud, field, value):
    fine = {**NODE, "InstanceId": OTHER_ID, "PrivateDnsHostname": "ip-10-0-0-2.ec2.internal"}
    cloud.say("ListClusterNodes", {"ClusterNodeSummaries": [{**NODE, field: value}, fine]})
    view = cloud.view()
    # botocore reads a page as a whole: what it refuses is trouble, what we read is each its own.
    assert view is None or OTHER_ID in view.instances


@pytest.mark.parametrize("stamp", [-1e30, 1e30, -62135596801, 253402300800, 1e308, "0001-01-01"])
def test_times_beyond_the_calendar_are_bounded(cloud, stamp):
    cloud.say("ListClusterNodes", {"ClusterNodeSummaries": [{**NODE, "LaunchTime": stamp}]})
    view = cloud.view()
    launched = [i.launched for i in view.instances.values()] if view else []
    for at in launched:
        assert at is None or datetime(1970, 1, 1, tzinfo=UTC) <= at < datetime(
            9001, 1, 1, tzinfo=UTC
        )


def paged(pages, each=1, same=False):
    def answer(request) -> Answer:
        number = int(request.get("NextToken", "t0")[1:])
        nodes = [{**NODE, "InstanceId": f"i-{number:09x}{n:08x}"} for n in range(each)]
        last = pages is not None and number + 1 >= pages
        token = {} if last else {"NextToken": "t1" if same else f"t{number + 1}"}
        return 200, json.dumps({"ClusterNodeSummaries": nodes, **token}).encode()

    return answer


@pytest.mark.parametrize("same", [True, False], ids=["one token again", "always a new token"])
def test_as_many_pages_as_are_allowed_are_read_and_endless_ones_are_trouble(
    cloud, same, monkeypatch
):
    monkeypatch.setattr(sagemaker_provider, "MAX_PAGES", 40)
    cloud.answers["ListClusterNodes"] = paged(40)
    assert len(cloud.view().instances) == 40
    cloud.asked.clear()
    cloud.answers["ListClusterNodes"] = paged(None, same=same)
    assert cloud.view() is None
    assert sum(operation == "ListClusterNodes" for operation, _ in cloud.asked) <= 80


def test_five_megabytes_in_every_word_stay_bounded(cloud):
    node = {**NODE, "InstanceStatus": {"Status": "Failure", "Message": LONG}}
    cloud.say("ListClusterNodes", {"ClusterNodeSummaries": [node]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cloud.view()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 200


ORDERS = {
    "accepts another cluster's": {"Successful": [OTHER_ID], "Failed": []},
    "accepts it and another": {"Successful": [GOOD_ID, OTHER_ID], "Failed": []},
    "names nobody": {"Successful": [], "Failed": []},
    "fails without a code": {"Failed": [{"NodeId": GOOD_ID}]},
    "fails another": {"Failed": [{"NodeId": OTHER_ID, "ErrorCode": "X", "Message": "m"}]},
    "numbers": {"Successful": [7, None], "Failed": [None]},
    "texts": {"Successful": GOOD_ID, "Failed": "no"},
    "says both": {
        "Successful": [GOOD_ID],
        "Failed": [{"NodeId": GOOD_ID, "ErrorCode": "X", "Message": "m"}],
    },
    **BROKEN,
}


@pytest.mark.parametrize("order", ["replace", "reboot", "remove"])
@pytest.mark.parametrize("name", sorted(ORDERS))
def test_an_answer_to_an_order_is_about_its_own_ids(cloud, order, name):
    """One call, one outcome for each id that was asked, none for another; unclear is no refusal."""
    operation = {"replace": "Replace", "reboot": "Reboot", "remove": "Delete"}[order]
    operation = f"Batch{operation}ClusterNodes"
    cloud.say(operation, ORDERS[name])
    outcomes = getattr(cloud.provider, order)([GOOD_ID])
    assert list(outcomes) == [GOOD_ID]
    assert [asked["NodeIds"] for what, asked in cloud.asked if what == operation] == [[GOOD_ID]]
    accepted = name in ("accepts it and another", "says both")
    if not accepted:
        assert outcomes[GOOD_ID].kind is not OutcomeKind.ACCEPTED


COMMANDS = {
    "list": ("ListClusters", {"ClusterSummaries": []}),
    "describe": ("DescribeCluster", {**CLUSTER, "CreationTime": 1767225600}),
    "nodes": ("ListClusterNodes", LIST),
    "events": ("ListClusterEvents", {"Events": []}),
}


def hpctl(cloud: Cloud, *words: str) -> Result:
    """A command as from the shell, on the head node of no cluster."""
    endpoint = ("--endpoint-url", cloud.url, "--region", "us-east-1")
    return CliRunner().invoke(cli, ["cluster", words[0], *words[1:], *endpoint])


def one_error(done: Result) -> bool:
    """Whether it ended with an error for people; what main() prints is its first line."""
    text = str(done.exception)
    known = isinstance(done.exception, HpctlError) and text.startswith(
        "cannot read the answer of AWS to sagemaker:"
    )
    return known and len(text) < 3000 and "\n" not in text


@pytest.fixture
def commands(cloud: Cloud, monkeypatch) -> Cloud:
    monkeypatch.setattr("hpctl.sagemaker.aws.READ_ATTEMPTS", 1)
    monkeypatch.delenv("HPCTL_CONFIG", raising=False)
    for operation, answer in COMMANDS.values():
        cloud.say(operation, answer)
    return cloud


def words(command: str) -> tuple[str, ...]:
    return (command, *{"describe": ["c"], "list": []}.get(command, ["--cluster", "c"]))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", sorted({*BROKEN} - {"an empty object"}))
def test_a_command_says_that_it_is_no_answer(commands, command, name):
    commands.say(COMMANDS[command][0], BROKEN[name])
    done = hpctl(commands, *words(command))
    assert one_error(done) or (done.exit_code == 0 and name == "nothing"), repr(done.exception)


FIELDS = [
    *(("describe", CLUSTER, field) for field in CLUSTER),
    *(("nodes", LIST, field) for field in ("ClusterNodeSummaries", "NextToken")),
    *(("list", {}, field) for field in ("ClusterSummaries", "NextToken")),
    *(("events", {}, field) for field in ("Events", "NextToken")),
]


@pytest.mark.parametrize("value", sliced(WRONG, 3), ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize(("command", "whole", "field"), FIELDS, ids=lambda v: v if v else "")
def test_a_command_takes_no_wrong_type(commands, command, whole, field, value):
    if field == "NextToken" and value == "x":
        return  # a token like any other: below
    commands.say(COMMANDS[command][0], {**COMMANDS[command][1], **whole, field: value})
    done = hpctl(commands, *words(command))
    assert done.exit_code == 0 or one_error(done), repr(done.exception)


@pytest.mark.parametrize("name", sorted({*BROKEN}))
def test_an_order_of_a_command_that_cannot_be_read_is_in_doubt(commands, name):
    commands.say("DeleteCluster", BROKEN[name])
    service = AwsAccount(region="us-east-1", endpoint_url=commands.url).service("sagemaker")
    with pytest.raises(OrderOutcomeUnknown):
        service.order("delete_cluster", ClusterName="c")
    assert sum(operation == "DeleteCluster" for operation, _ in commands.asked) == 1
