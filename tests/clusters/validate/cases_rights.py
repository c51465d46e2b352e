"""What can be wrong with an account's roles and quotas."""

from __future__ import annotations

from dataclasses import replace

from hpctl.clusters.validate.capacity import EBS_SIZE, IN_ALL
from hpctl.clusters.validate.facts import Role, RoleFacts, Simulated
from tests.clusters.validate.cases import FAIL, NO_ANSWER, UNKNOWN, WARN, case
from tests.clusters.validate.world import ROLE, World, trust

# --- iam ---


def role(world: World, entry: object, denied: object = None) -> None:
    found = Role(entry, denied or Simulated())  # type: ignore[arg-type]
    world.facts = replace(world.facts, role=RoleFacts({ROLE: found}))


OF_ROLE = "instance_groups.0.execution_role"
THERE = {"Arn": ROLE, "AssumeRolePolicyDocument": trust()}


@case("iam.role", FAIL, OF_ROLE, "there is no role")
def _(world: World) -> None:
    role(world, None)


@case("iam.role", UNKNOWN, OF_ROLE, "cannot tell")
def _(world: World) -> None:
    role(world, NO_ANSWER)


@case("iam.role", FAIL, OF_ROLE, "the role's ARN is")
def _(world: World) -> None:
    role(world, {**THERE, "Arn": ROLE.replace("role/", "role/teams/")})


@case("iam.trust", FAIL, OF_ROLE, "does not let sagemaker.amazonaws.com take it on")
def _(world: World) -> None:
    role(world, {**THERE, "AssumeRolePolicyDocument": trust("ec2.amazonaws.com")})


@case("iam.allowed", FAIL, OF_ROLE, "does not allow s3:GetObject on arn:aws:s3:::sagemaker-ours/x")
def _(world: World) -> None:
    role(world, THERE, Simulated({"s3:GetObject": "arn:aws:s3:::sagemaker-ours/x"}))


@case("iam.allowed", UNKNOWN, OF_ROLE, "s3:GetObject depends on aws:SourceVpc")
def _(world: World) -> None:
    role(world, THERE, Simulated({}, {"s3:GetObject": "aws:SourceVpc"}))


@case("iam.allowed", UNKNOWN, OF_ROLE, "whether")
def _(world: World) -> None:
    role(world, THERE, NO_ANSWER)


# --- quotas ---


def limits(world: World, **more: object) -> None:
    assert isinstance(world.facts.quota.limits, dict)
    changed = replace(world.facts.quota, **more)  # type: ignore[arg-type]
    world.facts = replace(world.facts, quota=changed)


@case("quotas.types", FAIL, "instance_groups.2.instance_type", "wants 2 beside 3 in other clusters")
def _(world: World) -> None:
    limits(world, elsewhere={"ml.c5.4xlarge": 3})


@case("quotas.types", WARN, "instance_groups.2.instance_type", "there is no quota")
def _(world: World) -> None:
    known = world.facts.quota.limits
    assert isinstance(known, dict)
    limits(world, limits={k: v for k, v in known.items() if "c5" not in k})


@case("quotas.types", UNKNOWN, "instance_groups", "cannot tell")
def _(world: World) -> None:
    limits(world, limits=NO_ANSWER)


@case("quotas.types", UNKNOWN, "instance_groups", "cannot tell")
def _(world: World) -> None:
    limits(world, elsewhere=NO_ANSWER)


@case("quotas.instances", FAIL, "instance_groups", "is 8, and the file wants 7 beside 2 in other")
def _(world: World) -> None:
    known = world.facts.quota.limits
    assert isinstance(known, dict)
    limits(world, limits={**known, IN_ALL: 8.0})


@case("quotas.volumes", FAIL, "instance_groups.0.storage.2.ebs.volume_size_in_gb", "is 400")
def _(world: World) -> None:
    known = world.facts.quota.limits
    assert isinstance(known, dict)
    limits(world, limits={**known, EBS_SIZE: 400.0})
