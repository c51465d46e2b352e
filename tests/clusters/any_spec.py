"""Any cluster file that the service takes, for property tests."""

from typing import Any

from hypothesis import strategies as st

from hpctl.clusters.spec import ClusterSpec

ROLE = "arn:aws:iam::111122223333:role/hyperpod"
FSX = "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"
_names = st.from_regex(r"\A[a-z](-?[a-z0-9]){0,8}\Z")
_subnets = st.lists(st.sampled_from([f"subnet-{n}" for n in range(5)]), min_size=1, unique=True)
_security_groups = st.lists(st.sampled_from([f"sg-{n}" for n in range(5)]), min_size=1, unique=True)
_types = st.sampled_from(["ml.p5.48xlarge", "ml.p5en.48xlarge", "ml.m5.xlarge", "ml.g5.12xlarge"])
_sizes = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["INSTANCE_COUNT", "CAPACITY_PERCENTAGE"]),
        "value": st.integers(1, 100),
    }
)
_deployment = st.fixed_dictionaries(
    {"rolling_update_policy": st.fixed_dictionaries(
        {"maximum_batch_size": _sizes}, optional={"rollback_maximum_batch_size": _sizes}
    )},
    optional={
        "wait_interval_in_seconds": st.integers(0, 3600),
        "auto_rollback_configuration": st.just([{"alarm_name": "down"}]),
    },
)  # fmt: skip
_auto_patch = st.fixed_dictionaries(
    {"patching_strategy": st.sampled_from(["WhenIdle", "WhenAllIdle"])},
    optional={
        "deployment_config": _deployment,
        "idle_wait_window_in_seconds": st.integers(3600, 2_160_000),
    },
) | st.just({
    "patching_strategy": "DrainFirst",
    "drain_policy": {"drain_timeout_in_seconds": 0, "on_drain_timeout": "Force"},
})  # fmt: skip
_storage = st.lists(
    st.sampled_from([
        {"ebs": {"volume_size_in_gb": 500}},
        {"ebs": {"root_volume": True, "volume_kms_key_id": "alias/a"}},
        {"fsx_lustre": {"dns_name": FSX, "mount_name": "abcdefgh"}},
        {"fsx_lustre": {"dns_name": FSX, "mount_name": "ab", "mount_path": "/data"}},
        {"fsx_openzfs": {"dns_name": FSX, "mount_path": "/home"}},
    ]),
    min_size=1, max_size=4, unique_by=str,
)  # fmt: skip
_scripts = {"source_s3_uri": "s3://sagemaker-x/p"}
_of_any_group: dict[str, st.SearchStrategy[Any]] = {
    "threads_per_core": st.integers(1, 2),
    "storage": _storage,
    "deep_health_checks": st.just(["InstanceStress", "InstanceConnectivity"]),
    "subnets": _subnets,
    "security_groups": _security_groups,
    "scheduled_update": st.fixed_dictionaries(
        {"schedule_expression": st.just("cron(0 3 ? * SUN *)")},
        optional={"deployment_config": _deployment},
    ),
    "auto_patch": _auto_patch,
    "capacity": st.sampled_from(["spot", "on_demand"]),
    "network_interface": st.sampled_from(["efa", "efa-only"]),
    "lifecycle": st.sampled_from([
        {**_scripts, "on_create": "a.sh"}, {**_scripts, "on_init_complete": "b.sh"}
    ]),
}  # fmt: skip


@st.composite
def _group(draw: st.DrawFn, role: str, *, continuous: bool) -> dict[str, Any]:
    count = 1 if role == "controller" else draw(st.integers(0, 3))
    said = {"count": count, "role": role, "execution_role": ROLE}
    said |= draw(st.fixed_dictionaries({}, optional=_of_any_group))
    if draw(st.booleans()):
        said["instance_type"] = draw(_types)
    else:
        said["instance_types"] = draw(st.lists(_types, min_size=1, max_size=3, unique=True))
    if role == "compute":
        said["partition"] = draw(_names)
    if continuous and count:
        said["min_count"] = draw(st.integers(1, count))
    return said


@st.composite
def specs(draw: st.DrawFn) -> ClusterSpec:
    """A spec that breaks no rule; Slurm configured by the API, or not."""
    continuous = draw(st.booleans())
    roles = ["controller", *draw(st.lists(st.just("login"), max_size=1))]
    roles += draw(st.lists(st.just("compute"), max_size=3))
    groups = [draw(_group(role, continuous=continuous)) for role in roles]
    names = draw(st.lists(_names, min_size=len(roles), max_size=len(roles), unique=True))
    said: dict[str, Any] = {
        "name": draw(_names),
        "instance_groups": [{"name": n, **g} for n, g in zip(names, groups, strict=True)],
        "vpc": {"subnets": draw(_subnets), "security_groups": draw(_security_groups)},
        "node_recovery": draw(st.sampled_from(["Automatic", "None"])),
        "tags": draw(st.dictionaries(_names, st.text("abc =@", max_size=5), max_size=3)),
    }
    if draw(st.booleans()):
        said["tiered_storage"] = {"mode": "Enable", "instance_memory_allocation_percentage": 20}
    if continuous:
        said["node_provisioning_mode"] = "Continuous"
        if draw(st.booleans()):
            said["accounting_database"] = {
                "endpoint": "db.example.com", "port": 3307,
                "secret_arn": "arn:aws:secretsmanager:us-east-1:111122223333:secret:x",
            }  # fmt: skip
    elif draw(st.booleans()):
        said["slurm_config_strategy"] = draw(st.sampled_from(["Managed", "Overwrite", "Merge"]))
    elif draw(st.booleans()):
        said["slurm_config"] = "provisioning_parameters"
    return ClusterSpec.model_validate(said)
