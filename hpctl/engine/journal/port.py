"""The journal as the engine needs it, whatever database keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpctl.engine.journal.events import Event
    from hpctl.vocabulary.identity import NodeName, RecoveryId
    from hpctl.vocabulary.model import NodeHealth


class Journal(Protocol):
    """The durable memory: append-only events, agents' facts, operators' requests."""

    def append(self, events: Sequence[Event]) -> None:
        """Append all events or none, on stable storage when it returns. Raises CorruptJournalError,
        OSError."""

    def events(self) -> Iterable[Event]:
        """Return every event that is not retired, in order.

        Raises CorruptJournalError at the first that cannot be read.
        """

    def list_retired_recovery_ids(self) -> frozenset[RecoveryId]:
        """Return the ids of what is past and no longer among the events. Raises Unavailable."""

    def health(self) -> Mapping[NodeName, NodeHealth]:
        """Return what the agents reported last, folded by node."""
