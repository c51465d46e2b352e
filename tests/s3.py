"""A bucket for tests: moto's server over HTTP and real boto3."""

import os
import urllib.request

import boto3
import pytest

server = pytest.importorskip("moto.server", reason="S3 NOT TESTED HERE: moto's server is missing")

BUCKET = "sagemaker-scripts"


@pytest.fixture(scope="module")
def s3_endpoint():
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()
    request = urllib.request.Request(f"{s3_endpoint}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
