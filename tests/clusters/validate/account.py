"""An AWS account over HTTP: moto's server, and the emulator for SageMaker and its quotas.

Only denials are made here, in the place of the call: no emulator checks who asks.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import boto3
from moto.server import ThreadedMotoServer
from msgspec import Struct, field

from hpctl.sagemaker.aws import AwsAccount
from hpctl.sandbox import other_aws
from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceCallRefused
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient
from tests.clusters.bed import SANDBOX_KEYS
from tests.clusters.validate.world import SCRIPT, TRUST

REGION = "us-west-2"
Answer = Callable[[Mapping[str, Any]], Any]


class Canned(Struct):
    """A service of which some operations are answered here."""

    real: AwsServiceClient
    answers: Mapping[str, Answer]

    def read(self, operation: str, **request) -> Mapping[str, Any]:
        if operation in self.answers:
            found: Mapping[str, Any] = self.answers[operation](request)
            return found
        return self.real.read(operation, **request)

    def pages(self, operation: str, key: str, **request) -> Iterator[Any]:
        if operation in self.answers:
            yield from self.answers[operation](request)
        else:
            yield from self.real.pages(operation, key, **request)

    def order(self, operation: str, **request) -> Mapping[str, Any]:
        raise AssertionError(f"validate ordered {operation}")


class Account(Struct):
    """`answers` by service and operation, in the place of the real call."""

    real: AwsClientFactory
    answers: dict[str, dict[str, Answer]] = field(default_factory=dict)

    @property
    def region(self) -> str:
        return self.real.region

    def service(self, name: str) -> AwsServiceClient:
        return Canned(self.real.service(name), self.answers.get(name, {}))


def denied(request):
    """An account whose credentials may not."""
    raise ServiceCallRefused("AccessDenied", "allow it", code="AccessDeniedException")


class Bed:
    """moto and the emulator, with a network, a bucket, a role and a secret."""

    def __init__(self) -> None:
        os.environ |= SANDBOX_KEYS
        other_aws.patch_moto_policy_simulation()
        self.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.moto.start()
        host, port = self.moto.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.emulator = HyperPodEmulator(NullMachineBackend(), boot_time_s=0.02)
        self.emulator.start()
        self.places = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ENDPOINT_URL_SERVICE_QUOTAS": self.emulator.endpoint_url,
        }
        os.environ |= self.places
        self.aws = AwsAccount(region=REGION, endpoint_url=self.emulator.endpoint_url)
        self._network()
        self._bucket()
        self.role = self._role("hyperpod", "*")
        self.silent = self._role("silent", ["s3:*", "ssmmessages:*", "ec2:*", "cloudwatch:*"])
        self.secret = self._client("secretsmanager").create_secret(Name="db", SecretString="{}")

    def _client(self, name: str):
        return boto3.client(name, region_name=REGION, endpoint_url=self.url)

    def _role(self, name: str, actions) -> str:
        """A role that instances may have, and what it allows."""
        iam = self._client("iam")
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST))
        allow = {"Effect": "Allow", "Action": actions, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=policy)
        return str(made["Role"]["Arn"])

    def _network(self) -> None:
        ec2 = self._client("ec2")
        self.vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
        for name in ("EnableDnsSupport", "EnableDnsHostnames"):
            ec2.modify_vpc_attribute(VpcId=self.vpc, **{name: {"Value": True}})
        made = ec2.create_subnet(
            VpcId=self.vpc, CidrBlock="10.1.0.0/20", AvailabilityZone=f"{REGION}a"
        )
        self.subnet = made["Subnet"]["SubnetId"]
        self.group = ec2.create_security_group(
            GroupName="nodes", Description="nodes", VpcId=self.vpc
        )["GroupId"]
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.group}]}]
        ec2.authorize_security_group_ingress(GroupId=self.group, IpPermissions=itself)
        ec2.authorize_security_group_egress(GroupId=self.group, IpPermissions=itself)
        self.table = ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        ec2.associate_route_table(RouteTableId=self.table, SubnetId=self.subnet)
        for service, kind, more in (
            ("s3", "Gateway", {"RouteTableIds": [self.table]}),
            ("sagemaker.api", "Interface", {"SubnetIds": [self.subnet]}),
        ):
            ec2.create_vpc_endpoint(
                VpcId=self.vpc,
                ServiceName=f"com.amazonaws.{REGION}.{service}",
                VpcEndpointType=kind,
                **more,
            )

    def _bucket(self) -> None:
        s3 = self._client("s3")
        s3.create_bucket(
            Bucket="sagemaker-ours", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        for key, body in (
            ("scripts/on_init_complete.sh", SCRIPT),
            ("scripts/steps/users.sh", b"#!/bin/sh\r\n"),
            ("clean/on_init_complete.sh", SCRIPT),
        ):
            s3.put_object(Bucket="sagemaker-ours", Key=key, Body=body)

    def account(self, **answers: dict[str, Answer]) -> Account:
        """The account, with some calls answered otherwise."""
        return Account(self.aws, {name.replace("_", "-"): ops for name, ops in answers.items()})

    def plan(self, zone: str, count: int = 8) -> str:
        """A training plan of P5 in a zone."""
        capacity = {
            "ReservedCapacityArn": f"arn:aws:sagemaker:{REGION}:000000000000:reserved-capacity/x1",
            "InstanceType": "ml.p5.48xlarge",
            "TotalInstanceCount": count,
            "Status": "Active",
            "AvailabilityZone": zone,
        }
        return self.emulator.capacity.add_training_plan(
            f"p5-{zone}",
            ReservedCapacitySummaries=[capacity],
            EndTime=datetime(2100, 1, 1, tzinfo=UTC),
        )

    def close(self) -> None:
        for name in self.places:
            del os.environ[name]
        self.emulator.stop()
        self.moto.stop()
        assert self.emulator.response_errors == []
