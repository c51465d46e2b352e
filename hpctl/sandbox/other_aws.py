"""moto's server for what is not HyperPod: S3, IAM, STS, EC2, FSx, CloudWatch Logs and more.

It is filled with what a cluster needs before it can be created: a VPC with a subnet in each of
two zones, a security group that lets itself in and out, an execution role, a bucket with the
lifecycle scripts and an FSx for Lustre file system. What their names are is in aws.json.

SimulatePrincipalPolicy, which moto lacks, knows roles with their inline and attached policies;
no conditions, boundaries or organisations.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from itertools import chain, product
from pathlib import Path
from typing import Any

import yaml

from hpctl.clusters.iam_policies import make_iam_trust_policy
from hpctl.sandbox.machines import CONTROLLER_TYPE, LIFECYCLE_S3, ON_CREATE, WORKER_TYPE
from hpctl.sandbox.spec import SandboxSpec
from hpctl.toolkit.errors import HpctlError


def patch_moto_fsx_descriptions() -> None:
    """Let moto's FSx describe file systems as AVAILABLE and with a mount name, in this process."""
    from moto.fsx.models import FileSystem

    if FileSystem.to_dict.__module__ != __name__:
        FileSystem.to_dict = _wrap_fsx_description_method(FileSystem.to_dict)  # type: ignore[method-assign]


def _wrap_fsx_description_method(to_dict: Any) -> Any:
    def make_complete_fsx_description(self: Any) -> dict[str, Any]:
        description: dict[str, Any] = to_dict(self)
        description |= {"Lifecycle": "AVAILABLE", "FileSystemTypeVersion": "2.15"}
        lustre = description.get("LustreConfiguration")
        if lustre is not None:
            description["LustreConfiguration"] = {**lustre, "MountName": self.file_system_id[-8:]}
        return description

    return make_complete_fsx_description


def patch_moto_policy_simulation() -> None:
    """Let moto's IAM answer the call, in this process."""
    from moto.iam.responses import IamResponse

    IamResponse.simulate_principal_policy = _simulate_iam_principal_policy  # type: ignore[attr-defined]


def _simulate_iam_principal_policy(response: Any) -> Any:
    """Return a method of moto's IamResponse."""
    from moto.core.responses import ActionResult

    backend = response.backend
    role = backend.get_role_by_arn(response._get_param("PolicySourceArn"))
    documents = [
        backend.get_role_policy(role.name, name)[1]
        for name in backend.list_role_policies(role.name)
    ]
    policies = [*documents, *role.managed_policies.values()]
    resources = response._get_param("ResourceArns") or ["*"]
    results = []
    for action, resource in product(response._get_param("ActionNames"), resources):
        results.append(
            {
                "EvalActionName": action,
                "EvalResourceName": resource,
                "EvalDecision": _evaluate_iam_policy_decision(policies, action, resource),
            }
        )
    return ActionResult({"IsTruncated": False, "EvaluationResults": results})


def _evaluate_iam_policy_decision(policies: list[Any], action: str, resource: str) -> str:
    from moto.iam.access_control import IAMPolicy, PermissionResult

    found = {IAMPolicy(policy).is_action_permitted(action, resource) for policy in policies}
    if PermissionResult.DENIED in found:
        return "explicitDeny"
    return "allowed" if PermissionResult.PERMITTED in found else "implicitDeny"


REGION = "us-east-1"
ZONES = ("us-east-1a", "us-east-1b")
ROLE = "sandbox-hyperpod"


def wrap_app_with_access_key_check(app: Callable[..., Any], access_key: str) -> Callable[..., Any]:
    """Return the WSGI application for requests that are signed with this access key, of 128 random
    bits.

    moto takes any key. The signature is not checked: on loopback no other user sees the key.
    """
    marks = (f"Credential={access_key}/", f"X-Amz-Credential={access_key}%2F")

    def check_access_key(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        given = (environ.get("HTTP_AUTHORIZATION", ""), environ.get("QUERY_STRING", ""))
        if any(mark in text for mark, text in product(marks, given)):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [
            b"<Error><Code>InvalidAccessKeyId</Code><Message>This sandbox is another user's, or"
            b" your keys are old: hpctl sandbox env prints those of now.</Message></Error>"
        ]

    return check_access_key


class MotoServer:
    """The server, in threads of this process, and clients for it."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.settings = spec
        self._clients: dict[str, Any] = {}
        self._server: Any = None
        self._objects: dict[tuple[str, str, str], bytes] = {}
        self.filled: dict[str, Any] = {}

    def start(self) -> None:
        """Serve and fill. Raises HpctlError where moto is not installed."""
        try:
            from moto.server import ThreadedMotoServer
        except ImportError as error:
            raise HpctlError(
                f"cannot emulate AWS: the Python package moto[server] is not installed: {error}",
                "Install it: pip install 'hpctl[sandbox]'",
            ) from error
        patch_moto_policy_simulation()
        patch_moto_fsx_descriptions()
        port = self.settings.ports.moto
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
        self._server.start()
        self._server._server.app = wrap_app_with_access_key_check(
            self._server._server.app, self.settings.access_key
        )
        services = ("s3", "iam", "ec2", "fsx", "logs")
        self._clients = {service: self._make_client(service) for service in services}
        network = self._create_vpc_network()
        self.filled = {
            **network,
            "execution_role": self._create_cluster_iam_role(),
            "lifecycle": self._upload_lifecycle_scripts(),
            "fsx_lustre": self._create_fsx_file_system(network),
        }
        self.settings.layout.aws.write_text(json.dumps(self.filled, indent=2) + "\n")
        example = yaml.safe_dump(self._make_cluster_create_config(), sort_keys=False)
        self.settings.layout.cluster_file.write_text(example)

    def stop(self) -> None:
        """End the server; what is in it is lost."""
        if self._server is not None:
            self._server.stop()

    @property
    def url(self) -> str:
        """Return where it serves."""
        return f"http://127.0.0.1:{self.settings.ports.moto}"

    def client(self, service: str) -> Any:
        """boto3's client for s3, iam, ec2, fsx or logs; for all threads."""
        return self._clients[service]

    def _make_client(self, service: str) -> Any:
        # Not from several threads at once: only the clients are for all of them.
        import boto3

        make: Callable[..., Any] = boto3.client
        return make(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.settings.access_key,
            aws_secret_access_key=self.settings.secret_key,
        )

    def fetch(self, uri: str, target: Path) -> None:
        """Bring what lies below an S3 URI into a directory, as HyperPod does before a boot.

        Raises HpctlError where nothing can be read there.
        """
        from botocore.exceptions import ClientError

        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        prefix = prefix and prefix.rstrip("/") + "/"
        s3 = self.client("s3")
        try:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for entry in chain.from_iterable(page.get("Contents", ()) for page in pages):
                path = target / entry["Key"].removeprefix(prefix)
                if entry["Key"].endswith("/") or target not in path.resolve().parents:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._read_cached_s3_object(bucket, entry["Key"], entry["ETag"]))
        except ClientError as error:
            raise HpctlError(f"{uri}: {error}", "Name a bucket that is there.") from error

    def _read_cached_s3_object(self, bucket: str, key: str, etag: str) -> bytes:
        """Return an object's bytes, asked for once: every instance that boots fetches the same
        ones."""
        known = self._objects.get((bucket, key, etag))
        if known is None:
            known = self.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
            self._objects[bucket, key, etag] = known
        return known

    def log(self, group: str, stream: str, lines: list[str]) -> None:
        """Append lines to a stream of CloudWatch Logs, making group and stream first."""
        logs = self.client("logs")
        where = {"logGroupName": group, "logStreamName": stream}
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=group)
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_stream(**where)
        now = int(time.time() * 1000)
        # CloudWatch refuses an empty message.
        events = [{"timestamp": now, "message": line or " "} for line in lines]
        if events:
            logs.put_log_events(**where, logEvents=events)

    def _make_cluster_create_config(self) -> dict[str, Any]:
        """Return a file for `hpctl cluster create` that names what is here."""

        def make_instance_group(
            name: str, role: str, instance_type: str, count: int
        ) -> dict[str, Any]:
            return {
                "name": name,
                "instance_type": instance_type,
                "count": count,
                "role": role,
                **({"partition": name} if role == "compute" else {}),
                "execution_role": self.filled["execution_role"],
                "lifecycle": {"source_s3_uri": self.filled["lifecycle"], "on_create": ON_CREATE},
            }

        return {
            "name": self.settings.cluster_name,
            "node_provisioning_mode": "Continuous",
            "node_recovery": "None",
            "vpc": {
                "security_groups": [self.filled["security_group"]],
                "subnets": [next(iter(self.filled["subnets"]))],
            },
            "instance_groups": [
                make_instance_group("controller", "controller", CONTROLLER_TYPE, 1),
                make_instance_group(
                    "worker", "compute", WORKER_TYPE, max(1, self.settings.nodes // 2)
                ),
            ],
        }

    def _create_vpc_network(self) -> dict[str, Any]:
        ec2 = self.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        subnets = {
            ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.9.{at}.0/24", AvailabilityZone=zone)[
                "Subnet"
            ]["SubnetId"]: zone
            for at, zone in enumerate(ZONES)
        }
        self._add_nat_gateway(vpc, list(subnets))
        group = ec2.create_security_group(
            GroupName="sandbox", Description="Lets itself in and out", VpcId=vpc
        )["GroupId"]
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
        return {"vpc": vpc, "subnets": subnets, "security_group": group}

    def _add_nat_gateway(self, vpc: str, subnets: list[str]) -> None:
        """Private subnets, with a NAT gateway for what lies outside."""
        ec2 = self.client("ec2")
        address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        gateway = ec2.create_nat_gateway(SubnetId=subnets[0], AllocationId=address)["NatGateway"]
        table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(
            RouteTableId=table,
            DestinationCidrBlock="0.0.0.0/0",
            NatGatewayId=gateway["NatGatewayId"],
        )
        for subnet in subnets:
            ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)

    def _create_cluster_iam_role(self) -> str:
        iam = self.client("iam")
        arn = iam.create_role(
            RoleName=ROLE, AssumeRolePolicyDocument=json.dumps(make_iam_trust_policy())
        )["Role"]["Arn"]
        everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        policy = {"Version": "2012-10-17", "Statement": [everything]}
        iam.put_role_policy(RoleName=ROLE, PolicyName="sandbox", PolicyDocument=json.dumps(policy))
        return str(arn)

    def _upload_lifecycle_scripts(self) -> str:
        s3 = self.client("s3")
        bucket, _, prefix = LIFECYCLE_S3.removeprefix("s3://").partition("/")
        s3.create_bucket(Bucket=bucket)
        directory = self.settings.lifecycle_dir
        for path in sorted(p for p in directory.rglob("*") if p.is_file()):
            key = prefix + path.relative_to(directory).as_posix()
            s3.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
        return LIFECYCLE_S3

    def _create_fsx_file_system(self, network: dict[str, Any]) -> dict[str, str]:
        made = self.client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            StorageCapacity=1200,
            StorageType="SSD",
            SubnetIds=[next(iter(network["subnets"]))],
            SecurityGroupIds=[network["security_group"]],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
        )["FileSystem"]
        return {
            "id": made["FileSystemId"],
            "dns_name": made.get("DNSName", ""),
            "mount_name": made.get("LustreConfiguration", {}).get("MountName", "fsx"),
        }
