"""A first cluster file from a handful of answers: a controller, perhaps a login node, workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctl.clusters.spec import ClusterSpec, GroupSpec, checked
from hpctl.clusters.spec.cluster import Settings, Vpc
from hpctl.clusters.spec.group import FsxLustre, FsxOpenZfs, Lifecycle, Storage

CONTROLLER_TYPE = "ml.m5.4xlarge"
LOGIN_TYPE = "ml.m5.xlarge"

OFFERS: Mapping[str, str] = {
    "max_count": "max_count: 16",
    "storage": (
        "storage:\n"
        "  - fsx_lustre:\n"
        "      dns_name: fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com\n"
        "      mount_name: abcdefgh\n"
        "  - ebs: {volume_size_in_gb: 500}"
    ),
    "lifecycle": (
        "lifecycle:\n"
        "  source_s3_uri: s3://sagemaker-my-bucket/lifecycle\n"
        "  on_init_complete: on_init_complete.sh"
    ),
    "threads_per_core": "threads_per_core: 2",
    "deep_health_checks": "deep_health_checks: [InstanceStress, InstanceConnectivity]",
    "training_plan": (
        "training_plan: arn:aws:sagemaker:us-east-1:111122223333:training-plan/p5-in-may"
    ),
    "capacity": "capacity: on_demand",
}
"""Keys of a group that a first file leaves out, each with an example."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a first file says. `scripts` is the S3 prefix of the lifecycle scripts, "" for none.

    `entry` is the script that runs there once the AMI has set a node up; `lustre` is a file
    system's DNS name and mount name; `mode` is hpctl's, "" for its default.
    """

    name: str
    role: str
    instance_types: tuple[str, ...]
    count: int
    group: str = "workers"
    partition: str = ""
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    controller_type: str = CONTROLLER_TYPE
    login_type: str = ""
    scripts: str = ""
    entry: str = "on_init_complete.sh"
    lustre: tuple[str, str] | None = None
    openzfs: str = ""
    training_plan: str = ""
    spot: bool = False
    continuous: bool = False
    mode: str = ""


def begun(answers: Answers) -> ClusterSpec:
    """The spec that the answers make. Raises SpecError where they contradict each other."""
    groups = [_group(answers, "controller", "controller", (answers.controller_type,), 1)]
    if answers.login_type:
        groups.append(_group(answers, "login", "login", (answers.login_type,), 1))
    partition = answers.partition or answers.group
    more: dict[str, Any] = {"partition": partition}
    if answers.training_plan:
        more["training_plan"] = answers.training_plan
    if answers.spot:
        more["capacity"] = "spot"
    types = answers.instance_types
    groups.append(_group(answers, answers.group, "compute", types, answers.count, **more))
    said: dict[str, Any] = {"name": answers.name, "instance_groups": tuple(groups)}
    if answers.subnets or answers.security_groups:
        said["vpc"] = Vpc(subnets=answers.subnets, security_groups=answers.security_groups)
    if answers.continuous:
        said["node_provisioning_mode"] = "Continuous"
    if answers.mode:
        said["hpctl"] = Settings.model_validate({"mode": answers.mode})
    if answers.mode == "own":
        said["node_recovery"] = "None"  # else the service replaces nodes as well
    return checked(ClusterSpec.model_validate(said), "the file")


def _group(
    answers: Answers, name: str, role: str, types: tuple[str, ...], count: int, **more: Any
) -> GroupSpec:
    said: dict[str, Any] = {"name": name, "count": count, "role": role, **more}
    said |= {"instance_type": types[0]} if len(types) == 1 else {"instance_types": types}
    said["execution_role"] = answers.role
    if answers.scripts:
        said["lifecycle"] = Lifecycle(source_s3_uri=answers.scripts, on_init_complete=answers.entry)
    storage = []
    if answers.lustre:
        dns_name, mount_name = answers.lustre
        storage.append(Storage(fsx_lustre=FsxLustre(dns_name=dns_name, mount_name=mount_name)))
    if answers.openzfs:
        storage.append(Storage(fsx_openzfs=FsxOpenZfs(dns_name=answers.openzfs)))
    return GroupSpec.model_validate({**said, "storage": tuple(storage)})
