"""Who leads: a lease in the journal's database that does not depend on a wall clock.

The leader renews the lease on a separate thread and counts from before it sent the renewal, by
a clock that runs while the machine sleeps: past that time it does nothing. A standby takes the
lease once it has seen the row unchanged for as long as the holder's lease lasts, by its own clock,
which ends later: it saw the renewal after it was sent. Every write carries the epoch besides.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.journal.events import RequestTaken
from hpctl.engine.journal.rows import DaemonIdentity, DaemonLeaseInfo, StandbyInfo
from hpctl.engine.journal.store import JournalStore, LeaseHeldByOtherError, LeaseLostError
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.view import Request
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.ports import Clock

log = logging.getLogger(__name__)

MARGIN = 0.1
"""The share of its lease that a leader leaves unused: two clocks never run alike."""
RENEWALS = 4.0
"""How often a lease is renewed while it lasts."""
POLLS = 12.0
"""How often a standby looks while a lease lasts."""
ELSEWHERE_S, NEXT_S = 1.0, 2.0
"""How much longer a standby that is not alone waits away from the active slurmctld; and where the
leader has let go for another one."""
STUCK_S = 120.0
"""A loop without progress for so long no longer leads, though its thread could renew: as long as
systemd's watchdog waits. Each order to Slurm counts as getting somewhere."""
FOLLOW_S, BEHIND = 180.0, 50
"""A leader follows slurmctld to another host no sooner after it began to lead; and to a standby
that is not further behind in events: each is a second old when it says so."""


def read_seconds_since_boot() -> float:
    """Return seconds that no clock setting moves, and that go on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseTerms(Struct, frozen=True):
    """How long a lease lasts without a renewal, and whether other heads may take it."""

    seconds: float
    shared: bool
    """Several heads use this database."""


class Leadership:
    """Whether this daemon leads. `leads`, `serves` and `leader_address` are for any thread."""

    def __init__(
        self,
        store: JournalStore,
        me: DaemonIdentity,
        terms: LeaseTerms,
        clock: Clock,
        now: Callable[[], float] = read_seconds_since_boot,
    ) -> None:
        """`now`: seconds of this host's own."""
        self._store, self._me, self._clock = store, me, clock
        self._lease_s, self._shared = terms.seconds, terms.shared
        self._now = now
        self._until = -math.inf
        self._progress = now()
        self._mark: object = None
        self._since = now()
        self._seen: DaemonLeaseInfo | None = None
        self._standbys: dict[str, tuple[float, StandbyInfo]] = {}
        self._shown = (0.0, "", me.mode)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats = 0
        self._caught_up = not terms.shared
        self.lost = False
        """Another daemon took over."""
        self.led_since = -math.inf
        self.hand_over_to = ""
        """The address of the standby that is to lead next."""
        self._active_controller = ""
        self.lease: DaemonLeaseInfo | None = None
        """The row of the lease as this daemon wrote it last; None while it never led."""
        if terms.shared:
            store.block_writes_until_lease()

    @property
    def leads(self) -> bool:
        """Return whether this daemon may act, now."""
        return self._now() < self._until

    @property
    def serves(self) -> bool:
        """Return whether this daemon takes reports and requests now."""
        return self._caught_up and self.leads

    def mark_leader_state_caught_up(self) -> None:
        """Serve from now on: what the former leader knew is in memory. A report that is folded
        into less would have what the node said before forgotten."""
        self._caught_up = True

    def set_active_controller(self, host: str) -> None:
        """Take the host of the slurmctld that answers, as slurm.conf names it; empty: not known.
        Any thread."""
        self._active_controller = host

    def is_on_controller_host(self) -> bool:
        """Return whether slurmctld is known to be active on this host. Any thread."""
        return bool(self._active_controller) and self._is_controller_host(self._me.host)

    @property
    def leader_address(self) -> str:
        """Return where the leader's intake is, "host:port"; empty while no leader is known."""
        if self.leads:
            return self._me.address
        seen = self._seen
        if seen is None or self.led_since > -math.inf or self._now() - self._since > seen.lease_s:
            return ""
        return seen.address

    @property
    def poll_s(self) -> float:
        """Return how often a standby is to look, in seconds."""
        return self._lease_s / POLLS

    def try_to_lead(self) -> bool:
        """Look at the lease once; take it where it is free or has run out. Raises Unavailable,
        CorruptJournalError, OSError; LeaseHeldByOtherError where a file's other daemon lives on
        another host."""
        seen = self._store.daemon()
        now = self._now()
        mark = seen and (seen.epoch, seen.beat, seen.heartbeat, seen.host, seen.pid)
        if mark != self._mark:
            self._mark, self._since = mark, now
        self._seen = seen
        if not self._shared:
            self._refuse_lease_of_other_host(seen)
        elif seen is not None and self._must_wait_for_lease(seen, now - self._since):
            return False
        began, at = self._now(), self._clock.now()
        try:
            self._store.take_lease(self._me, seen, at, self._lease_s)
        except LeaseHeldByOtherError:
            if not self._shared:
                raise
            return False
        self._until = began + self._lease_s * (1 - MARGIN) if self._shared else math.inf
        self.lease = self._make_own_lease(seen, at)
        self._progress = self.led_since = began
        if self._shared:
            self._thread = threading.Thread(
                target=self._renew_lease_until_stopped, name="lease", daemon=True
            )
            self._thread.start()
        return True

    def _make_own_lease(self, seen: DaemonLeaseInfo | None, at: datetime) -> DaemonLeaseInfo:
        """Return the row that `Store.take_lease` wrote."""
        me = self._me
        return DaemonLeaseInfo(
            host=me.host,
            pid=me.pid,
            version=me.version,
            mode=me.mode,
            started=at,
            heartbeat=at,
            until=add_seconds_within_bounds(at, self._lease_s),
            last_cycle_s=0.0,
            epoch=seen.epoch + 1 if seen else 1,
            lease_s=self._lease_s,
            address=me.address,
        )

    def _renew_stored_lease(self, at: datetime) -> None:
        """Renew the lease in the store and in memory. Raises what `Store.renew_lease` raises."""
        last_cycle_s, trouble, mode = self._shown
        self._store.renew_lease(at, self._lease_s, last_cycle_s, trouble, mode)
        if self.lease is not None:
            self.lease = replace(
                self.lease,
                heartbeat=at,
                until=add_seconds_within_bounds(at, self._lease_s),
                beat=self.lease.beat + 1,
                last_cycle_s=last_cycle_s,
                trouble=trouble,
                mode=mode,
            )

    def _refuse_lease_of_other_host(self, seen: DaemonLeaseInfo | None) -> None:
        """The directory's lock proves a former holder of this host to be dead; another host's
        lease must have ended."""
        if seen and seen.host != self._me.host and seen.until > self._clock.now():
            raise LeaseHeldByOtherError(
                f"cannot start: the daemon on {seen.host} (pid {seen.pid}) uses the journal until"
                f" {seen.until:%H:%M:%S} UTC",
                "stop that daemon; several head nodes can share a journal only in a database "
                "(docs/head-nodes.md)",
            )

    def _must_wait_for_lease(self, seen: DaemonLeaseInfo, still_s: float) -> bool:
        """Return whether a row that stood still for so long may yet be renewed, or is another's
        first."""
        if not seen.lease_s and seen.successor:
            return seen.successor != self._me.address and still_s < NEXT_S
        if still_s < seen.lease_s or still_s >= seen.lease_s + ELSEWHERE_S:
            return still_s < seen.lease_s
        others = (one.address != self._me.address for one in self._store.standbys())
        return not self._is_controller_host(self._me.host) and any(others)

    def _is_controller_host(self, host: str) -> bool:
        """Return whether a host is that of the active slurmctld, or none is known."""
        active = self._active_controller
        return not active or strip_domain(active) == strip_domain(host)

    def record_standby_heartbeat(self) -> None:
        """Say that we stand by. Raises OSError."""
        self._beats += 1
        self._store.record_standby_heartbeat(self._me, self._beats, self._clock.now())

    def note(self, last_cycle_s: float, trouble: str, mode: str) -> None:
        """Note what the lease's row says of the loop. Raises LeaseLostError, OSError, where no
        thread renews."""
        self._shown = (last_cycle_s, trouble, mode)
        if not self._shared:
            self._renew_stored_lease(self._clock.now())

    def progress(self) -> None:
        """Note that the loop makes progress. Raises LeaseLostError where another daemon took
        over."""
        self._progress = self._now()
        if self.lost:
            raise LeaseLostError(
                "another hpctl daemon took over the journal",
                "nothing to do: this daemon waits as the standby",
            )

    def may_act(self) -> bool:
        """Ask this immediately before every effect."""
        if not self.leads:
            return False
        self._progress = self._now()
        return True

    def renew(self) -> None:
        """Once; the thread's work."""
        began, lease_s = self._now(), self._lease_s
        if began - self._progress > STUCK_S:
            log.error("trouble=the loop hangs for %.0f s: the lease is left", STUCK_S)
            return
        try:
            self._renew_stored_lease(self._clock.now())
        except LeaseLostError as error:
            self._until, self.lost = -math.inf, True
            log.error("%s", error)
            return
        except (OSError, HpctlError) as error:
            log.error("trouble=the lease was not renewed: %s", error)
            return
        self._until = began + lease_s * (1 - MARGIN)
        with contextlib.suppress(HpctlError):
            self._read_standbys()

    def _renew_lease_until_stopped(self) -> None:
        while not self._ended.wait(self._lease_s / RENEWALS) and not self.lost:
            self.renew()

    def _read_standbys(self) -> None:
        known, now = self._standbys, self._now()
        fresh = {}
        for one in self._store.standbys():
            at, before = known.get(one.address, (-math.inf, None))
            fresh[one.address] = (at if before and before.beat == one.beat else now, one)
        self._standbys = fresh

    def standbys(self) -> tuple[StandbyInfo, ...]:
        """Return all standbys as the leader read them last. Any thread."""
        return tuple(one for _, one in self._standbys.values())

    def ready(self) -> list[StandbyInfo]:
        """Return the standbys that live, those near the active slurmctld and the furthest first."""
        now = self._now()
        alive = [one for at, one in self._standbys.values() if now - at < self._lease_s]
        return sorted(
            alive, key=lambda one: (not self._is_controller_host(one.host), one.behind, one.host)
        )

    def silent(self) -> frozenset[str]:
        """Return the other heads that said nothing for a lease, and not that they stop: standbys,
        and who led before."""
        known = {one.host for _, one in self._standbys.values()}
        if self._shared and self._seen and self._seen.lease_s:
            known.add(self._seen.host)
        return frozenset(known - {self._me.host, *(one.host for one in self.ready())})

    def release(self) -> None:
        """Let go of the lease, so that a standby takes it at once. Raises LeaseLostError,
        OSError."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        led, self._until = self.leads, -math.inf
        if led:
            self._store.release_lease(self._clock.now(), self.hand_over_to)
        elif self._beats:
            self._store.delete_standby(self._me.address)

    def take(self, request: Request, memory: JournaledState) -> None:
        """Answer `hpctl daemon failover` in the journal; where it is yes, `hand_over_to` names who
        is next. Raises LeaseLostError, OSError."""
        now, by, target = self._clock.now(), request.by or "operator", request.target
        ready = self.ready()
        chosen = [one for one in ready if target in ("", one.host, one.address)]
        ok, answer = False, f"no standby is ready there; ready: {format_standby_hosts(ready)}"
        if not request.proof:
            answer = f"{by!r} is not authenticated: repeat while a daemon runs"
        elif not chosen and target in (self._me.host, self._me.address):
            answer = f"{target} leads already"
        elif chosen:
            ok, answer = True, f"{self._me.host} hands over to {chosen[0].host}"
        proof = request.proof
        memory.append([RequestTaken(now, request.id, request.verb, target, by, answer, ok, proof)])
        if ok:
            self.hand_over_to = chosen[0].address

    def hand_over_to_active_controller_host(self) -> None:
        """Hand over to a standby on the active slurmctld's host, where this is another one."""
        led = self._now() - self.led_since
        if not self._shared or self._is_controller_host(self._me.host) or led < FOLLOW_S:
            return
        for one in self.ready():
            if self._is_controller_host(one.host) and one.behind <= BEHIND:
                log.warning("handing over to %s, where slurmctld is active", one.host)
                self.hand_over_to = one.address
                return


def format_standby_hosts(standbys: Sequence[StandbyInfo]) -> str:
    """Their hosts, for a sentence."""
    return ", ".join(one.host for one in standbys) or "none"


def strip_domain(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0].lower()
