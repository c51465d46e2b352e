"""What can be known of a file without asking anybody. What must not even parse: `clusters.spec`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hpctl.clusters.maintenance_orders import NO_BATCHES
from hpctl.clusters.validate.facts import (
    SageMakerServiceModel,
    ServiceModelFacts,
    SpecCheckFamily,
    SpecValidationFacts,
)
from hpctl.clusters.validate.wanted import (
    Place,
    RequestedCluster,
    RequestedInstanceGroup,
    SpecFinding,
    list_findings_or_ok,
    make_failure_finding,
    make_ok_finding,
    make_warning_finding,
)
from hpctl.toolkit.yaml_files import suggest_similar_word

FAMILY = SpecCheckFamily("spec", "The file itself.", ("model",))


def gather_service_model_facts(
    model: SageMakerServiceModel, request: Mapping[str, Any]
) -> ServiceModelFacts:
    """Loading the model takes about a third of a second."""
    return ServiceModelFacts(model.instance_types(), tuple(model.problems(request)))


_ACCELERATED = re.compile(r"ml\.(p\d|g\d|gr\d|trn\d|inf\d)")
_SMALL = re.compile(r"ml\.(t\d\w*\.\w+|\w+\.(medium|large))")
_TYPE_KEYS = ("InstanceType", "InstanceTypes")


@FAMILY.check("service-model")
def check_request_against_service_model(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The service's model knows every field and value."""
    if not facts.model.types:
        return
    others = [p for p in facts.model.problems if not _is_instance_type_field(p[0])]
    yield from list_findings_or_ok(
        (
            make_failure_finding(
                place, what, "see docs/cluster.md; what is newer than boto3 needs a newer boto3"
            )
            for place, what in others
        ),
        "the service's model knows every field",
    )


@FAMILY.check("instance-types")
def check_instance_types_supported(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The service's model knows every instance type."""
    known = facts.model.types
    if not known:
        return
    named: dict[str, RequestedInstanceGroup] = {}
    for group in reversed(wanted.groups):
        named |= dict.fromkeys(group.types, group)
    strange = [kind for kind in named if kind not in known]
    for kind in strange:
        yield make_failure_finding(
            named[kind].instance_type_request_path,
            "the service's model has no instance type"
            f" {kind!r}{suggest_similar_word(kind, sorted(known))}",
            "fix the name; a type that is newer than boto3 needs a newer boto3",
        )
    if named and not strange:
        yield make_ok_finding(f"{len(named)} instance type{'s' * (len(named) > 1)} known")


@FAMILY.check("head-types")
def check_head_node_instance_types(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Controller and login types are neither wasted nor small."""
    for group in wanted.groups:
        if group.role not in ("Controller", "Login"):
            continue
        place, role = group.instance_type_request_path, group.role.lower()
        for kind in group.types:
            if _ACCELERATED.match(kind):
                yield make_warning_finding(
                    place,
                    f"{group.name} has role {role} and type {kind}: its accelerators would idle",
                    "use a general purpose type such as ml.m5.4xlarge",
                )
            elif _SMALL.fullmatch(kind) and group.role == "Controller":
                yield make_warning_finding(
                    place,
                    f"{group.name} has role {role} and type {kind}: slurmctld, slurmdbd, their "
                    "database and hpctl's daemon share it",
                    "use ml.m5.xlarge or larger",
                )
            else:
                yield make_ok_finding(f"{group.name}: {kind}", place)


@FAMILY.check("spot-heads")
def check_head_nodes_not_spot(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Head nodes are not on spot capacity."""
    for group in wanted.groups:
        place = group.at("CapacityRequirements")
        if group.spot and group.role in ("Controller", "Login"):
            yield make_failure_finding(
                place,
                f"{group.name} has role {group.role.lower()}, and spot instances are taken away",
                "leave capacity out, or write on_demand",
            )


@FAMILY.check("override")
def check_instance_group_vpc_overrides(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Groups have own subnets only where the cluster has some.

    HyperPod guide.
    """
    if wanted.request.get("VpcConfig"):
        return
    for group in wanted.groups:
        if "OverrideVpcConfig" in group.raw:
            yield make_failure_finding(
                group.at("OverrideVpcConfig", "Subnets"),
                f"{group.name} has a separate network, and the cluster has none",
                "name subnets and security groups under vpc as well",
            )


@FAMILY.check("deep-checks")
def check_deep_health_check_instance_types(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Deep health checks are asked of accelerated types.

    They alone have them.
    """
    for group in wanted.groups:
        plain = [kind for kind in group.types if not _ACCELERATED.match(kind)]
        if group.raw.get("OnStartDeepHealthChecks") and plain:
            yield make_warning_finding(
                group.at("OnStartDeepHealthChecks"),
                f"{group.name} asks for deep health checks, and {', '.join(plain)} has none",
                "leave deep_health_checks out",
            )


@FAMILY.check("one-view")
def check_head_node_file_system_mounts(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Head nodes mount what compute nodes mount."""
    mounts = {}
    for group in wanted.groups:
        by_path = {
            fs.mount_path or _get_default_fsx_mount_path(fs.kind): fs for fs in group.file_systems
        }
        mounts[group.name] = by_path
    for head in wanted.groups:
        if head.role not in ("Controller", "Login"):
            continue
        for group in wanted.groups:
            lacking = set(mounts[group.name]) - set(mounts[head.name])
            if group.role == "Compute" and lacking:
                yield make_warning_finding(
                    head.at("InstanceStorageConfigs"),
                    f"{group.name} mounts {', '.join(sorted(lacking))}, and {head.name} "
                    f"({head.role.lower()}) does not: scripts, logs and homes are not where jobs "
                    "look for them",
                    f"give {head.name} the same storage",
                )


@FAMILY.check("someone-fixes")
def check_node_replacement_enabled(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The service or hpctl replaces broken nodes."""
    place: Place = ("NodeRecovery",)
    if wanted.request.get("NodeRecovery") == "None" and wanted.mode in ("observe", "assist"):
        yield make_warning_finding(
            place,
            f"node_recovery is None and hpctl's mode is {wanted.mode}: nothing replaces a "
            "broken node",
            "leave node_recovery out, or write hpctl: {mode: own}",
        )


@FAMILY.check("hpctl-installed")
def check_lifecycle_scripts_install_hpctl(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Lifecycle scripts install hpctl where its mode is assist or own.

    The service's AMI has no hpctl.
    """
    if wanted.mode not in ("assist", "own") or not wanted.by_api:
        return
    lacking = [group for group in wanted.groups if not group.lifecycle]
    if lacking:
        names = ", ".join(group.name for group in lacking)
        yield make_warning_finding(
            lacking[0].at("LifeCycleConfig"),
            f"hpctl's mode is {wanted.mode}, and nothing installs hpctl on the nodes of {names}: "
            "they have no lifecycle scripts",
            "run `hpctl cluster lifecycle bundle` and `push`, and name their S3 prefix under"
            " lifecycle",
        )


@FAMILY.check("rolling")
def check_no_rolling_updates_configured(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """No group's updates rest on rolling batches, which are EKS's."""
    for group in wanted.groups:
        for key in ("ScheduledUpdateConfig", "AutoPatchConfig"):
            if group.raw.get(key, {}).get("DeploymentConfig", {}).get("RollingUpdatePolicy"):
                yield make_warning_finding(
                    group.at(key, "DeploymentConfig", "RollingUpdatePolicy"),
                    f"{group.name}: {NO_BATCHES}",
                    "leave rolling_update_policy out, or update group by group with "
                    "`hpctl cluster software-update --group`",
                )


@FAMILY.check("eks-only")
def check_no_eks_only_features_requested(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Nothing is asked that works for clusters of EKS alone.

    HyperPod guide: managed tiered checkpointing is a feature of EKS clusters; the API reference
    describes automatic patching in the words of pods and cordons.
    """
    tiers = wanted.request.get("TieredStorageConfig") or {}
    if tiers.get("Mode") == "Enable":
        yield make_warning_finding(
            ("TieredStorageConfig",),
            "managed tiered checkpointing is for clusters of EKS: Slurm's jobs have none of it",
            "leave tiered_storage out",
        )
    for group in wanted.groups:
        if group.raw.get("AutoPatchConfig"):
            yield make_warning_finding(
                group.at("AutoPatchConfig"),
                f"{group.name} asks for automatic patches, which AWS documents for EKS alone",
                "leave auto_patch out; `hpctl cluster software-update` brings the newest AMI",
            )


@FAMILY.check("set-up")
def check_slurm_setup_configured(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Check that Slurm is set up: by the API, or by an on_create script."""
    if wanted.by_api:
        return
    for group in wanted.groups:
        if "OnCreate" not in group.lifecycle:
            yield make_failure_finding(
                group.at("LifeCycleConfig"),
                f"{group.name} has no on_create script, and slurm_config is "
                "provisioning_parameters: nothing would set Slurm up",
                "name lifecycle.on_create, or write slurm_config: api",
            )


def _get_default_fsx_mount_path(kind: str) -> str:
    return "/fsx" if kind == "LUSTRE" else "/home"


def _is_instance_type_field(place: Place) -> bool:
    return any(part in _TYPE_KEYS for part in place)
