"""Several tiers, and bringing a checkpoint from S3: real boto3 over HTTP against moto's server."""

import json
import os
import shutil

import pytest

from hpctl.checkpoints import search
from hpctl.checkpoints.fetch import fetch_checkpoint
from hpctl.checkpoints.search import CompleteCheckpoint
from hpctl.sagemaker.objects import S3Bucket
from tests.checkpoints.checkpoint_bucket import counted, place, put, run
from tests.checkpoints.checkpoint_files import dcp_files, torch_save, write
from tests.s3 import BUCKET, s3, s3_endpoint

pytestmark = pytest.mark.integration

__all__ = ["s3", "s3_endpoint"]


def test_the_newest_of_all_tiers_is_fetched_and_loads_from_the_directory(s3, tmp_path):
    near = tmp_path / "run"
    write(near / "step-3", dcp_files())
    put(s3, "run/step-3", dcp_files())
    files = dcp_files(ranks=20)
    put(s3, "run/step-5", files)
    url = f"s3://{BUCKET}/run"
    assert run("last", str(near), "--tier", url).stdout == f"{url}/step-5\n"
    result = run("last", "--export", "--tier", url, str(near))
    assert (result.exit_code, result.stdout) == (0, f"found {near}/step-5\n"), result.output
    assert f"hpctl: fetching {url}/step-5 into {near}" in result.stderr
    assert sorted(os.listdir(near)) == ["step-3", "step-5"]
    for name, raw in files.items():
        assert (near / "step-5" / name).read_bytes() == raw
    assert isinstance(search.verify_checkpoint(near / "step-5", deep=True), CompleteCheckpoint)
    again = run("last", "--export", "--tier", url, str(near))
    assert (again.stdout, again.stderr) == (f"found {near}/step-5\n", ""), "the nearer one wins"


def test_what_lies_in_its_place_is_renamed_and_never_deleted(s3, tmp_path):
    torn = write(tmp_path / "step-5", {"__0_0.distcp": b"torn", ".metadata": b"x"})
    left = tmp_path / ".hpctl-fetch.tmp-gone-1"
    write(left, {"lock": b"", "step-5/x": b"half"})
    put(s3, "run/step-5", dcp_files())
    result = run("last", "--json", "--fetch", str(tmp_path), f"s3://{BUCKET}/run", str(tmp_path))
    found = json.loads(result.stdout)["found"]
    assert (found["path"], found["fetched_from"]) == (str(torn), f"s3://{BUCKET}/run/step-5")
    aside = [path for path in tmp_path.iterdir() if path != torn]
    assert [path.name[:19] for path in aside] == ["step-5.hpctl-aside-"]
    assert (aside[0] / "__0_0.distcp").read_bytes() == b"torn"


def test_a_single_large_file_comes_in_its_parts_and_their_digests_fit(s3, tmp_path):
    body = torch_save({"global_step": 8, "x": "y" * (11 << 20)})
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="run/epoch=0-step=8.ckpt")
    key = {"Bucket": BUCKET, "Key": "run/epoch=0-step=8.ckpt", "UploadId": upload["UploadId"]}
    parts = []
    for number, at in enumerate(range(0, len(body), 5 << 20), start=1):
        made = s3.upload_part(**key, PartNumber=number, Body=body[at : at + (5 << 20)])
        parts.append({"PartNumber": number, "ETag": made["ETag"]})
    s3.complete_multipart_upload(**key, MultipartUpload={"Parts": parts})
    source = place("run")
    found = search.find_newest_complete_checkpoint_in_tiers(source).found
    assert found is not None
    count = counted(source)
    copy = fetch_checkpoint(found, tmp_path, deep=True)
    assert isinstance(copy, CompleteCheckpoint), copy
    assert (tmp_path / "epoch=0-step=8.ckpt").read_bytes() == body
    assert count["HeadObject"] == 1, "the parts' size; their digests fit the object's tag"
    assert count["GetObject"] == len(parts)


def test_a_copy_that_is_not_what_was_stored_is_refused(s3, tmp_path, monkeypatch):
    put(s3, "run/step-5", dcp_files())
    write(tmp_path / "step-2", dcp_files())
    real = S3Bucket.read

    def flipped(self: S3Bucket, listed, offset: int, length: int) -> tuple[bytes, int | None]:
        raw, when = real(self, listed, offset, length)
        if length > 100 and "__1_" in listed.key:
            raw = raw[:70] + bytes([raw[70] ^ 1]) + raw[71:]
        return raw, when

    monkeypatch.setattr(S3Bucket, "read", flipped)
    result = run("last", "--export", f"s3://{BUCKET}/run", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, f"found {tmp_path}/step-2\n")
    assert (
        "not fetched: __1_0.distcp differs from its checksum in the object store" in result.stderr
    )
    assert os.listdir(tmp_path) == ["step-2"]


def test_no_room_falls_back_with_the_reason(s3, tmp_path, monkeypatch):
    put(s3, "run/step-5", dcp_files())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    result = run("last", "--export", f"s3://{BUCKET}/run", str(tmp_path))
    assert result.exit_code == 3
    assert result.stdout.startswith(f"unreadable s3://{BUCKET}/run")
    assert "0 MiB free" in result.stderr
