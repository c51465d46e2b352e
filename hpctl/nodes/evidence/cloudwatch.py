"""What CloudWatch Logs has of an instance: the evidence of a node that cannot answer.

HyperPod's own agents write these streams while the instance lives, and they outlive it. Its
instances are in an account of the service, so that EC2's console output is out of reach. Streams by
the SageMaker guide ("Amazon SageMaker HyperPod cluster resources monitoring") and the release notes
of the health agent:
`LifecycleConfig/GROUP/ID`, `SagemakerHealthMonitoringAgent/GROUP/ID`, `DeepHealthCheckResults/ID`,
in the log group `/aws/sagemaker/Clusters/NAME/ID`.

What a stream says is a node's text: it is bounded in bytes, requests and time, and redacted.

`write_instance_log_archive` makes an archive of them in the form of a node's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from hpctl.nodes.evidence.archive import EvidenceArchiveWriter
from hpctl.nodes.evidence.fetch import copy_stream_to_new_file
from hpctl.nodes.evidence.redact import redact_stream
from hpctl.nodes.evidence.store import open_regular_file
from hpctl.toolkit.bounds import parse_timestamp
from hpctl.toolkit.errors import HpctlError, ResourceNotFound
from hpctl.vocabulary.ports import AwsClientFactory

MOST_STREAM: Final = 8 * 1024 * 1024
"""Bytes of one stream: the newest."""
MOST_PAGES: Final = 64
"""Requests for one stream. An answer has 1 MB or 10 000 events (API reference of CloudWatch Logs),
and may have none although there are more."""
MOST_GROUPS: Final = 128
READ_S: Final = 120.0
"""How long the reading of all streams may take, in seconds."""


class InstanceLogStreams(Struct, frozen=True):
    """Where an instance's streams are: their log group, and each stream by the name of its text."""

    group: str
    streams: Mapping[str, tuple[str, ...]]


def find_instance_log_streams(
    aws: AwsClientFactory, cluster: str, instance: str
) -> InstanceLogStreams:
    """Return where the streams of an instance may be; one group of the cluster has it, and the
    service no longer says which after a replacement. Raises HpctlError."""
    answer = aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    cluster_id = str(answer.get("ClusterArn", "")).rpartition("/")[2]
    if not cluster_id:
        raise HpctlError(
            "cannot find the node's log in CloudWatch: SageMaker's answer has no id of cluster "
            f"{cluster}",
            "Read the log group /aws/sagemaker/Clusters in the CloudWatch console.",
        )
    groups = [str(g.get("InstanceGroupName", "")) for g in answer.get("InstanceGroups", ())]
    named = tuple(groups[:MOST_GROUPS])
    return InstanceLogStreams(
        f"/aws/sagemaker/Clusters/{answer.get('ClusterName', cluster)}/{cluster_id}",
        {
            "health-agent": tuple(
                f"SagemakerHealthMonitoringAgent/{group}/{instance}" for group in named
            ),
            "lifecycle": tuple(f"LifecycleConfig/{group}/{instance}" for group in named),
            "deep-health-check": (f"DeepHealthCheckResults/{instance}",),
        },
    )


class CloudWatchStreamReader:
    """Reads streams of one log group until `ends`, by `monotonic`. For one thread."""

    def __init__(
        self,
        aws: AwsClientFactory,
        group: str,
        ends: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs, self._group = aws.service("logs"), group
        self._ends, self._monotonic = ends, monotonic

    def read_first_existing_stream(self, streams: tuple[str, ...]) -> Iterator[bytes]:
        """Yield the newest lines of the first of these streams that is there, the oldest of them
        first, each after its time. Raises HpctlError for another answer than its absence."""
        for stream in streams:
            if self._monotonic() > self._ends:
                yield b"[not read: no time left]\n"
                return
            try:
                blocks = self._read_newest_pages(stream)
            except ResourceNotFound:
                continue
            yield f"[{self._group} {stream}]\n".encode()
            yield from reversed(blocks)
            return

    def _read_newest_pages(self, stream: str) -> list[bytes]:
        """Return the text of each page, the newest first, MOST_STREAM bytes in all."""
        blocks: list[bytes] = []
        left, token = MOST_STREAM, ""
        for _ in range(MOST_PAGES):
            if self._monotonic() > self._ends:
                blocks.append(b"[began earlier: no time left]\n")
                return blocks
            answer = self._ask(stream, token)
            block = b"".join(format_log_event(event) for event in answer.get("events", ()))
            if len(block) > left:
                kept = block[-left:] if left else b""
                blocks += [kept.partition(b"\n")[2], b"[began earlier: it has more]\n"]
                return blocks
            left -= len(block)
            blocks.append(block)
            next_token = str(answer.get("nextBackwardToken", ""))
            # The same token again is the begin of the stream.
            if next_token in ("", token):
                return blocks
            token = next_token
        blocks.append(b"[began earlier: it has more]\n")
        return blocks

    def _ask(self, stream: str, token: str) -> Mapping[str, Any]:
        more = {"nextToken": token} if token else {}
        return self._logs.read(
            "get_log_events",
            logGroupName=self._group,
            logStreamName=stream,
            startFromHead=False,
            **more,
        )


def write_instance_log_archive(
    aws: AwsClientFactory, cluster: str, instance: str, recovery: str, place: Path
) -> Path:
    """Write an instance's streams into a new archive in a directory; return its path. Raises
    HpctlError where CloudWatch cannot be read or has none."""
    logs = find_instance_log_streams(aws, cluster, instance)
    reader = CloudWatchStreamReader(aws, logs.group, time.monotonic() + READ_S)
    name = f"{recovery}-cloudwatch.tar.gz"
    with tempfile.TemporaryDirectory(prefix="hpctl-evidence-") as scratch:
        archive = EvidenceArchiveWriter(Path(scratch), name)
        try:
            for text, streams in logs.streams.items():
                archive.add(text, redact_stream(reader.read_first_existing_stream(streams)))
        except BaseException:
            archive.drop()
            raise
        if not archive.names:
            archive.drop()
            raise HpctlError(
                f"CloudWatch has no log of instance {instance} in the log group {logs.group}",
                "Check that the instance's id is right; an instance that did not boot has no log.",
            )
        archive.close()
        with open_regular_file(Path(scratch, name)) as file:
            return copy_stream_to_new_file(place / name, file)


_MOST_STAMP: Final = 10**15


def format_log_event(event: Mapping[str, Any]) -> bytes:
    """Return one event as a line: its time, which a node may have set to anything, and its text."""
    stamp, at = event.get("timestamp"), None
    if isinstance(stamp, int) and abs(stamp) < _MOST_STAMP:
        at = parse_timestamp(stamp / 1000)
    shown = f"{at:%Y-%m-%dT%H:%M:%SZ}" if at is not None else "(no time)"
    text = str(event.get("message", "")).replace("\n", "\n  ").rstrip()
    return f"{shown} {text}\n".encode(errors="replace")
