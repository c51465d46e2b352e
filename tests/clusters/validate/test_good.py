"""Where nothing is wrong nothing is said, and everything was looked at."""

from __future__ import annotations

from dataclasses import replace

from hpctl.clusters.validate import FAMILIES, worst
from hpctl.clusters.validate.verdict import Level
from tests.clusters.validate.world import World, prefix, script


def test_no_check_finds_anything_wrong() -> None:
    assert World().trouble() == []
    assert worst(World().verdicts()) is Level.OK


def test_nor_in_the_other_style() -> None:
    world = World()
    world.legacy()
    world.facts = replace(
        world.facts, bucket=prefix(script("on_init_complete.sh"), world.parameters)
    )
    assert world.trouble() == []


def test_check_ids_are_one_word_each() -> None:
    ids = [(family.name, check.id) for family in FAMILIES for check in family.checks]
    assert len(ids) == len(set(ids))
