"""Checkpoints in S3: real boto3 over HTTP against moto's server, every format, the costs."""

import errno
import os
import time
from datetime import datetime

import pytest

from hpctl.checkpoints import search as last
from hpctl.checkpoints.marks import CheckpointMark, write_checkpoint_mark_file
from hpctl.checkpoints.search import CompleteCheckpoint, SkippedCheckpoint
from hpctl.sagemaker.objects import parse_original_file_time
from hpctl.toolkit.compat import UTC
from tests.checkpoints.checkpoint_bucket import counted, place, put, run
from tests.checkpoints.checkpoint_files import (
    BESIDE,
    OPTIONAL,
    WHOLE,
    dcp_files,
    dcp_metadata,
    torch_save,
    write,
)
from tests.s3 import BUCKET, s3, s3_endpoint

pytestmark = pytest.mark.integration

__all__ = ["s3", "s3_endpoint"]


@pytest.mark.parametrize("name", WHOLE)
def test_each_format_is_whole_and_without_any_of_its_files_it_is_not(s3, name):
    form, directory, make = WHOLE[name]
    files = make()
    put(s3, f"a/{directory}", files)
    put(s3, "a", BESIDE.get(name, {}))
    search = last.find_newest_complete_checkpoint_in_tiers(place("a"))
    assert search.found is not None, search.passed_over
    assert (search.found.format, search.found.step) == (form, 40)
    assert str(search.found.path) == f"s3://{BUCKET}/a/{directory}"
    assert isinstance(
        last.verify_checkpoint(place(f"a/{directory}"), deep=True), CompleteCheckpoint
    )
    needed = sorted(files.keys() - OPTIONAL)
    for gone in {*needed[:2], needed[-1]}:
        s3.delete_object(Bucket=BUCKET, Key=f"a/{directory}/{gone}")
        row = last.verify_checkpoint(place(f"a/{directory}"))
        assert isinstance(row, SkippedCheckpoint), gone
        assert not row.unreadable, row
        put(s3, f"a/{directory}", files)


def test_marks_of_the_directory_count_for_its_copies_in_s3(s3, tmp_path):
    """Also for one that is uploaded after the mark, until the step is saved again."""
    for step in (20, 30):
        files = dcp_files(step=step)
        write(tmp_path / f"step-{step}", files)
        put(s3, f"m/step-{step}", files)
    put(s3, "m/step-40", dcp_files(step=40))
    mark = CheckpointMark(True, 21, "alice", datetime.now(UTC), until_start=True)
    os.utime(write_checkpoint_mark_file(tmp_path, mark), ns=(time.time_ns() + 10**10,) * 2)
    places = [last.CheckpointTier(tmp_path), last.CheckpointTier(place("m"))]
    found = last.find_newest_complete_checkpoint_in_tiers(places)
    assert found.found is not None
    assert (found.found.step, found.found.path) == (20, tmp_path / "step-20")
    assert [p.path.name for p in found.passed_over] == ["step-40", "step-30", "step-30"]
    (tmp_path / ".hpctl-starts").write_text(f"{time.time_ns() + 2 * 10**10}\n")
    late = time.time_ns() + 3 * 10**10
    objects = last.find_candidates_excluded_by_marks(
        [each for each in last.list_checkpoint_candidates(place("m"))[0] if each.claim.step == 30],
        last.read_checkpoint_marks([tmp_path]),
    )
    assert objects[0] is not None
    for each in (tmp_path / "step-30").rglob("*"):
        os.utime(each, ns=(late, late))
    again = last.find_newest_complete_checkpoint_in_tiers(places)
    assert again.found is not None
    assert (again.found.step, again.found.path) == (30, tmp_path / "step-30")


def test_an_upload_in_progress_is_not_seen_and_a_deletion_is_passed_over(s3):
    files = dcp_files()
    put(s3, "u/step-1", files)
    begun = {name: raw for name, raw in files.items() if name != "__1_0.distcp"}
    put(s3, "u/step-2", begun)
    s3.create_multipart_upload(Bucket=BUCKET, Key="u/step-2/__1_0.distcp")
    root = place("u")
    search = last.find_newest_complete_checkpoint_in_tiers(root)
    assert search.found is not None
    assert [(p.path.name, p.why) for p in search.passed_over] == [
        ("step-2", "__1_0.distcp is missing")
    ]
    snapshot = place("u/step-1").take_snapshot()
    s3.delete_object(Bucket=BUCKET, Key="u/step-1/__1_0.distcp")
    row = last.verify_checkpoint(snapshot)
    assert isinstance(row, SkippedCheckpoint)
    candidate = last.detect_checkpoint_candidate(place("u/step-2"))
    assert not isinstance(candidate, SkippedCheckpoint)
    s3.delete_object(Bucket=BUCKET, Key="u/step-2/__0_0.distcp")
    row = last.verify_checkpoint_candidate(candidate, deep=False)
    assert not row.unreadable
    assert row.why == "__0_0.distcp is missing: it was deleted while hpctl read the checkpoint"


def test_an_object_replaced_while_hpctl_looks_is_looked_at_again(s3):
    files = dcp_files()
    put(s3, "r/step-1", files)
    candidate = last.detect_checkpoint_candidate(place("r/step-1"))
    assert not isinstance(candidate, SkippedCheckpoint)
    other = torch_save({"x": 2}) + torch_save({"x": 1})
    put(s3, "r/step-1", {**files, "__2_0.distcp": other})
    assert isinstance(last.verify_checkpoint_candidate(candidate, deep=False), CompleteCheckpoint)
    bucket = place("r/step-1")
    listed = next(iter(bucket.objects.list("r/step-1/__2", recursive=True)))
    put(s3, "r/step-1", files)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        bucket.objects.read(listed, 0, 5)


def test_times_are_those_that_the_uploader_noted(s3):
    files = dcp_files()
    data = {name: raw for name, raw in files.items() if name != ".metadata"}
    put(s3, "t/step-1", data, Metadata={"file-mtime": "1795000000000000000ns"})
    put(
        s3,
        "t/step-1",
        {".metadata": files[".metadata"]},
        Metadata={"file-mtime": "1795000001000000000ns"},
    )
    assert isinstance(last.verify_checkpoint(place("t/step-1")), CompleteCheckpoint)
    newer = {"__1_0.distcp": files["__1_0.distcp"]}
    put(s3, "t/step-1", newer, Metadata={"mtime": "1795000001.5"})
    row = last.verify_checkpoint(place("t/step-1"))
    assert row.why.startswith("__1_0.distcp is newer than .metadata: a later save overwrote it")


@pytest.mark.parametrize(
    ("kept", "when"),
    [
        ({"file-mtime": "1595002920000000000ns"}, 1595002920 * 10**9),
        ({"mtime": "1595002920.5"}, 1595002920_500_000_000),
        ({"mtime": "nan"}, None),
        ({"mtime": "12e"}, None),
        ({}, None),
    ],
)
def test_noted_times(kept, when):
    assert parse_original_file_time(kept) == when


def test_what_a_large_checkpoint_costs(s3, monkeypatch):
    """Pages hold 1000 keys with S3, and 100 here."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "100")
    item, ranks = torch_save({}, tensors=0), 110
    names = [f"__{rank}_0.distcp" for rank in range(ranks)]
    metadata = dcp_metadata([(name, 0, len(item)) for name in names])
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    there = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for name in names:
        there.put_object(BUCKET, f"c/step-1/{name}", item)
    put(s3, "c/step-1", {".metadata": metadata})
    root = place("c")
    count = counted(root)
    assert last.find_newest_complete_checkpoint_in_tiers(root).found is not None
    # The root, two pages of the candidate, NeMo's marker; then .metadata and each rank's tail.
    assert count == {
        "ListObjectsV2": 3,
        "GetObject": ranks + 1,
        "bytes": len(metadata) + ranks * 22,
    }


def test_what_goes_wrong_is_one_clear_message_and_exit_code_3(s3, monkeypatch):
    result = run("last", "s3://nobucket/x")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "hpctl: cannot read s3://nobucket/x: there is no bucket nobucket\n"
    result = run("last", "--endpoint-url", "http://127.0.0.1:9", f"s3://{BUCKET}/x")
    assert result.exit_code == 3
    assert "no connection to http://127.0.0.1:9: check" in result.stderr
    result = run("ls", "--profile", "nobody", f"s3://{BUCKET}/x")
    assert result.exit_code == 3
    assert "nobody" in result.output
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    result = run("last", "--export", f"s3://{BUCKET}/x")
    assert result.exit_code == 3
    assert result.stdout.startswith(f"unreadable s3://{BUCKET}/x: no AWS credentials: set")
    assert len(result.stdout.splitlines()) == 1


def test_a_place_where_nothing_is(s3):
    url = f"s3://{BUCKET}/k"
    missing = run("verify", f"{url}/step-5")
    assert (missing.exit_code, missing.stderr) == (
        3,
        f"hpctl: cannot read {url}/step-5: there is no object there\n",
    )
    empty = run("last", "--export", f"s3://{BUCKET}/nothing")
    assert (empty.exit_code, empty.stdout) == (1, "none\n")


def test_a_prefix_of_the_name_is_not_the_place(s3):
    put(s3, "run-10/step-3", dcp_files())
    assert last.find_newest_complete_checkpoint_in_tiers(place("run-1")).verdict == "none"
