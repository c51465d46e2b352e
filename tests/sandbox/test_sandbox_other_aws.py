"""What the sandbox's AWS takes: its own keys alone."""

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from hpctl.sandbox.emulator.service import EmulatorSandboxOptions, HyperPodEmulator
from hpctl.sandbox.machines import NullMachineBackend
from hpctl.sandbox.other_aws import MotoServer
from hpctl.sandbox.spec import SandboxSpec, find_free_sandbox_ports

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    state = tmp_path_factory.mktemp("sandbox")
    settings = SandboxSpec(
        name="s", id="s-1", state=str(state), ports=find_free_sandbox_ports(2), nodes=2, empty=True
    )
    one = MotoServer(settings)
    one.start()
    yield one
    one.stop()


def client(aws: MotoServer, service: str):
    make = boto3.client
    keys = {"aws_access_key_id": aws.settings.access_key, "aws_secret_access_key": "x"}
    return make(service, endpoint_url=aws.url, region_name="us-east-1", **keys)


def test_no_one_without_its_keys_puts_anything_into_its_buckets(aws: MotoServer) -> None:
    """What lies there is run, at a node's birth, as whoever started the sandbox."""
    make = boto3.client
    for config in (None, Config(signature_version=UNSIGNED)):
        keys = {"aws_access_key_id": "sandbox2", "aws_secret_access_key": "x"}
        stranger = make("s3", endpoint_url=aws.url, region_name="us-east-1", config=config, **keys)
        with pytest.raises(ClientError) as refused:
            stranger.put_object(Bucket="sagemaker-sandbox", Key="lifecycle/on_create.sh", Body=b"x")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert client(aws, "s3").list_objects_v2(Bucket="sagemaker-sandbox")["Contents"]


def test_the_emulated_api_takes_its_own_key_alone() -> None:
    emulator = HyperPodEmulator(
        NullMachineBackend(), site=EmulatorSandboxOptions(access_key="SANDBOXKEY")
    )
    emulator.start()
    make = boto3.client
    for key, taken in (("SANDBOXKEY", True), ("sandbox", False)):
        api = make(
            "sagemaker", endpoint_url=emulator.endpoint_url, region_name="us-east-1",
            aws_access_key_id=key, aws_secret_access_key="x",
        )  # fmt: skip
        if taken:
            assert api.list_clusters()["ClusterSummaries"] == []
        else:
            with pytest.raises(ClientError, match="UnrecognizedClient"):
                api.list_clusters()
    emulator.stop()
