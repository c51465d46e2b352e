"""What is asked of an execution role hangs on what the file asks for."""

from __future__ import annotations

import yaml

from hpctl.clusters import spec as specs
from hpctl.clusters.validate.role import needed
from hpctl.clusters.validate.wanted import of_spec
from tests.clusters.validate.world import World

ALARM = {"auto_rollback_configuration": [{"alarm_name": "down"}]}


def asked(world: World) -> dict[str, tuple[str, ...]]:
    wanted = of_spec(specs.parse(yaml.safe_dump(world.file, sort_keys=False)))
    role = wanted.groups[0].execution_role
    found = needed(wanted, role, "us-east-1")
    return {action: one.resources for one in found for action in one.actions}


def test_alarms_that_roll_back_are_read_by_the_role_and_no_others() -> None:
    """HyperPod guide, "Update your AMI version in your SageMaker HyperPod cluster": automatic
    rollback needs cloudwatch:DescribeAlarms on the execution role.
    """
    world = World()
    assert "cloudwatch:DescribeAlarms" not in asked(world)
    world.group("gpu")["scheduled_update"] = {
        "schedule_expression": "cron(0 3 ? * SUN *)", "deployment_config": ALARM,
    }  # fmt: skip
    [arn] = asked(world)["cloudwatch:DescribeAlarms"]
    assert arn.endswith(":alarm:down")
    del world.group("gpu")["scheduled_update"]
    patch = {"patching_strategy": "WhenIdle", "deployment_config": ALARM}
    world.group("gpu")["auto_patch"] = patch
    assert asked(world)["cloudwatch:DescribeAlarms"] == (arn,)
