"""One daemon's life: lock, lease, wiring, signals, the loop's pace, an orderly end."""

import contextlib
import fcntl
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import IO

from hpctl import __version__
from hpctl.daemon.kinds import KINDS
from hpctl.engine.adapters import (
    choose_scheduler,
    make_provider,
    make_rules,
    make_scheduler,
    open_writer,
)
from hpctl.engine.clock import SystemClock
from hpctl.engine.cloud_watch import CloudWatch
from hpctl.engine.config import load
from hpctl.engine.execute import AgentOrders, Executor
from hpctl.engine.gates import OF_CLOUD
from hpctl.engine.journal.events import ConfigurationTaken, DaemonStarted
from hpctl.engine.journal.rows import Holder
from hpctl.engine.journal.state import Corrupt
from hpctl.engine.journal.store import LeaseLost, Store
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.leadership import Leadership
from hpctl.engine.loop import Loop, NextCycle
from hpctl.engine.node_health import NodeHealthStore, without
from hpctl.engine.observe import Observer
from hpctl.engine.request_intake import RequestDesk
from hpctl.engine.retirement import Retirement
from hpctl.engine.wake import WakeLimiter, Waker
from hpctl.faults.catalogue import Rules
from hpctl.insight.grey.daemon import GreyFailures
from hpctl.jobs.hangs.daemon import HangWatch, StackDesk
from hpctl.jobs.report_intake import JobDesk
from hpctl.service.alerts import AlertStore, Webhook
from hpctl.service.intake import channel
from hpctl.service.intake.process import Backend, IntakeProcess
from hpctl.service.metrics import Metrics
from hpctl.service.notify.daemon import Notifier
from hpctl.service.page.process import PageProcess
from hpctl.toolkit.bounds import printable
from hpctl.toolkit.errors import HpctlError, JournalCorrupt, Unavailable
from hpctl.vocabulary.isolation import Flaw, walled
from hpctl.vocabulary.policy import Policy
from hpctl.vocabulary.recovery import Look
from hpctl.wire import munge
from hpctl.wire.systemd import hand_on, notify

log = logging.getLogger("hpctl.daemon")

WAITING = "EXTEND_TIMEOUT_USEC=120000000\nSTATUS=waiting until Slurm answers"
"""Instead of READY=1: a start takes as long as slurmctld needs, in steps of two minutes."""

MARKS_S, MARKS_SHARE = 2.0, 50.0
"""How often Slurm is asked for marks of HyperPod's health agent, in seconds, while nothing else
happens; and less often where asking would take more than a fiftieth of the time."""

CONTROLLERS_S, REREAD_S, SETTLE_S = 5.0, 86400.0, 10.0
"""How often Slurm is asked where it is active; how often a standby replays anew; for how long a
call under way is waited for before the lease is given away. In seconds."""

OFTEN_S = 0.3
"""How often Slurm is read while an idle node is tested, in seconds: a user's job waits as long."""

NO_JOURNAL_S = 1.0
"""How long to wait before a journal that cannot be written is tried again."""


def file_owner(path: Path) -> str:
    """Who owns a file, by name; empty where nobody can tell."""
    try:
        return path.owner()
    except (OSError, KeyError):
        return ""


class AlreadyRunning(HpctlError):
    """Another daemon works in this state directory, or on this cluster.

    The lock of a state directory and the lease of a shared database tell daemons that share either
    from each other. Two that share neither still share slurm.conf: each holds an advisory lock on
    it. Whoever may read the file may lock it, and would keep hpctl from starting: only where
    /proc/locks shows that the holder is an hpctl daemon of root's or of our own user is the second
    one refused. Any other holder, one on another host with the same file over NFS among them, is
    reported.
    """


def lock_state_dir(state_dir: Path) -> IO[str]:
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
            f"{state_dir} is in use by {holder}", "one daemon per state directory; stop the other"
        ) from None
    handle.truncate(0)
    handle.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
    handle.flush()
    return handle


class ControllerWatch(threading.Thread):
    """Learns where slurmctld is active: that may take long, and nobody waits for it."""

    def __init__(self, ask: Callable[[], str], leadership: Leadership) -> None:
        super().__init__(name="controllers", daemon=True)
        self._ask, self._leadership = ask, leadership

    def run(self) -> None:
        """Until the process ends."""
        while True:
            self._leadership.active_controller = self._ask()
            time.sleep(CONTROLLERS_S)


class ClusterLock:
    """The lock of one cluster's slurm.conf, kept until the process ends."""

    def __init__(self, conf: Path | None) -> None:
        """Take the lock where it is free. Raises AlreadyRunning where another daemon has it."""
        self._conf = conf or Path(os.environ.get("SLURM_CONF") or DEFAULT_CONF)
        self._fd = -1
        if self.trouble and (daemon := _daemon_that_locks(self._conf)):
            raise AlreadyRunning(
                f"another hpctl daemon (pid {daemon}) works on the cluster of {self._conf},"
                " with another state_dir",
                f"only one daemon per cluster; inspect it: ps -fp {daemon}",
            )

    @property
    def trouble(self) -> str:
        """What to tell the operator; empty while no other daemon is known of."""
        if self._fd >= 0:
            return ""
        with contextlib.suppress(OSError):
            fd = os.open(self._conf, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return (
                    f"another process holds {self._conf}: if it is an hpctl daemon with another"
                    f" state_dir, both act on this cluster; stop one (fuser -v {self._conf})"
                )
            except OSError:
                os.close(fd)  # a file system without locks: nothing is known
                return ""
            self._fd = fd
        return ""

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _daemon_that_locks(conf: Path) -> str:
    """The process id of the hpctl daemon that has locked a file on this host; empty for none.

    Source: Linux, proc_locks(5): number, FLOCK, ADVISORY, WRITE, pid, major:minor:inode, range.
    The pid is 0 for a process of another namespace. Devices are not compared: overlayfs
    reports another one to stat(2).
    """
    with contextlib.suppress(OSError):
        inode = str(conf.stat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[1:2] != ["FLOCK"] or fields[5].rpartition(":")[2] != inode:
                continue
            process = Path("/proc", fields[4])
            with contextlib.suppress(OSError):
                ours = process.stat().st_uid in (0, os.geteuid())
                if ours and b"hpctl" in process.joinpath("cmdline").read_bytes():
                    return process.name
    return ""


class Daemon:
    """Everything that lives as long as the process."""

    _failures = 0
    _flawed: frozenset[tuple[str, str]] = frozenset()
    _trouble = _config_trouble = _cycle_trouble = ""
    _stopping = _ready = _reload_wanted = _unaudited = _began = _stale = False
    _next_flush = 0.0

    def __init__(self, config_path: str) -> None:
        """Read the configuration, take locks and lease, replay. Raises HpctlError and kin."""
        self._path = config_path
        self.config = config = load(config_path)
        self._lock = lock_state_dir(config.state_dir)
        # Several heads may share slurm.conf: the lease tells them from each other.
        self._cluster_lock = None if config.database_url else ClusterLock(config.slurm.conf)
        self._rules, self._policy = make_rules(config), config.policy()
        self._clock = SystemClock()
        self._store: Store = open_writer(config)
        self._shared = config.database_url is not None
        here = (socket.gethostname(), os.getpid(), __version__, config.mode, config.address)
        self.leadership = Leadership(
            self._store, Holder(*here), config.lease_s, self._clock, shared=self._shared
        )
        if not self._shared:
            self.leadership.try_to_lead()
        self._waker = Waker(config.state_dir)
        self._make_loop()
        self._intake = self._make_intake()
        self._observer.tell_addresses = self._intake.nodes
        self._stacks.tell = self._intake.ask
        self._page = PageProcess(config_path, config.page.listen)

    def _make_loop(self) -> None:
        """Whoever observes, decides and acts, each with whom it works with."""
        config, store, clock, poke = self.config, self._store, self._clock, self._waker.poke
        known = without(store.health(), AlertStore.checks)
        self._health = NodeHealthStore(known, store, poke, clock)
        scheduler, adapter = choose_scheduler(config)
        log.info("slurm is read by %s", adapter)
        self._scheduler = scheduler
        scheduler.may_act, scheduler.event = self.leadership.may_act, self._waker.poked
        provider = make_provider(config)
        self._metrics = Metrics(provider.calls, config.metrics.agent_port)
        self._cloud = CloudWatch(provider, poke, config.cluster.poll_s)
        observer = Observer(
            scheduler, self._cloud, self._health, clock, config.kill_switch, HangWatch()
        )
        observer.configure(config)
        self._observer = observer
        memory = JournaledState(store, self._metrics.journal.observe)
        policy, disk = self._policy, None if config.database_url else config.state_dir
        self._jobs = JobDesk(store, observer, memory, policy, WakeLimiter(poke).poke, clock, disk)
        self._jobs.configure(policy, config.run_policy_layers)
        group, leadership = config.access.group, self.leadership
        asks, socket_of = (store, observer, memory, group, poke, clock), config.intake.munge_socket
        self._requests = RequestDesk(*asks, leadership, socket_of)
        slurm, dumps = lambda: observer.slurm, config.state_dir / "stacks"
        self._stacks = StackDesk(self._health, slurm, dumps, poke)
        self._orders = AgentOrders(socket_of, clock)
        world = (scheduler, provider, memory, clock, poke, leadership.may_act)
        self._executor = Executor(*world, self._stacks, self._orders)
        self._metrics.leader.set_function(lambda: float(leadership.leads))
        self.loop = Loop(memory, self._executor, observer, self._requests, self._jobs, clock, KINDS)
        self._memory, self._retirement = memory, Retirement(store, memory, clock, KINDS)
        self._notifier = Notifier(config, store, memory, observer, self._metrics, clock)

    def _make_intake(self) -> IntakeProcess:
        """The intake, and whoever answers what it asks."""
        config, observer, clock = self.config, self._observer, self._clock
        self._grey = GreyFailures(self._health, observer, clock, self._policy.ages.scheduler_s)
        keep_s, file = config.alerts.keep_s, config.state_dir / "alerts.json"
        alerts = AlertStore(file, keep_s, clock, self._health)
        self._health.add_sources(self._grey, alerts)
        heads = (lambda: self.leadership.serves, make_scheduler(config).view)
        webhook = Webhook(config.alerts.labels, alerts, observer, self._health, clock, *heads)
        desks = (self._jobs, self._requests, webhook)
        backend = Backend(self._health, self._grey, *desks, self._metrics, self.leadership)
        intake, token_file = config.intake, config.alerts.token_file
        setup = channel.Setup(
            str(intake.munge_socket) if intake.munge_socket else None,
            intake.allowed_uids,
            str(token_file) if token_file else None,
            None if config.database_url else str(config.state_dir / "journal.db"),
        )
        host, _, port = intake.listen.rpartition(":")
        return IntakeProcess(setup, (host or "0.0.0.0", int(port)), backend)  # noqa: S104

    def run(self) -> int | None:
        """Serve until SIGTERM. Where this daemon is to begin anew, as a standby: the descriptor of
        its listening socket. Raises LeaseLost (the journal is a file), JournalCorrupt, Corrupt;
        OSError at the start."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        self._intake.start()
        self._page.start()
        try:
            munge.encode(b"", self.config.intake.munge_socket)
        except munge.MungeUnavailable as error:
            log.error("no agent can report: %s. %s", error, error.hint)
        again = None
        try:
            if self._shared:
                self._stand_by()
            if not self._stopping:
                self._begin()
            while not (self._stopping or self.leadership.hand_over_to):
                self._once()
            again = None if self._stopping else self._intake.keep_listener()
        except LeaseLost as error:
            if not self._shared:
                raise
            log.error("%s", error)
            again = self._intake.keep_listener()
        finally:
            self._page.stop()
            self._end()
        return None if self._stopping else again

    def _stand_by(self) -> None:
        """Follow the journal, and take the lease where it has run out."""
        config = self.config
        log.info("standing by address=%s lease=%.1fs", config.address, config.lease_s)
        notify("READY=1\nSTATUS=standby: follows the journal")
        self._ready, trouble = True, ""
        watch = ControllerWatch(self._scheduler.active_controller, self.leadership)
        watch.start()
        noted, again = -math.inf, time.monotonic() + REREAD_S
        while not self._stopping:
            notify("WATCHDOG=1")
            try:
                if self.leadership.try_to_lead():
                    return
                self._memory.follow(self._store)
                now = time.monotonic()
                if now - noted >= config.lease_s / 3:
                    noted = now
                    self.leadership.note_standby()
                if now > again:  # for what the leader has retired
                    again = now + REREAD_S
                    self._memory.reread()
                trouble = ""
            except (OSError, Unavailable) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.error("trouble=%s", trouble)
            if self._reload_wanted:
                self._reload()
            self._waker.wait(self.leadership.poll_s)

    def _begin(self) -> None:
        """Take the journal as it stands, and act from here on. Raises LeaseLost, JournalCorrupt,
        Corrupt; OSError and Unavailable where nobody else could lead instead."""
        while not self._stopping:
            self.leadership.progress()
            try:
                if self._shared:
                    self._memory.follow(self._store)
                    self._memory.state.retired = self._store.retired()
                    self._health.take_over(without(self._store.health(), AlertStore.checks))
                self._metrics.begin(self._memory.state)
                now, mode = self._clock.now(), self.config.mode
                here = (socket.gethostname(), os.getpid())
                self._memory.append([DaemonStarted(now, __version__, mode, *here)])
                self._audit_configuration()
                break
            except (OSError, Unavailable) as error:
                if not self._shared:
                    raise
                self._without_journal(error)
        self.leadership.caught_up = True
        self._intake.say_who_leads()
        self._cloud.start()
        self._grey.start()
        self._notifier.start()
        self._began = True
        if self._shared:
            notify("STATUS=leader")
        log.info("running mode=%s intake=%s", self.config.mode, self.config.intake.listen)

    def _end(self) -> None:
        """Let go in order: no effect under way, then the lease, then the rest."""
        notify("STOPPING=1" if self._stopping else "STATUS=handing over")
        self._notifier.stop()
        with contextlib.suppress(OSError, HpctlError):  # heartbeats: the agents say them again
            leads = self.leadership.leads
            settled = not leads or not self._shared or self._executor.settle(SETTLE_S)
            if self._began and leads:
                self._health.flush()
            if settled and self._shared:
                self.leadership.release()
        self._intake.stop(wait=self._stopping)
        if self._began:
            self._grey.stop()
            self._cloud.stop()
        self._store.close()
        if self._cluster_lock:
            self._cluster_lock.close()

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
        self.leadership.progress()
        if not self.leadership.leads:
            self._without_journal(Unavailable("the lease ran out while the database was away"))
            return
        begun = time.monotonic()
        try:
            if self._stale:
                self._reread()
            if self._unaudited:
                self._audit_configuration()
            pace = self.loop.cycle(self._policy, self._rules)
            self._notify_ready()
            spent = time.monotonic() - begun
            self._note(
                self.loop.flaws, walled("history", "history", self._grey.look_back, self.loop.state)
            )
            self._housekeeping(spent)
            if not self._observer.slurm_trouble:
                self._intake.order(self._orders.standing())
                keep_days = self.config.journal.keep_days
                seen = self._observer.slurm
                self._retirement.look(seen, self._policy, self._rules, keep_days)
            self.leadership.follow_controller()
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
        if self.loop.view is not None:
            self._metrics.cycle(spent, self.loop.view, self._policy, self.loop.flaws)
        self._notifier.look(self.leadership.silent())
        self._look_at_cloud()
        if self.leadership.hand_over_to:
            return
        if self._wait(self._pause_s(pace, spent)) and self.config.loop.gather_s:
            # One fault seldom comes alone: nodes of a mass event report within milliseconds of
            # each other, and the gates must see them together.
            time.sleep(self.config.loop.gather_s)

    def _notify_ready(self) -> None:
        """Ready once Slurm was read; it serves agents and acts on what it knows before."""
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
            self._waker.wait(min(NO_JOURNAL_S * self._failures, self.config.upkeep_s))
            self._reread()
        except (OSError, Unavailable) as also:
            self._without_journal(also)

    def _reread(self) -> None:
        self._stale = True
        self._memory.reread()
        self._stale = False

    def _without_journal(self, error: Exception) -> None:
        """A full disk, a database that is away: nothing is done and no report is taken until it
        can be written down.

        What was under way is in doubt then, as after a crash; so the journal is read again.
        """
        log.error("trouble=%s", error)
        self._waker.wait(NO_JOURNAL_S)
        try:
            self._reread()
        except Unavailable as still:
            log.error("trouble=%s", still)

    def _pause_s(self, pace: NextCycle, spent: float) -> float:
        """Seconds to sleep: at once after an action, else as the waiting recoveries ask."""
        loop = self.config.loop
        if pace.acted:
            return 0.0
        looks = {Look.SOON: loop.poll_s, Look.OFTEN: OFTEN_S, Look.SLOWLY: loop.slow_poll_s}
        pause = looks.get(pace.look, loop.reconcile_s)
        # On a cluster where looking is slow, look less: never more than a third of the time.
        pause = max(pause, 2 * spent)
        if pace.until is not None:
            left = (pace.until - self._clock.now()) / timedelta(seconds=1)
            pause = min(pause, max(left, 0.02))
        return min(pause, loop.reconcile_s, self.config.upkeep_s * 4 / 3)

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
        changed = trouble != self._trouble
        if now < self._next_flush and not changed:
            return
        if changed:
            (log.warning if trouble else log.info)("trouble=%s", trouble or "none any more")
        self._trouble = trouble
        self._next_flush = now + self.config.upkeep_s
        self._health.flush()
        self.leadership.note(spent, trouble, self.config.mode)

    def _troubles(self) -> tuple[str, ...]:
        found = (self._config_trouble, self._cycle_trouble, self._observer.trouble)
        lock = self._cluster_lock.trouble if self._cluster_lock else ""
        parts = (self._jobs.trouble, lock, self._notifier.trouble, self._page.trouble)
        return *found, *parts

    def _reload(self) -> None:
        """Take what may change while running from the file; keep the last good one on error."""
        self._reload_wanted = False
        try:
            fresh = load(self._path)
            rules: Rules = make_rules(fresh)
            policy: Policy = fresh.policy()
            fresh.changed()  # as the journal is to have it
        # It was written by hand: whatever is wrong with it, the one before stays in force.
        except (HpctlError, OSError, ArithmeticError, TypeError, ValueError) as error:
            self._config_trouble = f"configuration not reloaded: {error}"
            return
        database = ("state_dir", "database_url")
        fixed = (*database, "cluster", "slurm", "intake", "alerts", "metrics", "notify", "page")
        moved = [name for name in fixed if getattr(fresh, name) != getattr(self.config, name)]
        self._config_trouble = f"restart to change: {', '.join(moved)}" if moved else ""
        self.config, self._rules, self._policy = fresh, rules, policy
        self._observer.configure(fresh)
        self._jobs.configure(policy, fresh.run_policy_layers)
        self._requests.configure(fresh.access.group)
        self._page.reload()
        self._unaudited = self.leadership.leads
        log.info("configuration reloaded mode=%s", fresh.mode)

    def _audit_configuration(self) -> None:
        """Write down by what the daemon acts, where that is not what it was. Raises OSError."""
        settings, known = self.config.changed(), self.loop.state.configuration
        if known is None or known.settings != settings:
            by = file_owner(Path(self._path))
            self._memory.append([ConfigurationTaken(self._clock.now(), settings, by)])
        self._unaudited = False


def run(config_path: str, say: Callable[[str], None]) -> int:
    """Run a daemon to its end; answers the exit code. `say` gets why it could not go on.

    One that leads no more begins anew as a standby: in the same process, under another program.
    """
    try:
        listener = _opened(config_path).run()
    except (JournalCorrupt, Corrupt) as error:
        say(f"the journal is corrupt: {error}")
        say(getattr(error, "hint", "") or "see docs/operations.md, 'A corrupt journal'")
        return 1
    except LeaseLost as error:
        say(str(error))
        return 1
    if listener is not None:
        hand_on(listener)
        # Until the new program has a handler, `systemctl reload` would end it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    return 0


def _opened(config_path: str) -> Daemon:
    """The daemon, once the database that several heads share answers. Raises HpctlError."""
    while True:
        try:
            return Daemon(config_path)
        except Unavailable as error:
            if load(config_path).database_url is None:
                raise
            log.error("trouble=%s", error)
            notify("EXTEND_TIMEOUT_USEC=120000000\nSTATUS=waiting for the database")
            time.sleep(NO_JOURNAL_S)


DEFAULT_CONF = Path("/etc/slurm/slurm.conf")
