"""The name of the cluster, and what has that name already."""

from collections.abc import Iterator

from hpctl.clusters.validate.facts import (
    ExistingClusterFacts,
    SpecCheckFamily,
    SpecValidationFacts,
    call_aws_or_return_none_if_missing,
)
from hpctl.clusters.validate.wanted import (
    FailedAwsCall,
    RequestedCluster,
    SpecFinding,
    make_failure_finding,
    make_ok_finding,
    make_unknown_finding,
    make_warning_finding,
)
from hpctl.vocabulary.ports import AwsClientFactory

FAMILY = SpecCheckFamily(
    "cluster", "The cluster's name and what it stands for already.", ("living",)
)


def gather_existing_cluster_facts(
    aws: AwsClientFactory, wanted: RequestedCluster
) -> ExistingClusterFacts:
    """One call, two with a database."""
    sagemaker = aws.service("sagemaker")
    arn = wanted.secret
    return ExistingClusterFacts(
        cluster=call_aws_or_return_none_if_missing(
            sagemaker.read, "describe_cluster", ClusterName=wanted.name
        ),
        secret=call_aws_or_return_none_if_missing(
            aws.service("secretsmanager").read, "describe_secret", SecretId=arn
        )
        if arn
        else None,
    )


BUSY = frozenset({"Creating", "Updating", "RollingBack", "SystemUpdating"})
NAME = ("ClusterName",)


@FAMILY.check("name")
def check_cluster_name_available(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The name is free, or names a cluster that can be updated."""
    living = facts.living.cluster
    if isinstance(living, FailedAwsCall):
        yield make_unknown_finding(NAME, living)
        return
    if living is None:
        yield make_ok_finding(f"the name {wanted.name} is free", NAME)
        return
    status = str(living.get("ClusterStatus", ""))
    if "Eks" in living.get("Orchestrator", {}):
        yield make_failure_finding(
            NAME,
            f"{wanted.name} is a cluster of Amazon EKS in {facts.region}",
            "choose another name: hpctl is for clusters with Slurm",
        )
    elif status == "Deleting":
        yield make_failure_finding(
            NAME,
            f"a cluster {wanted.name} is being deleted",
            f"wait for it (`hpctl cluster wait {wanted.name}`) or choose another name",
        )
    elif status == "Failed":
        why = living.get("FailureMessage")
        yield make_warning_finding(
            NAME,
            f"cluster {wanted.name} is there and has failed{f': {why}' if why else ''}",
            "fix the cause and update it, or delete it first",
        )
    elif status in BUSY:
        yield make_warning_finding(
            NAME,
            f"cluster {wanted.name} is {status}: the service refuses updates meanwhile",
            f"wait for it: `hpctl cluster wait {wanted.name}`",
        )
    else:
        yield make_ok_finding(
            f"{wanted.name} is a living cluster ({status}): the file is held against it", NAME
        )


@FAMILY.check("fixed")
def check_immutable_cluster_fields_unchanged(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """What the service cannot change is as the living cluster has it."""
    living = facts.living.cluster
    if living is None or isinstance(living, FailedAwsCall):
        return
    had, wants = living.get("VpcConfig"), wanted.request.get("VpcConfig")
    if _extract_subnets_and_security_groups(had) != _extract_subnets_and_security_groups(wants):
        yield make_failure_finding(
            ("VpcConfig",),
            f"the network differs from that of the living cluster {wanted.name}, which the service "
            "cannot change",
            "put back its subnets and security groups, or give new groups subnets of their own",
        )
    mode, wish = living.get("NodeProvisioningMode"), wanted.request.get("NodeProvisioningMode")
    if mode and mode != wish:
        yield make_failure_finding(
            ("NodeProvisioningMode",),
            f"the living cluster {wanted.name} has node_provisioning_mode {mode}, which cannot be "
            "given up again",
            "write what it has, or make a new cluster",
        )
    elif wish and mode != wish and facts.living.legacy:
        yield make_failure_finding(
            ("NodeProvisioningMode",),
            f"{wish} needs groups with roles in the API, which the living cluster {wanted.name} "
            "has not yet",
            "leave node_provisioning_mode out, migrate with `hpctl cluster update`, then add it",
        )
    roles = {
        str(g["InstanceGroupName"]): _get_instance_group_slurm_role(g) for g in facts.living.groups
    }
    for group in wanted.groups:
        had_role = roles.get(group.name)
        if had_role and wanted.by_api and had_role != group.role:
            yield make_failure_finding(
                group.at("SlurmConfig", "NodeType"),
                f"{group.name} has role {had_role.lower()} in the living cluster, which the "
                "service cannot change",
                "give the new role to a group of another name",
            )


@FAMILY.check("accounting-secret")
def check_accounting_database_secret_exists(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The accounting database's secret is there."""
    if not wanted.secret:
        return
    place = wanted.secret_place
    found = facts.living.secret
    if isinstance(found, FailedAwsCall):
        yield make_unknown_finding(place, found)
    elif found is None:
        yield make_failure_finding(
            place,
            f"there is no secret {wanted.secret}",
            "make it in AWS Secrets Manager, with the database user's username and password",
        )
    elif found.get("DeletedDate"):
        yield make_failure_finding(
            place,
            f"the secret {found.get('Name')} is scheduled for deletion",
            "restore it (aws secretsmanager restore-secret) or name another one",
        )
    else:
        yield make_ok_finding(f"the secret {found.get('Name')} is there", place)


def _extract_subnets_and_security_groups(config: object) -> tuple[frozenset[str], frozenset[str]]:
    if not isinstance(config, dict):
        return frozenset(), frozenset()
    return frozenset(config.get("Subnets", ())), frozenset(config.get("SecurityGroupIds", ()))


def _get_instance_group_slurm_role(group: object) -> str:
    return str(group.get("SlurmConfig", {}).get("NodeType", "")) if isinstance(group, dict) else ""
