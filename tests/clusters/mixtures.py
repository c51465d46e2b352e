"""What a cluster file must not mix: what hpctl says, and whether the service refuses it too."""

import json
from typing import Any, NamedTuple

ROLE = "arn:aws:iam::111122223333:role/x"
Keys = dict[str, Any]
HEAD: Keys = {
    "name": "head", "instance_type": "ml.m5.xlarge", "count": 1, "role": "controller",
    "execution_role": ROLE,
}  # fmt: skip
P5 = ["ml.p5.48xlarge"]


def gpu(**keys: object) -> Keys:
    """A compute group with keys changed or, by None, taken out."""
    said = {
        "name": "gpu", "instance_type": P5[0], "count": 4, "role": "compute",
        "partition": "gpu", "execution_role": ROLE, **keys,
    }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def cluster(*groups: Keys, **top: object) -> str:
    """A file with a line for each key, and one for each group."""
    keys = "".join(f"{key}: {json.dumps(value)}\n" for key, value in top.items())
    listed = "".join(f"  - {json.dumps(one)}\n" for one in groups)
    return f"name: demo\n{keys}instance_groups:\n{listed}"


class Mixture(NamedTuple):
    """`says` is a part of hpctl's one problem. `refused`: the service refuses it as well."""

    says: str
    groups: tuple[Keys, ...]
    top: Keys
    refused: bool = False

    @property
    def text(self) -> str:
        """The file."""
        return cluster(*self.groups, **self.top)


def both(says: str, *groups: Keys, **top: object) -> Mixture:
    """A mixture that the service refuses as well."""
    return Mixture(says, groups, top, refused=True)


def ours(says: str, *groups: Keys, **top: object) -> Mixture:
    """A mixture that the service takes, or that it never sees."""
    return Mixture(says, groups, top)


HEADS = {**HEAD, "count": 2}
LOGIN = {"role": "login", "partition": None}
CONTINUOUS = {"node_provisioning_mode": "Continuous"}
BY_FILE = {"slurm_config": "provisioning_parameters"}
SCRIPTS = {"source_s3_uri": "s3://b/p"}
LUSTRE = {"fsx_lustre": {"dns_name": "fs-0123456789abcdef0.fsx.x", "mount_name": "a"}}
DATABASE = {
    "endpoint": "db.example.com",
    "secret_arn": "arn:aws:secretsmanager:us-east-1:111122223333:secret:x",
}
PLAN = "arn:aws:sagemaker:us-west-2:000000000000:training-plan/p5-in-may"
IDLE = {"patching_strategy": "WhenIdle", "drain_policy": {}}
DRAIN = {"patching_strategy": "DrainFirst", "idle_wait_window_in_seconds": 3600}
ROOT = {"root_volume": True, "volume_kms_key_id": "k", "volume_size_in_gb": 9}

MIXTURES = (
    both("1.name (line 4): another group has the name 'head'", HEAD, gpu(name="head")),
    both("1 (line 4): instance_type is needed", HEAD, gpu(instance_type=None)),
    both("instance_type or instance_types", HEAD, gpu(instance_types=P5)),
    ours("names a type twice", HEAD, gpu(instance_type=None, instance_types=P5 * 2)),
    ours("max_count (line 4): is 3, under count, which is 4", HEAD, gpu(max_count=3)),
    both("min_count (line 5): is 5, over count, which is 4", HEAD, gpu(min_count=5), **CONTINUOUS),
    both("needs node_provisioning_mode: Continuous", HEAD, gpu(min_count=1)),
    both("role is needed", HEAD, gpu(role=None, partition=None)),
    both("partition is needed with role compute", HEAD, gpu(partition=None)),
    both("is for role compute alone, not for controller", {**HEAD, "partition": "gpu"}, gpu()),
    ours("single dashes alone where the API", HEAD, gpu(partition="ml.p5")),
    both("instance_groups (line 2): one group must have role: controller", gpu()),
    both(
        "instance_groups.1.role (line 4): only one group may have role: controller",
        HEAD,
        {**HEAD, "name": "head2"},
    ),
    both(
        "instance_groups.2.role (line 5): only one group may have role: login",
        HEAD,
        gpu(name="a", **LOGIN),
        gpu(name="b", **LOGIN),
    ),
    both("the controller group needs an instance", {**HEAD, "count": 0}, gpu()),
    ours("several head nodes need slurm_config: provisioning_parameters", HEADS),
    ours("several head nodes need provisioning_parameters.head_nodes", HEADS, **BY_FILE),
    ours(
        "provisioning_parameters (line 2): needs slurm_config: provisioning_parameters",
        HEAD,
        provisioning_parameters={},
    ),
    ours(
        "slurm_config_strategy (line 3): needs slurm_config: api",
        HEAD,
        **BY_FILE,
        slurm_config_strategy="Merge",
    ),
    both(
        "node_provisioning_mode (line 3): needs slurm_config: api",
        HEAD,
        gpu(),
        **BY_FILE,
        **CONTINUOUS,
    ),
    both(
        "cannot be chosen with node_provisioning_mode: Continuous",
        HEAD,
        gpu(),
        **CONTINUOUS,
        slurm_config_strategy="Merge",
    ),
    both(
        "accounting_database (line 2): needs node_provisioning_mode: Continuous",
        HEAD,
        gpu(),
        accounting_database=DATABASE,
    ),
    ours("on_create or on_init_complete is needed", HEAD, gpu(lifecycle=SCRIPTS)),
    both(
        "not both: the service refuses it",
        HEAD,
        gpu(lifecycle={**SCRIPTS, "on_create": "a.sh", "on_init_complete": "b.sh"}),
    ),
    ours("storage.0 (line 4): is one of ebs, fsx_lustre", HEAD, gpu(storage=[{}])),
    ours("volume_size_in_gb is needed", HEAD, gpu(storage=[{"ebs": {}}])),
    ours(
        "volume_kms_key_id is needed with root_volume",
        HEAD,
        gpu(storage=[{"ebs": {"root_volume": True}}]),
    ),
    ours("the root volume's size cannot be chosen", HEAD, gpu(storage=[{"ebs": ROOT}])),
    ours(
        "storage.1.ebs (line 4): the second volume is described already",
        HEAD,
        gpu(storage=[{"ebs": {"volume_size_in_gb": 9}}] * 2),
    ),
    ours("/fsx is mounted by another entry already", HEAD, gpu(storage=[LUSTRE] * 2)),
    ours("security_groups are needed as well", HEAD, gpu(subnets=["subnet-1"])),
    both("a training plan holds no spot capacity", HEAD, gpu(capacity="spot", training_plan=PLAN)),
    ours(
        "drain_policy (line 4): is for patching_strategy DrainFirst alone",
        HEAD,
        gpu(auto_patch=IDLE),
    ),
    ours(
        "idle_wait_window_in_seconds (line 4): is not for DrainFirst", HEAD, gpu(auto_patch=DRAIN)
    ),
    ours(
        "hpctl.spares.gpus (line 2): no such group; did you mean 'gpu'?",
        HEAD,
        gpu(),
        hpctl={"spares": {"gpus": 1}},
    ),
    ours("is 5, over the group's count", HEAD, gpu(), hpctl={"spares": {"gpu": 5}}),
    ours("spares are of compute groups", HEAD, hpctl={"spares": {"head": 1}}),
    ours("own needs node_recovery: None", HEAD, hpctl={"mode": "own"}),
    ours("aws: is reserved", HEAD, tags={"aws:x": "y"}),
)
