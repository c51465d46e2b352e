"""A HyperPod cluster in memory: deterministic, its time passed in, for tests of the core.

It keeps the rules of the emulator (which the same contract suite proves): a replaced instance's
id is gone for good, node name and logical id stay, one operation at a time has a node. Nothing
happens between calls: what is due by `now` is done at the beginning of the next one.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceGroup, InstanceStatus
from hpctl.vocabulary.identity import InstanceId, LogicalId, NodeGeneration, NodeName
from hpctl.vocabulary.outcome import Outcome

GROUP = "workers"
NO_CAPACITY = "We currently do not have sufficient capacity to launch new ml instances."


class Order(Struct, frozen=True):
    """Something that was really done to an instance. `by` is `customer` or `service`."""

    kind: str
    instance: InstanceId
    node: NodeName
    at: datetime
    by: str = "customer"


class FakeCall(Struct, frozen=True):
    """A mutating call that arrived, whatever became of it."""

    operation: str
    instances: tuple[InstanceId, ...]
    at: datetime


class _Place(Struct):
    node: NodeName
    logical: LogicalId
    instance: InstanceId
    protected: bool
    status: InstanceStatus = InstanceStatus.RUNNING
    message: str = ""
    boot: int = 1
    operation: str = ""
    due: datetime | None = None
    """When the operation goes on. None with an operation: it is stuck."""
    next_stuck: bool = False
    next_starved: bool = False
    launched: datetime | None = None


class _Failure(Struct):
    code: str
    accepted: bool


class _Switches(Struct):
    lose: int = 0
    throttle: int = 0
    deny: int = 0
    unreadable: int = 0
    stuck: int = 0
    starved: int = 0
    failures: dict[InstanceId, _Failure] = field(default_factory=dict)
    vanished: dict[NodeName, datetime] = field(default_factory=dict)


class FakeProvider:
    """A Provider. `protected` nodes are controllers: never replaced.

    A replacement takes `shutdown` (old id listed as ShuttingDown) and then `boot` (new id
    Pending); a reboot takes `boot` with the status Running throughout. `now` is the service's clock
    and `wall` the head node's; where `wall` is not given they agree.
    """

    def __init__(
        self,
        nodes: Sequence[NodeName],
        *,
        now: Callable[[], datetime],
        protected: Sequence[NodeName] = (),
        shutdown: timedelta = timedelta(seconds=5),
        boot: timedelta = timedelta(seconds=60),
        automatic: bool = False,
        wall: Callable[[], datetime] | None = None,
    ) -> None:
        self._now = now
        self._wall = wall or now
        self._shutdown, self._boot = shutdown, boot
        self._automatic = automatic
        self._born = 0
        self._switch = _Switches()
        self._tokens: set[str] = set()
        self.calls: list[FakeCall] = []
        self.orders: list[Order] = []
        self._places = {
            node: _Place(node, f"logical-{node}", self._new_id(), node in protected)
            for node in nodes
        }

    def view(self) -> CloudProviderView:
        """Every place's instance. Raises Unavailable while `unreadable` holds."""
        now = self.tick()
        if self._switch.unreadable > 0:
            self._switch.unreadable -= 1
            raise ServiceUnavailable("the fake API is away", "wait")
        shown = [p for p in self._places.values() if not self._is_vanished(p, now)]
        mine = [p for p in self._places.values() if not p.protected and p.operation != "remove"]
        running = sum(p.status is InstanceStatus.RUNNING for p in mine)
        ahead = self._wall() - now
        return CloudProviderView(
            as_of=now + ahead, present=True, automatic=self._automatic, cluster_status="InService",
            instances={p.instance: _instance(p, ahead) for p in shown}, continuous=True,
            groups={GROUP: InstanceGroup(GROUP, "ml.p5.48xlarge", running, len(mine), "InService")},
        )  # fmt: skip

    def reboot(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """As BatchRebootClusterNodes."""
        return self._batch("reboot", instances)

    def replace(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """As BatchReplaceClusterNodes."""
        return self._batch("replace", instances)

    def add(self, group: str, count: int, size: int, token: str) -> Outcome:
        """As BatchAddClusterNodes: once for each token."""
        now = self.tick()
        self.calls.append(FakeCall("add", (), now))
        lost = self._switch.lose > 0
        self._switch.lose -= lost
        if group != GROUP:
            return Outcome.rejected("InstanceGroupNotFound", f"no group {group}")
        for _ in range(count if token not in self._tokens else 0):
            at = len(self._places) + 1
            node = f"ip-127-0-2-{at}"
            place = _Place(node, f"logical-{node}", self._new_id(), False)
            place.status, place.operation = InstanceStatus.PENDING, "boot"
            place.due = now + self._boot
            self._places[node] = place
        self._tokens.add(token)
        if lost:
            return Outcome.ambiguous("ReadTimeoutError", "the reply was lost")
        return Outcome.accepted(f"{count} of {count}")

    def remove(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """As BatchDeleteClusterNodes."""
        return self._batch("remove", instances)

    def instance_of(self, node: NodeName) -> InstanceId:
        """The instance that stands for a node now."""
        self.tick()
        return self._places[node].instance

    def generation(self, node: NodeName) -> NodeGeneration:
        """What an agent on the node would say of itself: it changes when the boot is done."""
        self.tick()
        place = self._places[node]
        return NodeGeneration(node, place.instance, f"{place.instance}-boot-{place.boot}")

    def up(self, node: NodeName) -> bool:
        """Whether the machine runs, so that slurmd and an agent could: not while it (re)boots."""
        self.tick()
        place = self._places.get(node)
        return place is not None and place.status is InstanceStatus.RUNNING and not place.operation

    def busy(self) -> bool:
        """Whether any operation is in progress."""
        self.tick()
        return any(p.operation for p in self._places.values())

    def lose_reply(self, calls: int = 1) -> None:
        """The next mutating calls are done, and nobody hears of it."""
        self._switch.lose += calls

    def throttle(self, calls: int = 1) -> None:
        """The next mutating calls are refused."""
        self._switch.throttle += calls

    def deny(self, calls: int = 1) -> None:
        """The next mutating calls lack the permission."""
        self._switch.deny += calls

    def fail(self, instance: InstanceId, code: str, *, accepted: bool = False) -> None:
        """The next order on an instance is answered with `code` ("": not at all); `accepted`
        says whether it is done all the same.
        """
        self._switch.failures[instance] = _Failure(code, accepted)

    def unreadable(self, views: int) -> None:
        """The next views raise Unavailable."""
        self._switch.unreadable = views

    def no_capacity(self, replacements: int = 1) -> None:
        """The next replacements end in Failure, for lack of capacity."""
        self._switch.starved += replacements

    def stick(self, replacements: int = 1) -> None:
        """The next replacements stay Pending until `unstick`."""
        self._switch.stuck += replacements

    def unstick(self) -> None:
        """Let stuck replacements go on, and stick no more."""
        self._switch.stuck = 0
        for place in self._places.values():
            place.next_stuck = False
            if place.operation and place.due is None:
                place.due = self._now()

    def vanish(self, node: NodeName, seconds: float) -> None:
        """Views leave a node out for a while."""
        self._switch.vanished[node] = self._now() + timedelta(seconds=seconds)

    def start_unrequested_recovery(self, instance: InstanceId) -> bool:
        """The service replaces an instance; false where it cannot."""
        self.tick()
        place = self._of(instance)
        if place is None or place.operation or place.protected:
            return False
        self._begin("replace", place, by="service")
        return True

    def tick(self) -> datetime:
        """Do what is due; the time it is."""
        now = self._now()
        for place in list(self._places.values()):
            while place.operation and place.due is not None and place.due <= now:
                self._go_on(place)
        return now

    def _new_id(self) -> InstanceId:
        self._born += 1
        return f"i-{self._born:017x}"

    def _of(self, instance: InstanceId) -> _Place | None:
        return next((p for p in self._places.values() if p.instance == instance), None)

    def _is_vanished(self, place: _Place, now: datetime) -> bool:
        until = self._switch.vanished.get(place.node)
        return until is not None and now < until

    def _batch(self, kind: str, instances: Sequence[InstanceId]) -> dict[InstanceId, Outcome]:
        now = self.tick()
        outcomes: dict[InstanceId, Outcome] = {}
        wanted = tuple(dict.fromkeys(instances))
        for at in range(0, len(wanted), 25):
            chunk = wanted[at : at + 25]
            self.calls.append(FakeCall(kind, chunk, now))
            outcomes.update(self._call(kind, chunk))
        return outcomes

    def _call(self, kind: str, chunk: Sequence[InstanceId]) -> dict[InstanceId, Outcome]:
        switch = self._switch
        if switch.throttle > 0:
            switch.throttle -= 1
            refused = Outcome.rejected("ThrottlingException", "Rate exceeded", transient=True)
            return dict.fromkeys(chunk, refused)
        if switch.deny > 0:
            switch.deny -= 1
            return dict.fromkeys(chunk, Outcome.rejected("AccessDeniedException", "not allowed"))
        outcomes = {instance: self._order(kind, instance) for instance in chunk}
        if switch.lose > 0:
            switch.lose -= 1
            lost = Outcome.ambiguous("ConnectionClosedError", "the reply was lost")
            return dict.fromkeys(chunk, lost)
        return outcomes

    def _order(self, kind: str, instance: InstanceId) -> Outcome:
        place = self._of(instance)
        failure = self._switch.failures.pop(instance, None)
        refusal = _refusal(kind, place)
        if place is not None and refusal is None and (failure is None or failure.accepted):
            self._begin(kind, place)
        if failure is None:
            return refusal or Outcome.accepted()
        return _answered(failure.code)

    def _begin(self, kind: str, place: _Place, by: str = "customer") -> None:
        now = self._now()
        self.orders.append(Order(kind, place.instance, place.node, now, by))
        place.operation = kind
        if kind == "reboot":
            place.due = now + self._boot
            return
        place.status = InstanceStatus.SHUTTING_DOWN
        place.due = now + self._shutdown
        place.next_stuck = self._switch.stuck > 0
        self._switch.stuck -= int(place.next_stuck)
        place.next_starved = self._switch.starved > 0
        self._switch.starved -= int(place.next_starved)

    def _go_on(self, place: _Place) -> None:
        if place.operation == "reboot":
            place.boot += 1
            place.operation, place.due = "", None
        elif place.operation == "remove":
            place.operation = ""
            del self._places[place.node]
        elif place.status is InstanceStatus.SHUTTING_DOWN:
            place.instance, place.boot, place.launched = self._new_id(), 1, self._now()
            place.status = InstanceStatus.PENDING
            place.due = None if place.next_stuck or place.due is None else place.due + self._boot
        else:
            starved = place.next_starved
            place.status = InstanceStatus.FAILURE if starved else InstanceStatus.RUNNING
            place.message = NO_CAPACITY if starved else place.message
            place.operation, place.due = "", None


def _refusal(kind: str, place: _Place | None) -> Outcome | None:
    if kind == "remove" and (place is None or place.protected or place.operation):
        # One that cannot go, alone in a call, makes the whole call fail.
        return Outcome.rejected("ValidationException", "No node could be deleted")
    if place is None:
        return Outcome.rejected("InstanceIdNotFound", "no such instance")
    if place.protected and kind == "replace":
        detail = "Slurm controller nodes cannot be replaced."
        return Outcome.rejected("InvalidInstanceStatus", detail, transient=True)
    if place.operation:
        return Outcome.rejected("InstanceIdInUse", place.operation, transient=True)
    fine = (InstanceStatus.RUNNING, InstanceStatus.FAILURE)
    if place.status not in (fine[:1] if kind == "reboot" else fine):
        return Outcome.rejected("InvalidInstanceStatus", place.status, transient=True)
    return None


def _answered(code: str) -> Outcome:
    if code == "InstanceIdNotFound":
        return Outcome.rejected(code)
    if code in ("InvalidInstanceStatus", "InstanceIdInUse"):
        return Outcome.rejected(code, transient=True)
    return Outcome.ambiguous(code or "unanswered")


def _instance(place: _Place, ahead: timedelta) -> Instance:
    return Instance(
        id=place.instance, status=place.status, group="controller" if place.protected else GROUP,
        node=place.node, logical_id=place.logical, protected=place.protected, message=place.message,
        launched=place.launched + ahead if place.launched else None,
    )  # fmt: skip
