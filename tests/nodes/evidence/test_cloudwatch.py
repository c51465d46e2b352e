"""What CloudWatch has of an instance: one suite for streams on paper and for moto over HTTP."""

import contextlib
import tarfile
import time

import boto3
import pytest
from moto.server import ThreadedMotoServer

from hpctl.nodes.evidence import cloudwatch
from hpctl.nodes.evidence.cloudwatch import (
    CloudWatchStreamReader,
    find_instance_log_streams,
    write_instance_log_archive,
)
from hpctl.toolkit.errors import HpctlError, ResourceNotFound, ServiceUnavailable
from tests.clusters.bed import CLUSTER, REGION, AwsBed
from tests.nodes.evidence.test_redact import KEY_ID, SECRET

pytestmark = [pytest.mark.contract, pytest.mark.integration]

PAGE = 3
START_MS = 1_700_000_000_000


class PaperAccount:
    """A cluster with the groups `controllers` and `workers`, and streams of a few events a page."""

    def __init__(self) -> None:
        self.streams: dict[str, list[str]] = {}
        self.broken: Exception | None = None
        self.requests = 0
        self.id = "abcdefghijkl"

    def service(self, name: str):
        return self

    def read(self, operation: str, **request):
        if operation == "describe_cluster":
            groups = [{"InstanceGroupName": name} for name in ("controllers", "workers")]
            return {
                "ClusterArn": f"arn:aws:sagemaker:us-west-2:000000000000:cluster/{self.id}",
                "ClusterName": CLUSTER,
                "InstanceGroups": groups,
            }
        assert operation == "get_log_events"
        self.requests += 1
        if self.broken is not None:
            raise self.broken
        name = f"{request['logGroupName']} {request['logStreamName']}"
        if name not in self.streams:
            raise ResourceNotFound("no such stream", code="ResourceNotFoundException")
        lines = self.streams[name]
        ends = int(request.get("nextToken") or len(lines))
        begins = max(0, ends - PAGE)
        events = [{"timestamp": START_MS + n, "message": lines[n]} for n in range(begins, ends)]
        return {"events": events, "nextBackwardToken": str(begins or ends)}

    def write(self, group: str, stream: str, *lines: str) -> None:
        self.streams[f"{group} {stream}"] = list(lines)


class HttpAccount:
    """The emulated HyperPod and moto's CloudWatch Logs, by boto3 over HTTP."""

    def __init__(self, bed: AwsBed) -> None:
        self.bed, self.service = bed, bed.aws.service
        self._client = boto3.client("logs", region_name=REGION)
        answer = bed.aws.service("sagemaker").read("describe_cluster", ClusterName=CLUSTER)
        self.id = str(answer["ClusterArn"]).rpartition("/")[2]

    def write(self, group: str, stream: str, *lines: str) -> None:
        now = int(time.time() * 1000)
        with contextlib.suppress(self._client.exceptions.ResourceAlreadyExistsException):
            self._client.create_log_group(logGroupName=group)
        self._client.create_log_stream(logGroupName=group, logStreamName=stream)
        events = [{"timestamp": now + n, "message": line} for n, line in enumerate(lines)]
        self._client.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def http():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        url = "http://{}:{}".format(*server.get_host_and_port())
        patch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", url)
        bed = AwsBed(workers=1)
        account = HttpAccount(bed)
        yield account
        account.close()
        bed.close()
    server.stop()


@pytest.fixture(params=["paper", "http"])
def account(request):
    return PaperAccount() if request.param == "paper" else request.getfixturevalue("http")


def read_texts(path) -> dict[str, str]:
    with tarfile.open(path) as packed:
        return {m.name: packed.extractfile(m).read().decode() for m in packed.getmembers()}


def test_an_instances_streams_are_copied_in_order_and_without_secrets(account, tmp_path):
    group = f"/aws/sagemaker/Clusters/{CLUSTER}/{account.id}"
    lines = [f"line {n} {KEY_ID} {SECRET} password=hunter2xyz" for n in range(10)]
    account.write(group, "LifecycleConfig/workers/i-1", *lines)
    account.write(group, "LifecycleConfig/workers/i-2", "of another instance")
    account.write(group, "SagemakerHealthMonitoringAgent/workers/i-1", "HealthEvent one", "two\nx")
    path = write_instance_log_archive(account, CLUSTER, "i-1", "n-1", tmp_path)
    assert path == tmp_path / "n-1-cloudwatch.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    texts = read_texts(path)
    assert texts.keys() == {
        "n-1-cloudwatch/health-agent.txt", "n-1-cloudwatch/lifecycle.txt",
    }  # fmt: skip
    said = texts["n-1-cloudwatch/lifecycle.txt"]
    assert said.splitlines()[0].endswith("LifecycleConfig/workers/i-1]")
    assert [said.index(f"Z line {n} ") for n in range(10)] == sorted(
        said.index(f"Z line {n} ") for n in range(10)
    )
    assert not any(secret in said for secret in (KEY_ID, SECRET, "hunter2xyz", "another"))
    assert "HealthEvent one" in texts["n-1-cloudwatch/health-agent.txt"]
    with pytest.raises(HpctlError, match="File exists"):
        write_instance_log_archive(account, CLUSTER, "i-1", "n-1", tmp_path)


def test_an_instance_without_streams_leaves_no_file(account, tmp_path):
    with pytest.raises(
        HpctlError, match=r"no log of instance i-9 in the log group /aws/sagemaker/Clusters/"
    ):
        write_instance_log_archive(account, CLUSTER, "i-9", "n-9", tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_service_that_does_not_answer_leaves_no_file(tmp_path):
    account = PaperAccount()
    account.broken = ServiceUnavailable("logs:GetLogEvents: not authorized", "allow it")
    with pytest.raises(ServiceUnavailable, match="not authorized"):
        write_instance_log_archive(account, CLUSTER, "i-1", "n-1", tmp_path)
    assert not any(tmp_path.iterdir())


def read_stream(account, ends: float = 1.0) -> bytes:
    reader = CloudWatchStreamReader(account, "g", ends, monotonic=lambda: 0.0)
    return b"".join(reader.read_first_existing_stream(("LifecycleConfig/workers/i-1",)))


def test_a_stream_is_bounded_in_bytes_requests_and_time(monkeypatch):
    account = PaperAccount()
    account.write("g", "LifecycleConfig/workers/i-1", *(f"{n:04} {'x' * 90}" for n in range(900)))
    monkeypatch.setattr(cloudwatch, "MOST_STREAM", 2000)
    said = read_stream(account)
    assert b"[began earlier: it has more]" in said
    assert (b"0899 " in said, b"0850 " in said, len(said) < 2200) == (True, False, True)
    monkeypatch.setattr(cloudwatch, "MOST_STREAM", 10**9)
    monkeypatch.setattr(cloudwatch, "MOST_PAGES", 5)
    account.requests = 0
    assert read_stream(account).count(b"\n") == 5 * PAGE + 2
    assert account.requests == 5
    assert read_stream(account, ends=-1.0) == b"[not read: no time left]\n"


@pytest.mark.parametrize(
    "event",
    [
        *({}, {"timestamp": 10**30, "message": "x"}, {"timestamp": 10**400}),
        *({"timestamp": 9 * 10**14}, {"timestamp": "no", "message": "\udc80"}),
    ],
)
def test_an_event_of_any_shape_is_a_line(event):
    line = cloudwatch.format_log_event(event)
    assert line.endswith(b"\n")
    assert line.startswith((b"(no time)", b"9000-01-01T"))


def test_an_event_begins_with_its_time():
    event = {"timestamp": 1000, "message": "x"}
    assert cloudwatch.format_log_event(event) == b"1970-01-01T00:00:01Z x\n"


def test_the_streams_are_those_of_every_group(account):
    found = find_instance_log_streams(account, CLUSTER, "i-1")
    assert found.group == f"/aws/sagemaker/Clusters/{CLUSTER}/{account.id}"
    assert "LifecycleConfig/workers/i-1" in found.streams["lifecycle"]
    assert found.streams["deep-health-check"] == ("DeepHealthCheckResults/i-1",)
