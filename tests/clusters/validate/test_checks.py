"""Each check fires, at its place and with its mend, on one thing that is wrong.

That it does not fire otherwise says test_good.py: each case is the good world and one change. The
judges are fed with answers in the shapes that EC2, FSx, IAM and SageMaker document; test_gather.py
asks for those over HTTP. Of a file system's VPC, network interfaces, state and mount name no
emulator tells, so they stand here alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpctl.clusters.validate import FAMILIES
from hpctl.clusters.validate.facts import NetworkFacts
from hpctl.clusters.validate.verdict import Level, spoken
from tests.clusters.validate import cases_account, cases_file, cases_rights
from tests.clusters.validate.cases import CASES, NO_ANSWER, Case
from tests.clusters.validate.world import World, anywhere
from tests.clusters.validate.world import group as world_group

assert cases_account.case is cases_file.case is cases_rights.case, "importing them fills CASES"


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.check}: {c.words[:40]}")
def test_a_check_fires(case: Case) -> None:
    world = World()
    case.change(world)
    found = world.trouble()
    own = [v for v in found if f"{v.family}.{v.check}" == case.check and case.words in v.what]
    assert own, found
    assert own[0].level is case.level
    assert spoken(own[0].place) == case.place
    assert own[0].mend


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.check}: {c.words[:40]}")
def test_no_other_check_blames_something_else(case: Case) -> None:
    """One cause, one problem: a second verdict would send people the wrong way."""
    world = World()
    case.change(world)
    others = {f"{v.family}.{v.check}" for v in world.trouble()} - {case.check}
    assert others <= SIDE_EFFECTS.get(case.check, set()), world.trouble()


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


def test_every_check_has_a_case_in_which_it_fires() -> None:
    every = {f"{family.name}.{check.id}" for family in FAMILIES for check in family.checks}
    assert {case.check for case in CASES} == every


def test_rules_for_addresses_are_not_judged_where_nobody_knows_the_addresses() -> None:
    world = World()
    world.file["instance_groups"].pop(1)
    open_ = world_group("sg-nodes", IpPermissions=anywhere(), IpPermissionsEgress=anywhere())
    groups = {"sg-nodes": open_}
    world.facts = replace(
        world.facts,
        network=replace(world.facts.network, subnets=NO_ANSWER, security_groups=groups),
    )
    assert {v.level for v in world.trouble()} == {Level.UNKNOWN}


def test_nothing_is_concluded_of_a_network_that_nobody_could_read() -> None:
    world = World()
    world.facts = replace(
        world.facts,
        network=NetworkFacts(NO_ANSWER, NO_ANSWER, NO_ANSWER, NO_ANSWER, {}, NO_ANSWER),
    )
    assert {v.level for v in world.trouble()} == {Level.UNKNOWN}
