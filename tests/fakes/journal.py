"""A journal in memory: the store's methods and promises, without a database.

Several handles on one `Disk` are what several processes on one database are. The contract suite
of `tests/contract/journal` holds it to what the real databases do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.core.compat import UTC
from hpctl.core.journal import Event, RequestTaken
from hpctl.core.model import Health, NodeName, RecoveryId
from hpctl.core.view import Request
from hpctl.store.rows import DaemonInfo
from hpctl.store.sql import LeaseHeld, LeaseLost


class Disk(Struct):
    """What survives a crash of the process."""

    log: list[Event] = field(default_factory=list)
    facts: dict[NodeName, Health] = field(default_factory=dict)
    heard: dict[NodeName, datetime] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    past: dict[int, int] = field(default_factory=dict)
    """What was retired, by its place in `log`, with the day when it was over."""
    forgotten: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    lease: DaemonInfo | None = None
    epoch: int = 0
    full: bool = False
    """Every write fails with OSError and changes nothing."""


class MemoryJournal:
    """A Journal whose appends are all or nothing."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self._epoch = 0

    def close(self) -> None:
        """Nothing to give back."""

    def _write(self) -> None:
        if self.disk.full:
            raise OSError("the journal cannot be written: database or disk is full")

    def _hold_lease(self) -> None:
        if self._epoch and self._epoch != self.disk.epoch:
            raise LeaseLost("another daemon took the journal over", "stop this one")

    def append(self, batch: Sequence[Event]) -> None:
        """Durable at once."""
        if not batch:
            return
        self._write()
        self._hold_lease()
        self.disk.log.extend(batch)
        self.disk.taken |= {e.request for e in batch if isinstance(e, RequestTaken)}

    def events(self, after: int = 0, *, past: bool = False) -> Iterator[Event]:
        """Every event, from number `after` + 1 on."""
        for place, event in enumerate(self.disk.log[after:], after):
            if place not in self.disk.forgotten and (past or place not in self.disk.past):
                yield event

    def retire(self, over: Callable[[Event], datetime | None], most: int | None = None) -> int:
        """Set apart what is over, day by day."""
        self._write()
        self._hold_lease()
        days: dict[int, list[int]] = {}
        for place, event in enumerate(self.disk.log):
            if place not in self.disk.past and (ended := over(event)):
                days.setdefault(ended.astimezone(UTC).toordinal(), []).append(place)
        before = len(self.disk.past)
        for day in sorted(days):
            if most is None or len(self.disk.past) - before < most:
                self.disk.past |= dict.fromkeys(days[day], day)
        return len(self.disk.past) - before

    def retired(self) -> frozenset[RecoveryId]:
        """The ids of what was set apart."""
        places = self.disk.past.keys() - self.disk.forgotten
        found = (getattr(self.disk.log[place], "recovery", "") for place in places)
        return frozenset(rid for rid in found if rid)

    def forget(self, before: datetime) -> None:
        """Delete what was over on an earlier day."""
        self._write()
        self._hold_lease()
        day = before.astimezone(UTC).toordinal()
        self.disk.forgotten |= {place for place, over in self.disk.past.items() if over < day}

    def record(self, facts: Sequence[Health]) -> None:
        """Remember what agents said."""
        self._write()
        self.disk.facts.update({h.generation.node: h for h in facts})

    def note_heard(self, heard: Mapping[NodeName, datetime]) -> None:
        """Remember when nodes were last heard."""
        self._write()
        self.disk.heard = dict(heard)

    def health(self) -> Mapping[NodeName, Health]:
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

    def answer(self, request: int) -> RequestTaken | None:
        """What the daemon answered."""
        answers = (e for e in reversed(self.disk.log) if isinstance(e, RequestTaken))
        return next((e for e in answers if e.request == request), None)

    def daemon(self) -> DaemonInfo | None:
        """Who holds, or last held, the lease."""
        return self.disk.lease

    def take_lease(
        self, host: str, pid: int, version: str, mode: str, now: datetime, lease_s: float
    ) -> None:
        """Become the one writer. Raises LeaseHeld while another host's lease lasts."""
        held = self.disk.lease
        if held is not None and held.host != host and held.until > now:
            raise LeaseHeld(f"the daemon on {held.host} holds the journal", "stop it")
        self._write()
        until = now + timedelta(seconds=lease_s)
        self.disk.epoch += 1
        self._epoch = self.disk.epoch
        self.disk.lease = DaemonInfo(host, pid, version, mode, now, now, until, 0.0)

    def renew_lease(
        self, now: datetime, lease_s: float, last_cycle_s: float, trouble: str, mode: str
    ) -> None:
        """Say that the daemon lives. Raises LeaseLost where another took over."""
        self._write()
        if self.disk.lease is None or self._epoch != self.disk.epoch:
            raise LeaseLost("another daemon took the journal over", "stop this one")
        self.disk.lease = replace(
            self.disk.lease,
            heartbeat=now,
            until=now + timedelta(seconds=lease_s),
            last_cycle_s=last_cycle_s,
            trouble=trouble,
            mode=mode,
        )
