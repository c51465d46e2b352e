"""The audit trail: the journal's records of what people asked, chained by SHA-256.

Each row's digest covers the row before it, so that a row that was changed, removed or put in
between breaks the chain from there on. A user who may write to the database can rebuild the chain:
the daemon therefore logs the newest digest with each row (`audit=... digest=...`), and
`hpctl journal audit verify --expect DIGEST` compares with what the log, or a note elsewhere, says.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from hpctl.engine.journal.events import ConfigurationTaken, Event, RequestTaken
from hpctl.engine.journal.rows import decode_event

AUDITED: Final = (RequestTaken, ConfigurationTaken)
FIRST: Final = hashlib.sha256(b"hpctl audit trail 1").hexdigest()
"""The digest before the first row."""


class AuditTrailRow(Struct, frozen=True):
    """One row as it is stored."""

    seq: int
    kind: str
    payload: str
    digest: str

    @property
    def event(self) -> Event:
        """Return what it records. Raises CorruptJournalError."""
        return decode_event(self.seq, self.kind, self.payload)


def compute_audit_digest(before: str, kind: str, payload: str) -> str:
    """Return the digest of a row, from that of the row before it."""
    return hashlib.sha256(f"{before}\n{kind}\n{payload}".encode()).hexdigest()


def find_audit_row_with_wrong_digest(trail: Iterable[AuditTrailRow]) -> AuditTrailRow | None:
    """Return the first row whose digest does not follow from the rows before it; None: all do."""
    before = FIRST
    for row in trail:
        if row.digest != compute_audit_digest(before, row.kind, row.payload):
            return row
        before = row.digest
    return None
