"""Evidence in S3: written by a node, read by a head, deleted in time; moto's server over HTTP."""

import hashlib
import http.server
import io
import os
import sys
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from botocore.parsers import ResponseParserError
from msgspec.structs import replace

from hpctl.engine.config import ClusterSection, Config
from hpctl.nodes.evidence import bucket as bucket_module
from hpctl.nodes.evidence import gather
from hpctl.nodes.evidence.bucket import EvidenceBucket, upload_archive
from hpctl.nodes.evidence.daemon import EvidenceRetention
from hpctl.nodes.evidence.fetch import EvidenceArchiveReader
from hpctl.nodes.evidence.store import InvalidArchiveError, read_archive_texts
from hpctl.sagemaker.objects import S3Bucket
from hpctl.vocabulary.evidence import (
    StoredEvidenceArchive,
    describe_archive_size_and_digest,
    parse_stored_evidence_archive,
)
from hpctl.vocabulary.policy import EvidenceCollectionPolicy, RecoveryPolicy
from tests.fakes.values import OWN, Clock, at
from tests.nodes.evidence.test_gather import SAYS, SECRETS, install, keep, machine
from tests.nodes.evidence.test_store import member, pack
from tests.s3 import BUCKET, s3, s3_endpoint

__all__ = ["machine", "s3", "s3_endpoint"]

pytestmark = pytest.mark.integration

PLACE = f"s3://{BUCKET}/evidence"


@dataclass
class LiveSettings:
    """What the daemon's configuration is now."""

    policy: RecoveryPolicy
    config: Config


def store(s3, body: bytes, name: str = "n-1.tar.gz") -> StoredEvidenceArchive:
    s3.put_object(Bucket=BUCKET, Key=f"evidence/{name}", Body=body)
    return StoredEvidenceArchive(f"{PLACE}/{name}", len(body), hashlib.sha256(body).hexdigest())


def list_keys(s3) -> list[str]:
    found = s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return [entry["Key"] for entry in found]


def list_left(machine) -> list[str]:
    return sorted(path.name for path in (machine / "spool/evidence").iterdir())


def test_a_node_writes_an_archive_without_secrets_and_the_head_reads_it(machine, s3, tmp_path):
    install(machine, "dmesg", f"{SAYS}; env; head -c 3000000 /dev/urandom | base64")
    result = keep(machine, directory=PLACE + "/")
    assert result.why == ""
    assert list_keys(s3) == ["evidence/n-1.tar.gz"]
    assert list_left(machine) == []
    archive = parse_stored_evidence_archive(
        f"{PLACE}/n-1.tar.gz, {describe_archive_size_and_digest(result.size, result.sha256)}"
    )
    assert archive is not None
    come: list[int] = []
    reader = EvidenceArchiveReader(progress=lambda more, total: come.append(more))
    with reader.open(archive) as file:
        assert {text.name for text in read_archive_texts(file)} == {"order.txt", "dmesg.txt"}
    assert sum(come) == archive.size
    (tmp_path / "to").mkdir()
    copy = reader.fetch(archive, tmp_path / "to")
    assert (copy.name, copy.stat().st_size) == ("n-1.tar.gz", result.size)
    body = s3.get_object(Bucket=BUCKET, Key="evidence/n-1.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as packed:
        texts = [packed.extractfile(m).read().decode() for m in packed.getmembers()]
    said = "".join(texts)
    assert "kernel:" in said
    assert not any(secret in said for secret in SECRETS)
    # The agent's own environment has keys of AWS; no program that it runs for evidence gets them.
    assert "AWS_SECRET_ACCESS_KEY" in os.environ
    assert "AWS_SECRET_ACCESS_KEY" not in said


def test_an_object_that_is_not_what_the_node_reported_is_refused(s3):
    good = pack(member())
    archive = store(s3, good)
    for body, why in ((good + b"x", "bytes"), (good[:-1] + b"x", "SHA-256")):
        store(s3, body)
        with pytest.raises(InvalidArchiveError, match=why), EvidenceArchiveReader().open(archive):
            pass
    s3.delete_object(Bucket=BUCKET, Key="evidence/n-1.tar.gz")
    with (
        pytest.raises(InvalidArchiveError, match="no such object"),
        EvidenceArchiveReader().open(archive),
    ):
        pass


def test_a_bucket_that_is_not_there_leaves_the_archive_on_the_node(machine, s3):
    install(machine, "dmesg", SAYS)
    result = keep(machine, directory="s3://no-such-bucket/evidence")
    path = machine / "spool/evidence/n-1.tar.gz"
    assert result.why == f"on the node in {path}, not in S3: there is no bucket no-such-bucket"
    assert path.stat().st_mode & 0o077 == 0o040
    assert path.parent.stat().st_mode & 0o077 == 0
    with tarfile.open(path) as packed:
        assert "n-1/dmesg.txt" in packed.getnames()


def test_what_is_left_on_a_node_is_bounded(machine, s3, monkeypatch):
    monkeypatch.setattr(gather, "MOST_BYTES", 3000)
    folder = machine / "spool/evidence"
    folder.mkdir(mode=0o700)
    for number in range(4):
        path = folder / f"n-a{number}.tar.gz"
        path.write_bytes(b"x" * 1000)
        os.utime(path, (time.time() - 100 + number,) * 2)
    gather.prepare_spool_folder(machine / "spool")
    assert list_left(machine) == ["n-a1.tar.gz", "n-a2.tar.gz", "n-a3.tar.gz"]


@contextmanager
def answering(status: int, body: bytes, delay_s: float = 0.0):
    """An S3 that answers every request alike."""
    stop = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            stop.wait(delay_s)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


def test_a_role_that_may_not_write_is_named_with_what_to_allow(machine, s3, monkeypatch):
    with answering(403, DENIED) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        why = keep(machine, directory=PLACE).why
    assert f"access denied: allow s3:PutObject on arn:aws:s3:::{BUCKET}/*" in why
    assert "on the node in" in why
    assert list_left(machine) == ["n-1.tar.gz"]


@pytest.mark.parametrize("answer", [{"IsTruncated": True}, {"Contents": [{}]}, "html"])
def test_a_listing_that_is_not_one_of_s3_is_an_error(s3, monkeypatch, answer):
    def answer_so(**_):
        if answer == "html":
            raise ResponseParserError("not well-formed (invalid token)")
        return answer

    objects = S3Bucket(BUCKET)
    monkeypatch.setattr(objects.client, "list_objects_v2", answer_so)
    with pytest.raises(OSError, match=r"not one of S3|not complete"):
        EvidenceBucket(objects, "evidence").list_archive_files()


def test_an_s3_that_does_not_answer_is_not_waited_for(machine, s3, monkeypatch):
    monkeypatch.setattr(bucket_module, "ANSWER_S", 0.3)
    path = machine / "n-1.tar.gz"
    path.write_bytes(pack(member()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with answering(200, b"", delay_s=60) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        begun = time.monotonic()
        assert "does not answer" in upload_archive(path, PLACE, digest, begun + 60)
        assert time.monotonic() - begun < 40


def test_an_upload_that_is_slow_ends_with_its_time(tmp_path, s3, monkeypatch):
    path = tmp_path / "n-1.tar.gz"
    path.write_bytes(b"x" * 1000)
    read: list[bytes] = []

    def put(key, body, size, sha256):
        read.append(body.read(10))
        time.sleep(max(0.0, deadline + 0.1 - time.monotonic()))
        body.read(10)

    objects = S3Bucket(BUCKET)
    monkeypatch.setattr(objects, "put", put)
    slow = EvidenceBucket(objects, "")
    deadline = time.monotonic() + 2.0
    with pytest.raises(TimeoutError, match="too slowly"):
        slow.send(path, "00" * 32, deadline)
    assert read == [b"x" * 10]


def test_a_python_without_boto3_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "hpctl.sagemaker.objects", None)
    assert "no S3 client" in upload_archive(tmp_path / "n-1.tar.gz", PLACE, "00" * 32, 0.0)


def test_a_link_in_the_spool_is_not_sent(tmp_path, s3):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "n-1.tar.gz").symlink_to(tmp_path / "secret")
    assert upload_archive(tmp_path / "n-1.tar.gz", PLACE, "00" * 32, time.monotonic() + 9)
    assert list_keys(s3) == []


def test_the_daemon_deletes_old_archives_of_s3_and_nothing_else(s3, caplog, monkeypatch):
    for name in ("n-1.tar.gz", "n-2.tar.gz", "notes.txt", "deeper/n-3.tar.gz"):
        store(s3, b"x" * 10, name)
    s3.put_object(Bucket=BUCKET, Key="evidence2/n-4.tar.gz", Body=b"x")
    policy = replace(OWN, evidence=EvidenceCollectionPolicy(directory=PLACE, keep_days=1))
    live = LiveSettings(policy, Config(cluster=ClusterSection(provider="none")))
    clock = Clock()
    clock.at = at(0).fromtimestamp(time.time() + 80000, at(0).tzinfo)
    retention = EvidenceRetention(live, clock)
    retention.look()
    assert len(list_keys(s3)) == 5
    clock.at = at(0).fromtimestamp(time.time() + 90000, at(0).tzinfo)
    retention.look()
    assert list_keys(s3) == [
        "evidence/deeper/n-3.tar.gz", "evidence/notes.txt", "evidence2/n-4.tar.gz",
    ]  # fmt: skip
    live.policy = replace(OWN, evidence=EvidenceCollectionPolicy(directory="s3://no-such-bucket"))
    for _ in range(2):
        retention.look()
    assert caplog.text.count("old evidence cannot be deleted") == 1
    assert "there is no bucket no-such-bucket" in caplog.text


def test_an_object_that_may_not_be_deleted_is_an_error(s3, monkeypatch):
    objects = S3Bucket(BUCKET)
    refused = {"Errors": [{"Key": "evidence/n-1.tar.gz", "Code": "AccessDenied"}]}
    monkeypatch.setattr(objects.client, "delete_objects", lambda **_: refused)
    found = EvidenceBucket(objects, "evidence")
    with pytest.raises(PermissionError, match="s3:DeleteObject"):
        found.delete_archive_files(["n-1.tar.gz"])
