"""`hpctl capacity` and `hpctl autoscale`, letter by letter, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hpctl.core.model import InstanceGroup, JobId, SlurmJob
from hpctl.errors import Absent, HpctlError, Unavailable
from tests.cli import paper_aws, worlds
from tests.cli.conftest import Head
from tests.cli.paper_aws import GROUP, PaperSageMaker
from tests.cli.test_golden import compare
from tests.cli.test_json_contract import documented, printed

PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/llm-march"
AUTOSCALE = """
autoscale:
  enabled: true
  hours_per_day: 100
  groups:
    worker-group-1: {min_count: 2, max_count: 12, partition: gpu}
    spot: {min_count: 0, max_count: 4, partition: spot}
spares: {worker-group-1: 1}
"""
COMMANDS = {
    "capacity": (1, ("capacity",)),
    "autoscale-status": (0, ("autoscale", "status")),
    "autoscale-explain": (0, ("autoscale", "explain")),
    "explain-change": (0, ("explain", "s-22222222")),
}


class Planned(PaperSageMaker):
    """The same cluster on a training plan."""

    lost = False

    def _describe_cluster(self, request: Mapping[str, Any]) -> dict[str, Any]:
        told = super()._describe_cluster(request)
        told["InstanceGroups"][1]["TrainingPlanArn"] = PLAN
        return told

    def _describe_training_plan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert request["TrainingPlanName"] == "llm-march"
        if self.lost:
            raise Absent("sagemaker:DescribeTrainingPlan: no such plan", code="ResourceNotFound")
        part = {
            "ReservedCapacityArn": PLAN.replace("training-plan", "reserved-capacity"),
            "InstanceType": "ml.p5.48xlarge",
            "TotalInstanceCount": 10,
            "Status": "Active",
            "AvailabilityZone": "us-west-2b",
            "StartTime": worlds.NOW - timedelta(days=20),
            "EndTime": worlds.NOW + timedelta(days=10),
        }
        return {
            "TrainingPlanArn": PLAN,
            "TrainingPlanName": "llm-march",
            "Status": "Active",
            "TotalInstanceCount": 10,
            "InUseInstanceCount": 8,
            "AvailableInstanceCount": 1,
            "UnhealthyInstanceCount": 1,
            "ReservedCapacitySummaries": [part],
        }


@pytest.fixture
def planned(history: Head, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.delenv("HPCTL_CLUSTER", raising=False)
    monkeypatch.setenv("SAGEMAKER_RESOURCE_CONFIG_PATH", "/nonexistent")
    history.aws.sagemaker = Planned()
    history.config.write_text(history.config.read_text() + AUTOSCALE)
    assert history.slurm is not None
    assert history.cloud is not None
    waits = SlurmJob(
        JobId(4600), "PENDING", worlds.at(-600), name="eval", user="ana", partition="gpu",
        reason="Resources", eligible=worlds.at(-600), wants=4,
    )  # fmt: skip
    young = replace(waits, id=JobId(4601), wants=1, partition="spot", eligible=worlds.at(60))
    jobs = {**history.slurm.jobs, waits.id: waits, young.id: young}
    history.slurm = replace(history.slurm, jobs=jobs)
    groups = {
        GROUP: InstanceGroup(GROUP, "ml.p5.48xlarge", 7, 7, "InService"),
        "spot": InstanceGroup("spot", "ml.g5.12xlarge", 0, 0, "InService"),
    }
    history.cloud = replace(history.cloud, groups=groups, continuous=True)
    return history


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_as_before(planned: Head, name: str) -> None:
    code, args = COMMANDS[name]
    result = planned.run(*args)
    assert result.exit_code == code, result.output
    compare(f"{name}.txt", result.stdout)
    for line in result.stdout.splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_json_is_as_before_and_as_documented(planned: Head, name: str) -> None:
    result = planned.run(*COMMANDS[name][1], "--json")
    compare(f"{name}.json", result.stdout)
    told = json.loads(result.stdout)
    schema = f"hpctl.{COMMANDS[name][1][0]}/1"
    assert told["schema"] == schema
    said = set(documented(schema))
    if name not in ("autoscale-status", "explain-change"):
        assert set(printed(told, "", set())) == said
    else:
        assert set(printed(told, "", set())) <= said


def test_a_plan_that_cannot_be_read_is_said_and_the_rest_is_shown(planned: Head) -> None:
    assert isinstance(planned.aws.sagemaker, Planned)
    planned.aws.sagemaker.lost = True
    shown = planned.run("capacity", width=200)
    assert "Not known: training plan llm-march: sagemaker:DescribeTrainingPlan" in shown.stdout
    assert GROUP in shown.stdout


def test_without_slurm_its_columns_are_away_and_the_exit_code_is_3(planned: Head) -> None:
    planned.slurm = None
    shown = planned.run("capacity", width=200)
    assert "SPARE" not in shown.stdout
    assert "Not known: Slurm: it does not answer" in shown.stdout
    assert shown.exit_code == 1, "an instance has failed, which is worse"
    told = planned.run("autoscale", "explain", "--json")
    assert told.exit_code == 3
    assert {group["answer"] for group in json.loads(told.stdout)["groups"]} == {"unknown"}


def test_a_degraded_group_is_a_problem_without_any_failed_instance(
    planned: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = paper_aws.nodes()
    monkeypatch.setattr(
        paper_aws, "nodes", lambda: [n for n in whole if n["InstanceStatus"]["Status"] == "Running"]
    )
    shown = planned.run("capacity", "--json")
    assert shown.exit_code == 1
    said = json.loads(shown.stdout)["problems"]
    assert said == ["group worker-group-1 is Degraded: 7 of 8 run"]


def test_autoscaling_without_a_journal_says_that_nobody_decides(head: Head) -> None:
    result = head.run("autoscale", "explain")
    assert isinstance(result.exception, Unavailable)
    assert "has never run here" in str(result.exception)
    assert "it is off in any case" in str(result.exception)


def test_a_group_is_explained_by_its_change_and_recoveries_name_theirs(planned: Head) -> None:
    told = json.loads(planned.run("explain", GROUP, "--json").stdout)
    assert (told["kind"], told["target"]) == ("change", "s-22222222")
    assert told["related"] == ["s-11111111"] or told["related"] == []
    near = planned.run("explain", "s-2222222", width=200)
    assert isinstance(near.exception, HpctlError)
    assert "s-22222222" in near.exception.hint


def test_a_cluster_that_is_not_there_is_one_error_with_the_nearest(planned: Head) -> None:
    shown = planned.run("capacity", "--cluster", "llm-prodd")
    assert shown.exit_code == 1
    assert "there is no cluster 'llm-prodd'" in str(shown.exception)
