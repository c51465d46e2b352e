"""A journal that lasts as long as its process: for a loop whose record is elsewhere."""

from collections.abc import Mapping, Sequence

from hpctl.engine.journal.events import Event
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.model import NodeHealth


class InProcessJournal:
    """`hpctl.engine.journal.port.Journal` in memory."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def append(self, events: Sequence[Event]) -> None:
        """Keep these events."""
        self._events.extend(events)

    def events(self) -> Sequence[Event]:
        """Return every event, in order."""
        return tuple(self._events)

    def list_retired_recovery_ids(self) -> frozenset[RecoveryId]:
        """Return an empty set: this journal retires nothing."""
        return frozenset()

    def health(self) -> Mapping[NodeName, NodeHealth]:
        """Return no health: no agent reports here."""
        return {}
