"""One change to the good world, and the one thing that is said of it."""

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters.bundle import MANIFEST
from hpctl.clusters.validate.capacity import EBS_SIZE, IN_ALL
from hpctl.clusters.validate.facts import (
    CONFIG,
    PARAMETERS,
    Role,
    Script,
    ScriptFacts,
    Simulated,
    StorageFacts,
)
from hpctl.clusters.validate.wanted import Level, Unanswered
from hpctl.core.compat import UTC
from tests.clusters.validate.world import (
    FS,
    NAT,
    PLAN,
    ROLE,
    SCRIPT,
    SECRET,
    URI,
    ZFS,
    World,
    anywhere,
    file_system,
    group,
    plan,
    prefix,
    routes,
    script,
    subnet,
    to_itself,
    trust,
)

NO_ANSWER = Unanswered("ec2:DescribeSubnets: AccessDenied", "allow it")
FAIL, WARN, UNKNOWN = Level.FAIL, Level.WARN, Level.UNKNOWN
Change = Callable[[World], object]


class Case(Struct, frozen=True):
    """A change, and its verdict: `check` says `words` of `place`."""

    check: str
    level: Level
    place: str
    words: str
    change: Change


CASES: list[Case] = []


def case(check: str, level: Level, place: str, words: str) -> Callable[[Change], Change]:
    """Add a case; a change that needs no statement of its own stands in a table below."""

    def added(change: Change) -> Change:
        CASES.append(Case(check, level, place, words, change))
        return change

    return added


# --- network and security groups ------------------------------------------------------------------


def net(world: World, **more: object) -> None:
    world.say("network", **more)


def sg(world: World, **rules: object) -> None:
    net(world, security_groups={"sg-nodes": group("sg-nodes", **rules)})


def free(world: World, addresses: int) -> None:
    net(world, subnets={"subnet-a": subnet("subnet-a", AvailableIpAddressCount=addresses)})


def route(world: World, *rules: dict[str, Any], **endpoints: object) -> None:
    net(world, route_tables={"rtb": routes("subnet-a", *rules)}, endpoints=endpoints)


IGW = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"}
TO_S3 = {
    "VpcId": "vpc-1",
    "ServiceName": "com.amazonaws.us-east-1.s3",
    "VpcEndpointType": "Gateway",
    "RouteTableIds": ["rtb-subnet-a"],
    "State": "available",
}
SSH = {"FromPort": 22, "ToPort": 22}
OWN = "vpc.security_groups"
SUBNET = "vpc.subnets.0"
NO_WAY = "no way to s3 and sagemaker.api: it has no default"

CASES += [
    Case("network.subnets-exist", FAIL, "vpc.subnets.1", "there is no subnet subnet-z in us-east-1",
         lambda w: w.file["vpc"]["subnets"].append("subnet-z")),
    Case("network.subnets-exist", UNKNOWN, "vpc.subnets", "AccessDenied",
         lambda w: net(w, subnets=NO_ANSWER)),
    Case("network.one-vpc", FAIL, "vpc", "vpc-1 has subnet-a; vpc-2 has sg-nodes",
         lambda w: net(w, security_groups={"sg-nodes": group("sg-nodes", "vpc-2")})),
    Case("network.room", FAIL, "vpc.subnets", "have 3 free addresses, and 7 new nodes need",
         lambda w: free(w, 3)),
    Case("network.room", WARN, "vpc.subnets", "not for all their 131 cards",
         lambda w: free(w, 100)),
    Case("network.ways-out", WARN, SUBNET, NO_WAY, route),
    Case("network.ways-out", WARN, SUBNET, "its default route is an internet gateway",
         lambda w: route(w, IGW)),
    Case("network.ways-out", WARN, SUBNET, "no way to sagemaker.api",
         lambda w: route(w, vpce=TO_S3)),
    Case("network.ways-out", WARN, SUBNET, NO_WAY,
         lambda w: route(w, {**NAT, "State": "blackhole"})),
    Case("network.names", FAIL, "vpc", "DNS resolution or DNS hostnames turned off",
         lambda w: net(w, dns={"vpc-1": False})),
    Case("security-groups.groups-exist", FAIL, f"{OWN}.1", "no security group sg-z",
         lambda w: w.file["vpc"]["security_groups"].append("sg-z")),
    Case("security-groups.themselves", FAIL, OWN, "no inbound rule lets all traffic",
         lambda w: sg(w, IpPermissions=to_itself("sg-other"))),
    # What AWS gives a new security group: enough for IP, and EFA fails its health check.
    Case("security-groups.themselves", FAIL, OWN, "no outbound rule lets all traffic",
         lambda w: sg(w, IpPermissionsEgress=anywhere())),
    Case("security-groups.themselves", FAIL, OWN, "a block of addresses will not do",
         lambda w: sg(w, IpPermissions=anywhere())),
]  # fmt: skip


@case("network.one-zone", WARN, "vpc.subnets", "are in 2 zones (us-east-1a, us-east-1b)")
def _(world: World) -> None:
    world.file["vpc"]["subnets"].append("subnet-b")
    world.group("gpu").pop("training_plan")
    world.group("gpu")["count"] = 0
    world.limit("ml.p5.48xlarge for cluster usage", 9.0)
    zones = {kind: frozenset({"us-east-1a"}) for kind in world.facts.model.types}
    world.say("capacity", plans={}, zones=zones)
    net(
        world,
        subnets={"subnet-a": subnet("subnet-a"), "subnet-b": subnet("subnet-b", "us-east-1b")},
        route_tables={name: routes(name, NAT) for name in ("subnet-a", "subnet-b")},
    )


@case("security-groups.themselves", FAIL, OWN, "no inbound rule lets the nodes' own traffic in")
def _(world: World) -> None:
    world.file["instance_groups"].pop(1)
    sg(world, IpPermissions=anywhere("tcp", **SSH))


@case("security-groups.each-other", FAIL, OWN, "gpu cannot reach ctl, cpu: sg-nodes do not let")
def _(world: World) -> None:
    world.group("gpu").update(subnets=["subnet-a"], security_groups=["sg-gpu"])
    nodes = group("sg-nodes", IpPermissions=to_itself("sg-nodes"))
    gpu = group("sg-gpu", IpPermissions=to_itself("sg-gpu", "sg-nodes"))
    net(world, security_groups={"sg-nodes": nodes, "sg-gpu": gpu})
    guards = {"sg-fsx": group("sg-fsx", IpPermissions=anywhere())}
    known = {FS: file_system("LUSTRE", FS), ZFS: file_system("OPENZFS", ZFS)}
    found = {name: replace(one, security_groups=guards) for name, one in known.items()}
    world.facts = replace(world.facts, storage=StorageFacts(found))


# --- capacity and quotas --------------------------------------------------------------------------


def plans(world: World, **more: object) -> None:
    world.say("capacity", plans={PLAN: plan(**more)})


def image(world: World, **found: object) -> None:
    world.group("gpu")["image_id"] = AMI
    world.say("capacity", images=found)


def offered_elsewhere(world: World, *, several: bool = False) -> None:
    one = world.group("cpu")
    if several:
        one["instance_types"] = [one.pop("instance_type")]
    known = world.facts.capacity.zones
    assert isinstance(known, dict)
    world.say("capacity", zones=known | {"ml.c5.4xlarge": frozenset({"us-east-1c"})})


def lacks_quota(world: World) -> None:
    known = world.facts.quota.limits
    assert isinstance(known, dict)
    world.say("quota", limits={k: v for k, v in known.items() if "c5" not in k})


AMI = "ami-0123456789abcdef0"
OF_PLAN, OF_IMAGE = "instance_groups.1.training_plan", "instance_groups.1.image_id"
CPU_TYPE = "instance_groups.2.instance_type"
CASES += [
    Case("capacity.plan", FAIL, OF_PLAN, "there is no training plan",
         lambda w: w.say("capacity", plans={PLAN: None})),
    Case("capacity.plan", FAIL, OF_PLAN, "is Expired", lambda w: plans(w, Status="Expired")),
    Case("capacity.plan", FAIL, OF_PLAN, "is for training-job",
         lambda w: plans(w, TargetResources=["training-job"])),
    Case("capacity.plan", WARN, OF_PLAN, "is Scheduled and begins 2026-12-01 11:30 UTC",
         lambda w: plans(
             w, Status="Scheduled", StartTime=datetime(2026, 12, 1, 11, 30, tzinfo=UTC))),
    Case("capacity.plan", WARN, OF_PLAN, "ends 2026-11-21 11:30 UTC",
         lambda w: plans(w, EndTime=datetime(2026, 11, 21, 11, 30, tzinfo=UTC))),
    Case("capacity.plan-fits", FAIL, "instance_groups.1.instance_type", "has ml.p4d.24xlarge",
         lambda w: plans(w, ReservedCapacitySummaries=[{"InstanceType": "ml.p4d.24xlarge"}])),
    Case("capacity.plan-fits", FAIL, OF_PLAN, "has 3 instances left, and the file wants 4 new ones",
         lambda w: plans(w, AvailableInstanceCount=3)),
    Case("capacity.plan-zone", FAIL, "vpc.subnets", "would call it insufficient capacity",
         lambda w: plans(w, ReservedCapacitySummaries=[
             {"InstanceType": "ml.p5.48xlarge", "AvailabilityZone": "us-east-1f"}])),
    Case("capacity.image", FAIL, OF_IMAGE, f"no AMI {AMI}", image),
    Case("capacity.image", FAIL, OF_IMAGE, "is pending",
         lambda w: image(w, **{AMI: {"State": "pending"}})),
    Case("capacity.offered", WARN, CPU_TYPE, "EC2 offers ml.c5.4xlarge in us", offered_elsewhere),
    Case("capacity.offered", WARN, f"{CPU_TYPE}s", "us-east-1a, and EC2 offers ml.c5",
         lambda w: offered_elsewhere(w, several=True)),
    Case("quotas.types", FAIL, CPU_TYPE, "wants 2 beside 3 in other clusters",
         lambda w: w.say("quota", elsewhere={"ml.c5.4xlarge": 3})),
    Case("quotas.types", WARN, CPU_TYPE, "there is no quota", lacks_quota),
    Case("quotas.types", UNKNOWN, "instance_groups", "cannot tell",
         lambda w: w.say("quota", elsewhere=NO_ANSWER)),
    Case("quotas.instances", FAIL, "instance_groups", "is 8, and the file wants 7 beside 2 in",
         lambda w: w.limit(IN_ALL, 8.0)),
    Case("quotas.volumes", FAIL, "instance_groups.0.storage.2.ebs.volume_size_in_gb", "is 400",
         lambda w: w.limit(EBS_SIZE, 400.0)),
]  # fmt: skip


# --- storage --------------------------------------------------------------------------------------


def stored(world: World, found: object) -> None:
    systems: Any = {**world.facts.storage.file_systems, FS: found}
    world.facts = replace(world.facts, storage=StorageFacts(systems))


def lustre(world: World, **more: object) -> None:
    stored(world, file_system("LUSTRE", FS, **more))


def guarded(world: World, **rule: object) -> None:
    only = {"IpProtocol": "tcp", "UserIdGroupPairs": [{"GroupId": "sg-nodes"}], **rule}
    guard = {"sg-fsx": group("sg-fsx", IpPermissions=[only])}
    stored(world, replace(file_system("LUSTRE", FS), security_groups=guard))


MOUNT = "instance_groups.0.storage.0.fsx_lustre"
CASES += [
    Case("storage.file-system", FAIL, f"{MOUNT}.dns_name", f"there is no file system {FS}",
         lambda w: stored(w, None)),
    Case("storage.file-system", FAIL, f"{MOUNT}.dns_name", "is CREATING",
         lambda w: lustre(w, Lifecycle="CREATING")),
    Case("storage.as-said", FAIL, MOUNT, "is FSx for OPENZFS, and the file mounts it as LUSTRE",
         lambda w: lustre(w, FileSystemType="OPENZFS")),
    Case("storage.as-said", FAIL, f"{MOUNT}.mount_name", "has the mount name zyxwvuts, not abc",
         lambda w: lustre(w, LustreConfiguration={"MountName": "zyxwvuts"})),
    Case("storage.as-said", FAIL, f"{MOUNT}.dns_name", "has the DNS name fs-other",
         lambda w: lustre(w, DNSName="fs-other.fsx.us-east-1.amazonaws.com")),
    Case("storage.same-vpc", FAIL, MOUNT, f"{FS} is in vpc-9, ctl in vpc-1",
         lambda w: lustre(w, VpcId="vpc-9")),
    Case("storage.same-zone", WARN, MOUNT, "is in us-east-1b, ctl in us-east-1a",
         lambda w: stored(w, replace(
             file_system("LUSTRE", FS), subnets={"s": subnet("s", "us-east-1b")}))),
    Case("storage.ports", FAIL, MOUNT, "do not let ctl in on tcp 1018-1023",
         lambda w: guarded(w, FromPort=988, ToPort=1022)),
]  # fmt: skip


@case("storage.ports", FAIL, MOUNT, "sg-nodes do not let ctl out to")
def _(world: World) -> None:
    for name in ("ctl", "gpu", "cpu"):
        world.group(name)["storage"] = world.group("ctl")["storage"][:1]
    sg(world, IpPermissionsEgress=to_itself("sg-nodes"))


# --- roles ----------------------------------------------------------------------------------------


def role(world: World, entry: object, simulated: object = None) -> None:
    found = Role(entry, simulated or Simulated())  # type: ignore[arg-type]
    world.say("role", roles={ROLE: found})


OF_ROLE = "instance_groups.0.execution_role"
THERE = {"Arn": ROLE, "AssumeRolePolicyDocument": trust()}
OBJECT = "arn:aws:s3:::sagemaker-ours/x"
CASES += [
    Case("iam.role", FAIL, OF_ROLE, "there is no role", lambda w: role(w, None)),
    Case("iam.role", FAIL, OF_ROLE, "the role's ARN is",
         lambda w: role(w, {**THERE, "Arn": ROLE.replace("role/", "role/teams/")})),
    Case("iam.trust", FAIL, OF_ROLE, "does not let sagemaker.amazonaws.com take it on",
         lambda w: role(w, {**THERE, "AssumeRolePolicyDocument": trust("ec2.amazonaws.com")})),
    Case("iam.allowed", FAIL, OF_ROLE, f"does not allow s3:GetObject on {OBJECT}",
         lambda w: role(w, THERE, Simulated({"s3:GetObject": OBJECT}))),
    Case("iam.allowed", UNKNOWN, OF_ROLE, "s3:GetObject depends on aws:SourceVpc",
         lambda w: role(w, THERE, Simulated({}, {"s3:GetObject": "aws:SourceVpc"}))),
]  # fmt: skip


# --- the file itself ------------------------------------------------------------------------------

_ROLLING = "scheduled_update.deployment_config.rolling_update_policy"


def cpu(world: World, **more: object) -> None:
    world.group("cpu").update(more)


def no_network(world: World) -> None:
    world.file.pop("vpc")
    for one in world.file["instance_groups"]:
        one.pop("storage")


CASES += [
    Case("spec.service-model", FAIL, "instance_groups.1.threads_per_core", "not within",
         lambda w: w.say("model", problems=(
             (("InstanceGroups", 1, "ThreadsPerCore"), "is 3, not within 1 to 2"),))),
    Case("spec.deep-checks", WARN, "instance_groups.2.deep_health_checks", "ml.c5.4xlarge has none",
         lambda w: cpu(w, deep_health_checks=["InstanceStress"])),
    Case("spec.someone-mends", WARN, "node_recovery", "nobody replaces",
         lambda w: w.file.update(node_recovery="None")),
    Case("spec.eks-only", WARN, "tiered_storage", "Slurm's jobs have none of it",
         lambda w: w.file.update(tiered_storage={"mode": "Enable"})),
    Case("spec.eks-only", WARN, "instance_groups.2.auto_patch", "for EKS alone",
         lambda w: cpu(w, auto_patch={"patching_strategy": "WhenIdle"})),
    Case("spec.head-types", WARN, "instance_groups.0.instance_type", "would idle",
         lambda w: w.group("ctl").update(instance_type="ml.p5.48xlarge", training_plan=PLAN)),
]  # fmt: skip


@case("spec.instance-types", FAIL, "instance_groups.1.instance_type", "did you mean 'ml.p5.48xl")
def _(world: World) -> None:
    world.group("gpu")["instance_type"] = "ml.p5.48xlarg"
    world.say("capacity", plans={PLAN: None}, zones={})
    del world.group("gpu")["training_plan"]
    net(world, subnets={})
    no_network(world)


@case("spec.head-types", WARN, "instance_groups.0.instance_type", "share it")
def _(world: World) -> None:
    kind = "ml.m5.large"
    world.group("ctl")["instance_type"] = kind
    world.limit(f"{kind} for cluster usage", 4.0)
    zones = world.facts.capacity.zones
    assert isinstance(zones, dict)
    world.say("model", types=world.facts.model.types | {kind})
    world.say("capacity", zones=zones | {kind: frozenset({"us-east-1a"})})


@case("spec.spot-heads", FAIL, "instance_groups.0.capacity", "taken away")
def _(world: World) -> None:
    world.group("ctl")["capacity"] = "spot"
    world.limit("ml.m5.4xlarge for cluster spot instance usage", 9.0)


@case("spec.override", FAIL, "instance_groups.2.subnets", "the cluster has none")
def _(world: World) -> None:
    cpu(world, subnets=["subnet-a"], security_groups=["sg-nodes"])
    no_network(world)


@case("spec.rolling", WARN, f"instance_groups.2.{_ROLLING}", "are for clusters with EKS")
def _(world: World) -> None:
    policy = {"maximum_batch_size": {"type": "INSTANCE_COUNT", "value": 1}}
    rolling = {"deployment_config": {"rolling_update_policy": policy}}
    cpu(world, scheduled_update={"schedule_expression": "cron(0 3 ? * SUN *)", **rolling})


@case("spec.one-view", WARN, "instance_groups.0.storage", "mounts /fsx, and ctl (controller)")
def _(world: World) -> None:
    kept = [s for s in world.group("ctl")["storage"] if "ebs" not in s][1:]
    world.group("ctl")["storage"] = world.group("cpu")["storage"] = kept


@case("spec.set-up", FAIL, "instance_groups.2.lifecycle", "nobody would set Slurm up")
def _(world: World) -> None:
    world.legacy()
    del world.group("cpu")["lifecycle"]
    in_s3(world, INIT, world.parameters)


# --- scripts, here and in S3 ----------------------------------------------------------------------


def local(world: World, *scripts: Script) -> None:
    files = {one.name: one for one in (RUN, *scripts)}
    world.facts = replace(world.facts, scripts=ScriptFacts("scripts", files))


def entry(world: World, data: bytes = SCRIPT, *, executable: bool = True) -> None:
    local(world, script(RUN.name, data, executable=executable))


def in_s3(world: World, *scripts: Script, **more: object) -> None:
    world.facts = replace(world.facts, bucket=prefix(*scripts, **more))  # type: ignore[arg-type]


def vouched(*lines: str) -> Script:
    return script(MANIFEST, "".join(f"{line}\n" for line in lines).encode())


def with_login(world: World, config: bytes) -> tuple[Script, ...]:
    groups = world.file["instance_groups"]
    groups.append({**groups[0], "name": "door", "role": "login"})
    return (INIT, script(MANIFEST, b""), script("lifecycle/node.py", b""), script(CONFIG, config))


def legacy_in_s3(world: World, *scripts: Script, **said: object) -> None:
    world.legacy(**said)
    in_s3(world, INIT, *(scripts or (world.parameters,)))


INIT = script("on_init_complete.sh")
RUN = script("on_init_complete.sh", executable=True)
DIGEST = hashlib.sha256(SCRIPT).hexdigest()
ENTRY = "instance_groups.0.lifecycle.on_init_complete"
PREFIX = "instance_groups.0.lifecycle.source_s3_uri"
DOOR = "instance_groups.3.lifecycle.source_s3_uri"
ONE_GROUP = [{"instance_group_name": "gpu", "partition_name": "h100"}]
CASES += [
    Case("scripts.entry-point", FAIL, ENTRY, "there is no on_init_complete.sh in scripts",
         lambda w: w.say("scripts", files={"other.sh": script("other.sh", executable=True)})),
    Case("scripts.entry-point", FAIL, ENTRY, "is not executable",
         lambda w: entry(w, executable=False)),
    Case("scripts.entry-point", FAIL, ENTRY, "does not say what runs it: it begins with 'echo hi'",
         lambda w: entry(w, b"echo hi\n")),
    Case("scripts.entry-point", FAIL, ENTRY, "is empty", lambda w: entry(w, b"")),
    Case("scripts.readable", FAIL, ENTRY, "Windows line ends (first on line 2)",
         lambda w: entry(w, b"#!/bin/sh\nset -e\r\n")),
    Case("scripts.readable", FAIL, ENTRY, "byte order mark",
         lambda w: local(w, script("users.py", b"\xef\xbb\xbfimport os\n"))),
    Case("scripts.modes", WARN, ENTRY, "has a #! line and is not executable",
         lambda w: local(w, script("users.sh", executable=False))),
    Case("scripts.parameters", FAIL, "instance_groups.0.lifecycle", "refuses a mixture",
         lambda w: local(w, script(PARAMETERS, b"{}"))),
    Case("scripts.roles", WARN, DOOR, "gives door no role",
         lambda w: local(w, *with_login(w, b'{"roles": {"ctl": "controller"}}')[1:])),
    Case("scripts.wheels", FAIL, ENTRY, "scripts/wheels: x.whl is not for Python 3.10",
         lambda w: w.say("scripts", unfit=("wheels: x.whl is not for Python 3.10",))),
    Case("s3.bucket", FAIL, PREFIX, "there is no bucket sagemaker-ours",
         lambda w: in_s3(w, region=None)),
    Case("s3.bucket", WARN, PREFIX, "is in eu-west-1, the cluster in us-east-1",
         lambda w: in_s3(w, region="eu-west-1")),
    Case("s3.entry", FAIL, ENTRY, f"there is no {URI}/on_init_complete.sh",
         lambda w: in_s3(w, script("on_create.sh"))),
    Case("s3.entry", FAIL, ENTRY, "does not say what runs it",
         lambda w: in_s3(w, script("on_init_complete.sh", b"set -eu\n"))),
    Case("s3.scripts", FAIL, PREFIX, "Windows line ends",
         lambda w: in_s3(w, INIT, script("users.sh", b"#!/bin/sh\r\n"))),
    Case("s3.manifest", FAIL, PREFIX, "on_init_complete.sh is not what MANIFEST vouches for",
         lambda w: in_s3(w, INIT, vouched(f"{'0' * 64}  on_init_complete.sh"))),
    Case("s3.manifest", FAIL, PREFIX, "python.tar.gz is in MANIFEST and is not there",
         lambda w: in_s3(
             w, INIT, vouched(f"{DIGEST}  on_init_complete.sh", f"{DIGEST}  python.tar.gz"))),
    Case("s3.roles", WARN, DOOR, "for compute nodes", lambda w: in_s3(w, *with_login(w, b"{}"))),
    Case("s3.roles", WARN, DOOR, "gives door compute",
         lambda w: in_s3(w, *with_login(w, b'{"roles": {"door": "compute"}}'))),
    Case("s3.who-sets-slurm-up", FAIL, PREFIX, "the service refuses a mixture",
         lambda w: in_s3(w, INIT, script(PARAMETERS, b"{}"))),
    Case("s3.who-sets-slurm-up", FAIL, PREFIX, "would leave plain instances behind",
         lambda w: w.legacy()),
    Case("s3.who-sets-slurm-up", FAIL, PREFIX, "login_group is door, and there is no such group",
         lambda w: legacy_in_s3(w, login_group="door")),
    Case("s3.who-sets-slurm-up", WARN, PREFIX, "does not name cpu: its nodes stay outside Slurm",
         lambda w: legacy_in_s3(w, worker_groups=ONE_GROUP)),
    Case("s3.who-sets-slurm-up", FAIL, PREFIX, "is not JSON",
         lambda w: legacy_in_s3(w, script(PARAMETERS, b"{"))),
]  # fmt: skip


# --- the living cluster ---------------------------------------------------------------------------


def living(world: World, **more: object) -> None:
    found = {
        "ClusterStatus": "InService",
        "NodeProvisioningMode": "Continuous",
        "VpcConfig": {"Subnets": ["subnet-a"], "SecurityGroupIds": ["sg-nodes"]},
        "InstanceGroups": [],
        **more,
    }
    world.say("living", cluster=found)


def not_continuous(world: World) -> None:
    del world.file["node_provisioning_mode"], world.file["accounting_database"]


MODE = "node_provisioning_mode"
SECRET_ARN = "accounting_database.secret_arn"
GONE = {"Name": "slurmdb", "DeletedDate": datetime(2026, 1, 1, tzinfo=UTC)}
OLD = [{"InstanceGroupName": "cpu"}]
CASES += [
    Case("cluster.name", FAIL, "name", "a cluster of Amazon EKS",
         lambda w: living(w, Orchestrator={"Eks": {"ClusterArn": "arn"}})),
    Case("cluster.name", FAIL, "name", "is being deleted",
         lambda w: living(w, ClusterStatus="Deleting")),
    Case("cluster.name", WARN, "name", "has failed: no capacity",
         lambda w: living(w, ClusterStatus="Failed", FailureMessage="no capacity")),
    Case("cluster.name", WARN, "name", "is Updating: the service refuses",
         lambda w: living(w, ClusterStatus="Updating")),
    Case("cluster.fixed", FAIL, "vpc", "the network differs",
         lambda w: living(
             w, VpcConfig={"Subnets": ["subnet-b"], "SecurityGroupIds": ["sg-nodes"]})),
    Case("cluster.fixed", FAIL, MODE, "has not yet",
         lambda w: living(w, NodeProvisioningMode=None, InstanceGroups=OLD)),
    Case("cluster.fixed", FAIL, MODE, "cannot be given up again",
         lambda w: (not_continuous(w), living(w))),
    Case("cluster.fixed", FAIL, "instance_groups.2.role", "has role login in the living cluster",
         lambda w: living(w, InstanceGroups=[{**OLD[0], "SlurmConfig": {"NodeType": "Login"}}])),
    Case("cluster.accounting-secret", FAIL, SECRET_ARN, "there is no secret",
         lambda w: w.say("living", secret=None)),
    Case("cluster.accounting-secret", FAIL, SECRET_ARN, "for deletion",
         lambda w: w.say("living", secret=GONE)),
]  # fmt: skip


@case("s3.who-sets-slurm-up", WARN, PREFIX, "which the migration to the API's configuration ends")
def _(world: World) -> None:
    in_s3(world, INIT, script(PARAMETERS, b"{}"))
    not_continuous(world)
    living(world, NodeProvisioningMode=None, InstanceGroups=OLD)


_DATABASE = "provisioning_parameters.head_nodes.database_secret_arn"


@case("cluster.accounting-secret", FAIL, _DATABASE, "no")
def _(world: World) -> None:
    legacy_in_s3(world)
    heads = {"database_secret_arn": SECRET, "database_endpoint": "slurm.example.org"}
    heads["shared_directory"] = "/fsx"
    world.file["provisioning_parameters"] = {"head_nodes": heads}
    world.say("living", secret=None)
