"""`hpctl cluster update` on a legacy cluster: AWS's guide on the migration, step by step.

Source: the SageMaker guide, sagemaker-hyperpod-slurm-api-config-migration.
"""

import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec import Struct

from hpctl.cli.main import cli
from hpctl.cloud.aws import AwsAccount
from hpctl.clusters.migration import jobs_in_the_way
from hpctl.errors import Absent, HpctlError, Refused
from hpctl.ports import Aws
from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.clusters.bed import CLUSTER, REGION, SANDBOX_KEYS
from tests.clusters.shell import FAST, ROLE

BUCKET = "sagemaker-x"
KEY = "scripts/provisioning_parameters.json"
FILE: dict[str, Any] = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller",
    "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
}
BOTH = "cannot include both a SLURM Orchestrator Config"


@dataclass
class Bucket:
    """S3 as far as hpctl uses it here, the one place of two that the emulator reads as well."""

    objects: dict[tuple[str, str], bytes] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def read(self, operation: str, *, Bucket: str, Key: str) -> dict[str, Any]:
        assert operation == "get_object"
        if (Bucket, Key) not in self.objects:
            raise Absent("no such key", code="NoSuchKey")
        return {"Body": io.BytesIO(self.objects[Bucket, Key])}

    def order(self, operation: str, *, Bucket: str, Key: str, Body: bytes = b"") -> dict[str, Any]:
        self.calls.append(operation)
        if operation in self.denied:
            raise Refused("no identity-based policy allows it", code="AccessDenied")
        if operation == "put_object":
            self.objects[Bucket, Key] = Body
        else:
            assert operation == "delete_object"
            self.objects.pop((Bucket, Key), None)
        return {}

    def parameters(self, group: Any) -> dict[str, Any] | None:
        if not group.get("LifeCycleConfig") or (BUCKET, KEY) not in self.objects:
            return None
        found = json.loads(self.objects[BUCKET, KEY])
        return found if isinstance(found, dict) else None


class Account(Struct):
    """AwsAccount, but for S3."""

    real: AwsAccount
    s3: Bucket

    @property
    def region(self) -> str:
        return self.real.region

    def service(self, name: str) -> Any:
        return self.s3 if name == "s3" else self.real.service(name)


class Old(Struct):
    """A legacy cluster, its bucket, and the file of it with the API's configuration."""

    emulator: Emulator
    machines: NullMachines
    s3: Bucket
    aws: Aws
    file: Path

    @property
    def backup(self) -> Path:
        return self.file.with_suffix(".legacy")

    def put(self, **more: Any) -> None:
        self.s3.objects[BUCKET, KEY] = json.dumps(FILE | more).encode()

    def write(self, *, workers: dict[str, Any] | None = None, **more: Any) -> None:
        groups: list[dict[str, Any]] = [
            {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge"},
            {"name": "workers", "role": "compute", "partition": "gpu", "count": 3},
        ]
        groups[1] |= {"instance_type": "ml.p5.48xlarge", **(workers or {})}
        for group in groups:
            group["lifecycle"] = {"source_s3_uri": f"s3://{BUCKET}/scripts", "on_create": "a.sh"}
            group["execution_role"] = ROLE
            group.setdefault("count", 1)
        spec = {"name": CLUSTER, "node_recovery": "None", "instance_groups": groups, **more}
        self.file.write_text(yaml.safe_dump(spec))

    def run(self, *args: str, stdin: str = "") -> Result:
        env = {
            "COLUMNS": "200",
            "AWS_ENDPOINT_URL_SAGEMAKER": self.emulator.endpoint_url,
            "AWS_DEFAULT_REGION": REGION,
        }
        words = ["cluster", "update", str(self.file), "--no-validate", *FAST, *args]
        return CliRunner(env=env).invoke(cli, words, input=stdin, prog_name="hpctl")

    def described(self) -> dict[str, Any]:
        return dict(self.aws.service("sagemaker").read("describe_cluster", ClusterName=CLUSTER))

    @property
    def migrated(self) -> bool:
        return all("SlurmConfig" in g for g in self.described()["InstanceGroups"])


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Emulator, NullMachines, Bucket, Account]]:
    os.environ |= SANDBOX_KEYS
    machines, s3 = NullMachines(), Bucket()
    emulator = Emulator(machines, boot_time_s=0.1, parameters=s3.parameters)
    emulator.start()
    real = AwsAccount(region=REGION, endpoint_url=emulator.endpoint_url)
    yield emulator, machines, s3, Account(real, s3)
    emulator.stop()
    assert emulator.response_errors == []


@pytest.fixture(params=[False, True], ids=["merge", "managed"])
def old(
    served: tuple[Emulator, NullMachines, Bucket, Account],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Old:
    """With either default of SlurmConfigStrategy, of which AWS's pages tell both."""
    emulator, machines, s3, aws = served
    emulator.world.clusters.clear()
    emulator.world.outdated = frozenset()
    emulator.world.managed_by_default = request.param
    machines.edited = False
    s3.objects.clear()
    s3.denied.clear()
    s3.calls.clear()
    monkeypatch.setattr("hpctl.wiring.open_aws", lambda *_: aws)
    made = Old(emulator, machines, s3, aws, tmp_path / "llm.yaml")
    made.put()
    made.write()
    groups = [
        {
            "InstanceGroupName": name,
            "InstanceType": kind,
            "InstanceCount": count,
            "ExecutionRole": ROLE,
            "ThreadsPerCore": 1,
            "LifeCycleConfig": {"SourceS3Uri": f"s3://{BUCKET}/scripts", "OnCreate": "a.sh"},
        }
        for name, kind, count in (
            ("controller", "ml.m5.xlarge", 1),
            ("workers", "ml.p5.48xlarge", 3),
        )
    ]
    emulator.create({"ClusterName": CLUSTER, "InstanceGroups": groups, "NodeRecovery": "None"})
    emulator.wait_in_service(CLUSTER, 10)
    return made


def test_a_legacy_cluster_migrates(old: Old) -> None:
    """Steps 1, 4 and 5. The edits in slurm.conf stay: Merge is said, whatever the default is."""
    old.machines.edited = True
    told = old.run(stdin="y\n")
    assert told.exit_code == 0, told.output
    assert "~ workers.SlurmConfig.NodeType: Compute" in told.output
    assert f"s3://{BUCKET}/{KEY} is removed from S3 and kept in" in told.output
    assert "There is no way back" in told.output
    assert old.migrated
    assert old.s3.objects == {}
    assert [json.loads(f.read_bytes()) for f in old.backup.iterdir()] == [FILE]
    asked = [c for c in old.emulator.calls.all() if c.operation == "UpdateCluster"][-1].request
    assert asked["Orchestrator"] == {"Slurm": {"SlurmConfigStrategy": "Merge"}}
    assert asked["InstanceGroups"][1]["ThreadsPerCore"] == 1
    assert old.run().stdout == "update llm: there is nothing to do\n"
    assert old.machines.edited


def test_what_is_rolled_back_gets_its_file_back(old: Old) -> None:
    """ "Recovering from a failed migration": restore the file, so that new nodes come up."""
    old.write(slurm_config_strategy="Managed")
    old.machines.edited = True
    told = old.run("--yes")
    assert (told.exit_code, old.migrated) == (1, False)
    # Managed rewrites slurm.conf: without Slurm at hand nobody knows whether jobs run.
    assert "what runs is unknown" in str(told.exception)
    assert old.s3.calls == []
    old.write()

    def back(*_: Any) -> None:
        old.put()

    # The file comes back before the service looks: another lifecycle push, say.
    old.s3.order = _then(old.s3, back)  # type: ignore[method-assign]
    told = old.run("--yes")
    del old.s3.order
    assert told.exit_code == 1
    said = " ".join(told.stdout.split())
    assert BOTH in said
    assert "remove that file below every group's source_s3_uri" in said
    assert "provisioning_parameters.json is back in S3" in said
    assert (BUCKET, KEY) in old.s3.objects
    assert old.run("--yes").exit_code == 0
    assert old.migrated


def _then(s3: Bucket, deed: Callable[..., None]) -> Callable[..., dict[str, Any]]:
    def order(operation: str, **request: Any) -> dict[str, Any]:
        answer = Bucket.order(s3, operation, **request)
        if operation == "delete_object":
            deed()
        return answer

    return order


def test_what_the_service_refuses_leaves_the_file_where_it_was(old: Old) -> None:
    old.emulator.world.outdated = frozenset({"1.0.0"})
    told = old.run("--yes")
    assert told.exit_code == 1
    assert isinstance(told.exception, HpctlError)
    assert "Update required to use SlurmConfig" in str(told.exception)
    assert "is back in S3" in str(told.exception)
    assert "hpctl cluster software-update --cluster llm" in told.exception.hint
    assert json.loads(old.s3.objects[BUCKET, KEY]) == FILE


def test_a_bucket_that_may_not_be_written_costs_nothing(old: Old) -> None:
    old.s3.denied = {"delete_object", "put_object"}
    begun = len(old.emulator.calls.all())
    told = old.run("--yes")
    assert "put back to S3 by hand" in str(told.exception)
    assert "UpdateCluster" not in [c.operation for c in old.emulator.calls.all()[begun:]]
    assert (BUCKET, KEY) in old.s3.objects


@pytest.mark.parametrize(
    ("file", "spec", "said"),
    [
        (
            {"slurm_configurations": {"slurm_sns_arn": "x"}},
            {},
            "cannot configure several head nodes",
        ),
        ({"fsx_dns_name": "fs-1.fsx"}, {}, "no group of the cluster file mounts it"),
        ({}, {"workers": {"partition": "other"}}, "Compute in partition gpu, the cluster file"),
        ({"login_group": "workers", "worker_groups": []}, {}, "makes workers Login"),
    ],
)
def test_what_would_be_lost_or_cannot_be_undone_is_refused(
    old: Old, file: dict[str, Any], spec: dict[str, Any], said: str
) -> None:
    """ "Clusters with multiple controller nodes", the field mapping of step 3."""
    old.put(**file)
    old.write(**spec)
    told = old.run("--yes")
    assert told.exit_code == 1
    assert said in str(told.exception)
    assert old.s3.calls == []


@pytest.mark.parametrize("content", [b"{", b"[]", b"x" * (1 << 20)])
def test_a_file_that_is_none_is_told(old: Old, content: bytes) -> None:
    old.s3.objects[BUCKET, KEY] = content
    assert isinstance(old.run("--yes").exception, HpctlError)
    assert old.s3.calls == []


def test_a_bundle_that_vouches_for_the_file_is_to_be_pushed_anew(old: Old) -> None:
    manifest = (BUCKET, "scripts/MANIFEST")
    old.s3.objects[manifest] = b"ab  on_create.sh\ncd  provisioning_parameters.json\n"
    assert "refuse the bundle" in str(old.run("--yes").exception)
    old.s3.objects[manifest] = b"ab  on_create.sh\n"
    assert old.run("--yes").exit_code == 0


def test_a_migration_changes_nothing_else(old: Old) -> None:
    """ "Migration does not change your cluster's instance types, instance counts ..."; Continuous
    comes later.
    """
    old.write(workers={"count": 5}, node_provisioning_mode="Continuous")
    told = old.run("--yes")
    assert told.exit_code == 1
    assert "! workers.InstanceCount: 3 -> 5" in told.stdout
    assert "! NodeProvisioningMode" in told.stdout
    old.write()
    assert old.run("--yes").exit_code == 0
    old.write(workers={"count": 5}, node_provisioning_mode="Continuous")
    assert old.run("--yes").exit_code == 0
    assert old.described()["NodeProvisioningMode"] == "Continuous"


@pytest.mark.parametrize("strategy", ["Managed", "Overwrite"])
def test_jobs_are_in_the_way_of_what_rewrites_slurm_conf(strategy: str) -> None:
    """ "Before you begin", running jobs."""
    jobs_in_the_way("Merge", [1])
    jobs_in_the_way(strategy, [])
    for running in ([1], None):
        with pytest.raises(HpctlError, match="rewrites slurm"):
            jobs_in_the_way(strategy, running)


def test_a_command_that_was_killed_is_run_again(old: Old) -> None:
    """Its backup stands for the file that it took away."""
    assert old.run("--dry-run").exit_code == 0
    old.backup.mkdir()
    (old.backup / "sagemaker-x%2Fscripts%2Fprovisioning_parameters.json").write_bytes(
        old.s3.objects.pop((BUCKET, KEY))
    )
    old.emulator.world.outdated = frozenset({"1.0.0"})
    assert old.run("--yes").exit_code == 1
    assert json.loads(old.s3.objects[BUCKET, KEY]) == FILE
    old.emulator.world.outdated = frozenset()
    assert old.run("--yes").exit_code == 0
    assert old.migrated
