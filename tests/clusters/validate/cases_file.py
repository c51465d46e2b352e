"""What can be wrong with a file, its scripts, and its name."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime

from hpctl.clusters.bundle import MANIFEST
from hpctl.clusters.validate.facts import (
    CONFIG,
    PARAMETERS,
    CapacityFacts,
    LivingFacts,
    ModelFacts,
    QuotaFacts,
    ScriptFacts,
)
from hpctl.core.compat import UTC
from tests.clusters.validate.cases import FAIL, NO_ANSWER, UNKNOWN, WARN, case, net
from tests.clusters.validate.world import (
    PLAN,
    SCRIPT,
    SECRET,
    URI,
    World,
    prefix,
    script,
)

# --- spec ---


@case("spec.service-model", FAIL, "instance_groups.1.threads_per_core", "not within")
def _(world: World) -> None:
    problem = (("InstanceGroups", 1, "ThreadsPerCore"), "is 3, not within 1 to 2")
    world.facts = replace(world.facts, model=ModelFacts(world.facts.model.types, (problem,)))


@case("spec.instance-types", FAIL, "instance_groups.1.instance_type", "did you mean 'ml.p5.48xl")
def _(world: World) -> None:
    world.group("gpu")["instance_type"] = "ml.p5.48xlarg"
    world.facts = replace(world.facts, capacity=CapacityFacts({PLAN: None}))
    del world.group("gpu")["training_plan"]
    net(world, subnets={})
    world.file.pop("vpc")
    for one in world.file["instance_groups"]:
        one.pop("storage")


@case("spec.head-types", WARN, "instance_groups.0.instance_type", "would idle")
def _(world: World) -> None:
    world.group("ctl")["instance_type"] = "ml.p5.48xlarge"
    world.group("ctl")["training_plan"] = PLAN


@case("spec.head-types", WARN, "instance_groups.0.instance_type", "share it")
def _(world: World) -> None:
    world.group("ctl")["instance_type"] = "ml.m5.large"
    limits = {"ml.m5.large for cluster usage": 4.0}
    zones = {"ml.m5.large": frozenset({"us-east-1a"})}
    known = world.facts
    assert isinstance(known.quota.limits, dict)
    assert isinstance(known.capacity.zones, dict)
    world.facts = replace(
        known,
        model=ModelFacts(known.model.types | {"ml.m5.large"}),
        quota=QuotaFacts(known.quota.limits | limits),
        capacity=replace(known.capacity, zones=known.capacity.zones | zones),
    )


@case("spec.spot-heads", FAIL, "instance_groups.0.capacity", "taken away")
def _(world: World) -> None:
    world.group("ctl")["capacity"] = "spot"
    assert isinstance(world.facts.quota.limits, dict)
    limits = world.facts.quota.limits | {"ml.m5.4xlarge for cluster spot instance usage": 9.0}
    world.facts = replace(world.facts, quota=QuotaFacts(limits))


@case("spec.override", FAIL, "instance_groups.2.subnets", "the cluster has none")
def _(world: World) -> None:
    world.group("cpu").update(subnets=["subnet-a"], security_groups=["sg-nodes"])
    world.file.pop("vpc")
    for one in world.file["instance_groups"]:
        one.pop("storage")


@case("spec.deep-checks", WARN, "instance_groups.2.deep_health_checks", "ml.c5.4xlarge has none")
def _(world: World) -> None:
    world.group("cpu")["deep_health_checks"] = ["InstanceStress"]


_ROLLING = "scheduled_update.deployment_config.rolling_update_policy"


@case("spec.rolling", WARN, f"instance_groups.2.{_ROLLING}", "are for clusters with EKS")
def _(world: World) -> None:
    policy = {"maximum_batch_size": {"type": "INSTANCE_COUNT", "value": 1}}
    when = {"schedule_expression": "cron(0 3 ? * SUN *)"}
    rolling = {"deployment_config": {"rolling_update_policy": policy}}
    world.group("cpu")["scheduled_update"] = when | rolling


@case("spec.one-view", WARN, "instance_groups.0.storage", "mounts /fsx, and ctl (controller)")
def _(world: World) -> None:
    world.group("ctl")["storage"] = [s for s in world.group("ctl")["storage"] if "ebs" not in s][1:]
    world.group("cpu")["storage"] = world.group("ctl")["storage"]


@case("spec.someone-mends", WARN, "node_recovery", "nobody replaces")
def _(world: World) -> None:
    world.file["node_recovery"] = "None"


@case("spec.eks-only", WARN, "tiered_storage", "Slurm's jobs have none of it")
def _(world: World) -> None:
    world.file["tiered_storage"] = {"mode": "Enable"}


@case("spec.eks-only", WARN, "instance_groups.2.auto_patch", "for EKS alone")
def _(world: World) -> None:
    world.group("cpu")["auto_patch"] = {"patching_strategy": "WhenIdle"}


@case("spec.set-up", FAIL, "instance_groups.2.lifecycle", "nobody would set Slurm up")
def _(world: World) -> None:
    world.legacy()
    del world.group("cpu")["lifecycle"]
    world.facts = replace(
        world.facts, bucket=prefix(script("on_init_complete.sh"), world.parameters)
    )


# --- scripts ---


def local(world: World, *scripts: object) -> None:
    files = {one.name: one for one in scripts}  # type: ignore[attr-defined]
    world.facts = replace(world.facts, scripts=ScriptFacts("scripts", files))


ENTRY = "instance_groups.0.lifecycle.on_init_complete"


@case("scripts.entry-point", FAIL, ENTRY, "there is no on_init_complete.sh in scripts")
def _(world: World) -> None:
    local(world, script("other.sh", executable=True))


@case("scripts.entry-point", FAIL, ENTRY, "is not executable")
def _(world: World) -> None:
    local(world, script("on_init_complete.sh", executable=False))


@case("scripts.entry-point", FAIL, ENTRY, "does not say what runs it: it begins with 'echo hi'")
def _(world: World) -> None:
    local(world, script("on_init_complete.sh", b"echo hi\n", executable=True))


@case("scripts.entry-point", FAIL, ENTRY, "is empty")
def _(world: World) -> None:
    local(world, script("on_init_complete.sh", b"", executable=True))


@case("scripts.readable", FAIL, ENTRY, "Windows line ends (first on line 2)")
def _(world: World) -> None:
    local(world, script("on_init_complete.sh", b"#!/bin/sh\nset -e\r\n", executable=True))


@case("scripts.readable", FAIL, ENTRY, "Syntax error")
def _(world: World) -> None:
    local(
        world,
        script("on_init_complete.sh", executable=True),
        script("users.sh", executable=True, syntax_error="sh: 3: Syntax error: end of file"),
    )


@case("scripts.readable", FAIL, ENTRY, "byte order mark")
def _(world: World) -> None:
    local(
        world,
        script("on_init_complete.sh", executable=True),
        script("users.py", b"\xef\xbb\xbfimport os\n"),
    )


@case("scripts.modes", WARN, ENTRY, "has a #! line and is not executable")
def _(world: World) -> None:
    local(
        world,
        script("on_init_complete.sh", executable=True),
        script("users.sh", executable=False),
    )


@case("scripts.parameters", FAIL, "instance_groups.0.lifecycle", "refuses a mixture")
def _(world: World) -> None:
    local(world, script("on_init_complete.sh", executable=True), script(PARAMETERS, b"{}"))


OURS = (script(MANIFEST, b""), script("lifecycle/node.py", b""))


def with_login(world: World, config: bytes) -> tuple[object, ...]:
    groups = world.file["instance_groups"]
    groups.append({**groups[0], "name": "door", "role": "login"})
    return (script("on_init_complete.sh", executable=True), *OURS, script(CONFIG, config))


@case("scripts.roles", WARN, "instance_groups.3.lifecycle.source_s3_uri", "gives door no role")
def _(world: World) -> None:
    local(world, *with_login(world, b'{"roles": {"ctl": "controller"}}'))


@case("scripts.wheels", FAIL, ENTRY, "scripts/wheels: x.whl is not for Python 3.10")
def _(world: World) -> None:
    why = "wheels: x.whl is not for Python 3.10"
    local(world, script("on_init_complete.sh", executable=True))
    world.facts = replace(world.facts, scripts=replace(world.facts.scripts, unfit=(why,)))


# --- cluster ---


def living(world: World, **cluster: object) -> None:
    found = {
        "ClusterStatus": "InService",
        "NodeProvisioningMode": "Continuous",
        "VpcConfig": {"Subnets": ["subnet-a"], "SecurityGroupIds": ["sg-nodes"]},
        "InstanceGroups": [],
        **cluster,
    }
    world.facts = replace(world.facts, living=LivingFacts(found, {"Name": "slurmdb"}))


@case("cluster.name", FAIL, "name", "a cluster of Amazon EKS")
def _(world: World) -> None:
    living(world, Orchestrator={"Eks": {"ClusterArn": "arn"}})


@case("cluster.name", FAIL, "name", "is being deleted")
def _(world: World) -> None:
    living(world, ClusterStatus="Deleting")


@case("cluster.name", WARN, "name", "has failed: no capacity")
def _(world: World) -> None:
    living(world, ClusterStatus="Failed", FailureMessage="no capacity")


@case("cluster.name", WARN, "name", "is Updating: the service refuses")
def _(world: World) -> None:
    living(world, ClusterStatus="Updating")


@case("cluster.name", UNKNOWN, "name", "cannot tell")
def _(world: World) -> None:
    world.facts = replace(world.facts, living=LivingFacts(NO_ANSWER, {"Name": "slurmdb"}))


@case("cluster.fixed", FAIL, "vpc", "the network differs")
def _(world: World) -> None:
    living(world, VpcConfig={"Subnets": ["subnet-b"], "SecurityGroupIds": ["sg-nodes"]})


@case("cluster.fixed", FAIL, "node_provisioning_mode", "has not yet")
def _(world: World) -> None:
    living(world, NodeProvisioningMode=None, InstanceGroups=[{"InstanceGroupName": "cpu"}])


@case("cluster.fixed", FAIL, "node_provisioning_mode", "cannot be given up again")
def _(world: World) -> None:
    del world.file["node_provisioning_mode"], world.file["accounting_database"]
    living(world)


@case("cluster.fixed", FAIL, "instance_groups.2.role", "has role login in the living cluster")
def _(world: World) -> None:
    living(
        world,
        InstanceGroups=[{"InstanceGroupName": "cpu", "SlurmConfig": {"NodeType": "Login"}}],
    )


@case("cluster.accounting-secret", FAIL, "accounting_database.secret_arn", "there is no secret")
def _(world: World) -> None:
    world.facts = replace(world.facts, living=LivingFacts(None, None))


@case("cluster.accounting-secret", FAIL, "accounting_database.secret_arn", "for deletion")
def _(world: World) -> None:
    gone = {"Name": "slurmdb", "DeletedDate": datetime(2026, 1, 1, tzinfo=UTC)}
    world.facts = replace(world.facts, living=LivingFacts(None, gone))


@case(
    "cluster.accounting-secret",
    FAIL,
    "provisioning_parameters.head_nodes.database_secret_arn",
    "no",
)
def _(world: World) -> None:
    world.legacy()
    world.file["provisioning_parameters"] = {
        "head_nodes": {
            "database_secret_arn": SECRET,
            "database_endpoint": "slurm.example.org",
            "shared_directory": "/fsx",
        }
    }
    in_s3(world, script("on_init_complete.sh"), world.parameters)
    world.facts = replace(world.facts, living=LivingFacts(None, None))


@case("cluster.accounting-secret", UNKNOWN, "accounting_database.secret_arn", "cannot tell")
def _(world: World) -> None:
    world.facts = replace(world.facts, living=LivingFacts(None, NO_ANSWER))


# --- s3 ---


def in_s3(world: World, *scripts: object, **more: object) -> None:
    world.facts = replace(world.facts, bucket=prefix(*scripts, **more))  # type: ignore[arg-type]


PREFIX = "instance_groups.0.lifecycle.source_s3_uri"


@case("s3.bucket", FAIL, PREFIX, "there is no bucket sagemaker-ours")
def _(world: World) -> None:
    in_s3(world, region=None)


@case("s3.bucket", UNKNOWN, PREFIX, "cannot tell")
def _(world: World) -> None:
    in_s3(world, region=NO_ANSWER)


@case("s3.bucket", WARN, PREFIX, "is in eu-west-1, the cluster in us-east-1")
def _(world: World) -> None:
    in_s3(world, region="eu-west-1")


@case("s3.entry", FAIL, ENTRY, f"there is no {URI}/on_init_complete.sh")
def _(world: World) -> None:
    in_s3(world, script("on_create.sh"))


@case("s3.entry", FAIL, ENTRY, "does not say what runs it")
def _(world: World) -> None:
    in_s3(world, script("on_init_complete.sh", b"set -eu\n"))


@case("s3.scripts", FAIL, PREFIX, "Windows line ends")
def _(world: World) -> None:
    in_s3(world, script("on_init_complete.sh"), script("users.sh", b"#!/bin/sh\r\n"))


def vouched(*lines: str) -> object:
    return script(MANIFEST, "".join(f"{line}\n" for line in lines).encode())


@case("s3.manifest", FAIL, PREFIX, "on_init_complete.sh is not what MANIFEST vouches for")
def _(world: World) -> None:
    in_s3(world, script("on_init_complete.sh"), vouched(f"{'0' * 64}  on_init_complete.sh"))


@case("s3.manifest", FAIL, PREFIX, "python.tar.gz is in MANIFEST and is not there")
def _(world: World) -> None:
    digest = hashlib.sha256(SCRIPT).hexdigest()
    lines = (f"{digest}  on_init_complete.sh", f"{digest}  python.tar.gz")
    in_s3(world, script("on_init_complete.sh"), vouched(*lines))


@case("s3.roles", WARN, "instance_groups.3.lifecycle.source_s3_uri", "for compute nodes")
def _(world: World) -> None:
    in_s3(world, *with_login(world, b"{}"))


@case("s3.roles", WARN, "instance_groups.3.lifecycle.source_s3_uri", "gives door compute")
def _(world: World) -> None:
    in_s3(world, *with_login(world, b'{"roles": {"door": "compute"}}'))


@case("s3.who-sets-slurm-up", FAIL, PREFIX, "the service refuses a mixture")
def _(world: World) -> None:
    in_s3(world, script("on_init_complete.sh"), script(PARAMETERS, b"{}"))


@case("s3.who-sets-slurm-up", WARN, PREFIX, "which the migration to the API's configuration ends")
def _(world: World) -> None:
    in_s3(world, script("on_init_complete.sh"), script(PARAMETERS, b"{}"))
    del world.file["node_provisioning_mode"], world.file["accounting_database"]
    living(world, NodeProvisioningMode=None, InstanceGroups=[{"InstanceGroupName": "cpu"}])


@case("s3.who-sets-slurm-up", FAIL, PREFIX, "would leave plain instances behind")
def _(world: World) -> None:
    world.legacy()


@case("s3.who-sets-slurm-up", FAIL, PREFIX, "login_group is door, and there is no such group")
def _(world: World) -> None:
    world.legacy(login_group="door")
    in_s3(world, script("on_init_complete.sh"), world.parameters)


@case("s3.who-sets-slurm-up", WARN, PREFIX, "does not name cpu: its nodes stay outside Slurm")
def _(world: World) -> None:
    world.legacy(worker_groups=[{"instance_group_name": "gpu", "partition_name": "h100"}])
    in_s3(world, script("on_init_complete.sh"), world.parameters)


@case("s3.who-sets-slurm-up", FAIL, PREFIX, "is not JSON")
def _(world: World) -> None:
    world.legacy()
    in_s3(world, script("on_init_complete.sh"), script(PARAMETERS, b"{"))
