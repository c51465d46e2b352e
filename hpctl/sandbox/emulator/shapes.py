"""SageMaker's own service model, held against every request and every response.

botocore's ParamValidator knows types, required and unknown members and minimum lengths; the
service also refuses what is too long, not in an enumeration or not of the pattern. Both are
checked here, in both directions, so that the emulator cannot drift from what clients are built
against without saying so.

What the service checks of a cluster's specification beyond its shape.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import botocore.session
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape
from botocore.validate import ParamValidator

from hpctl.clusters.request import parse_provisioning_parameters
from hpctl.sandbox.emulator.faults import make_validation_error
from hpctl.sandbox.emulator.state import EmulatedInstanceGroup, GroupImageState, Role
from hpctl.toolkit.compat import UTC, parse_iso_time

Body = dict[str, Any]


SAGEMAKER = "sagemaker"
SERVICES = {"SageMaker": SAGEMAKER, "ServiceQuotasV20190624": "service-quotas"}
"""The services that are spoken here, by the word before the dot of X-Amz-Target."""

_VERSIONS = {SAGEMAKER: "2017-07-24", "service-quotas": "2019-06-24"}


@cache
def load_botocore_service_model(service: str = SAGEMAKER) -> ServiceModel:
    """botocore's model of a service, loaded once a process (SageMaker's in a third of a second)."""
    session = botocore.session.get_session()
    return ServiceModel(session.get_data(f"{service}/{_VERSIONS[service]}/service-2"), service)


@cache
def load_operation_model(name: str, service: str = SAGEMAKER) -> OperationModel | None:
    """Return the model of one operation, or None where the service has no such operation."""
    model = load_botocore_service_model(service)
    return model.operation_model(name) if name in model.operation_names else None


def list_enum_values(shape: str) -> tuple[str, ...]:
    """Return the values of one of SageMaker's enumerations."""
    return tuple(load_botocore_service_model().shape_for(shape).metadata["enum"])


def find_request_errors(operation: OperationModel, params: Body) -> list[str]:
    """Return what the service would find wrong with a request; empty where it is well formed."""
    return _find_shape_errors(operation.input_shape, params)


def find_response_errors(operation: OperationModel, body: Body) -> list[str]:
    """Return where an answer departs from the model, its types, enumerations and lengths."""
    return _find_shape_errors(operation.output_shape, body)


def decode_request_timestamps(operation: OperationModel, params: Body) -> Body:
    """Return the request with its wire timestamps (epoch seconds) as aware datetimes."""
    shape = operation.input_shape
    return (
        dict(_convert_timestamp_members(params, shape, _convert_epoch_to_datetime))
        if shape is not None
        else params
    )


def encode_response_timestamps(operation: OperationModel, body: Body) -> Body:
    """Return the answer with datetimes as epoch seconds, SageMaker's form on the wire."""
    shape = operation.output_shape
    return (
        dict(_convert_timestamp_members(body, shape, _convert_datetime_to_epoch))
        if shape is not None
        else body
    )


def _find_shape_errors(shape: Shape | None, value: Body) -> list[str]:
    if shape is None:
        return [] if not value else ["the model has no shape for this"]
    report = ParamValidator().validate(value, shape)
    found = report.generate_report().splitlines() if report.has_errors() else []
    return [*found, *_find_constraint_errors(value, shape, shape.name)]


def _find_constraint_errors(value: Any, shape: Shape, place: str) -> Iterator[str]:
    """Maximum lengths, enumerations and patterns, which ParamValidator leaves to the service."""
    if isinstance(shape, StructureShape) and isinstance(value, Mapping):
        for name, item in value.items():
            if name in shape.members:
                yield from _find_constraint_errors(item, shape.members[name], f"{place}.{name}")
    elif isinstance(shape, ListShape) and isinstance(value, list | tuple):
        yield from _find_max_length_errors(value, shape, place)
        for at, item in enumerate(value):
            yield from _find_constraint_errors(item, shape.member, f"{place}[{at}]")
    elif isinstance(shape, MapShape) and isinstance(value, Mapping):
        for name, item in value.items():
            yield from _find_constraint_errors(name, shape.key, f"{place} key")
            yield from _find_constraint_errors(item, shape.value, f"{place}.{name}")
    elif shape.type_name == "string" and isinstance(value, str):
        yield from _find_string_constraint_errors(value, shape, place)
    elif shape.type_name in ("integer", "long") and isinstance(value, int):
        yield from _find_number_limit_errors(value, shape, place)


def _find_number_limit_errors(value: int, shape: Shape, place: str) -> Iterator[str]:
    top = shape.metadata.get("max")
    if top is not None and value > top:
        yield _format_constraint_violation(value, place, f"have value less than or equal to {top}")


def _find_max_length_errors(value: Any, shape: Shape, place: str) -> Iterator[str]:
    top = shape.metadata.get("max")
    if top is not None and len(value) > top:
        yield _format_constraint_violation(value, place, f"have length less than or equal to {top}")


def _find_string_constraint_errors(value: str, shape: Shape, place: str) -> Iterator[str]:
    yield from _find_max_length_errors(value, shape, place)
    enum = shape.metadata.get("enum")
    if enum and value not in enum:
        yield _format_constraint_violation(
            value, place, f"satisfy enum value set: [{', '.join(enum)}]"
        )
    pattern = shape.metadata.get("pattern")
    if pattern and (compiled := _compile_model_pattern(pattern)) and not compiled.fullmatch(value):
        yield _format_constraint_violation(
            value, place, f"satisfy regular expression pattern: {pattern}"
        )


def _format_constraint_violation(value: Any, place: str, rule: str) -> str:
    return (
        f"Value '{str(value)[:120]}' at '{place}' failed to satisfy constraint: Member must {rule}"
    )


@cache
def _compile_model_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern of the model, or None for Java's classes (`\\p{L}`), which re cannot
    read."""
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _convert_timestamp_members(value: Any, shape: Shape, timestamp: Any) -> Any:
    if isinstance(shape, StructureShape) and isinstance(value, Mapping):
        return {
            name: _convert_timestamp_members(item, shape.members[name], timestamp)
            if name in shape.members
            else item
            for name, item in value.items()
        }
    if isinstance(shape, ListShape) and isinstance(value, list | tuple):
        return [_convert_timestamp_members(item, shape.member, timestamp) for item in value]
    if isinstance(shape, MapShape) and isinstance(value, Mapping):
        return {
            name: _convert_timestamp_members(item, shape.value, timestamp)
            for name, item in value.items()
        }
    return timestamp(value) if shape.type_name == "timestamp" else value


def _convert_epoch_to_datetime(value: Any) -> Any:
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    return parse_iso_time(value) if isinstance(value, str) else value


def _convert_datetime_to_epoch(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


PAGE = 100

Item = TypeVar("Item")


def build_paginated_response(
    key: str, items: Sequence[Item], request: Body, show: Callable[[Item], Any] = lambda one: one
) -> Body:
    """Return one page of `items` below `key`, each as `show` has it, and the token of the next if
    any.

    Raises ApiError ValidationException for a token that this API did not give.
    """
    size = min(request.get("MaxResults") or PAGE, PAGE)
    start = _parse_next_token(request.get("NextToken"))
    body: Body = {key: [show(one) for one in items[start : start + size]]}
    if start + size < len(items):
        body["NextToken"] = str(start + size)
    return body


def _parse_next_token(token: str | None) -> int:
    if token and not token.isdecimal():
        raise make_validation_error("Invalid NextToken.")
    return int(token or 0)


ROLES: Mapping[str, Role] = {"Controller": "controller", "Login": "login", "Compute": "compute"}

ONE_CONTROLLER = (
    "Instance group {}: a Controller group has exactly one instance; several controllers are not "
    "supported with SlurmConfig."
)

Parameters = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""The provisioning_parameters.json at the SourceS3Uri of a group's specification, if any."""

BOTH_STYLES = (
    "The LifeCycleConfig cannot include both a SLURM Orchestrator Config and a "
    "provisioning_parameters.json file simultaneously."
)
"""FailureMessage of an update with SlurmConfig that found the file (the migration guide)."""


def make_emulated_instance_group(
    spec: Mapping[str, Any], parameters: Parameters, software: GroupImageState
) -> EmulatedInstanceGroup:
    """Return an instance group of a specification that was checked, with no nodes yet.

    A group without SlurmConfig has its role and partition in provisioning_parameters.json;
    without that it is one of compute nodes. `software` is what it gets where it names no image.
    """
    slurm, partition = spec.get("SlurmConfig"), None
    if slurm:
        role = ROLES[slurm["NodeType"]]
    else:
        roles, _ = parse_provisioning_parameters(parameters(spec) or {})
        name, partition = roles.get(spec["InstanceGroupName"], ("compute", None))
        role = ROLES[name.capitalize()]
    version = str(spec.get("ImageReleaseVersion", software.desired))
    image = str(spec.get("ImageId", software.image or "default"))
    return EmulatedInstanceGroup(
        dict(spec),
        role,
        target=int(spec["InstanceCount"]),
        software=GroupImageState(version, version, "" if image == "default" else image),
        legacy_partition=partition or "",
    )


def has_conflicting_slurm_config_sources(
    groups: Iterable[Mapping[str, Any]], parameters: Parameters
) -> bool:
    """Return whether groups with SlurmConfig have a provisioning_parameters.json beside their
    scripts."""
    return any("SlurmConfig" in group and parameters(group) is not None for group in groups)


def check_create_cluster_request(spec: Mapping[str, Any], releases: Sequence[str]) -> None:
    """Raise ApiError ValidationException where CreateCluster would.

    `releases` are the AMI releases there are.
    """
    groups = spec.get("InstanceGroups") or []
    if not groups:
        raise make_validation_error("At least one instance group must be specified.")
    if "Eks" in spec.get("Orchestrator", {}):
        raise make_validation_error("Only clusters orchestrated by Slurm are offered here.")
    continuous = spec.get("NodeProvisioningMode") == "Continuous"
    check_group_specs(groups, releases, spec)
    if continuous and not all("SlurmConfig" in group for group in groups):
        raise make_validation_error(
            "SlurmConfig is required for every instance group of a Slurm cluster with "
            "NodeProvisioningMode Continuous."
        )
    strategy = "SlurmConfigStrategy" in spec.get("Orchestrator", {}).get("Slurm", {})
    if strategy and not any("SlurmConfig" in group for group in groups):
        raise make_validation_error("SlurmConfigStrategy needs SlurmConfig in the instance groups.")
    check_slurm_orchestrator_settings(spec)


def check_slurm_orchestrator_settings(spec: Mapping[str, Any]) -> None:
    """Raise ApiError ValidationException for Slurm settings that do not suit the mode."""
    continuous = spec.get("NodeProvisioningMode") == "Continuous"
    slurm = spec.get("Orchestrator", {}).get("Slurm", {})
    if continuous and "SlurmConfigStrategy" in slurm:
        raise make_validation_error(
            "SlurmConfigStrategy cannot be set with NodeProvisioningMode Continuous."
        )
    if "AccountingDatabase" in slurm and not continuous:
        raise make_validation_error("AccountingDatabase needs NodeProvisioningMode Continuous.")


def check_group_specs(
    groups: Iterable[Mapping[str, Any]],
    releases: Sequence[str],
    cluster: Mapping[str, Any],
    *,
    there: bool = False,
) -> None:
    """Raise ApiError ValidationException for groups that cannot stand together in a cluster.

    `cluster` is its specification, `there` whether it exists. The texts in quotes of the guide:
    smcluster-getting-started-slurm-cli ("Common validation errors") and the troubleshooting of
    sagemaker-hyperpod-slurm-api-config-migration.
    """
    listed = list(groups)
    continuous = cluster.get("NodeProvisioningMode") == "Continuous"
    times = Counter(group["InstanceGroupName"] for group in listed)
    twice = [name for name, count in times.items() if count > 1]
    if twice:
        raise make_validation_error(f"Instance group names must be unique: {', '.join(twice)}.")
    for group in listed:
        _check_group_spec(group)
        _check_storage_config(group, cluster)
        _check_instance_counts(group, continuous=continuous)
        version = group.get("ImageReleaseVersion")
        if version is not None and version not in releases:
            raise make_validation_error(
                f"Instance group {group['InstanceGroupName']}: there is no HyperPod AMI release "
                f"{version}."
            )
    with_slurm = [g for g in listed if "SlurmConfig" in g]
    if not with_slurm:
        return
    if len(with_slurm) < len(listed):
        raise make_validation_error(
            "SlurmConfig must be given for all instance groups or for none."
        )
    types = Counter(g["SlurmConfig"]["NodeType"] for g in listed)
    if types["Controller"] > 1:
        raise make_validation_error(
            f"{types['Controller']} Controller Groups found: SlurmConfig for InstanceGroups may "
            "only have one Controller Group."
        )
    if not types["Controller"] and there:
        name = cluster["ClusterName"]
        raise make_validation_error(
            f"Cluster {name} has no InstanceGroup with Controller node type."
        )
    if not types["Controller"]:
        raise make_validation_error(
            "Cluster must have exactly one InstanceGroup with Controller node type"
        )
    if types["Login"] > 1:
        raise make_validation_error("At most one instance group may have NodeType Login.")


def _check_instance_counts(group: Mapping[str, Any], *, continuous: bool) -> None:
    name, minimum = group["InstanceGroupName"], group.get("MinInstanceCount", 0)
    if minimum > group["InstanceCount"]:
        raise make_validation_error(
            f"Instance group {name}: MinInstanceCount exceeds InstanceCount."
        )
    if minimum and not continuous:
        raise make_validation_error(
            f"Instance group {name}: MinInstanceCount needs NodeProvisioningMode Continuous."
        )
    if len(group.get("CapacityRequirements", {})) > 1:
        raise make_validation_error(
            f"Instance group {name}: CapacityRequirements are Spot or OnDemand."
        )
    if "Spot" in group.get("CapacityRequirements", {}) and "TrainingPlanArn" in group:
        raise make_validation_error(
            f"Instance group {name}: a training plan holds no Spot capacity."
        )


def _check_group_spec(group: Mapping[str, Any]) -> None:
    name = group["InstanceGroupName"]
    if ("InstanceType" in group) == ("InstanceRequirements" in group):
        raise make_validation_error(
            f"Instance group {name}: give either InstanceType or InstanceRequirements."
        )
    lifecycle = group.get("LifeCycleConfig")
    if lifecycle == {}:
        raise make_validation_error(
            f"LifeCycleConfig for instance group is provided but contains no configuration: {name}."
        )
    if lifecycle and "OnCreate" in lifecycle and "OnInitComplete" in lifecycle:
        raise make_validation_error(
            "OnCreate and OnInitComplete in LifeCycleConfig are mutually exclusive: instance "
            f"group {name}."
        )
    if lifecycle and "SourceS3Uri" not in lifecycle:
        raise make_validation_error(
            f"LifeCycleConfig for instance group is incomplete: {name} has no SourceS3Uri."
        )
    slurm = group.get("SlurmConfig")
    if slurm is None:
        return
    partitions = slurm.get("PartitionNames") or []
    if slurm["NodeType"] == "Compute" and not partitions:
        raise make_validation_error(
            f"Instance group {name}: PartitionNames is required for Compute."
        )
    if slurm["NodeType"] != "Compute" and partitions:
        raise make_validation_error(
            f"Partitions can only be assigned to Compute node types: {name}"
        )
    if slurm["NodeType"] == "Controller" and group["InstanceCount"] != 1:
        # The guide's page on the API's Slurm configuration: no several head nodes in this mode.
        raise make_validation_error(ONE_CONTROLLER.format(name))


def _check_storage_config(group: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
    vpc = cluster.get("VpcConfig") or group.get("OverrideVpcConfig")
    keys = chain.from_iterable(group.get("InstanceStorageConfigs", ()))
    mounts = any(key.startswith("Fsx") for key in keys)
    if mounts and not vpc:
        raise make_validation_error("FSx configurations are only supported for Custom VPC")
