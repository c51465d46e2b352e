"""The audit trail: the journal's records of what people asked, chained by SHA-256.

Each row's digest covers the row before it, so that a row that was changed, removed or put in
between breaks the chain from there on. Who may write to the database can make the whole chain
anew: the daemon therefore logs the newest digest with each row (`audit=... digest=...`), and
`hpctl audit verify --expect DIGEST` compares with what the log, or a note elsewhere, says.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from sqlalchemy import Connection, insert, select

from hpctl.core.journal import ConfigurationTaken, Event, RequestTaken
from hpctl.store import engine as t
from hpctl.store.rows import decode, encode

log = logging.getLogger(__name__)

AUDITED: Final = (RequestTaken, ConfigurationTaken)
FIRST: Final = hashlib.sha256(b"hpctl audit trail 1").hexdigest()
"""The digest before the first row."""


class AuditRow(Struct, frozen=True):
    """One row as it is stored."""

    seq: int
    kind: str
    payload: str
    digest: str

    @property
    def event(self) -> Event:
        """What it records. Raises JournalCorrupt."""
        return decode(self.seq, self.kind, self.payload)


def link(before: str, kind: str, payload: str) -> str:
    """The digest of a row, from that of the row before it."""
    return hashlib.sha256(f"{before}\n{kind}\n{payload}".encode()).hexdigest()


def record(c: Connection, batch: Sequence[Event]) -> None:
    """Add what is audited of a batch, in the batch's own transaction."""
    audited = [encode(e) for e in batch if isinstance(e, AUDITED)]
    if not audited:
        return
    newest = select(t.audit.c.digest).order_by(t.audit.c.seq.desc()).limit(1)
    digest = c.execute(newest).scalar() or FIRST
    for kind, payload in audited:
        digest = link(digest, kind, payload)
        row = c.execute(insert(t.audit).values(kind=kind, payload=payload, digest=digest))
        (seq,) = row.inserted_primary_key or (0,)
        log.info("audit=%d kind=%s digest=%s", seq, kind, digest)


def rows(c: Connection) -> list[AuditRow]:
    """The whole trail, oldest first."""
    query = select(t.audit).order_by(t.audit.c.seq)
    return [AuditRow(r.seq, r.kind, r.payload, r.digest) for r in c.execute(query)]


def broken(trail: Iterable[AuditRow]) -> AuditRow | None:
    """The first row whose digest does not follow from the rows before it; None: all do."""
    before = FIRST
    for row in trail:
        if row.digest != link(before, row.kind, row.payload):
            return row
        before = row.digest
    return None
