"""Every value that an event can carry, for Hypothesis, and a few plain ones."""

from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct

from hpctl.engine.journal.events import RequestTaken, SignalSeen
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.model import Finding, NodeHealth

NOW = datetime(2026, 3, 1, 12, 0, 0, 123457, UTC)

# Kernel lines and Slurm's texts arrive decoded, so no half of a surrogate pair; all else may.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["", "naïve ✓ \U0001f525", "'; DROP TABLE hpctl_events; --", "%s %(x)s :name ?", "\0\x1b\n\\"]
)
zones = st.sampled_from(
    [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=8))]
)
times = st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1), timezones=zones)  # noqa: DTZ001
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: texts, datetime: times, int: st.integers(0, 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False), bool: st.booleans(),
    type(None): st.none(),
}  # fmt: skip


def values(kind) -> st.SearchStrategy[Any]:
    """Values of any type that an event's field has. A new type must be added here."""
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    if kind in _PLAIN:
        return _PLAIN[kind]
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is dict:
        return st.dictionaries(*map(values, get_args(kind)), max_size=3)
    if get_args(kind):
        return st.one_of([values(one) for one in get_args(kind)])
    if issubclass(kind, Struct):
        hints = get_type_hints(kind)
        return st.builds(kind, **{n: values(hints[n]) for n in kind.__struct_fields__})
    assert issubclass(kind, Enum), kind
    return st.sampled_from(kind)


any_health = st.builds(
    NodeHealth,
    generation=st.builds(
        NodeGeneration,
        node=st.text(st.sampled_from("aBb-01"), min_size=1, max_size=3).map(NodeName),
        instance=st.text(st.sampled_from("i-0189af"), max_size=19).map(InstanceId),
        boot=st.text(st.sampled_from("0189af-"), max_size=36).map(BootId),
    ),
    last_heard=times,
    findings=st.lists(values(Finding), max_size=4).map(tuple),
)


def signal(number: int) -> SignalSeen:
    """A small event that can be told from its neighbours."""
    return SignalSeen(NOW, f"r-{number}", "drained", f"number {number}")


def numbers(found) -> list[int]:
    """Which of `signal`'s events these are."""
    return [int(e.recovery.removeprefix("r-")) for e in found]


def taken(request, answer: str = "yes") -> RequestTaken:
    """The daemon's answer to a request."""
    return RequestTaken(NOW, request, "pause", "", "ann", answer, True)
