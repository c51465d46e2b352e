"""The life of a legacy cluster: made with provisioning_parameters.json, migrated, scaled, ended.

Every order is the command line's. Source of the migration: the SageMaker guide,
sagemaker-hyperpod-slurm-api-config-migration.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpctl.clusters.request import FILE
from hpctl.sandbox.api import Sandbox
from tests.integration import provision
from tests.integration.provision import NAME, client, counts, hpctl, script, states, until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly, pytest.mark.timeout(300)]

LOOK = ("--yes", "--every", "0.3s", "--timeout", "60s")


@pytest.fixture
def old(empty_sandbox: Sandbox) -> Iterator[Sandbox]:
    script(empty_sandbox, "#!/bin/sh\necho fine\n")
    yield empty_sandbox
    provision.delete(empty_sandbox)


def cluster_file(sandbox: Sandbox, **more: Any) -> dict[str, Any]:
    def group(name: str, kind: str, **of_it: Any) -> dict[str, Any]:
        return {
            "name": name,
            "instance_type": kind,
            "execution_role": sandbox.aws["execution_role"],
            "lifecycle": {"source_s3_uri": sandbox.aws["lifecycle"], "on_create": "on_create.sh"},
            **of_it,
        }

    network = {
        "subnets": [next(iter(sandbox.aws["subnets"]))],
        "security_groups": [sandbox.aws["security_group"]],
    }
    return {
        "name": NAME,
        "slurm_config": "provisioning_parameters",
        "node_recovery": "None",
        "vpc": network,
        "instance_groups": [
            group("controller", "ml.m5.xlarge", role="controller", count=1),
            group("h100", "ml.p5.48xlarge", role="compute", partition="train", count=2),
        ],
        **more,
    }


def write(path: Path, spec: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(spec, sort_keys=False))


def test_a_legacy_cluster_is_migrated_and_lives_on(old: Sandbox, tmp_path: Path) -> None:
    file, sagemaker, s3 = tmp_path / "old.yaml", client(old, "sagemaker"), client(old, "s3")
    write(file, cluster_file(old))
    bucket, _, prefix = old.aws["lifecycle"].removeprefix("s3://").partition("/")
    key = f"{prefix.rstrip('/')}/{FILE}"
    made = hpctl(old, "cluster", "provisioning-parameters", str(file)).stdout
    s3.put_object(Bucket=bucket, Key=key, Body=made.encode())

    def there() -> bool:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", ())
        return any(one["Key"] == key for one in listed)

    # Create, and run.
    hpctl(old, "cluster", "create", str(file), *LOOK)
    assert not any(
        "SlurmConfig" in g for g in sagemaker.describe_cluster(ClusterName=NAME)["InstanceGroups"]
    )
    until(lambda: list(states(old, "train").values()) == ["idle", "idle"], "two idle nodes")
    said = old.run(["srun", "-N2", "-p", "train", "--gres=gpu:8", "echo", "here"]).stdout
    assert said == "here\nhere\n"
    job = old.run(
        ["sbatch", "--parsable", "-p", "train", "-o", "/dev/null", "--wrap", "sleep 600"]
    ).stdout.strip()
    until(lambda: old.run(["squeue", "-ho", "%T", "-j", job]).stdout == "RUNNING\n", "the job")

    _migrates(old, tmp_path, made.encode(), there)
    assert old.run(["squeue", "-ho", "%T", "-j", job]).stdout == "RUNNING\n"

    before = {n["InstanceId"] for n in _nodes(sagemaker)}
    # Scale: the new node joins the partition that the API names.
    hpctl(old, "cluster", "scale", "--cluster", NAME, "h100", "3", *LOOK)
    assert counts(old)["h100"] == (3, 3)
    until(lambda: sorted(states(old, "train").values()) == ["idle", "idle", "mixed"], "a third")

    # Replace an idle node, then end it all.
    idle = next(n for n, state in states(old, "train").items() if state == "idle")
    hpctl(old, "cluster", "replace", "--cluster", NAME, idle, "--direct", *LOOK)
    until(lambda: states(old, "train").get(idle) == "idle", "the replaced node")
    assert len({n["InstanceId"] for n in _nodes(sagemaker)} - before) == 2
    assert old.run(["squeue", "-ho", "%T", "-j", job]).stdout == "RUNNING\n"
    old.run(["scancel", job])
    hpctl(old, "cluster", "delete", NAME, *LOOK)
    assert sagemaker.list_clusters()["ClusterSummaries"] == []


def _migrates(old: Sandbox, directory: Path, parameters: bytes, there: Callable[[], bool]) -> None:
    """Migrate by the file that `import` writes, with another slurm_config."""
    sagemaker = client(old, "sagemaker")
    new = directory / "new.yaml"
    hpctl(old, "cluster", "import", NAME, "-o", str(new))
    spec = yaml.safe_load(new.read_text())
    assert spec["slurm_config"] == "provisioning_parameters"
    write(new, {**spec, "slurm_config": "api"})
    before = {n["InstanceId"] for n in _nodes(sagemaker)}
    plan = json.loads(hpctl(old, "cluster", "update", str(new), "--dry-run", "--json").stdout)
    assert [o["operation"] for o in plan["orders"]] == ["DeleteObject", "UpdateCluster"]
    assert there()
    told = hpctl(old, "cluster", "update", str(new), *LOOK)
    assert "There is no way back" not in told.stderr, "nobody is asked with --yes"
    assert not there()
    assert [f.read_bytes() for f in (directory / "new.legacy").iterdir()] == [parameters]
    now = sagemaker.describe_cluster(ClusterName=NAME)
    assert [g["SlurmConfig"]["NodeType"] for g in now["InstanceGroups"]] == [
        "Controller",
        "Compute",
    ]
    assert "FailureMessage" not in now
    assert {n["InstanceId"] for n in _nodes(sagemaker)} == before
    same = hpctl(old, "cluster", "update", str(new))
    assert "there is nothing to do" in same.stdout


def _nodes(sagemaker: Any) -> list[dict[str, Any]]:
    told = sagemaker.list_cluster_nodes(ClusterName=NAME)
    return list(told["ClusterNodeSummaries"])
