"""What is kept of a node before its remedy destroys it: the order, the answer, and its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary.identity import NodeGeneration, RecoveryId
from hpctl.vocabulary.model import DeviceVerdict, Finding

EVIDENCE_CHECK: Final = "node.evidence"
"""The check of the finding in which an agent answers; its device is the recovery's id."""
PLACE_CHECK: Final = "agent.evidence"
"""The check of the finding in which an agent names its `evidence.directory`, as the detail."""
KEPT, NOT_KEPT = "kept", "not_kept"
"""The codes of that finding."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""How large an archive, and what it holds unpacked, may be."""
GATHER_S: Final = 60.0
"""How long an agent may take to keep the evidence, in seconds."""

_Word = Annotated[str, Meta(max_length=64)]
_ANSWER: Final = re.compile(r"(\d{1,12}) bytes, sha256 ([0-9a-f]{64})")
_TRAIL: Final = re.compile(
    r"((?:/|s3://)[^\x00-\x1f]{1,1024}), (\d{1,12}) bytes, sha256 ([0-9a-f]{64})$"
)
PLACE: Final = (
    r"^$|^/[^\x00-\x1f]{1,1000}$"
    r"|^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[^\x00-\x1f]{0,900})?$"
)
"""What `evidence.directory` may be: an absolute path, or a bucket of S3 and a prefix in it."""


class EvidenceCollectionOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Keep this node's evidence. `until` and `since` in Unix seconds: when the order ends, and when
    the fault was first seen. `remedy` and `why` are what the node writes into its own log."""

    recovery: Annotated[str, Meta(pattern=r"^[a-z]{1,8}-[0-9a-f]{1,32}\Z")]
    generation: NodeGeneration
    until: float
    since: float
    remedy: _Word
    why: Annotated[str, Meta(max_length=300)] = ""


class StoredEvidenceArchive(Struct, frozen=True):
    """One archive: where (a path, or `s3://bucket/key`), how many bytes, its SHA-256 in hex."""

    path: str
    size: int
    sha256: str


def is_s3_location(place: str) -> bool:
    """Return whether a place of evidence is in S3."""
    return place.startswith("s3://")


def format_evidence_archive_name(recovery: str) -> str:
    """Return the file name of a recovery's archive."""
    return f"{recovery}.tar.gz"


def find_evidence_finding(recovery: RecoveryId, findings: Iterable[Finding]) -> Finding | None:
    """Return what a node's agent says of the evidence that a recovery ordered; None: nothing
    yet."""
    return next((f for f in findings if f.check == EVIDENCE_CHECK and f.device == recovery), None)


def is_evidence_archive_stored(answer: Finding) -> bool:
    """Return whether an answer says that an archive of a possible size was kept."""
    match = _ANSWER.fullmatch(answer.evidence)
    bounded = match is not None and parse_count(match[1]) <= MOST_BYTES
    return answer.code == KEPT and answer.verdict is DeviceVerdict.OK and bounded


def describe_archive_size_and_digest(size: int, sha256: str) -> str:
    """Return an archive's size and digest in the words of the answer."""
    return f"{size} bytes, sha256 {sha256}"


def parse_stored_evidence_archive(why: str) -> StoredEvidenceArchive | None:
    """Return the archive that the reason of a recovery's move names; None where it names none."""
    match = _TRAIL.fullmatch(why)
    return StoredEvidenceArchive(match[1], parse_count(match[2]), match[3]) if match else None
