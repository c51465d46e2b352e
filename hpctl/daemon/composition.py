"""The composition root: builds every object of the daemon once, in order, and names it.

Nothing is completed later: what two objects need of each other is a third one that both receive
(`IntakeConnection`, `GreyFailureFindings`, `Leadership`, `LiveConfig`).

This file and its neighbors `kinds`, `intake`, `configuration_checks` and `page_command` are the
daemon's list of features; no other file of the room names one. A feature is removed by deleting the
lines that name its room and the lines that name what those have made: each is a statement of its
own, an element of a list, a field, or a keyword argument with a default.
"""

import contextlib
import logging
import os
import socket
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl import __version__
from hpctl.daemon.cloud_pace import CloudPollIntervalController
from hpctl.daemon.configuration_audit import ConfigurationChangeRecorder
from hpctl.daemon.controller_watch import ActiveControllerPoller
from hpctl.daemon.cycle import CycleFailureTracker, DaemonCycle
from hpctl.daemon.follow_up import CycleResultPublisher
from hpctl.daemon.health import DaemonHousekeeping, InconsistentStateLogger, OperatorWarningSource
from hpctl.daemon.journal_guard import JournalAvailabilityGuard
from hpctl.daemon.kinds import KINDS
from hpctl.daemon.lifecycle import BackgroundThreads, Daemon, DaemonResources
from hpctl.daemon.locks import SlurmClusterLock, lock_state_dir
from hpctl.daemon.pause import CycleSleeper
from hpctl.daemon.readiness import ReadinessNotifier
from hpctl.daemon.reload import ConfigReload
from hpctl.daemon.signals import DaemonSignalHandler
from hpctl.daemon.standby import StandbyDaemon
from hpctl.daemon.takeover import LeadershipTakeover
from hpctl.engine.adapters import (
    choose_slurm_client_for_daemon,
    make_cloud_provider,
    make_slurm_command_client,
    open_journal_writer,
)
from hpctl.engine.clock import SystemClock
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config, read_config_file
from hpctl.engine.execute import PendingAgentOrders, StepExecutor, StepExecutorPorts
from hpctl.engine.journal.creation import check_journal_exists
from hpctl.engine.journal.reserve import JournalDiskReserve
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.leadership import Leadership, LeaseTerms
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import RecoveryLoop
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.engine.node_health import NodeHealthStore, drop_findings_of_checks
from hpctl.engine.observe import ClusterObserver, ObserverSources
from hpctl.engine.request_intake import OperatorRequestHandler
from hpctl.engine.retirement import JournalRetirementTask
from hpctl.engine.wake import DaemonLoopWaker, DaemonWakeRateLimiter
from hpctl.engine.world_server import WorldServer
from hpctl.insight.grey.daemon import GreyFailureDetector, GreyFailureFindings
from hpctl.jobs.hangs.daemon import HangDetector, StackCollector
from hpctl.jobs.report_intake import JobReportHandler
from hpctl.nodes.evidence.daemon import EvidenceRetention
from hpctl.service.alerts import AlertmanagerWebhook, AlertStore
from hpctl.service.intake import channel
from hpctl.service.intake.line import IntakeConnection
from hpctl.service.intake.process import IntakeBackend, IntakeProcess
from hpctl.service.metrics import DaemonMetrics
from hpctl.service.node_directory import NodeAddressDirectory
from hpctl.service.notify.daemon import Notifier
from hpctl.service.page.process import StatusPageProcess
from hpctl.slurm.cli import CliScheduler
from hpctl.slurm.controller_log import SlurmctldLogFollower
from hpctl.vocabulary.ports import CloudProvider

log = logging.getLogger("hpctl.daemon")


def compose_daemon(config_path: str) -> Daemon:
    """Read the configuration, take the locks and, of a file, the lease; replay; build everything.

    Nothing runs yet. What was opened is closed again on an error. Raises HpctlError and its kin,
    Corrupt, OSError.
    """
    with contextlib.ExitStack() as undo:
        base = _open_startup_resources(Path(config_path), undo)
        world = _make_daemon_dependencies(base)
        engine = _make_decision_components(base, world)
        service = _make_service_components(base, world, engine)
        daemon = _assemble_daemon(base, world, engine, service=service)
        undo.pop_all()
    return daemon


class _StartupResources(Struct, frozen=True):
    """What everything else rests on."""

    path: Path
    live: LiveConfig
    clock: SystemClock
    held: DaemonResources
    shared: bool
    leadership: Leadership
    waker: DaemonLoopWaker
    reserve: JournalDiskReserve | None
    """None: the journal is in a database."""

    @property
    def config(self) -> Config:
        """Return the configuration at the start."""
        return self.live.config

    @property
    def store(self) -> JournalStore:
        """Return the journal."""
        return self.held.store

    @property
    def disk(self) -> Path | None:
        """Return where the journal is, if it is on a disk of this host."""
        return None if self.shared else self.config.state_dir


def _open_startup_resources(path: Path, undo: contextlib.ExitStack) -> _StartupResources:
    config = read_config_file(path)
    check_journal_exists(config.url, may_create=config.journal.create)
    state_lock = lock_state_dir(config.state_dir)
    undo.callback(state_lock.close)
    # Several heads may share slurm.conf: the lease tells them from each other.
    shared = config.database_url is not None
    cluster_lock = None if shared else SlurmClusterLock(config.slurm.conf)
    if cluster_lock is not None:
        undo.callback(cluster_lock.close)
    live = LiveConfig(config)
    clock = SystemClock()
    reserve = None if shared else JournalDiskReserve(config.state_dir / "journal.db")
    if reserve is not None:
        reserve.free_space_for_start()
    store = open_journal_writer(config)
    undo.callback(store.close)
    leadership = _make_leadership(config, store, clock)
    if not shared:
        leadership.try_to_lead()
    waker = DaemonLoopWaker(config.state_dir)
    undo.callback(waker.close)
    held = DaemonResources(state_lock=state_lock, cluster_lock=cluster_lock, store=store)
    return _StartupResources(path, live, clock, held, shared, leadership, waker, reserve)


def _make_leadership(config: Config, store: JournalStore, clock: SystemClock) -> Leadership:
    me = DaemonIdentity(
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        mode=config.mode,
        address=config.address,
    )
    terms = LeaseTerms(config.lease_s, shared=config.database_url is not None)
    return Leadership(store, me, terms, clock)


class _DaemonDependencies(Struct, frozen=True, kw_only=True):
    """What the daemon reads and writes, and what it knows."""

    scheduler: CliScheduler
    provider: CloudProvider
    cloud: CloudPoller
    health: NodeHealthStore
    observer: ClusterObserver
    memory: JournaledState
    hang_watch: HangDetector
    grey: GreyFailureDetector
    alerts: AlertStore
    line: IntakeConnection
    metrics: DaemonMetrics


def _make_daemon_dependencies(base: _StartupResources) -> _DaemonDependencies:
    config, leadership = base.config, base.leadership
    scheduler, adapter = choose_slurm_client_for_daemon(
        config, may_act=leadership.may_act, event=base.waker.has_pending_wakeup
    )
    log.info("slurm is read by %s", adapter)
    provider = make_cloud_provider(config)
    cloud = CloudPoller(provider, base.waker.poke, config.cluster.poll_s)
    hang_watch = HangDetector()
    grey_findings = GreyFailureFindings()
    alerts = AlertStore(config.state_dir / "alerts.json", config.alerts.keep_s, base.clock)
    line = IntakeConnection()
    metrics = DaemonMetrics(
        provider.calls, config.metrics.agent_port, lambda: leadership.leads, config.state_dir
    )
    health = NodeHealthStore(
        known=drop_findings_of_checks(base.store.health(), (*AlertStore.checks,)),
        rows=base.store,
        poke=base.waker.poke,
        clock=base.clock,
        sources=(grey_findings, alerts),
    )
    controller_log = SlurmctldLogFollower(scheduler.show_config, leadership.is_on_controller_host)
    sources = ObserverSources(scheduler, cloud, health, controller_log, hangs=hang_watch)
    observer = ClusterObserver(sources, base.live, base.clock, addresses=line)
    grey = GreyFailureDetector(
        found=grey_findings,
        health=health,
        observer=observer,
        clock=base.clock,
        view_age_s=base.live.policy.ages.scheduler_s,
    )
    return _DaemonDependencies(
        scheduler=scheduler,
        provider=provider,
        cloud=cloud,
        health=health,
        observer=observer,
        memory=JournaledState(base.store, took=metrics.journal.observe),
        hang_watch=hang_watch,
        grey=grey,
        alerts=alerts,
        line=line,
        metrics=metrics,
    )


class _DecisionComponents(Struct, frozen=True, kw_only=True):
    """What decides and acts, and what the intake and the notifications ask of it."""

    port: RecoveryLoopAccess
    requests: OperatorRequestHandler
    orders: PendingAgentOrders
    executor: StepExecutor
    loop: RecoveryLoop
    jobs: JobReportHandler


def _make_decision_components(
    base: _StartupResources, world: _DaemonDependencies
) -> _DecisionComponents:
    config, live, clock, waker = base.config, base.live, base.clock, base.waker
    port = RecoveryLoopAccess(world.observer, world.memory, clock, waker.poke)
    jobs = JobReportHandler(
        base.store,
        # A user may send as many reports as jobs: they wake the loop once a second at most.
        replace(port, poke=DaemonWakeRateLimiter(waker.poke).poke),
        live,
        base.disk,
    )
    munge_socket = config.intake.munge_socket
    requests = OperatorRequestHandler(base.store, port, live, base.leadership, munge_socket)
    stacks = StackCollector(
        world.health, world.observer, config.state_dir / "stacks", waker.poke, world.line
    )
    orders = PendingAgentOrders(munge_socket, clock)
    executor = StepExecutor(
        StepExecutorPorts(world.scheduler, world.provider, agents=orders, stacks=stacks),
        world.memory,
        clock,
        poke=waker.poke,
        may_act=base.leadership.may_act,
    )
    loop = RecoveryLoop(
        memory=world.memory,
        executor=executor,
        observer=world.observer,
        requests=requests,
        clock=clock,
        kinds=KINDS,
        jobs=jobs,
    )
    return _DecisionComponents(
        port=port, requests=requests, orders=orders, executor=executor, loop=loop, jobs=jobs
    )


class _ServiceComponents(Struct, frozen=True, kw_only=True):
    """What serves agents, jobs, operators and monitoring."""

    intake: IntakeProcess
    notifier: Notifier
    page: StatusPageProcess


def _make_service_components(
    base: _StartupResources, world: _DaemonDependencies, engine: _DecisionComponents
) -> _ServiceComponents:
    config = base.config
    directory = NodeAddressDirectory(
        observer=world.observer,
        health=world.health,
        leadership=base.leadership,
        slurm=make_slurm_command_client(config),
    )
    backend = IntakeBackend(
        health=world.health,
        requests=engine.requests,
        webhook=AlertmanagerWebhook(
            config.alerts.labels, world.alerts, directory, world.health, base.clock
        ),
        metrics=world.metrics,
        leadership=base.leadership,
        jobs=engine.jobs,
        on_gauges=(world.grey.hear, world.hang_watch.hear),
    )
    intake = IntakeProcess(
        _make_intake_process_setup(config),
        config.intake.listen,
        backend,
        world.line,
        "hpctl.daemon.intake",
    )
    notifier = Notifier(config, base.store, engine.port, world.metrics)
    page = StatusPageProcess(str(base.path), config.page.listen)
    return _ServiceComponents(intake=intake, notifier=notifier, page=page)


def _make_intake_process_setup(config: Config) -> channel.Setup:
    munge_socket, token_file = config.intake.munge_socket, config.alerts.token_file
    journal = None if config.database_url else config.state_dir / "journal.db"
    return channel.Setup(
        munge_socket=str(munge_socket) if munge_socket else None,
        allowed_uids=config.intake.allowed_uids,
        token_file=str(token_file) if token_file else None,
        journal=str(journal) if journal else None,
    )


def _assemble_daemon(
    base: _StartupResources,
    world: _DaemonDependencies,
    engine: _DecisionComponents,
    *,
    service: _ServiceComponents,
) -> Daemon:
    live, leadership, memory, clock = base.live, base.leadership, world.memory, base.clock
    readers = WorldServer(base.config, leadership, memory)
    signals, readiness = DaemonSignalHandler(base.waker), ReadinessNotifier()
    journal = JournalAvailabilityGuard(memory, base.waker, base.reserve)
    audit = ConfigurationChangeRecorder(base.path, live, memory, clock)
    reload = ConfigReload(base.path, live, leadership, audit, processes=(service.page,))
    failures = CycleFailureTracker(on_failure=(world.metrics.failed.inc,))
    lock = base.held.cluster_lock
    parts: dict[str, OperatorWarningSource] = {
        "configuration": reload,
        "cycle": failures,
        "observer": world.observer,
        "jobs": engine.jobs,
        **({"lock": lock} if lock is not None else {}),
        "notify": service.notifier,
        "page": service.page,
    }
    follow_up = CycleResultPublisher(
        live=live,
        observer=world.observer,
        readiness=readiness,
        flaws=InconsistentStateLogger(),
        orders=engine.orders,
        retirement=JournalRetirementTask(base.store, memory, clock, KINDS),
        leadership=leadership,
        cloud_pace=CloudPollIntervalController(live, world.cloud),
        world=readers,
        on_history=(world.grey.update_forecasts,),
        on_orders=(world.line.set_pending_agent_orders,),
        on_cycle=(world.metrics.record_cycle_result,),
        on_silent_heads=(service.notifier.look,),
    )
    cycle = DaemonCycle(
        live=live,
        loop=engine.loop,
        leadership=leadership,
        signals=signals,
        reload=reload,
        readiness=readiness,
        audit=audit,
        journal=journal,
        failures=failures,
        housekeeping=DaemonHousekeeping(
            live, world.health, leadership, parts, on_troubles=(world.metrics.take_troubles,)
        ),
        follow_up=follow_up,
        pause=CycleSleeper(live, base.waker, world.observer, clock),
        waker=base.waker,
    )
    standby = StandbyDaemon(
        live=live,
        store=base.store,
        memory=memory,
        leadership=leadership,
        controllers=ActiveControllerPoller(world.scheduler, leadership),
        readiness=readiness,
        signals=signals,
        reload=reload,
        waker=base.waker,
    )
    takeover = LeadershipTakeover(
        live=live,
        store=base.store,
        memory=memory,
        health=world.health,
        leadership=leadership,
        audit=audit,
        journal=journal,
        signals=signals,
        clock=clock,
        shared=base.shared,
        local_checks=(*AlertStore.checks,),
        on_takeover=(world.metrics.begin,),
    )
    background = BackgroundThreads(
        cloud=world.cloud,
        world=readers,
        others=(world.grey, EvidenceRetention(live, clock)),
        senders=(service.notifier,),
    )
    return Daemon(
        live=live,
        shared=base.shared,
        signals=signals,
        readiness=readiness,
        leadership=leadership,
        standby=standby,
        takeover=takeover,
        cycle=cycle,
        background=background,
        health=world.health,
        executor=engine.executor,
        held=base.held,
        intake=service.intake,
        servers=(service.page,),
    )
