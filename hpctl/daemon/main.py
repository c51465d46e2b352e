"""One daemon's life: lock, lease, wiring, signals, the loop's pace, an orderly end."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence, Set
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec
from prometheus_client import generate_latest

from hpctl import __version__
from hpctl.config import ConfigError, load
from hpctl.core import run_gates
from hpctl.core.bounds import printable
from hpctl.core.catalogue import Rules
from hpctl.core.gates import OF_CLOUD
from hpctl.core.journal import ConfigurationTaken, Corrupt, DaemonStarted
from hpctl.core.model import (
    Health,
    NodeName,
    ProviderView,
    Report,
    SchedulerView,
    SlurmJob,
)
from hpctl.core.policy import Policy
from hpctl.core.recovery import Look
from hpctl.core.walls import Flaw, walled
from hpctl.daemon import channel
from hpctl.daemon.alert_book import AlertBook, Alerted, without
from hpctl.daemon.alerts import Webhook
from hpctl.daemon.alone import Alone, AlreadyRunning
from hpctl.daemon.book import Book
from hpctl.daemon.clock import SystemClock
from hpctl.daemon.execute import Executor
from hpctl.daemon.grey import Grey
from hpctl.daemon.intake_process import IntakeProcess
from hpctl.daemon.jobs import Desk
from hpctl.daemon.loop import Loop, Pace
from hpctl.daemon.metrics import Metrics
from hpctl.daemon.observe import CloudWatch, Observer
from hpctl.daemon.requests import RequestDesk
from hpctl.daemon.retirement import Retirement
from hpctl.daemon.run_policies import RunPolicies
from hpctl.daemon.wake import Seldom, Waker
from hpctl.errors import HpctlError, JournalCorrupt, Unavailable
from hpctl.protocol import job_reports as job_wire
from hpctl.protocol import munge
from hpctl.protocol.reports import Heartbeat
from hpctl.protocol.systemd import notify
from hpctl.store.sql import LeaseLost, Store
from hpctl.wiring import choose_scheduler, make_provider, make_rules, open_store

log = logging.getLogger("hpctl.daemon")

WAITING = "EXTEND_TIMEOUT_USEC=120000000\nSTATUS=waiting until Slurm answers"
"""Instead of READY=1: a start takes as long as slurmctld needs, in steps of two minutes."""

MARKS_S, MARKS_SHARE = 2.0, 50.0
"""How often Slurm is asked for marks of HyperPod's health agent, in seconds, while nothing else
happens; and less often where asking would take more than a fiftieth of the time."""

NO_JOURNAL_S = 1.0
"""How long to wait before a journal that cannot be written is tried again."""


def lock(state_dir: Path) -> IO[str]:
    """Take the directory's advisory lock; kept until the process ends. Raises AlreadyRunning."""
    state_dir.mkdir(parents=True, exist_ok=True)
    handle = (state_dir / "daemon.lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = handle.read().strip() or "another process"
        handle.close()
        raise AlreadyRunning(
            f"{state_dir} is in use by {holder}", "one daemon a state directory; stop that one"
        ) from None
    handle.truncate(0)
    handle.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
    handle.flush()
    return handle


def file_owner(path: Path) -> str:
    """Who owns a file, by name; empty where nobody can tell."""
    try:
        return path.owner()
    except (OSError, KeyError):
        return ""


class Daemon:
    """Everything that lives as long as the process."""

    _failures = 0
    _flawed: frozenset[tuple[str, str]] = frozenset()

    def __init__(self, config_path: str) -> None:
        """Read the configuration, take lock and lease, replay. Raises HpctlError and kin."""
        self._path = config_path
        self.config = load(config_path)
        self._lock = lock(self.config.state_dir)
        self._alone = Alone(self.config.slurm.conf)
        self._rules = make_rules(self.config)
        self._policy = self.config.policy()
        self._clock = SystemClock()
        self._store: Store = open_store(self.config, write=True)
        self._store.take_lease(
            socket.gethostname(),
            os.getpid(),
            __version__,
            self.config.mode,
            self._clock.now(),
            self.config.loop.lease_s,
        )
        self._waker = Waker(self.config.state_dir)
        self._alerts = self._make_alerts()
        self._book, self._grey = self._make_books()
        scheduler, adapter = choose_scheduler(self.config)
        log.info("slurm is read by %s", adapter)
        provider = make_provider(self.config)
        self._cloud = CloudWatch(provider, self._waker.poke, self.config.cluster.poll_s)
        self._observer = Observer(
            scheduler,
            self._cloud,
            Alerted(self._grey, self._alerts),
            self._clock,
            self.config.kill_switch,
            RunPolicies(self.config.run_policy_layers),
        )
        self._observer.capacity = self.config.sizes_capacity
        self._desk, self._requests = self._make_desks()
        self._metrics = Metrics()
        self._retirement = Retirement(self._store, self._clock)
        self.loop = Loop(
            self._store,
            lambda append: Executor(scheduler, provider, append, self._clock, self._waker.poke),
            self._observer.look,
            self._requests.pending,
            self._clock,
            self._desk.news,
        )
        self._intake = self._make_intake()
        self._stopping = self._ready = False
        self._reload_wanted = False
        self._config_trouble = self._cycle_trouble = ""
        self._next_flush = 0.0

    def _make_books(self) -> tuple[Book, Grey]:
        """What the agents say, and what the head node finds beside it."""
        poke = self._waker.poke
        known, heard = without(self._store.health()), self._store.note_heard
        book = Book(known, self._record, poke, self._clock, heard)
        age_s = self._policy.ages.scheduler_s

        def views() -> tuple[SchedulerView, ProviderView]:
            return self._observer.slurm, self._observer.provider

        return book, Grey(book, views, poke, self._clock, age_s)

    def _make_desks(self) -> tuple[Desk, RequestDesk]:
        """Where supervisors and operators are heard."""
        store, slurm, poke = self._store, self._observer.heard_slurm, self._waker.poke
        low_disk = None if self.config.database_url else self.config.state_dir
        words = Seldom(poke).poke
        return Desk(store, slurm, self._shut, words, self._clock, low_disk), RequestDesk(
            store,
            slurm,
            lambda: self.loop.state,
            lambda: self.config.access.group,
            poke,
            self._clock,
        )

    def _make_alerts(self) -> AlertBook:
        def changed(nodes: Set[NodeName]) -> None:
            self._book.touch(nodes)
            self._waker.poke()

        path, keep_s = self.config.state_dir / "alerts.json", self.config.alerts.keep_s
        return AlertBook(path, keep_s, self._clock, changed)

    def _make_intake(self) -> IntakeProcess:
        intake, alerts = self.config.intake, self.config.alerts
        self._webhook = Webhook(
            alerts.labels,
            self._alerts,
            self._observer.addresses,
            self._book.generation_of,
            self._clock,
        )
        setup = channel.Setup(
            str(intake.munge_socket) if intake.munge_socket else None,
            intake.allowed_uids,
            str(alerts.token_file) if alerts.token_file else None,
            None if self.config.database_url else str(self.config.state_dir / "journal.db"),
        )
        host, _, port = intake.listen.rpartition(":")
        listen_on = (host or "0.0.0.0", int(port))  # noqa: S104
        return IntakeProcess(setup, listen_on, self._answer, self._heard)

    def _answer(self, asked: channel.Question) -> bytes:
        """What the intake is answered, on its threads. Raises Refusal, OSError, HpctlError."""
        match asked:
            case channel.Store(reports):
                self._accept(*reports)
                return b""
            case channel.Word(report, uid, at):
                return job_wire.encode_taken(self._desk.take(report, uid, at))
            case channel.Request(wanted, uid, address):
                return str(self._requests.take(wanted, uid, address)).encode()
            case channel.Alerts(body):
                return msgspec.json.encode(self._webhook.take(body))
            case channel.Scrape():
                return generate_latest(self._metrics.registry)

    def _shut(self, job: SlurmJob) -> str:
        """Why no job's wish would be granted now; called on the intake's threads."""
        return run_gates.shut_now(
            job, self._policy, self._observer.stopped(), self.loop.state.paused_by
        )

    def _record(self, rows: Sequence[Health]) -> None:
        """Store the agents' findings with the head node's own beside them."""
        self._store.record(self._alerts.beside(self._grey.beside(rows)))

    def _accept(self, *reports: Report) -> None:
        """Take believed reports in, all or none, and their gauges."""
        self._book.accept(*reports)
        for report in reports:
            self._grey.hear(report.generation, report.gauges)

    def _heard(self, heartbeat: Heartbeat) -> None:
        """Note that a node lives, and its gauges."""
        if self._book.heard(heartbeat):
            self._grey.hear(heartbeat.generation, heartbeat.gauges)

    def run(self) -> None:
        """Serve until SIGTERM. Raises LeaseLost, JournalCorrupt, Corrupt; OSError at the start."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self.loop.append(
            [
                DaemonStarted(
                    self._clock.now(),
                    __version__,
                    self.config.mode,
                    socket.gethostname(),
                    os.getpid(),
                )
            ]
        )
        self._audit_configuration()
        self._cloud.start()
        self._grey.start()
        self._intake.start()
        log.info("running mode=%s intake=%s", self.config.mode, self.config.intake.listen)
        try:
            munge.encode(b"", self.config.intake.munge_socket)
        except munge.MungeUnavailable as error:
            log.error("no agent can report: %s. %s", error, error.hint)
        try:
            while not self._stopping:
                self._once()
        finally:
            notify("STOPPING=1")
            self._intake.stop()
            self._grey.stop()
            self._cloud.stop()
            with contextlib.suppress(OSError):  # heartbeats: the agents say them again
                self._book.flush()
            self._store.close()
            self._alone.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reload_wanted = True
        else:
            self._stopping = True
        self._waker.poke()

    def _once(self) -> None:
        if self._reload_wanted:
            self._reload()
        notify("WATCHDOG=1" if self._ready else WAITING)
        begun = time.monotonic()
        try:
            pace = self.loop.cycle(self._policy, self._rules)
            self._tell_ready()
            spent = time.monotonic() - begun
            self._note(
                self.loop.flaws, walled("history", "history", self._grey.look_back, self.loop.state)
            )
            self._housekeeping(spent)
            if not self._observer.slurm_trouble:
                self._intake.nodes(self._observer.addresses())
                keep_days = self.config.journal.keep_days
                seen = self._observer.slurm
                self._retirement.look(self.loop, seen, self._policy, self._rules, keep_days)
        except (LeaseLost, JournalCorrupt, Corrupt):
            raise
        except (OSError, Unavailable) as error:
            self._without_journal(error)
            return
        # What no wall held: the next cycle begins from the facts again, and the daemon lives.
        except Exception as error:  # noqa: BLE001 -- it is logged, counted and shown as trouble
            self._failed(error, begun)
            return
        self._failures, self._cycle_trouble = 0, ""
        self._metrics.cycle(spent, self.loop.state, self.loop.flaws)
        self._look_at_cloud()
        if self._wait(self._pause_s(pace, spent)) and self.config.loop.gather_s:
            # One fault seldom comes alone: nodes of a mass event report within milliseconds of
            # each other, and the gates must see them together.
            time.sleep(self.config.loop.gather_s)

    def _tell_ready(self) -> None:
        """Ready is who has read Slurm once; it serves agents and acts on what it knows before."""
        if not self._ready and not self._observer.slurm_trouble:
            self._ready = True
            notify("READY=1\nSTATUS=")

    def _note(self, flaws: Sequence[Flaw], *more: object) -> None:
        """Log each thing that is flawed, once as long as it is."""
        found = [*flaws, *(one for one in more if isinstance(one, Flaw))]
        for flaw in found:
            if (flaw.target, flaw.where) not in self._flawed:
                log.error(
                    "internal_error target=%s where=%s input=%s error=%s",
                    *(printable(flaw.target), flaw.where, flaw.digest, flaw.error),
                )
        self._flawed = frozenset((flaw.target, flaw.where) for flaw in found)

    def _failed(self, error: Exception, begun: float) -> None:
        """A cycle that failed as a whole: wait, longer each time, and replay the journal."""
        self._metrics.failed.inc()
        self._failures += 1
        log.exception("a cycle failed, %d in a row; it is tried again", self._failures)
        self._cycle_trouble = printable(f"a cycle failed: {type(error).__name__}: {error}")[:200]
        try:
            self._housekeeping(time.monotonic() - begun)
            self._waker.wait(min(NO_JOURNAL_S * self._failures, self.config.loop.lease_s / 3))
            self.loop.reread()
        except (OSError, Unavailable) as also:
            self._without_journal(also)

    def _without_journal(self, error: Exception) -> None:
        """A full disk: nothing is done and no report is taken until it can be written down.

        What was under way is in doubt then, as after a crash; so the journal is read again.
        """
        log.error("trouble=%s", error)
        self._waker.wait(NO_JOURNAL_S)
        try:
            self.loop.reread()
        except Unavailable as still:
            log.error("trouble=%s", still)

    def _pause_s(self, pace: Pace, spent: float) -> float:
        """Seconds to sleep: at once after an action, else as the waiting recoveries ask."""
        loop = self.config.loop
        if pace.acted:
            return 0.0
        pause = {Look.SOON: loop.poll_s, Look.SLOWLY: loop.slow_poll_s}.get(
            pace.look, loop.reconcile_s
        )
        # On a cluster where looking is slow, look less: never more than a third of the time.
        pause = max(pause, 2 * spent)
        if pace.until is not None:
            left = (pace.until - self._clock.now()) / timedelta(seconds=1)
            pause = min(pause, max(left, 0.02))
        return min(pause, loop.reconcile_s, loop.lease_s / 3)

    def _wait(self, pause_s: float) -> bool:
        """Sleep until poked, or until HyperPod's health agent marks a node: nobody tells of that.

        Says whether it was one of them.
        """
        end, every_s = time.monotonic() + pause_s, MARKS_S
        while (left := end - time.monotonic()) > every_s:
            if self._waker.wait(every_s):
                return True
            asked = time.monotonic()
            if self._observer.marked():
                return True
            every_s = max(MARKS_S, MARKS_SHARE * (time.monotonic() - asked))
        return self._waker.wait(left)

    def _look_at_cloud(self) -> None:
        cluster, state = self.config.cluster, self.loop.state
        blocked = {(hold.target, hold.gate) for hold in state.holds.values()}
        blocked = {one for one in blocked if one[1] in OF_CLOUD}
        busy = state.open_nodes or state.open_changes or blocked
        self._cloud.look(cluster.busy_poll_s if busy else cluster.poll_s, blocked)

    def _housekeeping(self, spent: float) -> None:
        trouble = "; ".join(t for t in self._troubles() if t)
        now = time.monotonic()
        changed = trouble != getattr(self, "_said", "")
        if now < self._next_flush and not changed:
            return
        if changed:
            (log.warning if trouble else log.info)("trouble=%s", trouble or "none any more")
        self._said = trouble
        self._next_flush = now + self.config.loop.lease_s / 4
        self._book.flush()
        self._store.renew_lease(
            self._clock.now(), self.config.loop.lease_s, spent, trouble, self.config.mode
        )

    def _troubles(self) -> tuple[str, ...]:
        found = (self._config_trouble, self._cycle_trouble, self._observer.trouble)
        return *found, self._desk.trouble, self._alone.trouble

    def _reload(self) -> None:
        """Take what may change while running from the file; keep the last good one on error."""
        self._reload_wanted = False
        try:
            fresh = load(self._path)
            rules: Rules = make_rules(fresh)
            policy: Policy = fresh.policy()
        except HpctlError as error:
            self._config_trouble = f"configuration not reloaded: {error}"
            return
        fixed = ("state_dir", "database_url", "cluster", "slurm", "intake", "alerts")
        moved = [name for name in fixed if getattr(fresh, name) != getattr(self.config, name)]
        self._config_trouble = f"restart to change: {', '.join(moved)}" if moved else ""
        self.config, self._rules, self._policy = fresh, rules, policy
        self._observer.runs = RunPolicies(fresh.run_policy_layers)
        self._observer.capacity = fresh.sizes_capacity
        self._observer.kill_switch = fresh.kill_switch
        self._audit_configuration()
        log.info("configuration reloaded mode=%s", fresh.mode)

    def _audit_configuration(self) -> None:
        """Write down by what the daemon acts, where that is not what it was. Raises OSError."""
        settings, known = self.config.changed(), self.loop.state.configuration
        if known is None or known.settings != settings:
            by = file_owner(Path(self._path))
            self.loop.append([ConfigurationTaken(self._clock.now(), settings, by)])


def run(config_path: str, say: Callable[[str], None]) -> int:
    """Run a daemon to its end; answers the exit code. `say` is told why it could not go on."""
    try:
        Daemon(config_path).run()
    except (JournalCorrupt, Corrupt) as error:
        say(f"the journal is corrupt: {error}")
        say(getattr(error, "hint", "") or "see docs/operations.md, 'A corrupt journal'")
        return 1
    except LeaseLost as error:
        say(str(error))
        return 1
    except ConfigError:
        raise
    return 0
