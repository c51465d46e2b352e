"""Each check fires, at its place and with its fix, on one thing that is wrong, and no other does.

The judges are fed with answers in the shapes that EC2, FSx, IAM and SageMaker document;
test_gather.py asks for those over HTTP. Of a file system's VPC, network interfaces, state and mount
name no emulator tells, so they stand here alone.
"""

import pytest

from hpctl.clusters.validate import FAMILIES
from hpctl.clusters.validate.role import list_required_iam_statements
from hpctl.clusters.validate.wanted import CheckLevel, format_spec_key_path
from tests.clusters.validate.world import ROLE, WORLD, trouble, wanted

pytestmark = pytest.mark.integration

CASES = [(check, case) for check, cases in WORLD["cases"].items() for case in cases]


@pytest.mark.parametrize(("check", "case"), CASES, ids=[f"{c}: {x['says']}" for c, x in CASES])
def test_a_check_fires_and_no_other_blames_something_else(check, case):
    """One cause, one problem: a second verdict would send people the wrong way."""
    says, *change = case["says"], case.get("file", {}), case.get("account", {})
    level, place, text = says.split(" ", 2)
    found = trouble(*change)
    own = [v for v in found if f"{v.family}.{v.check}" == check and text in v.what]
    assert own, found
    assert (own[0].level, format_spec_key_path(own[0].place)) == (level, place)
    assert own[0].fix
    others = {f"{v.family}.{v.check}" for v in found} - {check}
    assert others <= {*WORLD["beside"].get(check, ())}, found


def test_every_check_has_a_case_in_which_it_fires():
    every = [f"{family.name}.{check.id}" for family in FAMILIES for check in family.checks]
    assert {*WORLD["cases"]} == {*every}
    assert len(every) == len(set(every))


def test_where_nothing_is_wrong_nothing_is_said():
    assert [trouble(**fine) for fine in WORLD["fine"]] == [[], []]


@pytest.mark.parametrize("case", WORLD["untold"])
def test_nothing_is_concluded_of_what_could_not_be_read(case):
    assert {v.level for v in trouble(**case)} == {CheckLevel.UNKNOWN}


@pytest.mark.parametrize(
    ("update", "named"),
    [
        ({}, []),
        ({"scheduled_update": {"schedule_expression": "cron(0 3 ? * SUN *)"}}, ["down"]),
        ({"auto_patch": {"patching_strategy": "WhenIdle"}}, ["down"]),
    ],
)
def test_alarms_that_roll_back_are_read_by_the_role_and_no_others(update, named):
    """HyperPod guide, "Update your AMI version in your SageMaker HyperPod cluster": automatic
    rollback needs cloudwatch:DescribeAlarms on the execution role.
    """
    alarm = {"deployment_config": {"auto_rollback_configuration": [{"alarm_name": "down"}]}}
    gpu = {key: {**how, **alarm} for key, how in update.items()}
    found = list_required_iam_statements(
        wanted({"instance_groups": {"gpu": gpu}}), ROLE, "us-east-1"
    )
    arns = [a for s in found if "cloudwatch:DescribeAlarms" in s.actions for a in s.resources]
    assert [arn.rpartition(":alarm:")[2] for arn in arns] == named
