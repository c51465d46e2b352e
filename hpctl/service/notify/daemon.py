"""Notify users: the journal's events to the outbox, and from there to the sinks.

All on separate threads: the loop only says that there may be news. One thread reads what the
journal has got. One for each sink sends what is due, tries again with backoff until the sink takes
it, and strikes it off only then: a sink gets each message at least once, and one that is away or
hangs keeps no other waiting. The outbox is kept in the journal's database, from which the next
leader continues.
"""

import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.adapters import make_slurm_command_client
from hpctl.engine.config import MAILPROG, Config, NotificationRouteSection
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.service.metrics import DaemonMetrics
from hpctl.service.notify import decide, sinks
from hpctl.service.notify import outbox as notify_outbox
from hpctl.service.notify.decide import Notice
from hpctl.service.notify.outbox import KEEP_S, NotificationMessage, Outbox, OutboxEntry, Reader
from hpctl.toolkit.bounds import add_seconds_within_bounds, clamp_duration
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.jitter import pick_random_pause_seconds
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often what waits is looked at."""
AGAIN_S = (1.0, 60.0)
"""How soon a sink that failed is tried again: at first, and where it keeps failing."""
TRIES = 5
"""Of a message to one user, whose address may stay wrong."""
FOLD_S = 60.0
"""How long an event may be in the journal and not in the state."""
ASK_S = 600.0
"""How long an event that cannot be sent yet, for Slurm does not say whose job it is, holds up the
next ones; after that all but the job's owner are notified."""
AT_ONCE = 200
"""Events read in one go."""
NAMED = 5
"""Sinks with series of their own; the others share one."""
_WANTS = {"job_resumed": "REQUEUE", "job_gave_up": "FAIL", "job_preempted": "REQUEUE"}
"""The word of Slurm's --mail-type that asks for a notice."""
_FOR_OWNERS: Final = ("job_preempted",)
"""What goes to no sink but by a route that names it: it is the job owner's news."""
_MAIL = re.compile(r"^ *MailUser=(\S+) MailType=(\S+)$", re.MULTILINE)


class _DeliveryRetryState(Struct, frozen=True):
    """How often a message to one reader of a sink has failed in a row, and the time of the
    monotonic clock before which it is not tried again. `rows`: those of a message to one user,
    which is tried again as it was."""

    attempts: int = 0
    not_before: float = 0.0
    rows: frozenset[tuple[str, Reader, Notice]] = frozenset()

    @property
    def order(self) -> tuple[bool, float]:
        """Return when its reader has its turn: after those whose last message did not fail."""
        return self.attempts > 0, self.not_before


class Notifier:
    """The threads. `look` is for the loop's."""

    def __init__(
        self, config: Config, store: JournalStore, loop: RecoveryLoopAccess, metrics: DaemonMetrics
    ) -> None:
        """Nothing is read or sent before `start`."""
        self._config, self._store, self._metrics = config, store, metrics
        self._memory, self._observer, self._clock = loop.memory, loop.observer, loop.clock
        self._settings = config.notify
        self._names = [*self._settings.sinks]
        if self._settings.users == MAILPROG:
            self._names.append(MAILPROG)
        for outcome in ("sent", "failed"):
            for name in self._names:
                self._count_delivery_result(name, outcome, 0)
        self._outbox = Outbox(0)
        self._change, self._unkept = threading.Lock(), False
        self._stopping, self._news = threading.Event(), threading.Event()
        self._trouble: dict[str, str] = {}
        self._retries: dict[tuple[str, Reader], _DeliveryRetryState] = {}
        self._silent, self._lost = frozenset[str](), deque[str]()
        self._seen = -1

    @property
    def trouble(self) -> str:
        """Return which sinks cannot be sent to, and why."""
        return "; ".join(dict(self._trouble).values())

    def start(self) -> None:
        """Continue where the leader before has stopped. Returns at once."""
        if self._names:
            threading.Thread(
                target=self._process_journal_events, name="notify", daemon=True
            ).start()

    def look(self, silent: frozenset[str] = frozenset()) -> None:
        """There may be news in the journal; these other heads are silent. Returns at once."""
        self._lost.extend(silent - self._silent)
        events = self._memory.state.events
        if self._lost or self._seen != events:
            self._news.set()
        self._silent, self._seen = silent, events

    def stop(self) -> None:
        """End without waiting: what is being sent is sent again by the next daemon."""
        self._stopping.set()
        self._news.set()

    def _process_journal_events(self) -> None:
        while not self._stopping.is_set() and not self._call_and_log_exception(
            "start", self._load_outbox, None
        ):
            pass
        for name in self._names:
            threading.Thread(
                target=self._run_sink_delivery_loop, name=f"notify-{name}", args=[name], daemon=True
            ).start()
        while not self._stopping.is_set():
            if (
                self._call_and_log_exception(
                    "notify", self._queue_notices_of_new_events, self._clock.now()
                )
                is False
            ):
                self._news.wait()
                self._news.clear()

    def _load_outbox(self, _: None) -> bool:
        """Read the outbox; the first time, what is past by then is no news."""
        kept, newest = self._store.outbox(), self._store.newest()
        try:
            outbox = msgspec.json.decode(kept or "", type=Outbox)
        except msgspec.DecodeError as error:  # of another release, or none
            if kept:
                log.error(
                    "notify: what waited to be sent is lost: the outbox is unreadable: %s", error
                )
            outbox = Outbox(newest)
        self._save_outbox(replace(outbox, position=min(outbox.position, newest)))
        return True

    def _save_outbox(self, outbox: Outbox) -> None:
        """On disk first. Raises LeaseLostError, OSError."""
        self._store.save_outbox(msgspec.json.encode(outbox).decode())
        self._outbox, self._unkept = outbox, False

    def _queue_notices_of_new_events(self, now: datetime) -> bool:
        """Read once; return whether there may be more."""
        found = self._store.newer(self._outbox.position, AT_ONCE)
        position, fresh = self._outbox.position, list[OutboxEntry]()
        for number, event in found:
            away = abs(now - event.at)  # the clock may have been set back
            if decide.is_event_missing_from_state(
                event, self._memory.state
            ) and away < clamp_duration(FOLD_S):
                self._stopping.wait(0.05)
                break
            if now < add_seconds_within_bounds(event.at, KEEP_S):
                rows = self._call_and_log_exception(
                    f"event {number}", self._make_outbox_entries, event
                )
                if rows is None and _is_event_recent_enough_to_notify(event.at, now):
                    break
                fresh += rows or ()
            elif notice := self._call_and_log_exception(
                f"event {number}", self._make_event_notice, event
            ):
                _log_expired_notice(notice)
            position = number
        lost, person = self._lost.copy(), "an operator to see why, and to start hpctl-daemon there"
        for host in lost:
            what = f"The hpctl daemon on {host} is silent."
            notice = Notice("standby_lost", host, host, now, what, "hpctl status", person)
            fresh += self._route_notice_to_sinks(notice, now)
        if fresh or position != self._outbox.position:
            with self._change:
                before = self._outbox.posted
                self._save_outbox(self._outbox.add(position, fresh, now))
            left = {p.row for p in self._outbox.posted}
            for gone in (p for p in before if not p.sent and p.row not in left):
                _log_expired_notice(gone.notice)
        for _ in lost:  # only now: what could not be kept is sent the next time
            self._lost.popleft()
        return bool(found)

    def _make_outbox_entries(self, event: Event) -> list[OutboxEntry]:
        notice = self._make_event_notice(event)
        return [] if notice is None else self._route_notice_to_sinks(notice, self._clock.now())

    def _make_event_notice(self, event: Event) -> Notice | None:
        state, slurm = self._memory.state, self._observer.slurm
        return decide.make_event_notice(event, state, slurm, self._config.policy())

    def _route_notice_to_sinks(self, notice: Notice, now: datetime) -> list[OutboxEntry]:
        """Return a notice for each sink that it is for, and for which address there."""
        settings = self._settings
        account, owner, mail, kinds = self._read_job_owner_and_mail(notice, now)
        routes = settings.routes or (
            NotificationRouteSection(tuple(settings.sinks.keys() - {settings.users})),
        )
        matching = [route for route in routes if _is_notice_for_route(route, notice, account)]
        to = dict.fromkeys(chain.from_iterable(route.to for route in matching))
        rows = [OutboxEntry(name, "", notice, now) for name in to]
        if settings.users and mail and _WANTS.get(notice.kind) in kinds:
            rows.append(OutboxEntry(settings.users, mail, notice, now, owner=owner))
        return rows

    def _read_job_owner_and_mail(
        self, notice: Notice, now: datetime
    ) -> tuple[str, str, str, Sequence[str]]:
        """Return a job's account and user, whom Slurm mails about it, and about what; empty where
        Slurm does not say. A user's text can forge nothing here but the user's own address. Raises
        Unavailable."""
        if notice.job is None or not (self._settings.users or self._settings.routes):
            return "", "", "", ()
        run, job = make_slurm_command_client(self._config).runner.run, str(notice.job)
        account = run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%a %u")
        shown = run("scontrol", "show", "job", job)
        for ran in (account, shown):
            if (
                not ran.ok
                and "Invalid job id" not in ran.message
                and _is_event_recent_enough_to_notify(notice.at, now)
            ):
                raise ServiceUnavailable(
                    f"cannot read job {job} from Slurm for its notification: {ran.message}",
                    "nothing to do: the daemon tries again",
                )
        mails = _MAIL.findall(shown.text)
        mail, kinds = mails[-1] if mails else ("", "")
        name, _, owner = account.text.strip().partition("\n")[0].partition(" ")
        return name, owner.strip(), sinks.parse_mail_address(mail), kinds.split(",")

    def _run_sink_delivery_loop(self, name: str) -> None:
        source = self._settings.sinks.get(name)
        if source:
            for error in sinks.list_unusable_sink_errors({name: source}, reach=True):
                self._record_sink_delivery_failure(name, f"{error}: {error.hint}")
        while not self._stopping.wait(LOOK_S):
            self._call_and_log_exception(name, self._send_due_sink_notices, name)

    def _send_due_sink_notices(self, name: str) -> None:
        """Send each reader of a sink what is due; nothing before all that was sent is noted.

        A job owner has one attempt a turn, whichever address it goes to, and at most `per_hour`
        messages an hour to all of them: addresses that are slow or take no mail cost other owners
        one attempt. An owner to one of whose addresses the last message failed comes after the
        others, and one such address has a turn.
        """
        with self._change:
            if self._unkept:
                self._save_outbox(self._outbox)
        now, posted = self._clock.now(), [p for p in self._outbox.posted if p.sink == name]
        self._drop_stale_retry_states(name, {p.row for p in posted if not p.sent})
        readers = {p.reader for p in posted if not p.sent}
        retries = {
            one: self._retries.get((name, one), _DeliveryRetryState()) for one in sorted(readers)
        }
        tried = notify_outbox.find_owners_at_message_limit(posted, self._settings.per_hour, now)
        failed = {who for (sink, (to, who)), r in self._retries.items() if sink == name and to}
        in_turn = sorted(retries, key=lambda one: (one[1] in failed, retries[one].order))
        for reader in in_turn:
            retry, (to, owner) = retries[reader], reader
            if self._stopping.is_set() or time.monotonic() < retry.not_before:
                continue
            if to and owner in tried:
                continue
            mine = [p for p in posted if p.reader == reader]
            quiet = not to and self._settings.is_in_quiet_hours(now)
            group = tuple(p for p in mine if p.row in retry.rows and not p.sent)
            group = group or notify_outbox.select_due_notices(
                mine, self._settings.per_hour, now, quiet=quiet
            )
            if not group:
                continue
            tried.add(owner)
            if self._deliver_notice_group(name, reader, group):
                with self._change:
                    marked = self._outbox.mark(group, self._clock.now())
                    # In memory at once: what cannot be noted is not sent again and again.
                    self._outbox, self._unkept = marked, True
                    self._save_outbox(marked)
            if retry.attempts:
                return

    def _drop_stale_retry_states(self, name: str, waiting: set[tuple[str, Reader, Notice]]) -> None:
        """Forget the failures of readers for whom nothing, or no part of the message, waits."""
        readers = {reader for _, reader, _ in waiting}
        for key, retry in tuple(self._retries.items()):
            is_over = key[1] not in readers or bool(key[1][0] and retry.rows.isdisjoint(waiting))
            if key[0] == name and is_over:
                self._retries.pop(key, None)

    def _deliver_notice_group(
        self, name: str, reader: Reader, group: Sequence[OutboxEntry]
    ) -> bool:
        """Try to send a message once; whether it need not be tried again: it was sent, or it is for
        one user and has failed TRIES times."""
        notices = [p.notice for p in group]
        text = notify_outbox.compose_sink_message(
            self._config.cluster.name or socket.gethostname(), notices
        )
        to, _ = reader
        why = self._send_message_to_sink(name, to, text)
        attempts = self._retries.pop((name, reader), _DeliveryRetryState()).attempts + 1
        if not why or (to and attempts >= TRIES):
            return True
        first_s, most_s = AGAIN_S
        longest_s = min(most_s, first_s * 2.0 ** min(attempts - 1, 30))
        wait_s = pick_random_pause_seconds(0.0, longest_s)
        rows = frozenset(p.row for p in group) if to else frozenset()
        self._retries[name, reader] = _DeliveryRetryState(attempts, time.monotonic() + wait_s, rows)
        return False

    def _send_message_to_sink(self, name: str, to: str, text: NotificationMessage) -> str:
        if name == MAILPROG:
            program = make_slurm_command_client(self._config).show_config().get("MailProg", "")
            why = sinks.send_mail_with_mail_program(program, text, to)
        else:
            why = sinks.deliver_sink_message(name, self._settings.sinks[name], text, to)
        if why:
            self._record_sink_delivery_failure(name, why)
        else:
            self._trouble.pop(name, None)
            self._count_delivery_result(name, "sent")
        return why

    def _count_delivery_result(self, name: str, outcome: str, more: int = 1) -> None:
        label = name if name in self._names[:NAMED] else "other"
        self._metrics.notifications.labels(label, outcome).inc(more)

    def _record_sink_delivery_failure(self, name: str, why: str) -> None:
        self._count_delivery_result(name, "failed")
        if self._trouble.get(name) != why:
            log.error("notify: %s", why)
        self._trouble[name] = why

    def _call_and_log_exception(self, what: str, run: Callable[[Any], Any], given: object) -> Any:
        """Return what `run` answers; None where it raised, which is logged and costs a second."""
        done = call_and_capture_failure("notify", what, run, given)
        if isinstance(done, ItemProcessingFailure):
            log.error("notify: %s: %s", what, done.error)
            self._stopping.wait(1.0)
            return None
        return done


def _is_notice_for_route(route: NotificationRouteSection, notice: Notice, account: str) -> bool:
    """Return whether a route wants a notice. What is not known of a notice excludes it from no
    route."""
    if (route.kinds or notice.kind in _FOR_OWNERS) and notice.kind not in route.kinds:
        return False
    if (
        route.partitions
        and notice.partitions
        and not set(route.partitions) & set(notice.partitions)
    ):
        return False
    return not route.accounts or (notice.job is not None and account in ("", *route.accounts))


def _is_event_recent_enough_to_notify(at: datetime, now: datetime) -> bool:
    """Return whether an event may still wait to be sent."""
    return abs(now - at) < clamp_duration(ASK_S)


def _log_expired_notice(notice: Notice) -> None:
    days = notify_outbox.KEEP_S / 86400
    log.warning("notify: not sent after %g days: %s of %s", days, notice.kind, notice.target)
