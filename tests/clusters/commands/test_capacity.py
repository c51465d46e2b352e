"""`hpctl cluster capacity` and `autoscale`: what cannot be read, what is a problem, and usage."""

import json

import pytest

from hpctl.engine.world_client import WorldClient
from hpctl.toolkit.errors import HpctlError, ResourceNotFound, ServiceUnavailable
from tests.cli import paper_aws, worlds
from tests.cli.paper_aws import GROUP

pytestmark = pytest.mark.integration


def test_a_plan_that_cannot_be_read_is_said_and_the_rest_is_shown(planned):
    gone = ResourceNotFound("sagemaker:DescribeTrainingPlan: no such plan", code="ResourceNotFound")
    planned.aws.sagemaker.answers["describe_training_plan"] = gone
    shown = planned.run("cluster", "capacity", width=200)
    assert "Not known: training plan llm-march: sagemaker:DescribeTrainingPlan" in shown.stdout
    assert GROUP in shown.stdout


def test_a_reservation_that_cannot_be_read_is_said_and_the_plan_is_shown(sold):
    lost = ServiceUnavailable("sagemaker:DescribeReservedCapacity: no answer")
    sold.aws.sagemaker.answers["describe_reserved_capacity"] = lost
    shown = sold.run("cluster", "capacity", "plans", "gb200-in-may", width=200)
    assert shown.exit_code == 3
    assert "gb200-in-may: sagemaker:DescribeReservedCapacity" in shown.stdout
    assert "Reserved in us-west-2b: 18 x" in shown.stdout
    assert "Extended" in shown.stdout


def test_without_slurm_its_columns_are_away_and_the_exit_code_is_3(planned):
    planned.slurm = None
    shown = planned.run("cluster", "capacity", width=200)
    assert "SPARE" not in shown.stdout
    assert "Not known: Slurm: it does not answer" in shown.stdout
    assert shown.exit_code == 1, "an instance has failed, which is worse"
    ran = planned.run("cluster", "autoscale", "explain", "--json")
    assert ran.exit_code == 3
    assert {group["answer"] for group in json.loads(ran.stdout)["groups"]} == {"unknown"}


@pytest.fixture
def served(planned, monkeypatch):
    """The same cluster beside a daemon that serves its world, and a slurmctld that is not asked."""
    world = worlds.world(slurm=planned.slurm, reservations={"hpctl-spares-worker-group-1": ()})
    planned.slurm = None
    monkeypatch.setattr(WorldClient, "read", lambda *_, **__: world)
    return planned


def test_what_is_shown_of_slurm_is_the_daemons_where_one_answers(served):
    shown = served.run("cluster", "capacity", width=200)
    assert "SPARE" in shown.stdout
    assert "Not known" not in shown.stdout
    nodes = json.loads(served.run("cluster", "instances", "--json").stdout)["nodes"]
    assert {node["slurm_state"] for node in nodes if node["node"]} >= {"IDLE", "ALLOCATED"}
    unread = json.loads(served.run("cluster", "autoscale", "status", "--json").stdout)["unknown"]
    assert unread == []


def test_an_order_asks_slurm_whatever_the_daemon_knows(served):
    result = served.run("cluster", "replace", "ip-10-1-0-2", "--dry-run")
    assert isinstance(result.exception, ServiceUnavailable)
    assert "cannot see which jobs run on the nodes" in str(result.exception)


def test_a_degraded_group_is_a_problem_without_any_failed_instance(planned, monkeypatch):
    whole = [n for n in paper_aws.nodes() if n["InstanceStatus"]["Status"] == "Running"]
    monkeypatch.setattr(paper_aws, "nodes", lambda: whole)
    shown = planned.run("cluster", "capacity", "--json")
    assert shown.exit_code == 1
    text = json.loads(shown.stdout)["problems"]
    assert text == ["group worker-group-1 is Degraded: 7 of 8 run"]


def test_autoscaling_without_a_journal_says_that_no_daemon_decides(head):
    result = head.run("cluster", "autoscale", "explain")
    assert isinstance(result.exception, ServiceUnavailable)
    assert "has never run here" in str(result.exception)
    assert "it is off in any case" in str(result.exception)


def test_a_group_is_explained_by_its_change(planned):
    answer = json.loads(planned.run("explain", GROUP, "--json").stdout)
    assert (answer["kind"], answer["target"]) == ("change", "s-22222222")
    near = planned.run("explain", "s-2222222", width=200)
    assert isinstance(near.exception, HpctlError)
    assert "s-22222222" in near.exception.hint
