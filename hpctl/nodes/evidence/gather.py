"""Keep this node's evidence, in a separate process, which the agent ends when it takes too long.

Reads an EvidenceGatherRequest as JSON from its input and writes an EvidenceGatherResult to its
output. The shared directory may hang on a node whose network is broken; a process can be left
behind, a thread cannot.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from hpctl.detection.spool import FindingsSpool
from hpctl.nodes.evidence.archive import EvidenceArchiveWriter, EvidenceRefusedError
from hpctl.nodes.evidence.bucket import upload_archive
from hpctl.nodes.evidence.collect import (
    COMMANDS,
    COUNTERS,
    LOGS,
    EvidenceCollector,
    EvidenceCommand,
    make_site_commands,
)
from hpctl.nodes.evidence.redact import redact_stream
from hpctl.nodes.evidence.store import choose_expired_files, delete_archives, list_archives
from hpctl.toolkit.bounds import parse_timestamp
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.evidence import (
    GATHER_S,
    MOST_BYTES,
    EvidenceCollectionOrder,
    format_evidence_archive_name,
    is_s3_location,
)

COLLECT_S: Final = GATHER_S - 12.0
"""After so many seconds nothing is read any longer, and the archive is finished."""
SEND_S: Final = 15.0
"""How much earlier the reading ends where the archive goes to S3."""
LEFT_S: Final = 30 * 86400.0
"""How long an archive that did not reach S3 stays on the node, in seconds."""
_FOLDER: Final = "evidence"
_MOST_WHY: Final = 240
_REAP_S: Final = 1.0


class EvidenceGatherRequest(Struct, frozen=True):
    """What is to be kept, and where. `commands`: the site's own, by name."""

    order: EvidenceCollectionOrder
    directory: str
    root: str
    spool: str
    commands: dict[str, tuple[str, ...]] = {}


class EvidenceGatherResult(Struct, frozen=True):
    """What came of it. `why`: why nothing was kept; empty where something was."""

    why: str = ""
    size: int = 0
    sha256: str = ""
    names: tuple[str, ...] = ()


def gather_evidence(request: EvidenceGatherRequest) -> EvidenceGatherResult:
    """Keep the evidence of one recovery: in the shared directory, or in the spool and then in S3.

    What does not reach S3 stays in the spool.
    """
    begun = time.monotonic()
    if not is_s3_location(request.directory):
        return _write_evidence_archive(request, Path(request.directory), begun + COLLECT_S)
    try:
        folder = prepare_spool_folder(Path(request.spool))
    except OSError as error:
        return EvidenceGatherResult(why=f"the spool takes no evidence: {error.strerror}")
    result = _write_evidence_archive(request, folder, begun + COLLECT_S - SEND_S)
    if result.why:
        return result
    path = folder / format_evidence_archive_name(request.order.recovery)
    why = upload_archive(path, request.directory, result.sha256, begun + COLLECT_S)
    if why:
        return EvidenceGatherResult(why=f"on the node in {path}, not in S3: {why}"[:_MOST_WHY])
    path.unlink(missing_ok=True)
    return result


def prepare_spool_folder(spool: Path) -> Path:
    """Return the folder of the spool for archives on their way to S3, with room for one more.
    Raises OSError."""
    folder = spool / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    expired = choose_expired_files(list_archives(folder), time.time(), LEFT_S, MOST_BYTES)
    delete_archives(folder, expired)
    return folder


def _write_evidence_archive(
    request: EvidenceGatherRequest, folder: Path, ends: float
) -> EvidenceGatherResult:
    """Write the archive of one recovery into a directory, reading until `ends`."""
    collector = EvidenceCollector(Path(request.root), ends)
    try:
        archive = EvidenceArchiveWriter(
            folder, format_evidence_archive_name(request.order.recovery)
        )
    except EvidenceRefusedError as error:
        return EvidenceGatherResult(why=str(error))
    try:
        with tempfile.TemporaryDirectory(prefix="hpctl-evidence-") as scratch:
            report = Path(scratch, "nvidia-bug-report.log")
            child = collector.start_bug_report(report)
            try:
                archive.add("order", _format_evidence_order_lines(request.order))
                archive.add("findings", _read_agent_findings(request))
                _add_evidence_texts(archive, collector, request)
                if child is not None:
                    text = redact_stream(collector.read_bug_report(child, report))
                    archive.add("nvidia-bug-report", text)
            finally:
                if child is not None:
                    child.end(_REAP_S)
        size, digest = archive.close()
    except (EvidenceRefusedError, OSError, ValueError) as error:
        archive.drop()
        return EvidenceGatherResult(why=str(error))
    return EvidenceGatherResult(size=size, sha256=digest, names=tuple(archive.names))


def _format_evidence_order_lines(order: EvidenceCollectionOrder) -> list[bytes]:
    generation, since = order.generation, parse_timestamp(order.since) or datetime.now(UTC)
    text = (
        f"recovery: {order.recovery}\nnode: {generation.node}\ninstance: {generation.instance}\n"
        f"boot: {generation.boot}\nfault since: {since:%Y-%m-%dT%H:%M:%SZ}\n"
        f"kept: {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\nbefore: {order.remedy}\nwhy: {order.why}\n"
    )
    return list(redact_stream([text.encode()]))


def _read_agent_findings(request: EvidenceGatherRequest) -> Iterable[bytes]:
    """Yield the agent's own history, a finding a line, as its spool has it."""
    found = FindingsSpool(Path(request.spool)).recall(request.order.generation).findings
    encoder = msgspec.json.Encoder(enc_hook=str)
    return redact_stream(encoder.encode(finding) + b"\n" for finding in found)


def _add_evidence_texts(
    archive: EvidenceArchiveWriter, collector: EvidenceCollector, request: EvidenceGatherRequest
) -> None:
    since = parse_timestamp(request.order.since - _BEFORE_FAULT_S) or datetime.now(UTC)
    journal = ("journalctl", "--no-pager", "--output=short-iso", "--utc", "--lines=50000")
    commands = [
        *COMMANDS,
        EvidenceCommand("journal", (*journal, f"--since={since:%Y-%m-%d %H:%M:%S} UTC")),
        *(
            EvidenceCommand(f"ethtool-{name}", ("ethtool", "-S", name), 5.0)
            for name in collector.list_hardware_network_interfaces()
        ),
        *make_site_commands(request.commands),
    ]
    for name, path in LOGS.items():
        archive.add(name, redact_stream(collector.read_log_file_tail(path)))
    for name, patterns in COUNTERS.items():
        archive.add(name, redact_stream(collector.read_counter_files(patterns)))
    for command in commands:
        archive.add(command.name, redact_stream(collector.run(command)))


_BEFORE_FAULT_S: Final = 600.0
"""The journal is kept from so long before the fault: what led to it comes first."""


def main() -> None:
    """Serve one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=EvidenceGatherRequest)
    sys.stdout.buffer.write(msgspec.json.encode(gather_evidence(request)))


def encode_gather_request(request: EvidenceGatherRequest) -> bytes:
    """Return what `main` reads."""
    return msgspec.json.encode(request, enc_hook=str)


def decode_gather_result(text: bytes) -> EvidenceGatherResult:
    """Return what `main` wrote. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=EvidenceGatherResult)


if __name__ == "__main__":
    main()
