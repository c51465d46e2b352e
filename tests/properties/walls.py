"""The non-interference property: whatever strangers say, all others are decided the same.

Several strangers share one cluster, because a cluster costs more than one of them; what they break
together is traced to the fewest that break it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from hpctl.core.walls import Flaw
from tests.properties.stranger import OTHERS, Words, play, restarted, targets

TOGETHER = 32
"""Strangers in one cluster: twice as many are little faster, and hide more of one another."""


@cache
def alone(strangers: int) -> list[tuple[Any, ...]]:
    """What is decided where so many strangers are silent."""
    return play(*[None] * strangers).decisions


def check(*said: Words, flawless: bool = True) -> Counter[str]:
    """Nobody else is decided otherwise, nothing raises, and a restart remembers the same.

    A cloud's answer may be one that cannot be read. The answer is what reached hpctl.
    """
    came = play(*said)
    assert came.decisions == alone(len(said))
    if flawless:
        known = {flaw for flaw in came.flaws if not _unreadable(flaw, said)}
        assert not known, "a wall is for what nobody foresaw: what was foreseen is bounded"
    assert {flaw.target for flaw in came.flaws} <= targets(len(said))
    assert came.reached["jobs"] == came.reached["nodes"] == len(said), "every stranger was read"
    again = restarted(came)
    assert (again.nodes, again.jobs, again.holds) == (
        came.state.nodes, came.state.jobs, came.state.holds,
    )  # fmt: skip
    return came.reached


def _unreadable(flaw: Flaw, said: Sequence[Words]) -> bool:
    """Whether it is of an instance whose status is no object, which no stranger writes."""
    of = {f"n{OTHERS + 1 + place}": words.cloud or {} for place, words in enumerate(said)}
    status = of.get(flaw.target, {}).get("InstanceStatus", {})
    return flaw.where == "parse" and not isinstance(status, Mapping)


def broken(*said: Words) -> Exception | None:
    """How the property is broken, if it is."""
    try:
        check(*said)
    except Exception as error:  # noqa: BLE001 -- whatever is raised is an escape
        return error
    return None


def least(said: Sequence[Words]) -> list[Words]:
    """Of strangers that break it, the fewest that still do, and the least that they say."""
    half = len(said) // 2
    for part in (said[:half], said[half:]) if half else ():
        if broken(*part) is not None:
            return least(part)
    left = list(said)
    while (
        smaller := next((less for less in _lesser(left) if broken(*less) is not None), None)
    ) is not None:
        left = smaller
    return left


def _lesser(said: Sequence[Words]) -> Iterator[list[Words]]:
    """The same with one thing less."""
    for place, words in enumerate(said):
        for name in (n for n in words.__struct_fields__ if getattr(words, n)):
            value = getattr(words, name)
            parts = list(value) if isinstance(value, Mapping) else []
            rests: list[Any] = [getattr(Words(), name)]
            rests += [{key: value[key] for key in parts if key != part} for part in parts]
            for rest in rests:
                yield [*said[:place], replace(words, **{name: rest}), *said[place + 1 :]]
