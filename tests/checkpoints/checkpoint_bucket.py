"""Checkpoints in a bucket for tests, and a count of what is asked of it."""

import os
import threading
from collections import Counter
from functools import cache

from click.testing import CliRunner, Result

from hpctl.checkpoints.files import RemotePath
from hpctl.cli.main import cli
from hpctl.sagemaker.objects import S3Bucket
from tests.s3 import BUCKET

LAST = (".metadata", "trainer_state.json", "metadata.json", "meta.pt")


def put(s3, prefix: str, files: dict[str, bytes], **more) -> None:
    """Upload, what the writer writes last coming last."""
    for name in sorted(files, key=lambda n: (n.rpartition("/")[2] in LAST, n)):
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=files[name], **more)


@cache
def _bucket(_endpoint: str, **options) -> S3Bucket:
    return S3Bucket(BUCKET, region="us-east-1", **options)


def place(key: str, **options) -> RemotePath:
    """A place in the bucket; one client for each server, for to make one takes long."""
    return RemotePath(_bucket(os.environ["AWS_ENDPOINT_URL"], **options), key)


def counted(remote: RemotePath) -> Counter[str]:
    """How many requests of each kind, and how many bytes come back from now on."""
    count: Counter[str] = Counter()
    one_at_a_time = threading.Lock()  # Tails are read by several threads, and += is two steps.

    def after(http_response, model, **_) -> None:
        with one_at_a_time:
            count[model.name] += 1
            if model.name == "GetObject":
                count["bytes"] += int(http_response.headers["Content-Length"])

    remote.objects.client.meta.events.register("after-call.s3", after)
    return count


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *args])
