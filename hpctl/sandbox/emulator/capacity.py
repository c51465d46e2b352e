"""How many instances there are to be had, what quotas allow, and what training plans hold.

Everything is plentiful unless a test says otherwise: `types` and `groups` bound how many
instances of a type, or in a group (`<cluster>/<group>`), the service can find; `quotas` is what
Service Quotas grants of a type over all clusters, a call beyond which is refused.

Training plans to be bought are always to be had, at a made-up price, from the next day's 11:30 UTC
and from a week later. An offering's id is made of what it holds, as the service's `tpo-<SHA-256>`
is (SageMaker guide, "SageMaker training plans creation using the API"): a second search finds it.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import Struct, field

from hpctl.sandbox.emulator.faults import in_use, limit_exceeded, not_found, validation
from hpctl.sandbox.emulator.shapes import Body, paged
from hpctl.sandbox.emulator.state import Cluster, Group, Node, Threads, World

_ONLY_DESCRIBED = ("UnhealthyInstanceCount", "AvailableSpareInstanceCount")
_SORTS = {"TrainingPlanName": "TrainingPlanName", "Status": "Status", "StartTime": "StartTime"}


class Capacity(Struct):
    """The account's instances. Hold the world's lock to call anything."""

    world: World
    types: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    quotas: dict[str, int] = field(default_factory=dict)
    places: int | None = None
    """How many instances of all kinds whoever runs them has room for."""
    plans: dict[str, Body] = field(default_factory=dict)
    """Training plans by ARN, as DescribeTrainingPlan answers without its counts in use."""

    def set(self, given: Mapping[str, Any]) -> None:
        """Change the bounds by name: `{"types": {"ml.p5.48xlarge": 3}}`; None lifts one."""
        bounds = {"types": self.types, "groups": self.groups, "quotas": self.quotas}
        for kind, changes in given.items():
            for name, count in changes.items():
                if count is None:
                    bounds[kind].pop(name, None)
                else:
                    bounds[kind][name] = int(count)
        with self.world.changed:
            self.world.changed.notify_all()

    def shown(self) -> Body:
        """The bounds in force, for the admin route."""
        return {"types": dict(self.types), "groups": dict(self.groups), "quotas": dict(self.quotas)}

    def take(self, cluster: Cluster, node: Node) -> bool:
        """Give a node the first type of its group that is to be had; False where none is.

        A node that holds an instance gives it back first.
        """
        node.instance_type = ""
        mine = f"{cluster.name}/{node.group.name}"
        if self._held(lambda n: n.group is node.group) >= self.groups.get(mine, 1 << 30):
            return False
        plan = self.plans.get(str(node.group.spec.get("TrainingPlanArn", "")))
        for kind in node.group.instance_types:
            held = self._held(partial(_is, kind))
            if held < self.types.get(kind, 1 << 30) and (plan is None or self._in(plan, kind)):
                node.instance_type = kind
                return True
        return False

    def check_quota(self, cluster: Cluster | None, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise ApiError ResourceLimitExceeded where these groups of a cluster go too far.

        `groups` are specifications by name, over those that the cluster has. A flexible group
        is counted against its first type.
        """
        wanted: Counter[str] = Counter()
        used: Counter[str] = Counter()
        for one in self.world.clusters.values():
            for group in one.groups.values():
                used[group.instance_type] += group.target
                if one is not cluster or group.name not in groups:
                    wanted[group.instance_type] += group.target
        for spec in groups.values():
            kind = spec.get("InstanceType") or spec["InstanceRequirements"]["InstanceTypes"][0]
            wanted[kind] += spec["InstanceCount"]
        for kind, quota in self.quotas.items():
            if wanted[kind] > quota and wanted[kind] > used[kind]:
                raise limit_exceeded(kind, quota, used[kind], wanted[kind] - used[kind])
        self._check_places(cluster, groups)

    def _check_places(
        self, cluster: Cluster | None, groups: Mapping[str, Mapping[str, Any]]
    ) -> None:
        if self.places is None:
            return
        there = Counter(n.group.name for n in cluster.nodes.values()) if cluster else Counter()
        more = sum(max(0, s["InstanceCount"] - there[name]) for name, s in groups.items())
        used = sum(len(c.nodes) for c in self.world.clusters.values())
        if more and used + more > self.places:
            raise limit_exceeded("instances of this sandbox", self.places, used, more)

    def check_plans(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise ApiError where a group names a training plan that it cannot use."""
        for name, spec in groups.items():
            arn = spec.get("TrainingPlanArn")
            if arn is None:
                continue
            plan = self.plans.get(arn)
            if plan is None:
                raise not_found(f"Training plan {arn} not found.")
            kinds = {s["InstanceType"] for s in plan.get("ReservedCapacitySummaries", ())}
            if spec.get("InstanceType") not in kinds:
                raise validation(
                    f"Instance group {name}: training plan {plan['TrainingPlanName']} holds "
                    f"{', '.join(sorted(kinds)) or 'nothing'}, not {spec.get('InstanceType')}."
                )

    # --- training plans -----------------------------------------------------------------------

    def add_plan(self, name: str, **more: Any) -> str:
        """A training plan for tests, Active unless `more` says otherwise; its ARN.

        `more` are members of DescribeTrainingPlan's answer.
        """
        arn = f"arn:aws:sagemaker:{self.world.region}:{self.world.account}:training-plan/{name}"
        total = sum(s["TotalInstanceCount"] for s in more.get("ReservedCapacitySummaries", ()))
        self.plans[arn] = {
            "TrainingPlanArn": arn,
            "TrainingPlanName": name,
            "Status": "Active",
            "TargetResources": ["hyperpod-cluster"],
            "TotalInstanceCount": total,
            **more,
        }
        return arn

    def describe_plan(self, request: Body) -> Body:
        """DescribeTrainingPlan, by name or ARN."""
        wanted = request["TrainingPlanName"]
        for arn, plan in self.plans.items():
            if wanted in (arn, plan["TrainingPlanName"]):
                return self._counted(plan)
        raise not_found(f"Training plan {wanted} not found.")

    def list_plans(self, request: Body) -> Body:
        """ListTrainingPlans, with its filter and sort orders."""
        states = {f["Value"] for f in request.get("Filters", ())}
        found = [p for p in self.plans.values() if not states or p["Status"] in states]
        key = _SORTS[request.get("SortBy", "TrainingPlanName")]
        found.sort(
            key=lambda p: str(p.get(key, "")), reverse=request.get("SortOrder") == "Descending"
        )

        def summary(plan: Body) -> Body:
            return {k: v for k, v in self._counted(plan).items() if k not in _ONLY_DESCRIBED}

        return paged("TrainingPlanSummaries", found, request, summary)

    # --- inside -------------------------------------------------------------------------------

    def _counted(self, plan: Body) -> Body:
        used = self._held(lambda n: n.group.spec.get("TrainingPlanArn") == plan["TrainingPlanArn"])
        left = plan["TotalInstanceCount"] - used
        return {"InUseInstanceCount": used, "AvailableInstanceCount": max(0, left), **plan}

    def _in(self, plan: Body, kind: str) -> bool:
        if plan["Status"] != "Active":
            return False
        total = sum(
            int(s["TotalInstanceCount"])
            for s in plan.get("ReservedCapacitySummaries", ())
            if s["InstanceType"] == kind
        )
        arn = plan["TrainingPlanArn"]
        return total > self._held(
            lambda n: n.group.spec.get("TrainingPlanArn") == arn and n.instance_type == kind
        )

    def _held(self, counts: Callable[[Node], bool]) -> int:
        return sum(
            1
            for cluster in self.world.clusters.values()
            for node in cluster.nodes.values()
            if node.instance_type and counts(node)
        )


def _is(kind: str, node: Node) -> bool:
    return node.instance_type == kind


def plan_status(capacity: Capacity, group: Group) -> Body:
    """What DescribeCluster says of a group's training plan."""
    plan = capacity.plans.get(str(group.spec.get("TrainingPlanArn", "")))
    return {"TrainingPlanStatus": plan["Status"]} if plan else {}


HOUR_USD = 40
"""An instance-hour."""
ULTRA_SERVERS = {"ml.u-p6e-gb200x72": ("ml.p6e-gb200.36xlarge", 18)}
"""What an UltraServer is made of: the instance type, and how many."""
_OF_PLAN = ("UpfrontFee", "CurrencyCode", "DurationHours", "TargetResources")
_OF_SERVER = ("UltraServerType", "AvailabilityZone", "InstanceType")


class TrainingPlanOperations(Struct):
    """`pay_s`: how long a payment is Pending. `pays`: whether payments go through then."""

    capacity: Capacity
    threads: Threads
    pay_s: float = 0.0
    pays: bool = True
    offered: dict[str, Body] = field(default_factory=dict)
    """Every offering that a search has found, by id. What is not here is sold out."""
    extensions: dict[str, list[Body]] = field(default_factory=dict)
    """By plan ARN, as DescribeTrainingPlanExtensionHistory tells them."""

    def handlers(self) -> dict[str, Callable[[Body], Body]]:
        """Each operation by its name."""
        return {
            "SearchTrainingPlanOfferings": self.search,
            "CreateTrainingPlan": self.create,
            "ExtendTrainingPlan": self.extend,
            "DescribeTrainingPlanExtensionHistory": self.history,
            "DescribeReservedCapacity": self.describe_reserved,
            "ListUltraServersByReservedCapacity": self.list_ultra_servers,
        }

    def search(self, request: Body) -> Body:
        """SearchTrainingPlanOfferings, for a new plan, or to extend one where it is named."""
        if "TrainingPlanArn" in request:
            plan = self._plan(request["TrainingPlanArn"])
            hours = [request["DurationHours"]] if "DurationHours" in request else [24, 48, 168]
            offers = [self._extension(plan, one) for one in hours]
            return {"TrainingPlanOfferings": [], "TrainingPlanExtensionOfferings": offers}
        if not {"DurationHours", "TargetResources"} <= set(request):
            raise validation("DurationHours and TargetResources are required.")
        return {"TrainingPlanOfferings": list(self._offers(request))}

    def create(self, request: Body) -> Body:
        """CreateTrainingPlan: a name is taken once."""
        name, offer = request["TrainingPlanName"], self._offer(request["TrainingPlanOfferingId"])
        if any(plan["TrainingPlanName"] == name for plan in self.capacity.plans.values()):
            raise in_use(f"Training plan {name} already exists.")
        part = {"ReservedCapacityType": "Instance", **offer["ReservedCapacityOfferings"][0]}
        part["TotalInstanceCount"] = part.pop("InstanceCount")
        arn = self.capacity.add_plan(
            name,
            Status="Pending",
            StartTime=part["StartTime"],
            EndTime=part["EndTime"],
            ReservedCapacitySummaries=[part],
            **{key: offer[key] for key in _OF_PLAN},
        )
        part["ReservedCapacityArn"] = f"{arn.replace('training-plan', 'reserved-capacity')}-1"
        part["Status"] = "Pending"
        plan = self.capacity.plans[arn]
        self._pay(lambda: self._paid(plan, part))
        return {"TrainingPlanArn": arn}

    def extend(self, request: Body) -> Body:
        """ExtendTrainingPlan, of a plan that may be (guide, "Training plans extension")."""
        name = request["TrainingPlanExtensionOfferingId"]
        offer = dict(self._offer(name))
        plan = self._plan(offer.pop("TrainingPlanArn"))
        done = self.extensions.setdefault(plan["TrainingPlanArn"], [])
        if plan["Status"] not in ("Active", "Scheduled"):
            raise validation(f"Training plan is {plan['Status']}, not Active or Scheduled.")
        if any(one["PaymentStatus"] == "Pending" for one in done):
            raise validation("An extension of this training plan has a pending payment.")
        bought = {"TrainingPlanExtensionOfferingId": name, **offer, "Status": "Pending"}
        bought |= {"PaymentStatus": "Pending", "ExtendedAt": self.capacity.world.now()}
        done.append(bought)

        def paid() -> None:
            self._paid(bought)
            bought["PaymentStatus"] = "Completed" if self.pays else "Failed"
            if self.pays:
                plan["EndTime"] = offer["EndDate"]

        self._pay(paid)
        return {"TrainingPlanExtensions": done}

    def history(self, request: Body) -> Body:
        """DescribeTrainingPlanExtensionHistory."""
        arn = self._plan(request["TrainingPlanArn"])["TrainingPlanArn"]
        return paged("TrainingPlanExtensions", self.extensions.get(arn, []), request)

    def describe_reserved(self, request: Body) -> Body:
        """DescribeReservedCapacity."""
        part = self._part(request["ReservedCapacityArn"])
        kept = {k: v for k, v in part.items() if not k.startswith("UltraServer")}
        return {**kept, "InUseInstanceCount": 0}

    def list_ultra_servers(self, request: Body) -> Body:
        """ListUltraServersByReservedCapacity: none where it is made of instances."""
        part = self._part(request["ReservedCapacityArn"])
        servers = [
            {
                **{key: part[key] for key in _OF_SERVER},
                "UltraServerId": f"us-{_sha(f'{part}{n}')[:17]}",
                "TotalInstanceCount": ULTRA_SERVERS[part["UltraServerType"]][1],
                "UnhealthyInstanceCount": 0,
                "HealthStatus": "OK",
            }
            for n in range(part.get("UltraServerCount", 0))
        ]
        return paged("UltraServers", servers, {"MaxResults": 10, **request})

    # --- inside -------------------------------------------------------------------------------

    def _offers(self, request: Body) -> Iterator[Body]:
        kind, count = request.get("UltraServerType"), request.get("UltraServerCount", 1)
        if kind not in (None, *ULTRA_SERVERS):
            raise validation(f"There is no UltraServer type {kind}.")
        of, each = ULTRA_SERVERS.get(kind or "", (request.get("InstanceType"), 1))
        total = each * (count if kind else request.get("InstanceCount", 1))
        if not of:
            raise validation("InstanceType or UltraServerType is required.")
        what: Body = {"InstanceType": of, "InstanceCount": total}
        if kind:
            what |= {"ReservedCapacityType": "UltraServer", "UltraServerType": kind}
            what |= {"UltraServerCount": count}
        hours, now = request["DurationHours"], self.capacity.world.now()
        now = max(now, request.get("StartTimeAfter", now))
        for days, zone in ((1, "a"), (8, "b")):
            start = now.replace(hour=11, minute=30, second=0, microsecond=0) + timedelta(days)
            end = start + timedelta(hours=hours)
            part = {**what, "AvailabilityZone": f"{self.capacity.world.region}{zone}"}
            offer = {
                "TargetResources": request["TargetResources"],
                "ReservedCapacityOfferings": [{**part, "StartTime": start, "EndTime": end}],
                **_priced(hours, total),
            }
            if end <= request.get("EndTimeBefore", end):
                yield {"TrainingPlanOfferingId": self._keep("tpo", offer), **offer}

    def _extension(self, plan: Body, hours: int) -> Body:
        offer = {
            "AvailabilityZone": plan["ReservedCapacitySummaries"][-1]["AvailabilityZone"],
            "StartDate": plan["EndTime"],
            "EndDate": plan["EndTime"] + timedelta(hours=hours),
            **_priced(hours, plan["TotalInstanceCount"]),
        }
        name = self._keep("tpeo", {**offer, "TrainingPlanArn": plan["TrainingPlanArn"]})
        return {"TrainingPlanExtensionOfferingId": name, **offer}

    def _keep(self, kind: str, offer: Body) -> str:
        name = f"{kind}-{_sha(str(offer))}"
        self.offered[name] = offer
        return name

    def _offer(self, name: str) -> Body:
        if name not in self.offered:
            raise not_found(f"Offering {name} not found.")
        return self.offered[name]

    def _plan(self, arn: str) -> Body:
        if arn not in self.capacity.plans:
            raise not_found(f"Training plan {arn} not found.")
        return self.capacity.plans[arn]

    def _part(self, arn: str) -> Body:
        for plan in self.capacity.plans.values():
            for part in plan.get("ReservedCapacitySummaries", ()):
                if part["ReservedCapacityArn"] == arn:
                    return dict(part)
        raise not_found(f"Reserved capacity {arn} not found.")

    def _paid(self, *things: Body) -> None:
        for one in things:
            one["Status"] = "Scheduled" if self.pays else "Failed"

    def _pay(self, paid: Callable[[], None]) -> None:
        def work() -> None:
            self.threads.stopping.wait(self.pay_s)
            with self.capacity.world.lock:
                paid()

        if self.pay_s:
            self.threads.spawn(work, "payment")
        else:
            paid()


def _priced(hours: int, instances: int) -> Body:
    fee = f"{HOUR_USD * hours * instances:.2f}"
    return {"DurationHours": hours, "UpfrontFee": fee, "CurrencyCode": "USD"}


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
