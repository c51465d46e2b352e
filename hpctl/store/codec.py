"""Journal records to and from JSON text, strictly: what cannot be read is corruption."""

from __future__ import annotations

import msgspec

from hpctl.core.journal import EVENT_TYPES, Event
from hpctl.errors import JournalCorrupt

_encoder = msgspec.json.Encoder()
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in EVENT_TYPES.items()}


def encode(event: Event) -> tuple[str, str]:
    """The record's kind and its JSON."""
    return type(event).__name__, _encoder.encode(event).decode()


def decode(seq: int, kind: str, payload: str) -> Event:
    """Read record number `seq` back. Raises JournalCorrupt with its place and the mend."""
    try:
        decoder = _decoders.get(kind)
        if decoder is None:
            raise ValueError(f"unknown kind {kind!r}")
        return decoder.decode(payload)
    except (TypeError, ValueError, msgspec.DecodeError) as error:
        raise JournalCorrupt(
            f"journal event {seq} cannot be read: {error}",
            "stop the daemon, keep a copy of the journal, and restore the newest good one"
            " (docs/operations.md, 'A corrupt journal'); it is never read as empty",
        ) from error
