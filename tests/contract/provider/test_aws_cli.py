"""The AWS CLI, unchanged, against the emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.provider.beds import CLUSTER, EmulatorBed, cluster, group

Aws = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def aws(emulated: EmulatorBed, tmp_path: Path) -> Aws:
    program = Path(sys.executable).with_name("aws")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, "sagemaker", *words, "--endpoint-url", emulated.emulator.endpoint_url],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "AWS_ACCESS_KEY_ID": "sandbox",
                "AWS_SECRET_ACCESS_KEY": "sandbox",
                "AWS_DEFAULT_REGION": "us-west-2",
                "AWS_PAGER": "",
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    return answer


def test_the_aws_cli_works_against_it(aws: Aws) -> None:
    listed = aws("list-cluster-nodes", "--cluster-name", CLUSTER, "--output", "json")
    nodes = said(listed)["ClusterNodeSummaries"]
    worker = next(n for n in nodes if n["InstanceGroupName"] == "workers")
    ordered = aws(
        "batch-replace-cluster-nodes", "--cluster-name", CLUSTER, "--node-ids", worker["InstanceId"]
    )
    assert said(ordered) == {"Successful": [worker["InstanceId"]]}
    missing = aws("describe-cluster", "--cluster-name", "nope")
    assert missing.returncode != 0
    assert "ResourceNotFound" in missing.stderr


def test_the_aws_cli_makes_scales_checks_and_updates_a_cluster(
    aws: Aws, emulated: EmulatorBed
) -> None:
    api = emulated.emulator
    spec = cluster("cli", workers=2)
    made = said(aws("create-cluster", "--cli-input-json", json.dumps(spec)))
    api.wait_in_service("cli", 10)
    more = [group("workers", "Compute", 3)]
    named = ("--cluster-name", "cli")
    assert said(aws("update-cluster", *named, "--instance-groups", json.dumps(more))) == made
    assert api.wait_until(lambda: len(api.machines_of("cli")) == 4, 10)
    api.wait_in_service("cli", 10)
    checks = [{"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}]
    started = aws(
        "start-cluster-health-check", *named, "--deep-health-check-configurations",
        json.dumps(checks),
    )  # fmt: skip
    assert said(started) == made
    assert api.wait_until(lambda: not api.operations.active(api.world.cluster("cli")), 10)
    assert said(aws("update-cluster-software", *named)) == made
    group_ = api.world.cluster("cli").groups["workers"]
    assert api.wait_until(lambda: group_.software.status == "Succeeded", 10)
    arn = made["ClusterArn"]
    said(aws("add-tags", "--resource-arn", arn, "--tags", "Key=team,Value=ml"))
    assert api.world.cluster(arn).spec["Tags"] == [{"Key": "team", "Value": "ml"}]
    said(aws("delete-cluster", *named))
    assert api.wait_until(lambda: "cli" not in {c.name for c in api.world.clusters.values()}, 10)
