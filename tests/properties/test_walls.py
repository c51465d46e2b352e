"""Non-interference: whatever one node, one job or one user says, all others are decided the same.

HPCTL_HOSTILE_INPUTS says how many hostile inputs are played (`make nightly`: a million); each
example is one cluster for three cycles, with every source of words hostile at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from hpctl.core import advance, plan, plan_runs, walls
from hpctl.core.compat import UTC
from hpctl.core.journal import HoldNoted
from hpctl.core.model import SlurmJob, SlurmNode
from hpctl.core.quarantine import GATE
from hpctl.daemon import observe, run_policies
from hpctl.slurm import parse, squeue
from tests.fakes.slurm_text import JOB as FIELDS
from tests.properties.stranger import JOB, NODE, Words, play, restarted

INPUTS = int(os.environ.get("HPCTL_HOSTILE_INPUTS", "1500"))
ALONE = play(None).decisions
"""What is decided where nobody is hostile."""

TIMES = ("0001-01-01T00:00:00", "1970-01-01T00:00:00", "9999-12-31T23:59:59",
         "10000-01-03T23:00:00", "NONE", "Unknown", "2026-13-45T99:99:99")  # fmt: skip
WIRE_TIMES = tuple(f"{t}{zone}" for t in TIMES[:3] for zone in ("Z", "+14:00", "-14:00"))
NUMBERS = ("0", "-1", "4294967295", str(2**53), "9" * 400, "1e308", "NaN", "\u00b2", "\u0663", "1-")
TEXTS = (
    "", " ", "(null)", "\x00", "\x1b[2J\x9b1m", "\u202ex", "caf\udce9", "'\"\\ $(id)`", "x" * 5000,
    "\n7m0000000000000000;RUNNING", "NodeList=n[1-7] JobState=RUNNING", "m;.m;.", "n[1-99999]",
    "x\nNodeName=n2 State=DOWN Reason=Not responding Partitions=all", "hpctl:{", "hpctl:{}", "a[",
)  # fmt: skip
words = st.one_of(
    st.sampled_from(TIMES), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.text(max_size=40)
)
floats = st.sampled_from([0.0, -1.0, 1e-300, 1e300, 1.7e308, float("inf"), float("nan"), 30, 2**70])
values = st.recursive(
    st.one_of(floats, st.none(), st.booleans(), words, st.integers()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
backoffs = st.fixed_dictionaries(
    {}, optional={"first_s": values, "factor": values, "cap_s": values}
)
treatments = st.fixed_dictionaries(
    {},
    optional={
        "ladder": st.sampled_from([["requeue"], ["none"], ["hold"], ["step", "requeue"]]),
        "hold_same": st.booleans(), "backoff": st.booleans(), "exclude": values,
    },
)  # fmt: skip
policies = st.fixed_dictionaries(
    {},
    optional={
        "backoff": backoffs, "nodes": values, "restarts": values, "window_s": values,
        "without_progress": values, "same_signature": values, "proven_s": values,
        "final_exit_codes": values, "log_rules": values, "notify": values, "spares": values,
        "on": st.dictionaries(st.sampled_from(["crash", "node", "killed", "hang"]), treatments),
        "grow_gain": values, "hang_factor": values, "save_grace_s": values,
    },
)  # fmt: skip


def _comment(said: dict[str, Any]) -> str:
    import json

    return "hpctl:" + json.dumps(said)


comments = st.one_of(
    words,
    st.builds(
        _comment,
        st.fixed_dictionaries(
            {}, optional={"policy": st.one_of(policies, values), "spares": values,
                          "save_signal": values, "supervised": values},
        ),
    ),
)  # fmt: skip
STATES = (
    "RUNNING",
    "PENDING",
    "FAILED",
    "COMPLETING",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "REQUEUE_HOLD",
)
jobs = st.fixed_dictionaries(
    {"State": st.one_of(st.sampled_from(STATES), words)},
    optional={
        **{name: words for name in FIELDS if name not in ("JobID", "State", "NodeList", "UserID",
                                                          "Partition", "Comment")},
        "Comment": comments,
    },
)  # fmt: skip
findings = st.lists(
    st.fixed_dictionaries(
        {
            "check": st.sampled_from(["kernel.xid", "kernel.sxid", "gpu.ecc", "host.disk", "X"]),
            "verdict": st.sampled_from(["ok", "warn", "fail", "unknown"]),
            "first": st.sampled_from(WIRE_TIMES),
            "last": st.sampled_from(WIRE_TIMES),
        },
        optional={
            "code": st.one_of(st.sampled_from(["79", "154", "13", "74", "48", "145"]), words),
            "device": words, "detail": words, "evidence": words,
            "count": st.sampled_from([1, 0, 2**53, 2**70, -1]),
            "clears": st.sampled_from(["boot", "gone", "operator"]), "job": words,
        },
    ),
    max_size=4,
)  # fmt: skip
reports = st.fixed_dictionaries(
    {"findings": findings},
    optional={
        "sent_at": st.sampled_from(WIRE_TIMES), "agent_start": st.sampled_from(WIRE_TIMES),
        "instance": words, "boot": words, "gauges": st.dictionaries(words, floats, max_size=2),
    },
)  # fmt: skip
told = st.fixed_dictionaries(
    {"wish": st.sampled_from(["", "requeue", "hold"])},
    optional={
        "restarts": st.sampled_from([0, 1, 2, 3, 2**32]),
        "after_s": st.sampled_from([0, 1, 86400.0, 1e308]),
        "exclude": st.lists(st.sampled_from(["n1", "n3", "n8", "zz"]), max_size=4), "why": words,
        "progress": st.sampled_from([0, 2**53]),
        "trouble": st.fixed_dictionaries(
            {"kind": st.sampled_from(["crash", "node", "hang", "final", "preempted"]),
             "at": st.sampled_from(WIRE_TIMES), "why": words},
            optional={"node": st.sampled_from(["n8", "n1"]), "signature": words,
                      "exit_code": st.sampled_from([-255, 0, 93, 255])},
        ),
    },
)  # fmt: skip
clouds = st.fixed_dictionaries(
    {},
    optional={
        "InstanceStatus": st.one_of(
            values, st.fixed_dictionaries({"Status": words, "Message": words})
        ),
        "LaunchTime": st.one_of(
            values, st.sampled_from([datetime(y, 12, 31, 23, tzinfo=UTC) for y in (1, 9999)])
        ),
        "InstanceGroupName": values, "NodeLogicalId": values,
    },
)  # fmt: skip
hostile = st.builds(
    Words,
    job=jobs,
    excluded=words,
    node=words,
    report=st.none() | reports,
    told=st.none() | told,
    cloud=st.none() | clouds,
)


def check(said: Words, *, flawless: bool = True, parse: bool = True) -> None:
    """Nobody else is decided otherwise, nothing raises, and a restart remembers the same.

    `parse`: a record may be one that cannot be read.
    """
    came = play(said)
    assert came.decisions == ALONE
    if flawless:
        known = {flaw for flaw in came.flaws if not parse or flaw.where != "parse"}
        assert not known, "a wall is for what nobody foresaw: what was foreseen is bounded"
    assert {flaw.target for flaw in came.flaws} <= {NODE, str(JOB)}
    again = restarted(came)
    assert (again.nodes, again.jobs, again.holds) == (
        came.state.nodes, came.state.jobs, came.state.holds,
    )  # fmt: skip


@pytest.mark.slow
@seed(20261122)
@settings(
    max_examples=INPUTS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(hostile)
@pytest.mark.timeout(86400)
def test_nothing_that_one_stranger_says_changes_what_becomes_of_another(said: Words) -> None:
    check(said)


CRASHED = {"State": "FAILED", "exit_code": "256", "Comment": "hpctl:{}",
           "EndTime": "2026-11-21T11:59:59", "Reason": "NonZeroExitCode"}  # fmt: skip
ILL = {"findings": [{"check": "kernel.xid", "verdict": "fail", "code": "79", "device": "d",
                     "first": "2026-11-21T12:00:00Z", "last": "2026-11-21T12:00:00Z"}]}  # fmt: skip
BAD = Words(job={**CRASHED, "Name": "x"}, report=ILL)


class Planted(Exception):
    """A bug that nobody foresaw."""


def _about(value: object) -> bool:
    """Whether a value, or what it holds, is the hostile job or node."""
    if isinstance(value, SlurmJob):
        return value.id == JOB
    if isinstance(value, SlurmNode):
        return value.name == NODE
    if isinstance(value, tuple | list):
        return any(map(_about, value))
    if isinstance(value, str):
        return value.startswith(f"NodeName={NODE} ")
    generation = getattr(value, "generation", None)
    if generation is None:
        generation = getattr(getattr(value, "rec", None), "generation", None)
    return getattr(generation, "node", None) == NODE


def _breaks(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Have a function raise for the hostile thing alone."""
    real: Callable[..., Any] = getattr(module, name)

    def broken(*given: Any, **more: Any) -> Any:
        hit = _about(given[0]) or (name == "_record" and given[0][0].strip() == str(JOB))
        if hit:
            raise Planted(f"in {name}")
        return real(*given, **more)

    monkeypatch.setattr(module, name, broken)


BUGS = [
    (squeue, "_record", "parse", str(JOB)),
    (parse, "_node", "parse", NODE),
    (observe, "assess", "assess", NODE),
    (run_policies.RunPolicies, "ruled", "policy", str(JOB)),
    (plan, "_candidate", "plan", NODE),
    (plan, "decide", "plan", NODE),
    (plan_runs, "_case", "plan", str(JOB)),
    (advance, "node_facts", "advance", NODE),
]


def _plant(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    if name == "ruled":
        real = module.ruled

        def ruled(self: Any, job: SlurmJob) -> Any:
            if job.id == JOB:
                raise Planted("in ruled")
            return real(self, job)

        monkeypatch.setattr(module, "ruled", ruled)
    else:
        _breaks(monkeypatch, module, name)


@pytest.mark.parametrize(("module", "name", "where", "target"), BUGS, ids=[b[1] for b in BUGS])
def test_a_bug_about_one_thing_is_that_things_alone(
    module: Any, name: str, where: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(monkeypatch, module, name)
    check(BAD, flawless=False)
    came = play(BAD)
    assert {(flaw.where, flaw.target) for flaw in came.flaws} == {(where, target)}
    assert "Planted" in came.flaws[0].error
    held = {e.target for e in came.journal if isinstance(e, HoldNoted) and e.gate == GATE}
    assert held == {target}, "in the journal, so that a restart knows it"


@pytest.mark.parametrize(("module", "name", "where", "target"), BUGS, ids=[b[1] for b in BUGS])
def test_without_the_wall_it_is_everybodys(
    module: Any, name: str, where: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_field(where: str, target: object, handle: Any, given: Any, shown: Any = None) -> Any:
        return handle(given)

    _plant(monkeypatch, module, name)
    monkeypatch.setattr(walls, "walled", open_field)
    with pytest.raises((Planted, AssertionError)):
        check(BAD, flawless=False)


def _raw_time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text[:1].isdigit() else None


def _known_mark(size: int) -> str:
    return "0" * (2 * size)


@pytest.mark.parametrize(
    ("place", "mutant", "said"),
    [
        ("hpctl.slurm.squeue.at_text", _raw_time, Words(job={"EndTime": "10000-01-03T23:00:00"})),
        ("hpctl.slurm.squeue.natural", int, Words(job={"NumTasks": "\u00b2"})),
        ("hpctl.wire.in_utc", lambda at: at.astimezone(UTC),
         Words(report={"findings": [{**ILL["findings"][0], "first": WIRE_TIMES[1]}]})),
        ("secrets.token_hex", _known_mark,
         Words(job={"Name": "xm0000000000000000.\n1m0000000000000000;"})),
    ],
    ids=["times", "numbers", "zones", "marks"],
)  # fmt: skip
def test_the_property_sees_a_bound_that_is_gone(
    place: str, mutant: Any, said: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(said)
    monkeypatch.setattr(place, mutant)
    with pytest.raises((AssertionError, OverflowError, ValueError)):
        check(said, parse=False)
