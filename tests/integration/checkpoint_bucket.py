"""A bucket for tests: moto's server over HTTP, real boto3, and a count of what is asked of it."""

import os
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from hpctl.cloud.objects import S3Bucket
from hpctl.jobs.checkpoints.files import Remote

server = pytest.importorskip("moto.server", reason="S3 NOT TESTED HERE: moto's server is missing")

BUCKET = "runs"
LAST = (".metadata", "trainer_state.json", "metadata.json", "meta.pt")


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()
    request = urllib.request.Request(f"{s3_endpoint}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=30).close()


def put(s3: Any, prefix: str, files: dict[str, bytes], **more: Any) -> None:
    """Upload, what the writer writes last coming last."""
    for name in sorted(files, key=lambda n: (n.rpartition("/")[2] in LAST, n)):
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=files[name], **more)


def place(key: str, **options: Any) -> Remote:
    return Remote(S3Bucket(BUCKET, region="us-east-1", **options), key)


def counted(remote: Remote) -> Counter[str]:
    """How many requests of each kind, and how many bytes come back from now on."""
    count: Counter[str] = Counter()
    one_at_a_time = threading.Lock()  # Tails are read by several threads, and += is two steps.

    def after(http_response: Any, model: Any, **_: Any) -> None:
        with one_at_a_time:
            count[model.name] += 1
            if model.name == "GetObject":
                count["bytes"] += int(http_response.headers["Content-Length"])

    remote.objects.client.meta.events.register("after-call.s3", after)
    return count


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *args])
