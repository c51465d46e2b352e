"""A legacy cluster's way to API-driven Slurm configuration: its provisioning_parameters.json.

By AWS's guide (sagemaker-hyperpod-slurm-api-config-migration) the file is backed up from every
SourceS3Uri (step 1) and removed there (step 4) before UpdateCluster gives each group its
SlurmConfig (step 5), and is put back where the service rolls that back, so that new nodes come up
as before. Once it is through, there is no way back.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from hpctl.clusters.bundle import MANIFEST, send_idempotent_s3_request
from hpctl.clusters.request import (
    FILE,
    LARGEST,
    NODE_TYPES,
    list_provisioning_parameter_files,
    parse_provisioning_parameters,
    read_s3_object,
)
from hpctl.toolkit.errors import HpctlError, ResourceNotFound
from hpctl.vocabulary.ports import AwsClientFactory


class LegacyParametersFile(Struct, frozen=True):
    """One provisioning_parameters.json. `there`: it is in S3 now, not only in the backup."""

    bucket: str
    key: str
    content: bytes
    there: bool = True

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class LegacyParametersMigration(Struct, frozen=True):
    """The files of a cluster that migrates, and the directory of their backups."""

    backup: Path
    files: tuple[LegacyParametersFile, ...] = ()
    strategy: str = field(default="")

    def save(self) -> None:
        """Write a backup of each file. Raises HpctlError where that cannot be done."""
        try:
            self.backup.mkdir(parents=True, exist_ok=True)
            for file in self.files:
                _make_backup_path(self.backup, file.bucket, file.key).write_bytes(file.content)
        except OSError as error:
            text = f"cannot back up {FILE}: {error}; nothing was changed"
            raise HpctlError(
                text,
                "move the cluster file to a directory where you may write, and run the command "
                "there",
            ) from error

    def remove(self, aws: AwsClientFactory) -> None:
        """Delete the files from S3."""
        s3 = aws.service("s3")
        for file in self.files:
            if file.there:
                send_idempotent_s3_request(s3, "delete_object", Bucket=file.bucket, Key=file.key)

    def restore(self, aws: AwsClientFactory) -> None:
        """Put every file back where it was."""
        s3 = aws.service("s3")
        for file in self.files:
            send_idempotent_s3_request(
                s3, "put_object", Bucket=file.bucket, Key=file.key, Body=file.content
            )


def prepare_cluster_migration(
    aws: AwsClientFactory, found: Mapping[str, Any], request: Mapping[str, Any], backup: Path
) -> LegacyParametersMigration:
    """Look for a described cluster's files, and whether the request says what they say.

    A file that an update which was killed has removed is taken from its backup. Raises HpctlError
    for a cluster that cannot migrate so, Refused, Unavailable.
    """
    files = tuple(_find_legacy_parameters_files(aws, found, backup))
    for file in files:
        _check_legacy_parameters_file(file, request)
        if file.there:
            _require_file_not_in_bundle_manifest(aws, file)
    slurm = request.get("Orchestrator", {}).get("Slurm", {})
    return LegacyParametersMigration(backup, files, str(slurm.get("SlurmConfigStrategy", "")))


def _find_legacy_parameters_files(
    aws: AwsClientFactory, found: Mapping[str, Any], backup: Path
) -> Iterator[LegacyParametersFile]:
    s3 = aws.service("s3")
    for bucket, key in list_provisioning_parameter_files(found):
        try:
            content = read_s3_object(s3, bucket, key)
        except ResourceNotFound:
            saved = _make_backup_path(backup, bucket, key)
            if saved.is_file():
                yield LegacyParametersFile(bucket, key, saved.read_bytes(), there=False)
            continue
        if len(content) >= LARGEST:
            raise HpctlError(
                f"hpctl does not read s3://{bucket}/{key}: it is larger than {LARGEST} bytes",
                "check that the cluster file names the right place of lifecycle scripts",
            )
        yield LegacyParametersFile(bucket, key, content)


def _make_backup_path(backup: Path, bucket: str, key: str) -> Path:
    return backup / quote(f"{bucket}/{key}", safe="")


def _check_legacy_parameters_file(file: LegacyParametersFile, request: Mapping[str, Any]) -> None:
    """Raise HpctlError where something would be lost with the file, or could not be undone."""
    try:
        answer = json.loads(file.content)
    except ValueError as error:
        raise HpctlError(
            f"{file} is not valid JSON: {error}", "fix the file, and run the command again"
        ) from error
    if not isinstance(answer, dict):
        raise HpctlError(
            f"{file} does not contain a JSON object", "fix the file, and run the command again"
        )
    if answer.get("slurm_configurations"):
        raise HpctlError(
            f"{file} has slurm_configurations: the API cannot configure several head nodes, their "
            "database and their failover",
            "do not migrate: keep slurm_config: provisioning_parameters in the cluster file",
        )
    roles, _ = parse_provisioning_parameters(answer)
    groups = {str(g["InstanceGroupName"]): g for g in request["InstanceGroups"]}
    for name, (role, partition) in roles.items():
        slurm = groups.get(name, {}).get("SlurmConfig", {})
        lines = slurm.get("NodeType"), next(iter(slurm.get("PartitionNames") or ()), None)
        if name in groups and lines != (NODE_TYPES[role], partition):
            raise HpctlError(
                f"cannot migrate: {file} makes group {name} "
                f"{_format_group_role_and_partition(NODE_TYPES[role], partition)}, but the"
                " cluster file "
                f"{_format_group_role_and_partition(*lines)}; a role can never be changed after"
                " the migration",
                f"write the role of {file} into the cluster file; the partition can be changed "
                "after the migration",
            )
    stored = chain.from_iterable(g.get("InstanceStorageConfigs") or () for g in groups.values())
    file_systems = chain.from_iterable(config.values() for config in stored)
    mounted = {fsx.get("DnsName") for fsx in file_systems}
    for key in ("fsx_dns_name", "fsx_openzfs_dns_name"):
        if answer.get(key) and answer[key] not in mounted:
            raise HpctlError(
                f"{file} has {key} {answer[key]}, but no group of the cluster file mounts this "
                "storage: after the migration new "
                "nodes would not have it",
                "add the storage (fsx_lustre or fsx_openzfs) to the groups in the cluster file "
                "(docs/cluster.md)",
            )


def _format_group_role_and_partition(role: Any, partition: Any) -> str:
    return f"{role or 'nothing'}{f' in partition {partition}' if partition else ''}"


def _require_file_not_in_bundle_manifest(aws: AwsClientFactory, file: LegacyParametersFile) -> None:
    """Raise HpctlError where a bundle of hpctl's vouches for the file: nodes would refuse it."""
    key = file.key.removesuffix(FILE) + MANIFEST
    try:
        lines = read_s3_object(aws.service("s3"), file.bucket, key).decode(errors="replace")
    except ResourceNotFound:
        return
    if any(line.partition("  ")[2] == FILE for line in lines.splitlines()):
        raise HpctlError(
            f"s3://{file.bucket}/{key} lists {FILE}, which the migration removes: new nodes would "
            "refuse "
            "the lifecycle bundle",
            "push a bundle of the new cluster file first: "
            "`hpctl cluster lifecycle bundle --spec FILE`, "
            "`hpctl cluster lifecycle push` without --prune",
        )


def require_no_jobs_for_slurm_config_strategy(strategy: str, running: Sequence[int] | None) -> None:
    """Raise HpctlError where a strategy needs an empty cluster and jobs run or may run.

    The guide: with Merge running jobs are not affected, with the others partitions are drained
    and jobs waited for.
    """
    if strategy in ("", "Merge") or running == []:
        return
    who = f"{len(running)} job(s) run" if running else "jobs may run: Slurm is not available here"
    raise HpctlError(
        f"cannot migrate now: {who}, and slurm_config_strategy {strategy} rewrites slurm.conf "
        "while they run",
        "migrate with the strategy Merge and change it later; or drain the partitions, wait for "
        "the "
        "jobs to end, and run the command on the head node",
    )
