"""An order carried out: drain, wait for jobs, order, wait for the node, give it back.

All nodes side by side, each as soon as its jobs have ended. What is asked of the world stands in
the world: the Reason in Slurm says which instance is to go, so that a walk that was interrupted
is picked up by the same command again, and nobody else's drain is ever lifted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.clusters import failures
from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.fleet_reading import node_rows, targets_of
from hpctl.clusters.node_order_plan import Plan, Target, began
from hpctl.clusters.node_orders import send
from hpctl.clusters.order_in_doubt import after_doubt
from hpctl.clusters.order_terms import MOVING, Verb, fix
from hpctl.engine.view import jobs_on
from hpctl.sagemaker.failure_causes import Cause, Where, understand
from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.errors import Refused, Unavailable
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.ports import Aws, ByHand
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob

EVERY_S = 5.0

TIMEOUT_S = {Verb.REPLACE: 5400.0, Verb.REBOOT: 1800.0, Verb.DELETE: 1800.0}
"""After the order: a replacement takes 20 to 30 minutes, with deep health checks up to two hours.
"""


class OrderPhase(StrEnum):
    """How far one node is."""

    JOBS = "jobs"
    """Drained, and waiting for its jobs to end."""
    ORDERED = "ordered"
    """The service has taken the order."""
    COMING = "coming"
    """The new instance is there and not Running yet."""
    JOINING = "joining"
    """The instance is Running, and its slurmd has not registered yet."""
    DONE = "done"
    LEFT = "left"
    """Ordered, and nobody waits for it any longer."""
    LET_GO = "let_go"
    """Not ordered, because somebody interrupted the wait for its jobs: given back."""
    REFUSED = "refused"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"


ENDED = frozenset(
    {
        OrderPhase.DONE,
        OrderPhase.LEFT,
        OrderPhase.LET_GO,
        OrderPhase.REFUSED,
        OrderPhase.FAILED,
        OrderPhase.IN_DOUBT,
    }
)


class NodeProgress(Struct, frozen=True):
    """One node of an order. `code` is the service's word for a refusal, `fix` what to do then.

    `left_drained` is the Reason under which Slurm still has it closed, where that is ours.
    """

    node: str
    group: str
    instance_id: str
    phase: OrderPhase
    text: str = ""
    new_instance_id: str = ""
    code: str = ""
    fix: str = ""
    jobs: tuple[int, ...] = ()
    left_drained: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.phase in ENDED


class Walk(Struct):
    """One order on its way. Iterate over `looks`; on a Ctrl-C call `let_go`.

    With `now` nobody waits for jobs: slurmctld is told that the node is down as soon as the
    service has taken the order. Without `wait` the walk ends with the last order. `floor` are
    groups that keep so many instances: others may remove some while jobs are waited for.
    """

    plan: Plan
    aws: Aws
    slurm: ByHand | None
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    now: bool = False
    wait: bool = True
    every_s: float = EVERY_S
    timeout_s: float = 0.0
    floor: Mapping[str, int] = field(default_factory=dict)
    progress: dict[str, NodeProgress] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _before: frozenset[str] = frozenset()
    _held: Mapping[NodeName, Sequence[SlurmJob]] = field(default_factory=dict)

    def looks(self) -> Iterator[tuple[NodeProgress, ...]]:
        """The nodes after every look, `every_s` apart, until each has ended.

        Raises Refused where a node cannot be drained: nothing was ordered then, and what was
        drained for it is given back. Raises as reads do where the very first fails.
        """
        self.timeout_s = self.timeout_s or TIMEOUT_S[self.plan.verb]
        rows = node_rows(self.aws, self.plan.cluster, details=False)
        self._before = frozenset(row.instance_id for row in rows)
        for target in self.plan.targets:
            phase = OrderPhase.ORDERED if target.under_way else OrderPhase.JOBS
            self._put(target, phase, "an earlier order goes on" if target.under_way else "")
        self._drain()
        while True:
            self._look()
            yield tuple(self.progress.values())
            if all(one.ended for one in self.progress.values()):
                return
            self.sleep(self.every_s)

    def let_go(self) -> tuple[NodeProgress, ...]:
        """Stop waiting: give back what is surely not ordered, and say what goes on without us."""
        waiting = [t for t in self.plan.targets if self._at(t) is OrderPhase.JOBS]
        self._reopen(waiting)
        for target in self.plan.targets:
            if target in waiting:
                self._end(target, OrderPhase.LET_GO, "nothing was ordered for it")
            elif self._at(target) not in ENDED:
                self._end(target, OrderPhase.LEFT, "")
        return tuple(self.progress.values())

    def _drain(self) -> None:
        wanted = {NodeName(t.row.node): t.reason for t in self.plan.targets if t.reason}
        if self.slurm is None or not wanted:
            return
        outcomes = self.slurm.close(wanted)
        bad = {
            name: outcome
            for name, outcome in outcomes.items()
            if outcome.kind is OutcomeKind.REJECTED and outcome.code != "closed"
        }
        if bad:
            self._reopen(self.plan.targets)
            name, outcome = next(iter(bad.items()))
            raise Refused(
                f"{name} cannot be drained: {outcome.detail or outcome.code}; nothing was ordered",
                "only root, SlurmUser and Slurm's administrators may drain a node",
                code=outcome.code,
            )

    def _look(self) -> None:
        view, why = self._slurm_view()
        names = [NodeName(t.row.node) for t in self.plan.targets]
        self._held = jobs_on(names, view.jobs) if view is not None else {}
        ready = [t for t in self.plan.targets if self._free(t, view, why)]
        if ready and self.floor:
            ready = self._above_floor(ready)
        if ready:
            self._order(ready)
        ordered = [t for t in self.plan.targets if self._at(t) not in ENDED | {OrderPhase.JOBS}]
        if ordered:
            try:
                rows = node_rows(self.aws, self.plan.cluster, details=False)
            except Unavailable as error:
                for target in ordered:
                    self._put(target, self._at(target), str(error))
            else:
                self._follow(ordered, rows, view)

    def _slurm_view(self) -> tuple[SchedulerView | None, str]:
        if self.slurm is None:
            return None, ""
        try:
            return self.slurm.view(), ""
        except Unavailable as error:
            return None, str(error)

    def _free(self, target: Target, view: SchedulerView | None, why: str) -> bool:
        """Whether the node may go now. One that somebody gave back meanwhile may not any more."""
        if self._at(target) is not OrderPhase.JOBS:
            return False
        if self.slurm is None or target.before is None:
            return True
        if view is None:
            self._put(target, OrderPhase.JOBS, why)
            return False
        name = NodeName(target.row.node)
        node = view.nodes.get(name)
        if node is not None and not (node.drained or node.down or "FAIL" in node.flags):
            self._end(
                target, OrderPhase.REFUSED, "not ordered: somebody gave it back", "given_back"
            )
            return False
        holding = tuple(sorted(int(j.id) for j in self._held[name] if j.running or j.completing))
        if not holding or self.now:
            return True
        self._put(target, OrderPhase.JOBS, "", jobs=holding)
        return False

    def _above_floor(self, ready: Sequence[Target]) -> list[Target]:
        """Those that may still go; the others are given back. None where nobody can say now."""
        try:
            counts = targets_of(self.aws, self.plan.cluster)
        except Unavailable as error:
            for target in ready:
                self._put(target, OrderPhase.JOBS, str(error))
            return []
        room = {group: counts.get(group, 0) - keep for group, keep in self.floor.items()}
        kept: list[Target] = []
        going: list[Target] = []
        for target in ready:
            left = room.get(target.row.group, 1)
            (going if left > 0 else kept).append(target)
            if target.row.group in room:
                room[target.row.group] -= 1
        self._reopen(kept)
        for target in kept:
            text = f"others have brought {target.row.group} down to {counts[target.row.group]}"
            self._end(target, OrderPhase.LET_GO, text)
        return going

    def _order(self, ready: Sequence[Target]) -> None:
        rows = [target.row for target in ready]
        sagemaker = self.aws.service("sagemaker")
        # From here until the answer nobody knows: a Ctrl-C must not give such a node back.
        for target in ready:
            self._end(target, OrderPhase.IN_DOUBT, "interrupted while it was being ordered")
        outcomes = dict(send(sagemaker, self.plan.cluster, self.plan.verb, rows, sleep=self.sleep))
        for target in ready:
            if target.adopted:
                outcomes[target.instance] = after_doubt(outcomes[target.instance])
        taken = [t for t in ready if outcomes[t.instance].kind is OutcomeKind.ACCEPTED]
        for target in taken:
            self._since[target.instance] = self.clock()
            self._put(target, OrderPhase.ORDERED, outcomes[target.instance].detail)
        if self.now and self.slurm is not None:
            busy = {NodeName(t.row.node): t.reason for t in taken if t.jobs and t.reason}
            self.slurm.down(busy)
        refused = [t for t in ready if outcomes[t.instance].kind is OutcomeKind.REJECTED]
        self._reopen([t for t in refused if outcomes[t.instance].code not in MOVING])
        for target in ready:
            outcome = outcomes[target.instance]
            if target in refused:
                self._end(target, OrderPhase.REFUSED, outcome.detail, outcome.code)
            elif outcome.kind is OutcomeKind.AMBIGUOUS:
                text = f"nobody knows whether the service took the order: {outcome.detail}"
                self._end(target, OrderPhase.IN_DOUBT, text, outcome.code)
            elif not self.wait:
                self._end(target, OrderPhase.LEFT, "")

    def _follow(
        self, ordered: Sequence[Target], rows: Sequence[NodeRow], view: SchedulerView | None
    ) -> None:
        there = {row.instance_id: row for row in rows}
        for target in ordered:
            if self.plan.verb is Verb.DELETE:
                self._deleted(target, rows)
            elif self.plan.verb is Verb.REBOOT:
                self._rebooted(target, there.get(target.instance), view)
            else:
                self._replaced(target, rows, view)
            begun = self._since.setdefault(target.instance, self.clock())
            if not self.progress[target.instance].ended and self.clock() - begun > self.timeout_s:
                text = f"not back after {self.timeout_s:.0f} s"
                if self.plan.verb is Verb.REBOOT and target.under_way:
                    text += ": whether the earlier command ordered its reboot, nobody can say"
                self._end(target, OrderPhase.LEFT, text)

    def _deleted(self, target: Target, rows: Sequence[NodeRow]) -> None:
        place = target.row.logical_id
        left = next((r for r in rows if target.instance in (r.instance_id, r.logical_id)), None)
        other = next((r for r in rows if place and r.logical_id == place), None)
        if left is not None:
            self._put(target, OrderPhase.ORDERED, left.status)
        elif other is not None:
            text = f"it was replaced, not deleted: {other.instance_id} is in its place"
            self._end(target, OrderPhase.FAILED, text, new=other.instance_id)
        else:
            self._end(target, OrderPhase.DONE, "deleted")

    def _rebooted(self, target: Target, row: NodeRow | None, view: SchedulerView | None) -> None:
        if row is None or row.status == "Failure":
            text = row.message if row is not None else "the instance is gone"
            self._end(target, OrderPhase.FAILED, text)
        elif self.slurm is None or target.before is None:
            # EC2 says Running all the while: without Slurm nobody tells when a reboot has ended.
            self._end(target, OrderPhase.LEFT, "ordered; the API does not tell when a reboot ends")
        else:
            self._join(target, view)

    def _replaced(
        self, target: Target, rows: Sequence[NodeRow], view: SchedulerView | None
    ) -> None:
        row = self._successor(target, rows)
        if row is None:
            old = next((r for r in rows if r.instance_id == target.instance), None)
            self._put(
                target, OrderPhase.ORDERED, f"the old instance is {old.status}" if old else ""
            )
            return
        new = row.instance_id
        if row.status in ("Failure", "Failed"):
            text, fixed = self._why(row)
            self._end(target, OrderPhase.FAILED, text, new=new, fixed=fixed)
        elif row.status != "Running":
            self._put(target, OrderPhase.COMING, row.status, new=new)
        elif self.slurm is None or target.before is None:
            self._end(target, OrderPhase.DONE, "the new instance is Running", new=new)
        else:
            self._put(target, OrderPhase.JOINING, "", new=new)
            self._join(target, view)

    def _why(self, row: NodeRow) -> tuple[str, str]:
        """What a failure of an instance was, with the line of its lifecycle log, and its fix."""
        trouble = understand(row.message, Where((row.instance_type,)))
        text = row.message or "the new instance failed"
        if trouble.cause is Cause.LIFECYCLE:
            where = failures.log_place(self.plan.arn, self.plan.cluster, row.group, row.instance_id)
            read = failures.failed_line(self.aws, where)
            text = f"{text} The log {where}: {read.line or read.unread}"
        return text, trouble.fix

    def _successor(self, target: Target, rows: Sequence[NodeRow]) -> NodeRow | None:
        """The instance in its place: by logical id, else by address or as the only new one.

        The address is usually kept; no one promises it.
        """
        fresh = [r for r in rows if r.instance_id and r.instance_id != target.instance]
        for row in fresh:
            both = row.logical_id and target.row.logical_id
            if row.logical_id == target.row.logical_id if both else row.ip == target.row.ip != "":
                return row
        mine = {one.new_instance_id for one in self.progress.values()}
        new = [r for r in fresh if r.group == target.row.group]
        new = [r for r in new if r.instance_id not in self._before and r.instance_id not in mine]
        alone = len(self.plan.targets) == 1 and len(new) == 1
        return new[0] if alone else None

    def _join(self, target: Target, view: SchedulerView | None) -> None:
        """Give the node back once another slurmd than before has registered."""
        node = view.nodes.get(NodeName(target.row.node)) if view is not None else None
        new = node is not None and (not target.slurmd or began(node) != target.slurmd)
        if node is None or not node.responding or not new:
            self._put(target, OrderPhase.JOINING, "its slurmd has not registered yet")
            return
        outcome = self._reopen([target]).get(NodeName(target.row.node), Outcome.accepted())
        if outcome.kind is OutcomeKind.ACCEPTED:
            self._end(target, OrderPhase.DONE, "back in service")
        elif outcome.code == "not_ours":
            self._end(target, OrderPhase.DONE, f"back; it stays closed by another: {node.reason}")
        else:
            self._put(target, OrderPhase.JOINING, outcome.detail)

    def _reopen(self, targets: Sequence[Target]) -> Mapping[NodeName, Outcome]:
        """Lift the drains of these nodes that are ours by their Reason."""
        wanted = {NodeName(t.row.node): t.reason for t in targets if t.reason}
        return self.slurm.reopen(wanted) if self.slurm is not None and wanted else {}

    def _at(self, target: Target) -> OrderPhase:
        return self.progress[target.instance].phase

    def _put(
        self,
        target: Target,
        phase: OrderPhase,
        text: str,
        *,
        jobs: tuple[int, ...] = (),
        new: str = "",
    ) -> None:
        before = self.progress.get(target.instance)
        self.progress[target.instance] = NodeProgress(
            node=target.row.shown,
            group=target.row.group,
            instance_id=target.instance,
            phase=phase,
            text=text,
            new_instance_id=new or (before.new_instance_id if before else ""),
            jobs=jobs,
        )

    def _end(
        self,
        target: Target,
        phase: OrderPhase,
        text: str,
        code: str = "",
        *,
        new: str = "",
        fixed: str = "",
    ) -> None:
        self._put(target, phase, text, new=new)
        drained = (
            phase in (OrderPhase.LEFT, OrderPhase.FAILED, OrderPhase.IN_DOUBT) or code in MOVING
        )
        self.progress[target.instance] = replace(
            self.progress[target.instance],
            code=code,
            fix=fixed or fix(code),
            left_drained=target.reason if drained and target.reason else "",
        )
