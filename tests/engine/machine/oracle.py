"""The nine promises of the design, watched from outside while a simulated world runs.

It reads only the journal's raw events and the world, never hpctl's own memory of them, so that
code which deceives itself does not deceive the oracle too.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field

from hpctl.engine.journal.events import (
    Event,
    JobRecoveryOpened,
    JobReported,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.state import EngineState
from hpctl.engine.test_reservation import PREFIX
from hpctl.faults.hma_marks import MARKS, find_hma_reason_mark
from hpctl.vocabulary import job_recovery, node_recovery
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.job_recovery import RequestedAction
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from tests.engine.machine.daemon import Daemon, Watcher
from tests.engine.machine.world import T0, World
from tests.fakes.slurmctld import Job

END_SIGNALS = {
    "node": {s for (p, s), q in node_recovery.TRANSITIONS.items() if q in node_recovery.ENDS},
    "job": {s for (p, s), q in job_recovery.TRANSITIONS.items() if q in job_recovery.ENDS},
}
FELT = {"reset", "reboot", "replace"}
"""The steps that are remedies."""
ENDS_TEST = {
    s
    for (p, s), q in node_recovery.TRANSITIONS.items()
    if (p, q)
    == (node_recovery.NodeRecoveryPhase.ACCEPTING, node_recovery.NodeRecoveryPhase.UNRESERVING)
}
"""Of a node under test they end the test alone: its reservation is taken away first."""


class Violation(AssertionError):
    """A promise was broken. `seen`: since the machine began."""

    seen = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        Violation.seen = True


class RecoveryRecord(Struct):
    """What the raw journal says of one recovery."""

    kind: str
    opened: datetime
    node: str | None
    job: int | None
    by: str
    waived: bool
    generation: NodeGeneration | None
    cause: str | None = None
    restarts: int = 0
    by_itself: bool = False
    start_at: datetime | None = None
    opened_true: datetime = T0
    rule: str = ""
    test: bool = False
    in_test: bool = False
    ended: str = ""
    ended_at: datetime | None = None
    started: list[StepStarted] = field(default_factory=list)
    resolved: list[StepResolved] = field(default_factory=list)


class Oracle(Watcher):
    """Raises Violation as soon as a promise is broken."""

    def __init__(self, world: World, policy: RecoveryPolicy) -> None:
        self.world, self.policy = world, policy
        self.told: dict[str, RecoveryRecord] = {}
        self.daemon: Daemon | None = None
        self.last: list[Event] = []
        self.opened_at: list[datetime] = []
        self.accepted: list[tuple[str, str]] = []
        self.signals: set[tuple[str, str]] = set()
        self.before_call: dict[str, tuple[bool, bool, str]] = {}
        self.words: dict[tuple[int, int], JobReported] = {}
        """The newest word of each run: one of a former run says nothing of this one."""
        self.approved: set[str] = set()
        self.unreached: set[str] = set()
        """Instances that nobody could reach, whatever ailed them."""

    def on_flaws(self, flaws: Sequence[ItemProcessingFailure]) -> None:
        """Nothing here raises: what did is a bug, or a promise that a door saw broken."""
        if flaws:
            raise Violation(f"internal error: {flaws}")

    def on_append(self, events: Sequence[Event]) -> None:
        self.last = list(events)
        for event in events:
            match event:
                case NodeRecoveryOpened():
                    self._opened(event)
                case JobRecoveryOpened():
                    self._job_opened(event)
                case SignalSeen():
                    self._signal(event)
                case StepStarted():
                    answer = self.told[event.recovery]
                    _require(not answer.ended, 6, f"{event.recovery} acts after {answer.ended}")
                    self._remedied(event)
                    answer.started.append(event)
                case StepResolved():
                    self._resolved(event)
                case RequestTaken() if event.verb == "approve" and event.ok:
                    self.approved.add(event.target)
                case JobReported():
                    self.words[event.report.job, event.report.restarts] = event
                case _:
                    pass

    def _opened(self, e: NodeRecoveryOpened) -> None:
        waived = any("waived" in p for p in e.passed)
        node = e.generation.node
        twice = [i for i, t in self.told.items() if t.node == node and not t.ended]
        _require(not twice, 2, f"{e.recovery} opens while {twice} is open on {node}")
        churn = [
            i
            for i, t in self.told.items()
            if t.node == node
            and t.ended == "withdrawn"
            and t.opened == e.at
            and not e.by
            # Another fault may be reported in the instant in which the first one clears.
            and t.rule == e.rule
        ]
        _require(not churn, 2, f"{e.recovery} opens what {churn} withdrew this very moment")
        told = RecoveryRecord("node", e.at, node, None, e.by, waived, e.generation, rule=e.rule)
        self.told[e.recovery] = told
        if e.by:
            return
        self._fresh(e)
        if waived:
            return
        budgets, size = self.policy.budgets, len(self.world.names)
        most = max(budgets.drain_min, budgets.open_min, budgets.partition_min)
        limit = max(most, int(budgets.drain_fraction * size))
        now_open = [i for i, t in self.told.items() if t.kind == "node" and not t.ended]
        _require(len(now_open) <= limit, 2, f"{now_open} are open, budget {limit}")

    def _remedied(self, e: StepStarted) -> None:
        """The first remedy of a recovery: no more are under way than the budgets say."""
        answer, budgets, size = self.told[e.recovery], self.policy.budgets, len(self.world.names)
        first = not any(s.step in FELT for s in answer.started)
        if e.step not in FELT or answer.by or not first or answer.node in self.approved:
            return
        limit = max(budgets.open_min, int(budgets.open_fraction * size))
        part = max(budgets.partition_min, int(budgets.partition_fraction * size))
        nodes = {i: t for i, t in self.told.items() if t.kind == "node"}
        began = {i: [s.at for s in t.started if s.step in FELT] for i, t in nodes.items()}
        others = [i for i, times in began.items() if times and not nodes[i].ended]
        _require(len(others) < min(limit, part), 2, f"{others} are remedied, budget {limit}")
        since = e.at - timedelta(hours=1)
        hour = [i for i, at in began.items() if at and min(at) > since and not nodes[i].by]
        _require(len(hour) < budgets.per_hour, 2, f"{len(hour)} remedied within an hour")

    def _fresh(self, e: NodeRecoveryOpened) -> None:
        world = self.world
        age = world.clock.monotonic() - self.daemon.scheduler.seen_at
        _require(
            age <= self.policy.ages.scheduler_s, 5, f"{e.recovery}: Slurm was read {age} s ago"
        )
        instance = world.provider.instance_of(e.generation.node)
        sick = e.generation.instance in world.afflicted
        silent = world.machines[e.generation.node].agent_silent
        lost = e.rule == "node-lost" and (silent or not world.alive(e.generation.node))
        if lost or self._out_of_reach(e):
            self.unreached.add(e.generation.instance)
        _require(
            sick or e.ladder == (Remedy.NONE,) or e.generation.instance in self.unreached,
            5,
            f"{e.recovery} ({e.rule}) opened for {e.generation.instance}, which never was ill"
            f" (there is {instance} now)",
        )

    def _out_of_reach(self, e: NodeRecoveryOpened) -> bool:
        """Whether nobody could reach the node for as long as the catalogue says."""
        machine = self.world.machines[e.generation.node]
        if e.rule == "agent-silent":
            return self.world.clock.monotonic() - machine.heard >= 100.0
        node = self.world.slurm.nodes[e.generation.node]
        # A node may come back in the seconds since Slurm was read.
        seen = self.daemon.scheduler.seen.nodes[e.generation.node]
        return e.rule == "slurm-down" and (node.down or seen.down) and not node.foreign

    def _job_opened(self, e: JobRecoveryOpened) -> None:
        twice = [i for i, t in self.told.items() if t.job == e.attempt.job and not t.ended]
        _require(not twice, 2, f"{e.recovery} opens while {twice} is open for the job")
        again = [
            i
            for i, t in self.told.items()
            if t.by_itself
            and (t.job, t.restarts) == (e.attempt.job, e.attempt.restarts)
            # Its supervisor took the wish back, and the run went on: it may have another.
            and t.ended != "went_on"
        ]
        by_itself = e.trouble is not None
        _require(not (by_itself and again), 8, f"{e.recovery} treats again what {again} treated")
        if by_itself:
            self._lawful_trouble(e)
        answer = RecoveryRecord(
            "job", e.at, None, e.attempt.job, "", False, None, e.cause, e.attempt.restarts
        )
        answer.by_itself, answer.start_at = by_itself, e.start_at
        answer.opened_true = self.world.clock.true
        self.told[e.recovery] = answer

    def _lawful_trouble(self, e: JobRecoveryOpened) -> None:
        """Only what asked for it is treated without a node's fault, and only where hpctl acts."""
        job = self.world.slurm.jobs[e.attempt.job]
        _require(job.comment.startswith("hpctl:{"), 8, f"{e.recovery} of {job.id}, never asked for")
        _require(
            self.policy.mode is not OperatingMode.OBSERVE, 5, f"{e.recovery} opened in mode observe"
        )
        _require(
            not job.running or self._wished(job) or self._headless(job),
            8,
            f"{e.recovery} of job {job.id}, which runs and is well",
        )

    def _wished(self, job: Job) -> bool:
        word = self.words.get((job.id, job.restarts))
        return word is not None and word.report.wish is not RequestedAction.NONE

    def _headless(self, job: Job) -> bool:
        return job.batch_host is not None and job.batch_host not in job.nodes

    def _silent(self, job: Job, answer: RecoveryRecord) -> bool:
        """Watched for long enough, without a word from its supervisor."""
        word = self.words.get((job.id, job.restarts))
        assert self.daemon is not None
        # The wall clock may have been set since, in either direction.
        by_wall = self.world.clock.now() - answer.opened
        waited = max(by_wall, self.world.clock.true - answer.opened_true).total_seconds()
        quiet = word is None or word.at < answer.opened
        return quiet and waited >= self.policy.job.supervisor_grace_s

    def _signal(self, e: SignalSeen) -> None:
        answer = self.told[e.recovery]
        _require(not answer.ended, 6, f"{e.recovery} moves ({e.signal}) after {answer.ended}")
        self.signals.add((answer.kind, str(e.signal)))
        if e.signal == job_recovery.JobRecoverySignal.PROVED and answer.job is not None:
            job = self.world.slurm.jobs[answer.job]
            word = self.words.get((answer.job, job.restarts))
            asks = word is not None and word.report.wish is not RequestedAction.NONE
            _require(not asks, 8, f"{e.recovery} calls a run proved that asks for something")
        if e.generation is not None:
            answer.generation = e.generation
        if e.signal == node_recovery.NodeRecoverySignal.ACCEPTANCE_DUE:
            answer.test = answer.in_test = True
        elif answer.in_test and e.signal in ENDS_TEST:
            answer.in_test = False
            return
        if e.signal == node_recovery.NodeRecoverySignal.RETURN_SEEN and answer.test:
            # UNTESTED and a node that is given back all the same are not among these policies.
            tested = answer.generation in self.world.passed
            _require(tested, 9, f"{e.recovery} gave {answer.node} back, which passed no test")
        if e.signal in END_SIGNALS[answer.kind]:
            answer.ended, answer.ended_at = str(e.signal), e.at
            held = [r for r in self.world.slurm.reserved if r.startswith(f"{PREFIX}{e.recovery}-")]
            _require(not held or e.signal == "deadline", 9, f"{e.recovery} ended and left {held}")

    def _resolved(self, e: StepResolved) -> None:
        answer = self.told[e.recovery]
        mine = [s for s in answer.started if (s.step, s.attempt) == (e.step, e.attempt)]
        done = [r for r in answer.resolved if (r.step, r.attempt) == (e.step, e.attempt)]
        _require(len(done) < len(mine), 3, f"{e.step} #{e.attempt} of {e.recovery} resolved again")
        answer.resolved.append(e)

    def before(self, kind: str, targets: Mapping[str, Any]) -> None:
        world, daemon = self.world, self.daemon
        _require(daemon.scheduler.seen is not None, 5, f"{kind} without a view of Slurm")
        steps = ("return", "resume") if kind == "return" else (kind,)
        intents = {e.target: e for e in self.last if isinstance(e, StepStarted) and e.step in steps}
        for target in targets:
            intent = intents.get(str(target))
            _require(intent is not None, 3, f"{kind} {target} was not written down before")
            self._lawful(kind, str(target), targets[target], intent.recovery)
        self.before_call = {n: node.shut() for n, node in world.slurm.nodes.items()}

    def _lawful(self, kind: str, target: str, detail, rid: str) -> None:
        answer = self.told[rid]
        _require(not answer.ended, 6, f"{kind} {target} by {rid}, which ended: {answer.ended}")
        if kind == "return":
            kinds = [s.step for s in answer.started]
            if "resume" in kinds and kinds[::-1].index("resume") == 0:
                name = PREFIX + self.daemon.loop.state.nodes[rid].test
                held = self.world.slurm.reserved.get(name, ())
                _require(target in held, 9, f"{rid} resumes {target} outside {name}")
        if kind in ("isolate", "test", "end_test", "unreserve"):
            old = self.told.get(target.removeprefix(PREFIX).rpartition("-")[0])
            left = kind == "unreserve" and old and old.ended and old.node == answer.node
            mine = target.startswith(f"{PREFIX}{rid}-")
            _require(mine or left, 9, f"{kind} {target} by {rid}")
        elif kind in ("drain", "down", "return"):
            _require(answer.node == target, 1, f"{kind} of {target} by {rid} of {answer.node}")
        elif kind in ("reboot", "replace", "remove"):
            self._lawful_remedy(kind, target, rid, answer)
        else:
            self._lawful_job(kind, target, detail, rid, answer)

    def _lawful_remedy(self, kind: str, target: str, rid: str, answer: RecoveryRecord) -> None:
        assert answer.node is not None
        _require(
            target == answer.generation.instance,
            4,
            f"{kind} {target} by {rid}, which treats {answer.generation.instance}",
        )
        node = self.world.slurm.nodes[answer.node]
        mine = node.drained and parse_recovery_id_from_reason(node.reason) == rid
        _require(mine, 1, f"{kind} {target} while {answer.node} has the reason {node.reason!r}")
        running = [
            j.id for j in self.world.slurm.jobs.values() if j.running and answer.node in j.nodes
        ]
        _require(not running, 8, f"{kind} {target} under the running jobs {running}")

    def _lawful_job(self, kind, target, detail, rid, answer):
        seen = self.daemon.scheduler.seen
        job = seen.jobs.get(detail[0])
        _require(detail[0] == answer.job, 8, f"{kind} of job {detail[0]} by {rid} of {answer.job}")
        completing = job is not None and job.completing
        if kind in ("requeue", "start_now"):
            _require(not completing, 8, f"{kind} of job {detail[0]}, seen COMPLETING")
        if kind in ("requeue", "signal") and job is not None and job.running:
            shown = [seen.nodes[n] for n in job.nodes]
            closed = [
                n.name
                for n in shown
                if parse_recovery_id_from_reason(n.reason) or find_hma_reason_mark(n)
            ]
            mine = self.world.slurm.jobs[job.id]
            asked = self._wished(mine) or self._headless(mine)
            given_up = mine.no_kill and (asked or self._silent(mine, answer))
            _require(
                bool(closed) or asked or given_up,
                8,
                f"{kind} of job {job.id}, running on {job.nodes}, all open",
            )
        early = answer.start_at is not None and self.world.clock.now() < answer.start_at
        if kind == "start_now" and early and not self._on_bad_hardware(answer):
            after_s = detail[1][2]
            wait = (answer.start_at - self.world.clock.now()).total_seconds()
            _require(after_s >= wait - 0.001, 8, f"{rid} starts job {detail[0]} {wait} s too soon")
        if kind == "signal":
            sent = [s for s in answer.started if s.step == "signal"]
            _require(len(sent) == 1, 8, f"job {detail[0]} was signalled {len(sent)} times by {rid}")

    def _on_bad_hardware(self, answer: RecoveryRecord) -> bool:
        """A node's fault needs no backoff, and which nodes it ran on only the journal knows."""
        return any(t.kind == "node" and not t.ended for t in self.told.values())

    def after(self, kind: str, targets: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> None:
        if kind in ("reboot", "replace", "remove"):
            for target, outcome in outcomes.items():
                if outcome.kind is OutcomeKind.ACCEPTED:
                    self.accepted.append((kind, target))
            self._orders()
        if kind == "test":
            return  # slurmctld starts other jobs too, of which a faulty node may die
        for name, node in self.world.slurm.nodes.items():
            was = self.before_call.get(name, node.shut())
            if was == node.shut():
                continue
            _require(name in targets, 1, f"{kind} of {list(targets)} changed {name}")
            owner = parse_recovery_id_from_reason(was[2])
            marked = was[2].partition(" : ")[0] in MARKS
            _require(
                not was[1] or marked or owner is not None,
                1,
                f"{kind} changed {name}, drained {was[2]!r}",
            )
            wiped = marked and wipes(self.world, self.policy, kind, name)
            _require(not wiped, 1, f"{kind} took the mark off {name} in mode {self.policy.mode}")
            _require(
                kind == "drain" or marked or owner == self._intent(kind, name),
                1,
                f"{kind} of {name} whose reason was {was[2]!r}",
            )

    def _intent(self, kind: str, target: str) -> str | None:
        found = [
            e.recovery
            for e in self.last
            if isinstance(e, StepStarted)
            and e.target == target
            and (e.step == kind or (kind, e.step) == ("return", "resume"))
        ]
        return found[0] if found else None

    def _orders(self) -> None:
        """Only instances that were ill, or that a person named, are touched; each once."""
        mine = [o for o in self.world.provider.orders if o.by == "customer"]
        replaced = [o.instance for o in mine if o.kind in ("replace", "remove")]
        _require(len(replaced) == len(set(replaced)), 5, f"ordered twice: {replaced}")
        by_hand = {s.target for t in self.told.values() if t.by for s in t.started}
        for order in mine:
            wanted = order.instance in {*self.world.afflicted, *by_hand, *self.unreached}
            _require(wanted, 5, f"{order.kind} of {order.instance}, which never was ill")

    def check(self) -> None:
        """What must hold whenever nothing is under way."""
        _require(not self.world.slurm.crashed, 8, self.world.slurm.crashed)
        daemon = self.daemon
        doubts = sum(len(t.started) - len(t.resolved) for t in self.told.values())
        _require(
            doubts <= MAX_BATCH * daemon.crashes,
            3,
            f"{doubts} steps were never resolved, {daemon.crashes} crashes",
        )
        shown = {**daemon.loop.state.nodes, **daemon.loop.state.jobs}
        for rid, answer in self.told.items():
            rec = shown.get(rid)
            _require(rec is not None, 3, f"{rid} is forgotten")
            _require(rec.ended == bool(answer.ended), 6, f"{rid} is remembered as {rec.phase}")
            if len(answer.started) != len(answer.resolved):
                seen = [s for s in rec.steps if s.outcome is None]
                hidden = len(answer.started) - len(answer.resolved) - len(seen)
                _require(hidden == 0, 3, f"{hidden} steps of {rid} are in doubt and not shown so")

    def open(self) -> list[str]:
        """What has not ended."""
        return [i for i, t in self.told.items() if not t.ended]

    def ended_well(self) -> None:
        """After a long calm: every recovery has ended, and no job is lost."""
        self.check()
        left = [i for i in self.open() if not self._waits_for_nodes(i)]
        _require(not left, 7, f"these never end: {self._describe(left)}")
        marked = forgotten(self.world, self.daemon.loop.state) if self.daemon else ""
        _require(not marked, 7, marked)
        tests = [r for r in self.world.slurm.reserved if r.startswith(PREFIX)]
        _require(not tests, 9, f"nobody deletes {tests}")
        jobs = [j.id for j in self.world.slurm.jobs.values() if j.reservation and not j.end]
        _require(not jobs, 9, f"nobody ends the tests {jobs}")
        for job in self.world.slurm.jobs.values():
            if job.hit and job.state in ("FAILED", "NODE_FAIL") and job.requeue:
                self._not_lost(job.id, job.hit[-1])

    def _waits_for_nodes(self, rid: str) -> bool:
        """Whether it is of a job in the queue for which a person has to give nodes back first: so
        many are drained, by operators or given up, or marked as FAIL, that the rest would not do,
        whatever hpctl excludes."""
        job = self.world.slurm.jobs.get(self.told[rid].job)
        if job is None or job.state != "PENDING" or job.held:
            return False
        if job.begin is not None and job.begin > self.world.clock.now():
            return False
        nodes = self.world.slurm.nodes.values()
        free = [n for n in nodes if not (n.drained or n.failed or n.down)]
        return len(free) < job.size

    def _describe(self, rids: Sequence[str]) -> str:
        shown = {**self.daemon.loop.state.nodes, **self.daemon.loop.state.jobs}
        return "; ".join(f"{i} {shown[i].phase} since {shown[i].since}" for i in rids)

    def _not_lost(self, job: int, hit: tuple[datetime, str, int]) -> None:
        """A job that a node's fault ended for good: somebody gave it up, and said why."""
        at, node, restarts = hit
        if any(t.job == job and t.restarts >= restarts for t in self.told.values()):
            return
        treated = [
            t
            for t in self.told.values()
            if t.node == node
            and not t.by
            and at <= t.opened <= at + timedelta(seconds=60)
            # Opened in the instant of the hit for something else, and over before it.
            and not (t.ended_at is not None and t.ended_at <= at)
        ]
        _require(not treated, 8, f"job {job}, hit at {at} on {node}, is lost")


MAX_BATCH = 25


def _require(holds: bool, promise: int, text: str) -> None:
    if not holds:
        raise Violation(f"promise {promise}: {text}")


def wipes(world: World, policy: RecoveryPolicy, kind: str, name: str) -> bool:
    """Whether an order has taken a mark off that the service still has to read.

    In mode own nobody reads it; giving a node back that has booted since takes off what is spent.
    """
    if policy.mode is OperatingMode.OWN or kind == "return":
        return False
    return not find_hma_reason_mark(world.slurm.node(world.slurm.nodes[name]))


def forgotten(world: World, state: EngineState) -> str:
    """A marked node that is not healed, not held with a reason, and of which no person was told."""
    for name, node in world.slurm.nodes.items():
        if not find_hma_reason_mark(world.slurm.node(node)) or name in state.holds:
            continue
        last = state.last_of_node.get(name)
        phase = state.nodes[last].phase if last is not None else "never treated"
        if phase not in ("escalated", "cancelled"):
            return f"{name}, marked, is {phase}"
    return ""
