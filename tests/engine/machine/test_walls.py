"""Non-interference holds, bugs stay within their walls, and mutants show that it bites."""

import re
from datetime import datetime

import pytest

from hpctl.engine import observe, plan, run_policies
from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.plan import GATE
from hpctl.jobs import plan as jobs_plan
from hpctl.nodes import kind
from hpctl.slurm import parse
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary import isolation as wall
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode
from tests.engine.machine import walls
from tests.engine.machine.hostile import KNOWN_MARK
from tests.engine.machine.stranger import JOB, NODE, Words, play
from tests.engine.machine.walls import check

SEED, INPUTS = 20261122, 50 * walls.TOGETHER
FIGURES = re.compile(
    r"(\d+) inputs .* (\d+) escapes; taken in: (\d+) reports, (\d+) words of jobs; (\d+) events"
)
CRASHED = {"State": "FAILED", "exit_code": "256", "Comment": "hpctl:{}",
           "EndTime": "2026-11-21T11:59:59", "Reason": "NonZeroExitCode"}  # fmt: skip
SICK = {"check": "kernel.xid", "verdict": "fail", "code": "79", "device": "d",
        "first": "2026-11-21T12:00:00Z", "last": "2026-11-21T12:00:00Z"}  # fmt: skip
BAD = Words(job={**CRASHED, "Name": "x"}, report={"findings": [SICK]})


@pytest.mark.slow
def test_the_million_begins_well(capsys):
    """What `make hostile` plays, and that its count is of what was read and taken in."""
    assert walls.main(["--inputs", str(INPUTS), "--seed", str(SEED), "--processes", "1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    read, escaped, reports, text, events = map(int, FIGURES.search(last).groups())
    assert (read, escaped) == (INPUTS, 0)
    assert min(reports, text, events) > INPUTS / 2, "most of it gets beyond the readers"


@pytest.mark.parametrize("logical", [float("nan"), "caf\udce9"], ids=["no text", "no UTF-8"])
def test_former_hostile_inputs_are_isolated(logical):
    """The instance's logical id goes into the journal with the recovery of its node."""
    check(Words(report={"findings": [SICK]}, cloud={"NodeLogicalId": logical}))


class Planted(Exception):
    """A bug that nobody foresaw."""


def _about(value) -> bool:
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


def _breaks(monkeypatch, module, name: str) -> None:
    """Have a function raise for the hostile thing alone."""
    real = getattr(module, name)

    def broken(*given, **more):
        of_job = name == "_parse_squeue_record" and given[0][0].strip() == str(JOB)
        hit = _about(given[0]) or of_job
        if hit:
            raise Planted(f"in {name}")
        return real(*given, **more)

    monkeypatch.setattr(module, name, broken)


BUGS = [
    (parse, "_parse_squeue_record", "parse", str(JOB)),
    (parse, "_parse_scontrol_node", "parse", NODE),
    (observe, "assess_health", "assess", NODE),
    (run_policies.RunPolicyMerger, "find_job_policy", "policy", str(JOB)),
    (plan, "_make_recovery_candidate", "plan", NODE), (plan, "decide_candidate", "plan", NODE),
    (jobs_plan, "find_failed_job_run", "plan", str(JOB)),
    (kind, "make_node_facts", "advance", NODE),
]  # fmt: skip


def _plant(monkeypatch, module, name: str) -> None:
    if name == "find_job_policy":
        real = module.find_job_policy

        def find_job_policy(self, job: SlurmJob):
            if job.id == JOB:
                raise Planted("in find_job_policy")
            return real(self, job)

        monkeypatch.setattr(module, "find_job_policy", find_job_policy)
    else:
        _breaks(monkeypatch, module, name)


@pytest.mark.parametrize(("module", "name", "where", "target"), BUGS, ids=[b[1] for b in BUGS])
def test_bug_in_one_entry_affects_only_that_entry(module, name, where, target, monkeypatch):
    _plant(monkeypatch, module, name)
    check(BAD, flawless=False)
    came = play(BAD)
    assert {(flaw.where, flaw.target) for flaw in came.flaws} == {(where, target)}
    assert "Planted" in came.flaws[0].error
    held = {e.target for e in came.journal if isinstance(e, GateBlocked) and e.gate == GATE}
    assert held == {target}, "in the journal, so that a restart knows it"


@pytest.mark.parametrize(("module", "name", "where", "target"), BUGS, ids=[b[1] for b in BUGS])
def test_bug_affects_all_entries_without_isolation(module, name, where, target, monkeypatch):
    def open_field(where: str, target, handle, given, shown=None):
        return handle(given)

    _plant(monkeypatch, module, name)
    monkeypatch.setattr(wall, "call_and_capture_failure", open_field)
    with pytest.raises((Planted, AssertionError)):
        check(BAD, flawless=False)


def _raw_time(text: str) -> datetime | None:
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text[:1].isdigit() else None


def _raw_number(text: str, otherwise: int = 0) -> int:
    return int(text) if text.isdigit() else otherwise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        ("hpctl.slurm.parse.parse_slurm_time", _raw_time),
        ("hpctl.slurm.parse.parse_count", _raw_number),
        ("hpctl.wire.reports.convert_to_utc", lambda at: at.astimezone(UTC)),
        ("secrets.token_hex", lambda size: KNOWN_MARK[: 2 * size]),
        ("hpctl.sagemaker.provider.LogicalId", lambda text: float("nan")),
    ],
    ids=["times", "numbers", "zones", "marks", "ids"],
)
def test_the_first_inputs_show_a_bound_that_is_gone(place, mutant, monkeypatch):
    """Against what is decided with the same bound gone, where the strangers are silent."""
    monkeypatch.setattr(place, mutant)
    monkeypatch.setattr(walls, "alone", walls.alone.__wrapped__)
    clusters = range(2 * INPUTS // walls.TOGETHER)
    assert any(walls.broken(*walls.strangers(SEED, number)) for number in clusters)
