"""The frame of the proof on a GPU: every part is bounded, and what it found is kept."""

import json
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.gpu.needs import PROBES
from tests.gpu.plan import BUDGET_S, IMPORTANT, PARTS, load_part
from tests.gpu.result import LARGEST_BYTES, write_result
from tests.gpu.runner import PartResult, Runner, read_facts
from tests.process import ended

pytestmark = pytest.mark.integration


def run_parts(tmp_path: Path, *names: str, budget_s: float = 60.0) -> list[PartResult]:
    """Run sample parts in another process: a runner adopts orphans, and kills all below it."""
    full = [f"tests.gpu.sample_parts.{name}" for name in names]
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=send_results, args=(sender, full, tmp_path, budget_s))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join(10)
        receiver.close()


def send_results(sender: Connection, names: list[str], scratch: Path, budget_s: float) -> None:
    """Run parts, and send what became of them."""
    sender.send(Runner(names, scratch, budget_s=budget_s, dry=False, grace_s=0.5).run())


def test_a_part_that_hangs_is_ended_at_its_limit_and_cleans_up(tmp_path: Path) -> None:
    (result,) = run_parts(tmp_path, "hangs")
    assert result.state == "killed at its limit"
    assert result.facts == {"before": 1, "cleaned_up": True}
    assert result.took_s < 5.0


def test_a_part_that_cannot_be_asked_to_end_is_killed(tmp_path: Path) -> None:
    (result,) = run_parts(tmp_path, "hangs_hard")
    assert result.state == "killed at its limit"
    assert result.facts == {"before": 1}
    assert result.took_s < 5.0


def test_parts_that_raise_die_or_refuse_are_recorded_and_the_next_runs(tmp_path: Path) -> None:
    raised, died, refused = run_parts(tmp_path, "raises", "dies", "refuses")
    assert (raised.state, raised.facts) == ("raised", {"before": 1})
    assert "broken on purpose" in raised.why
    assert (died.state, died.why, died.facts) == ("died", "exit code -11", {"before": 1})
    assert (refused.state, refused.why) == ("not run", "the moon is full")


def test_a_daemon_that_a_part_leaves_does_not_survive_it(tmp_path: Path) -> None:
    (result,) = run_parts(tmp_path, "leaves_daemon")
    assert result.state == "ran"
    assert ended(result.facts["daemon"])
    assert len(result.left_running) == 1
    assert result.not_killed == []


def test_a_spent_budget_costs_the_remaining_parts_alone(tmp_path: Path) -> None:
    results = run_parts(tmp_path, "hangs", "raises", budget_s=2.5)
    assert [result.state for result in results] == ["killed at its limit", "not run"]
    assert results[1].why == "no time left"


def test_parts_that_do_not_disturb_each_other_run_side_by_side(tmp_path: Path) -> None:
    left, right = run_parts(tmp_path, "left", "right")
    assert left.facts["began"] < right.facts["ended"]
    assert right.facts["began"] < left.facts["ended"]


def test_what_is_too_large_is_cut_the_largest_first(tmp_path: Path) -> None:
    results = run_parts(tmp_path / "scratch", "says_much")
    out = tmp_path / "out"
    write_result(out, results, tmp_path / "scratch", dry=False)
    document = json.loads((out / "result.json").read_text())
    facts = document["parts"][0]["facts"]
    assert facts["short"] == "kept"
    assert facts["long"].endswith("(3000000 characters)")
    assert "100000 items" in facts["rows"][-1]
    size = (out / "result.json").stat().st_size + (out / "result.md").stat().st_size
    assert LARGEST_BYTES // 3 < size <= LARGEST_BYTES
    names = {path.name for path in (out / "recordings").iterdir()}
    assert names == {"README.md", "small.txt"}
    assert document["dropped"] == ["large.txt (3000000 bytes)"]
    assert "large.txt" in (out / "result.md").read_text()


def test_a_fact_that_was_cut_off_when_the_part_was_killed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "facts").write_text('{"key": "a", "value": 1}\n{"key": "b", "va')
    assert read_facts(tmp_path / "facts") == {"a": 1}


def test_the_budget_is_enough_for_the_important_parts() -> None:
    """run.sh takes less than 20 s of the budget before the first part."""
    limits = {name: load_part(name).LIMIT_S for name in IMPORTANT}
    assert 20 + sum(limits.values()) <= BUDGET_S, limits


def test_nothing_runs_beside_what_takes_the_memory_of_the_gpu() -> None:
    assert not load_part("crashes").SIDE_BY_SIDE


@pytest.mark.parametrize("name", PARTS)
def test_each_part_declares_what_the_runner_needs(name: str) -> None:
    part = load_part(name)
    assert part.TITLE
    assert 0 < part.LIMIT_S <= 240
    assert 0 < part.DRY_LIMIT_S <= 200
    assert isinstance(part.SIDE_BY_SIDE, bool)
    assert set(part.NEEDS) <= set(PROBES)
    assert callable(part.run)
