"""What `world.yaml` says: a good cluster file, an account that agrees with it, and changes."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from hpctl.clusters import spec as specs
from hpctl.clusters.validate import FAMILIES
from hpctl.clusters.validate.facts import (
    CapacityFacts,
    ExecutionRole,
    ExistingClusterFacts,
    FileSystemFacts,
    IamSimulationResult,
    LifecycleScript,
    LifecycleScriptFacts,
    NetworkFacts,
    S3PrefixContents,
    ServiceModelFacts,
    ServiceQuotaFacts,
    SpecValidationFacts,
)
from hpctl.clusters.validate.wanted import (
    CheckLevel,
    FailedAwsCall,
    FindingWithCheck,
    RequestedCluster,
    build_requested_cluster,
)
from tests import tables

SCRIPT = b"#!/bin/sh\nset -eu\n"
GONE = object()


class Only(Struct, frozen=True):
    """A mapping that nothing of the good one is kept beside."""

    value: Mapping[str, Any]


class Loader(tables.Loader):
    """YAML with the three tags that the file explains."""


Loader.add_constructor("!gone", lambda *_: GONE)
Loader.add_constructor("!only", lambda loader, node: Only(loader.construct_mapping(node, True)))
Loader.add_constructor(
    "!unanswered", lambda *_: FailedAwsCall("ec2:DescribeSubnets: AccessDenied", "allow it")
)
WORLD: dict[str, Any] = yaml.load(Path(__file__).with_name("world.yaml").read_text(), Loader)
ACCOUNT = WORLD["account"]
PLAN = WORLD["file"]["instance_groups"]["gpu"]["training_plan"]
ROLE = str(ACCOUNT["role"]["entry"]["Arn"])
TRUST = ACCOUNT["role"]["entry"]["AssumeRolePolicyDocument"]


def merged(good, change):
    """What is good, with a change laid over it."""
    if isinstance(change, Only):
        return change.value
    if not isinstance(change, dict):
        return change
    both = dict(good) if isinstance(good, dict) else {}
    for key, value in change.items():
        both[key] = merged(both.get(key), value)
    return {key: value for key, value in both.items() if value is not GONE}


def wanted(change: Mapping[str, Any] = {}) -> RequestedCluster:
    """What the cluster file wants, by way of its text."""
    answer = merged(WORLD["file"], change)
    groups = [{"name": name, **group} for name, group in answer["instance_groups"].items()]
    text = yaml.safe_dump({**answer, "instance_groups": groups}, sort_keys=False)
    return build_requested_cluster(specs.parse_cluster_spec_yaml(text))


def facts(change: Mapping[str, Any] = {}) -> SpecValidationFacts:
    """The account."""
    answer = merged(ACCOUNT, change)
    model, scripts, bucket, role = (answer[key] for key in ("model", "scripts", "bucket", "role"))
    plan, zones, *more = answer.pop("capacity").values()
    zones = {kind: frozenset(names) for kind, names in zones.items()}
    problems = tuple((tuple(place), what) for place, what in model["problems"])
    below = _scripts(bucket["scripts"])
    return SpecValidationFacts(
        region="us-east-1",
        model=ServiceModelFacts(frozenset(model["types"]), problems),
        scripts=LifecycleScriptFacts(
            scripts["directory"], _scripts(scripts["files"]), unfit=tuple(scripts["unfit"])
        ),
        network=NetworkFacts(**answer["network"]),
        storage={key: one and FileSystemFacts(**one) for key, one in answer["storage"].items()},
        bucket={
            "s3://sagemaker-ours/scripts": S3PrefixContents(
                "sagemaker-ours", "scripts", bucket["region"], frozenset(below), below
            )
        },
        role={
            ROLE: ExecutionRole(role["entry"], IamSimulationResult(role["denied"], role["unsure"]))
        },
        quota=ServiceQuotaFacts(**answer["quota"]),
        capacity=CapacityFacts(
            {WORLD["file"]["instance_groups"]["gpu"]["training_plan"]: plan}, zones, *more
        ),
        living=ExistingClusterFacts(**answer["living"]),
    )


def _scripts(answer: Mapping[str, Any]) -> dict[str, LifecycleScript]:
    return {name: _script(name, **one) for name, one in answer.items()}


def _script(name: str, data=SCRIPT, vouches=(), executable=None) -> LifecycleScript:
    """`data` that is no text is JSON; `vouches` names files whose digests a MANIFEST has."""
    if vouches:
        digest = hashlib.sha256(SCRIPT).hexdigest()
        data = "".join(f"{digest}  {one}\n" for one in vouches)
    if not isinstance(data, bytes):
        data = (data if isinstance(data, str) else json.dumps(data)).encode()
    return LifecycleScript(name, len(data), data, executable)


def trouble(
    file: Mapping[str, Any] = {}, account: Mapping[str, Any] = {}
) -> list[FindingWithCheck]:
    """All that the checks say of the two but OK."""
    wants, found = wanted(file), facts(account)
    every = (v for family in FAMILIES for v in family.verdicts(wants, found))
    return [v for v in every if v.level is not CheckLevel.OK]
