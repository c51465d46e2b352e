"""Each check fires, at its place and with its mend, on one thing that is wrong, and no other does.

The judges are fed with answers in the shapes that EC2, FSx, IAM and SageMaker document;
test_gather.py asks for those over HTTP. Of a file system's VPC, network interfaces, state and mount
name no emulator tells, so they stand here alone.
"""

import pytest
import yaml

from hpctl.clusters import spec as specs
from hpctl.clusters.validate import FAMILIES, worst
from hpctl.clusters.validate.facts import NetworkFacts
from hpctl.clusters.validate.role import needed
from hpctl.clusters.validate.wanted import Level, of_spec, spoken
from tests.clusters.validate.cases import CASES, INIT, NO_ANSWER, Case, in_s3
from tests.clusters.validate.world import World, anywhere, group

SIDE_EFFECTS = {
    "network.subnets-exist": {"storage.same-vpc", "capacity.offered"},
    "security-groups.groups-exist": {"storage.ports"},
    "capacity.plan-fits": {"capacity.plan-zone"},
    "network.one-zone": {"storage.same-zone"},
    "storage.ports": {"security-groups.themselves"},
    "spec.instance-types": {"quotas.types"},
    "spec.head-types": {"capacity.plan-fits"},
}
"""Checks that rightly see the same change."""


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.check}: {c.words[:40]}")
def test_a_check_fires_and_no_other_blames_something_else(case: Case) -> None:
    """One cause, one problem: a second verdict would send people the wrong way."""
    world = World()
    case.change(world)
    found = world.trouble()
    own = [v for v in found if f"{v.family}.{v.check}" == case.check and case.words in v.what]
    assert own, found
    assert (own[0].level, spoken(own[0].place)) == (case.level, case.place)
    assert own[0].mend
    others = {f"{v.family}.{v.check}" for v in found} - {case.check}
    assert others <= SIDE_EFFECTS.get(case.check, set()), found


def test_every_check_has_a_case_in_which_it_fires() -> None:
    every = [f"{family.name}.{check.id}" for family in FAMILIES for check in family.checks]
    assert {case.check for case in CASES} == set(every)
    assert len(every) == len(set(every))


def test_where_nothing_is_wrong_nothing_is_said() -> None:
    assert World().trouble() == []
    assert worst(World().verdicts()) is Level.OK
    world = World()
    world.legacy()
    in_s3(world, INIT, world.parameters)
    assert world.trouble() == []


def test_rules_for_addresses_are_not_judged_where_nobody_knows_the_addresses() -> None:
    world = World()
    world.file["instance_groups"].pop(1)
    open_ = group("sg-nodes", IpPermissions=anywhere(), IpPermissionsEgress=anywhere())
    world.say("network", subnets=NO_ANSWER, security_groups={"sg-nodes": open_})
    assert {v.level for v in world.trouble()} == {Level.UNKNOWN}


def test_nothing_is_concluded_of_a_network_that_nobody_could_read() -> None:
    world = World()
    nothing = dict.fromkeys(NetworkFacts.__slots__, NO_ANSWER)
    world.say("network", **{**nothing, "dns": {}})
    assert {v.level for v in world.trouble()} == {Level.UNKNOWN}


ALARM = {"auto_rollback_configuration": [{"alarm_name": "down"}]}


@pytest.mark.parametrize(
    "update",
    [
        {"scheduled_update": {"schedule_expression": "cron(0 3 ? * SUN *)"}},
        {"auto_patch": {"patching_strategy": "WhenIdle"}},
    ],
)
def test_alarms_that_roll_back_are_read_by_the_role_and_no_others(
    update: dict[str, dict[str, object]],
) -> None:
    """HyperPod guide, "Update your AMI version in your SageMaker HyperPod cluster": automatic
    rollback needs cloudwatch:DescribeAlarms on the execution role.
    """

    def asked() -> list[str]:
        wanted = of_spec(specs.parse(yaml.safe_dump(world.file, sort_keys=False)))
        found = needed(wanted, wanted.groups[0].execution_role, "us-east-1")
        named = [one for one in found if "cloudwatch:DescribeAlarms" in one.actions]
        return [arn.rpartition(":alarm:")[2] for one in named for arn in one.resources]

    world = World()
    assert asked() == []
    world.group("gpu").update({key: {**how, "deployment_config": ALARM}
                               for key, how in update.items()})  # fmt: skip
    assert asked() == ["down"]
