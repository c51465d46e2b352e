"""A journal in memory: what the loop needs of the store, and its promises, without a database.

Several handles on one `Disk` are what several processes on one database are. The contract suite
of `tests/engine/journal` holds it to what the real databases do.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.engine.journal.events import Event, RequestTaken
from hpctl.engine.view import Request
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.model import NodeHealth


class Disk(Struct):
    """What survives a crash of the process."""

    log: list[Event] = field(default_factory=list)
    facts: dict[NodeName, NodeHealth] = field(default_factory=dict)
    heard: dict[NodeName, datetime] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)


class MemoryJournal:
    """A Journal whose appends are all or nothing."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()

    def append(self, batch: Sequence[Event]) -> None:
        """Durable at once."""
        self.disk.log.extend(batch)
        self.disk.taken |= {e.request for e in batch if isinstance(e, RequestTaken)}

    def events(self, after: int = 0) -> Iterator[Event]:
        """Every event, from number `after` + 1 on."""
        yield from self.disk.log[after:]

    def list_retired_recovery_ids(self) -> frozenset[RecoveryId]:
        """Nothing is ever set apart here."""
        return frozenset()

    def record(self, facts: Sequence[NodeHealth]) -> None:
        """Store what agents reported."""
        self.disk.facts.update({h.generation.node: h for h in facts})

    def store_last_heard_times(self, heard: Mapping[NodeName, datetime]) -> None:
        """Store when nodes were last heard."""
        self.disk.heard = dict(heard)

    def health(self) -> Mapping[NodeName, NodeHealth]:
        """What was recorded, as young as it was heard."""
        heard = self.disk.heard
        return {
            node: replace(health, last_heard=max(health.last_heard, heard[node]))
            if node in heard
            else health
            for node, health in self.disk.facts.items()
        }

    def ask(self, verb: str, target: str, by: str, at: datetime) -> int:
        """Append a request; answers its number."""
        number = len(self.disk.asked) + 1
        self.disk.asked.append(
            Request(number, at.astimezone(UTC), verb, target, by, "the fake's own")
        )
        return number

    def requests(self) -> list[Request]:
        """Not taken yet, oldest first."""
        return [r for r in self.disk.asked if r.id not in self.disk.taken]
