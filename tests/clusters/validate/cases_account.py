"""What can be wrong with an account: its network, capacity and storage."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from hpctl.clusters.validate.facts import CapacityFacts, QuotaFacts, StorageFacts
from hpctl.core.compat import UTC
from tests.clusters.validate.cases import FAIL, NO_ANSWER, UNKNOWN, WARN, case, net, sg
from tests.clusters.validate.world import (
    FS,
    NAT,
    PLAN,
    ZFS,
    World,
    anywhere,
    file_system,
    group,
    network,
    plan,
    routes,
    subnet,
    to_itself,
)

# --- network ---


@case("network.subnets-exist", FAIL, "vpc.subnets.1", "there is no subnet subnet-z in us-east-1")
def _(world: World) -> None:
    world.file["vpc"]["subnets"].append("subnet-z")


@case("network.subnets-exist", UNKNOWN, "vpc.subnets", "AccessDenied")
def _(world: World) -> None:
    net(world, subnets=NO_ANSWER)


@case("network.one-vpc", FAIL, "vpc", "vpc-1 has subnet-a; vpc-2 has sg-nodes")
def _(world: World) -> None:
    net(world, security_groups={"sg-nodes": group("sg-nodes", "vpc-2")})


@case("network.one-zone", WARN, "vpc.subnets", "are in 2 zones (us-east-1a, us-east-1b)")
def _(world: World) -> None:
    world.file["vpc"]["subnets"].append("subnet-b")
    world.group("gpu").pop("training_plan")
    world.group("gpu")["count"] = 0
    assert isinstance(world.facts.quota.limits, dict)
    limits = world.facts.quota.limits | {"ml.p5.48xlarge for cluster usage": 9.0}
    zones = {k: frozenset({"us-east-1a"}) for k in world.facts.model.types}
    world.facts = replace(world.facts, quota=QuotaFacts(limits), capacity=CapacityFacts({}, zones))
    net(
        world,
        subnets={"subnet-a": subnet("subnet-a"), "subnet-b": subnet("subnet-b", "us-east-1b")},
        route_tables={
            s: routes(s, network().route_tables["rtb-subnet-a"]["Routes"][1])  # type: ignore[index,call-overload]
            for s in ("subnet-a", "subnet-b")
        },
    )


@case("network.room", FAIL, "vpc.subnets", "have 3 free addresses, and 7 new nodes need one each")
def _(world: World) -> None:
    net(world, subnets={"subnet-a": subnet("subnet-a", AvailableIpAddressCount=3)})


@case("network.room", WARN, "vpc.subnets", "not for all their 131 cards")
def _(world: World) -> None:
    net(world, subnets={"subnet-a": subnet("subnet-a", AvailableIpAddressCount=100)})


@case(
    "network.ways-out", WARN, "vpc.subnets.0", "no way to s3 and sagemaker.api: it has no default"
)
def _(world: World) -> None:
    net(world, route_tables={"rtb": routes("subnet-a")})


@case("network.ways-out", WARN, "vpc.subnets.0", "its default route is an internet gateway")
def _(world: World) -> None:
    igw = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"}
    net(world, route_tables={"rtb": routes("subnet-a", igw)})


@case("network.ways-out", WARN, "vpc.subnets.0", "no way to sagemaker.api")
def _(world: World) -> None:
    table = routes("subnet-a")
    gateway = {
        "VpcId": "vpc-1",
        "ServiceName": "com.amazonaws.us-east-1.s3",
        "VpcEndpointType": "Gateway",
        "RouteTableIds": [table["RouteTableId"]],
        "State": "available",
    }
    net(world, route_tables={"rtb": table}, endpoints={"vpce-1": gateway})


@case(
    "network.ways-out", WARN, "vpc.subnets.0", "no way to s3 and sagemaker.api: it has no default"
)
def _(world: World) -> None:
    net(world, route_tables={"rtb": routes("subnet-a", {**NAT, "State": "blackhole"})})


@case("network.ways-out", UNKNOWN, "vpc.subnets", "AccessDenied")
def _(world: World) -> None:
    net(world, endpoints=NO_ANSWER)


@case("network.names", FAIL, "vpc", "DNS resolution or DNS hostnames turned off")
def _(world: World) -> None:
    net(world, dns={"vpc-1": False})


# --- security-groups ---


@case("security-groups.groups-exist", FAIL, "vpc.security_groups.1", "no security group sg-z")
def _(world: World) -> None:
    world.file["vpc"]["security_groups"].append("sg-z")


@case("security-groups.groups-exist", UNKNOWN, "vpc.security_groups", "AccessDenied")
def _(world: World) -> None:
    world.file["instance_groups"][1].pop("storage")
    for one in world.file["instance_groups"]:
        one.pop("storage", None)
    net(world, security_groups=NO_ANSWER)


OWN = "vpc.security_groups"


@case("security-groups.themselves", FAIL, OWN, "no inbound rule lets all traffic")
def _(world: World) -> None:
    sg(world, IpPermissions=to_itself("sg-other"))


@case("security-groups.themselves", FAIL, OWN, "no outbound rule lets all traffic")
def _(world: World) -> None:
    # What AWS gives a new security group: enough for IP, and EFA fails its health check.
    sg(world, IpPermissionsEgress=anywhere())


@case("security-groups.themselves", FAIL, OWN, "a block of addresses will not do")
def _(world: World) -> None:
    sg(world, IpPermissions=anywhere())


@case("security-groups.themselves", FAIL, OWN, "no inbound rule lets the nodes' own traffic in")
def _(world: World) -> None:
    world.file["instance_groups"].pop(1)
    sg(
        world,
        IpPermissions=[
            {
                "IpProtocol": "tcp",
                "FromPort": 22,
                "ToPort": 22,
                "IpRanges": [{"CidrIp": "0.0.0.0/0"}],
            }
        ],
    )


@case("security-groups.each-other", FAIL, OWN, "gpu cannot reach ctl, cpu: sg-nodes do not let")
def _(world: World) -> None:
    world.group("gpu").update(subnets=["subnet-a"], security_groups=["sg-gpu"])
    nodes = group("sg-nodes", IpPermissions=to_itself("sg-nodes"))
    gpu = group("sg-gpu", IpPermissions=to_itself("sg-gpu", "sg-nodes"))
    net(world, security_groups={"sg-nodes": nodes, "sg-gpu": gpu})
    guards = group("sg-fsx", IpPermissions=anywhere())
    lustre, zfs = file_system("LUSTRE", FS), file_system("OPENZFS", ZFS)
    world.facts = replace(
        world.facts,
        storage=StorageFacts(
            {
                FS: replace(lustre, security_groups={"sg-fsx": guards}),
                ZFS: replace(zfs, security_groups={"sg-fsx": guards}),
            }
        ),
    )


# --- capacity ---


def plans(world: World, **more: object) -> None:
    world.facts = replace(
        world.facts, capacity=replace(world.facts.capacity, plans={PLAN: plan(**more)})
    )


OF_PLAN = "instance_groups.1.training_plan"


@case("capacity.plan", FAIL, OF_PLAN, "there is no training plan")
def _(world: World) -> None:
    world.facts = replace(world.facts, capacity=replace(world.facts.capacity, plans={PLAN: None}))


@case("capacity.plan", UNKNOWN, OF_PLAN, "cannot tell")
def _(world: World) -> None:
    world.facts = replace(
        world.facts, capacity=replace(world.facts.capacity, plans={PLAN: NO_ANSWER})
    )


@case("capacity.plan", FAIL, OF_PLAN, "is Expired")
def _(world: World) -> None:
    plans(world, Status="Expired")


@case("capacity.plan", FAIL, OF_PLAN, "is for training-job")
def _(world: World) -> None:
    plans(world, TargetResources=["training-job"])


@case("capacity.plan", WARN, OF_PLAN, "is Scheduled and begins 2026-12-01 11:30 UTC")
def _(world: World) -> None:
    plans(world, Status="Scheduled", StartTime=datetime(2026, 12, 1, 11, 30, tzinfo=UTC))


@case("capacity.plan", WARN, OF_PLAN, "ends 2026-11-21 11:30 UTC")
def _(world: World) -> None:
    plans(world, EndTime=datetime(2026, 11, 21, 11, 30, tzinfo=UTC))


@case("capacity.plan-fits", FAIL, "instance_groups.1.instance_type", "has ml.p4d.24xlarge")
def _(world: World) -> None:
    plans(world, ReservedCapacitySummaries=[{"InstanceType": "ml.p4d.24xlarge"}])


@case("capacity.plan-fits", FAIL, OF_PLAN, "has 3 instances left, and the file wants 4 new ones")
def _(world: World) -> None:
    plans(world, AvailableInstanceCount=3)


@case("capacity.plan-zone", FAIL, "vpc.subnets", "would call it insufficient capacity")
def _(world: World) -> None:
    zone = {"InstanceType": "ml.p5.48xlarge", "AvailabilityZone": "us-east-1f"}
    plans(world, ReservedCapacitySummaries=[zone])


def image(world: World, **found: object) -> None:
    world.group("gpu")["image_id"] = "ami-0123456789abcdef0"
    world.facts = replace(world.facts, capacity=replace(world.facts.capacity, images=found))


@case("capacity.image", FAIL, "instance_groups.1.image_id", "no AMI ami-0123456789abcdef0")
def _(world: World) -> None:
    image(world)


@case("capacity.image", FAIL, "instance_groups.1.image_id", "is pending")
def _(world: World) -> None:
    image(world, **{"ami-0123456789abcdef0": {"State": "pending"}})


@case("capacity.image", UNKNOWN, "instance_groups.1.image_id", "cannot tell")
def _(world: World) -> None:
    image(world)
    world.facts = replace(world.facts, capacity=replace(world.facts.capacity, images=NO_ANSWER))


def offered_elsewhere(world: World) -> None:
    assert isinstance(world.facts.capacity.zones, dict)
    zones = world.facts.capacity.zones | {"ml.c5.4xlarge": frozenset({"us-east-1c"})}
    world.facts = replace(world.facts, capacity=replace(world.facts.capacity, zones=zones))


@case("capacity.offered", WARN, "instance_groups.2.instance_type", "EC2 offers ml.c5.4xlarge in us")
def _(world: World) -> None:
    offered_elsewhere(world)


@case(
    "capacity.offered", WARN, "instance_groups.2.instance_types", "us-east-1a, and EC2 offers ml.c5"
)
def _(world: World) -> None:
    group = world.file["instance_groups"][2]
    group["instance_types"] = [group.pop("instance_type")]
    offered_elsewhere(world)


@case("capacity.offered", UNKNOWN, "instance_groups", "cannot tell")
def _(world: World) -> None:
    world.facts = replace(world.facts, capacity=replace(world.facts.capacity, zones=NO_ANSWER))


# --- storage ---


def lustre(world: World, **more: object) -> None:
    found = {**world.facts.storage.file_systems, FS: file_system("LUSTRE", FS, **more)}
    world.facts = replace(world.facts, storage=StorageFacts(found))


MOUNT = "instance_groups.0.storage.0.fsx_lustre"


@case("storage.file-system", FAIL, f"{MOUNT}.dns_name", f"there is no file system {FS}")
def _(world: World) -> None:
    found = {**world.facts.storage.file_systems, FS: None}
    world.facts = replace(world.facts, storage=StorageFacts(found))


@case("storage.file-system", FAIL, f"{MOUNT}.dns_name", "is CREATING")
def _(world: World) -> None:
    lustre(world, Lifecycle="CREATING")


@case("storage.file-system", UNKNOWN, f"{MOUNT}.dns_name", "cannot tell")
def _(world: World) -> None:
    found = {**world.facts.storage.file_systems, FS: NO_ANSWER}
    world.facts = replace(world.facts, storage=StorageFacts(found))


@case("storage.as-said", FAIL, MOUNT, "is FSx for OPENZFS, and the file mounts it as LUSTRE")
def _(world: World) -> None:
    lustre(world, FileSystemType="OPENZFS")


@case("storage.as-said", FAIL, f"{MOUNT}.mount_name", "has the mount name zyxwvuts, not abcdefgh")
def _(world: World) -> None:
    lustre(world, LustreConfiguration={"MountName": "zyxwvuts"})


@case("storage.as-said", FAIL, f"{MOUNT}.dns_name", "has the DNS name fs-other")
def _(world: World) -> None:
    lustre(world, DNSName="fs-other.fsx.us-east-1.amazonaws.com")


@case("storage.same-vpc", FAIL, MOUNT, f"{FS} is in vpc-9, ctl in vpc-1")
def _(world: World) -> None:
    lustre(world, VpcId="vpc-9")


@case("storage.same-zone", WARN, MOUNT, "is in us-east-1b, ctl in us-east-1a")
def _(world: World) -> None:
    other = replace(file_system("LUSTRE", FS), subnets={"s": subnet("s", "us-east-1b")})
    found = {**world.facts.storage.file_systems, FS: other}
    world.facts = replace(world.facts, storage=StorageFacts(found))


@case("storage.ports", FAIL, MOUNT, "do not let ctl in on tcp 1018-1023")
def _(world: World) -> None:
    only = [
        {
            "IpProtocol": "tcp",
            "FromPort": 988,
            "ToPort": 1022,
            "UserIdGroupPairs": [{"GroupId": "sg-nodes"}],
        }
    ]
    guard = {"sg-fsx": group("sg-fsx", IpPermissions=only)}
    other = replace(file_system("LUSTRE", FS), security_groups=guard)
    found = {**world.facts.storage.file_systems, FS: other}
    world.facts = replace(world.facts, storage=StorageFacts(found))


@case("storage.ports", FAIL, MOUNT, "sg-nodes do not let ctl out to")
def _(world: World) -> None:
    world.group("ctl")["storage"] = world.group("ctl")["storage"][:1]
    world.group("gpu")["storage"] = world.group("cpu")["storage"] = world.group("ctl")["storage"]
    sg(world, IpPermissionsEgress=to_itself("sg-nodes"))
