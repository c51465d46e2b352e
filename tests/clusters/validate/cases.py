"""One change to the good world, and the one thing that is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hpctl.clusters.validate.verdict import Level, Unanswered
from tests.clusters.validate.world import World, group, network

NO_ANSWER = Unanswered("ec2:DescribeSubnets: AccessDenied", "allow it")
Change = Callable[[World], None]


@dataclass(frozen=True)
class Case:
    check: str
    level: Level
    place: str
    words: str
    change: Change


CASES: list[Case] = []


def case(check: str, level: Level, place: str, words: str) -> Callable[[Change], Change]:
    """One change to the good world, and the one thing that is said of it."""

    def added(change: Change) -> Change:
        CASES.append(Case(check, level, place, words, change))
        return change

    return added


FAIL, WARN, UNKNOWN = Level.FAIL, Level.WARN, Level.UNKNOWN


def net(world: World, **more: object) -> None:
    facts = replace(network(), **more)  # type: ignore[arg-type]
    world.facts = replace(world.facts, network=facts)


def sg(world: World, **rules: object) -> None:
    net(world, security_groups={"sg-nodes": group("sg-nodes", **rules)})
