"""A cluster's file in which nothing is wrong, and an account that agrees with it."""

import copy
import json
from datetime import datetime
from typing import Any

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.clusters import spec as specs
from hpctl.clusters.validate import FAMILIES
from hpctl.clusters.validate.capacity import EBS_SIZE, IN_ALL, PER_CLUSTER
from hpctl.clusters.validate.facts import (
    PARAMETERS,
    BucketFacts,
    CapacityFacts,
    Facts,
    Guarded,
    LivingFacts,
    ModelFacts,
    NetworkFacts,
    Prefix,
    QuotaFacts,
    Role,
    RoleFacts,
    Script,
    ScriptFacts,
    StorageFacts,
)
from hpctl.clusters.validate.wanted import Level, Verdict, of_spec
from hpctl.core.compat import UTC

REGION = "us-east-1"
ROLE = "arn:aws:iam::111122223333:role/hyperpod"
PLAN = f"arn:aws:sagemaker:{REGION}:111122223333:training-plan/p5-in-may"
SECRET = f"arn:aws:secretsmanager:{REGION}:111122223333:secret:slurmdb-AbCdEf"
FS = "fs-0123456789abcdef0"
ZFS = "fs-0fedcba9876543210"
URI = "s3://sagemaker-ours/scripts"
FILE = f"""\
name: h100-a
node_provisioning_mode: Continuous
accounting_database:
  endpoint: slurm.abc123.{REGION}.rds.amazonaws.com
  secret_arn: {SECRET}
vpc:
  subnets: [subnet-a]
  security_groups: [sg-nodes]
instance_groups:
  - name: ctl
    instance_type: ml.m5.4xlarge
    count: 1
    role: controller
    execution_role: {ROLE}
    lifecycle: &scripts
      source_s3_uri: {URI}
      on_init_complete: on_init_complete.sh
    storage: &storage
      - fsx_lustre:
          dns_name: {FS}.fsx.{REGION}.amazonaws.com
          mount_name: abcdefgh
      - fsx_openzfs:
          dns_name: {ZFS}.fsx.{REGION}.amazonaws.com
      - ebs: {{volume_size_in_gb: 500}}
  - name: gpu
    instance_type: ml.p5.48xlarge
    count: 4
    role: compute
    partition: h100
    execution_role: {ROLE}
    training_plan: {PLAN}
    lifecycle: *scripts
    storage: *storage
  - name: cpu
    instance_type: ml.c5.4xlarge
    count: 2
    role: compute
    partition: cpu
    execution_role: {ROLE}
    lifecycle: *scripts
    storage: *storage
"""
SCRIPT = b"#!/bin/sh\nset -eu\n"
ALL = "-1"


def to_itself(*groups: str) -> list[dict[str, Any]]:
    """Rules that let all traffic of these security groups through."""
    return [{"IpProtocol": ALL, "UserIdGroupPairs": [{"GroupId": g} for g in groups]}]


def anywhere(protocol: str = ALL, **more: Any) -> list[dict[str, Any]]:
    return [{"IpProtocol": protocol, "IpRanges": [{"CidrIp": "0.0.0.0/0"}], **more}]


def group(name: str, vpc: str = "vpc-1", **rules: Any) -> dict[str, Any]:
    return {
        "GroupId": name,
        "VpcId": vpc,
        "IpPermissions": to_itself(name),
        "IpPermissionsEgress": to_itself(name) + anywhere(),
        **rules,
    }


def subnet(name: str, zone: str = "us-east-1a", **more: Any) -> dict[str, Any]:
    return {
        "SubnetId": name,
        "VpcId": "vpc-1",
        "AvailabilityZone": zone,
        "AvailabilityZoneId": {"us-east-1a": "use1-az1"}.get(zone, "use1-az2"),
        "AvailableIpAddressCount": 1000,
        "CidrBlock": "10.1.0.0/16",
        **more,
    }


def routes(subnet_id: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {
        "RouteTableId": f"rtb-{subnet_id}",
        "VpcId": "vpc-1",
        "Associations": [{"SubnetId": subnet_id, "Main": False}],
        "Routes": [{"DestinationCidrBlock": "10.1.0.0/16", "GatewayId": "local"}, *rules],
    }


NAT = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1"}
P5 = {
    "InstanceType": "p5.48xlarge",
    "GpuInfo": {"Gpus": []},
    "NetworkInfo": {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 32}},
}
CPU = {"NetworkInfo": {"EfaSupported": False}}


def network() -> NetworkFacts:
    return NetworkFacts(
        subnets={"subnet-a": subnet("subnet-a")},
        security_groups={"sg-nodes": group("sg-nodes")},
        route_tables={"rtb-subnet-a": routes("subnet-a", NAT)},
        endpoints={},
        dns={"vpc-1": True},
        types={"ml.p5.48xlarge": P5, "ml.m5.4xlarge": CPU, "ml.c5.4xlarge": CPU},
    )


def file_system(kind: str, fs: str, **more: Any) -> Guarded:
    lustre = {"LustreConfiguration": {"MountName": "abcdefgh"}} if kind == "LUSTRE" else {}
    entry = {
        "FileSystemId": fs,
        "FileSystemType": kind,
        "Lifecycle": "AVAILABLE",
        "VpcId": "vpc-1",
        "SubnetIds": ["subnet-a"],
        "DNSName": f"{fs}.fsx.{REGION}.amazonaws.com",
        **lustre,
        **more,
    }
    guard = group("sg-fsx", IpPermissions=to_itself("sg-nodes"))
    return Guarded(entry, {"sg-fsx": guard}, {"subnet-a": subnet("subnet-a")})


def plan(**more: Any) -> dict[str, Any]:
    return {
        "TrainingPlanArn": PLAN,
        "TrainingPlanName": "p5-in-may",
        "Status": "Active",
        "AvailableInstanceCount": 8,
        "TargetResources": ["hyperpod-cluster"],
        "EndTime": datetime(2027, 1, 1, tzinfo=UTC),
        "ReservedCapacitySummaries": [
            {
                "InstanceType": "ml.p5.48xlarge",
                "AvailabilityZone": "us-east-1a",
                "AvailabilityZoneId": "use1-az1",
            }
        ],
        **more,
    }


def trust(service: str = "sagemaker.amazonaws.com") -> dict[str, Any]:
    return {
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
        ]
    }


def script(name: str, data: bytes = SCRIPT, **more: Any) -> Script:
    return Script(name, len(data), data, **more)


def prefix(*scripts: Script, region: Any = REGION) -> BucketFacts:
    """What lies under the prefix that the file names."""
    by_name = {one.name: one for one in scripts or (script("on_init_complete.sh"),)}
    found = Prefix("sagemaker-ours", "scripts", region, frozenset(by_name), by_name)
    return BucketFacts({URI: found})


def facts() -> Facts:
    """An account in which everything is as `FILE` wants it."""
    return Facts(
        region=REGION,
        model=ModelFacts(frozenset({"ml.p5.48xlarge", "ml.m5.4xlarge", "ml.c5.4xlarge"})),
        scripts=ScriptFacts(
            "scripts", {"on_init_complete.sh": script("on_init_complete.sh", executable=True)}
        ),
        network=network(),
        storage=StorageFacts({FS: file_system("LUSTRE", FS), ZFS: file_system("OPENZFS", ZFS)}),
        bucket=prefix(),
        role=RoleFacts({ROLE: Role({"Arn": ROLE, "AssumeRolePolicyDocument": trust()})}),
        quota=QuotaFacts(
            {
                "ml.m5.4xlarge for cluster usage": 4.0,
                "ml.c5.4xlarge for cluster usage": 4.0,
                PER_CLUSTER: 20.0,
                IN_ALL: 30.0,
                EBS_SIZE: 1024.0,
            },
            {"ml.c5.4xlarge": 2},
        ),
        capacity=CapacityFacts(
            {PLAN: plan()},
            {kind: frozenset({"us-east-1a"}) for kind in ("ml.m5.4xlarge", "ml.c5.4xlarge")},
            now=datetime(2026, 11, 21, tzinfo=UTC),
        ),
        living=LivingFacts(None, {"Name": "slurmdb"}),
    )


def document() -> dict[str, Any]:
    """`FILE`, to be changed."""
    return copy.deepcopy(yaml.safe_load(FILE))


class World(Struct):
    """A file and an account, and what the checks say of them."""

    file: dict[str, Any] = field(default_factory=document)
    facts: Facts = field(default_factory=facts)
    parameters: Any = None

    def verdicts(self) -> list[Verdict]:
        wanted = of_spec(specs.parse(yaml.safe_dump(self.file, sort_keys=False)))
        return [v for family in FAMILIES for v in family.verdicts(wanted, self.facts)]

    def trouble(self) -> list[Verdict]:
        return [v for v in self.verdicts() if v.level is not Level.OK]

    def group(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(g for g in self.file["instance_groups"] if g["name"] == name)
        return found

    def say(self, part: str, **more: object) -> None:
        """Let the account answer otherwise of one part."""
        changed: dict[str, Any] = {part: replace(getattr(self.facts, part), **more)}
        self.facts = replace(self.facts, **changed)

    def limit(self, quota: str, value: float) -> None:
        """Let a quota be another."""
        known = self.facts.quota.limits
        assert isinstance(known, dict)
        self.say("quota", limits=known | {quota: value})

    def legacy(self, **said: Any) -> None:
        """The other style: scripts set Slurm up from provisioning_parameters.json."""
        for key in ("node_provisioning_mode", "accounting_database"):
            self.file.pop(key)
        self.file["slurm_config"] = "provisioning_parameters"
        for one in self.file["instance_groups"]:
            one["lifecycle"] = {"source_s3_uri": URI, "on_create": "on_init_complete.sh"}
        parameters = {
            "controller_group": "ctl",
            "worker_groups": [
                {"instance_group_name": "gpu", "partition_name": "h100"},
                {"instance_group_name": "cpu", "partition_name": "cpu"},
            ],
            **said,
        }
        self.parameters = script(PARAMETERS, json.dumps(parameters).encode())
