"""Bundles on their way to S3: real boto3 over HTTP, into moto's server."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.clusters import bundle as bundles
from hpctl.clusters.bundle import LifecycleBundle, S3Prefix, write_bundle_manifest
from hpctl.engine.adapters import make_aws_account_client
from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown, ResourceNotFound
from tests.clusters.lifecycle.node import bundle
from tests.s3 import BUCKET, s3, s3_endpoint

pytestmark = pytest.mark.integration

__all__ = ["s3", "s3_endpoint"]

TO = S3Prefix(BUCKET, "demo/base")


@pytest.fixture
def made(tmp_path) -> LifecycleBundle:
    return bundle(tmp_path / "bundle")


def send(made: LifecycleBundle) -> bundles.BundleUploadPlan:
    aws = make_aws_account_client(None, None, None)
    planned = bundles.plan_bundle_upload(aws, made, TO)
    bundles.upload_bundle_to_s3(aws, made, TO, planned)
    return planned


def fetched(s3, target: Path) -> Path:
    """What a node downloads: plain files, without modes."""
    for item in s3.list_objects_v2(Bucket=BUCKET, Prefix="demo/base/")["Contents"]:
        path = target / item["Key"].removeprefix("demo/base/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read())
    return target


def test_a_bundle_arrives_whole_and_only_what_changed_is_sent_again(s3, made, tmp_path):
    first = send(made)
    assert (first.send[-1], first.unchanged) == ("MANIFEST", ())
    there = fetched(s3, tmp_path / "there")
    assert {p.relative_to(there).as_posix(): p.read_bytes() for p in _files(there)} == {
        p.relative_to(made.directory).as_posix(): p.read_bytes() for p in _files(made.directory)
    }
    assert send(made).send == ()
    (made.directory / "shared_users.txt").write_text("eve,2003,/fsx/eve\n")
    second = send(write_bundle_manifest(made.directory))
    assert second.send == ("shared_users.txt", "MANIFEST")
    assert len(second.unchanged) == len(first.send) - 2


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_what_another_upload_left_half_done_is_sent_again(s3, made):
    send(made)
    s3.put_object(Bucket=BUCKET, Key="demo/base/start.sh", Body=b"another bundle's")
    s3.delete_object(Bucket=BUCKET, Key="demo/base/config.json")
    assert send(made).send == ("config.json", "start.sh")


def test_what_lies_in_the_prefix_and_in_no_bundle_is_reported_and_deleted_on_request(s3, made):
    s3.put_object(Bucket=BUCKET, Key="demo/base/old/step.py", Body=b"")
    s3.put_object(Bucket=BUCKET, Key="demo/base2/other", Body=b"")
    planned = send(made)
    assert planned.left_over == ("old/step.py",)
    bundles.delete_stale_bundle_objects(make_aws_account_client(None, None, None), TO, planned)
    assert send(made).left_over == ()
    assert s3.get_object(Bucket=BUCKET, Key="demo/base2/other")


def test_a_bucket_that_is_not_there_is_named(s3, made):
    with pytest.raises(ResourceNotFound, match="bucket sagemaker-other does not exist"):
        bundles.plan_bundle_upload(
            make_aws_account_client(None, None, None), made, S3Prefix("sagemaker-other", "x")
        )


@pytest.mark.parametrize("uri", ["", "sagemaker-x/y", "s3://", "s3://A/x", "https://x/y"])
def test_what_is_no_prefix_is_refused(uri):
    with pytest.raises(HpctlError, match="is not a place in S3"):
        S3Prefix.parse(uri)


def test_a_prefix_is_read_as_people_write_it():
    assert S3Prefix.parse("s3://sagemaker-x/a/b/") == S3Prefix("sagemaker-x", "a/b")
    assert str(S3Prefix.parse("s3://sagemaker-x")) == "s3://sagemaker-x"
    assert S3Prefix.parse("s3://sagemaker-x").key("MANIFEST") == "MANIFEST"


class LosesAnswers:
    """An account whose first answers to a put are lost."""

    region = "us-east-1"

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.puts: list[str] = []

    def service(self, name: str) -> LosesAnswers:
        return self

    def order(self, operation, **request):
        self.puts.append(str(request["Key"]))
        if self.losses:
            self.losses -= 1
            raise OrderOutcomeUnknown("s3:PutObject: no answer")
        return {}


def test_a_put_without_an_answer_is_put_again_a_bounded_number_of_times(made):
    planned = bundles.BundleUploadPlan(("config.json", "MANIFEST"), (), ())
    aws = LosesAnswers(2)
    bundles.upload_bundle_to_s3(aws, made, TO, planned)
    assert aws.puts == ["demo/base/config.json"] * 3 + ["demo/base/MANIFEST"]
    aws = LosesAnswers(3)
    with pytest.raises(OrderOutcomeUnknown):
        bundles.upload_bundle_to_s3(aws, made, TO, planned)
    assert aws.puts == ["demo/base/config.json"] * 3
