"""How often to save: the formulas against a simulation, and what the files of saves say."""

import os
import random

import pytest

from hpctl.checkpoints.save_interval import (
    compute_daly_interval,
    compute_effective_training_time_ratio,
    compute_failure_rate,
    measure_checkpoint_save_timings,
)
from tests.checkpoints.checkpoint_files import dcp_files, torch_save, write


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(5, 3600), (60, 86400), (300, 7200), (600, 3000)])
def test_dalys_interval_is_the_best_of_the_expected_ratio(save_s: float, mtbf_s: float) -> None:
    best = compute_effective_training_time_ratio(
        compute_daly_interval(save_s, mtbf_s), save_s, 120, mtbf_s
    )
    tried = [
        compute_effective_training_time_ratio(s, save_s, 120, mtbf_s)
        for s in range(10, int(2 * mtbf_s), 10)
    ]
    assert best >= max(tried) * 0.9985


def simulated_loss(interval: float, save: float, restart: float, mtbf: float) -> float:
    """Return the lost share of a run with 60,000 random failures.

    A save that is complete counts; failures have no memory, so each is drawn anew after a restart.
    """
    randomness = random.Random(5)
    clock = kept = 0.0
    for _ in range(60_000):
        failure = randomness.expovariate(1 / mtbf)
        kept += interval * (failure // (interval + save))
        clock += failure + restart
        while (again := randomness.expovariate(1 / mtbf)) < restart:
            clock += again
    return 1 - kept / clock


@pytest.mark.parametrize("mtbf", [3600.0, 86400.0])
@pytest.mark.parametrize("restart", [60.0, 300.0])
@pytest.mark.parametrize("save", [5.0, 120.0])
@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_the_formula_is_what_runs_with_random_failures_lose(times, save, restart, mtbf) -> None:
    interval = times * compute_daly_interval(save, mtbf)
    loss = 1 - compute_effective_training_time_ratio(interval, save, restart, mtbf)
    assert loss == pytest.approx(simulated_loss(interval, save, restart, mtbf), rel=0.02)


def test_without_a_history_the_rate_is_the_published_one() -> None:
    published = compute_failure_rate(0, 0.0)
    assert published.per_node_day * 1000 == pytest.approx(6.5)
    assert published.has_few_failures


def test_a_long_history_takes_over() -> None:
    known = compute_failure_rate(400, 200_000.0)
    assert known.per_node_day * 1000 == pytest.approx(2.0, rel=0.01)
    assert not known.has_few_failures


def saved(root, step, end_s, took_s):
    """A whole checkpoint whose files were written over so many seconds."""
    directory = write(root / f"step-{step}", dcp_files())
    names = sorted(directory.iterdir(), key=lambda path: path.name == ".metadata")
    for number, path in enumerate(names):
        os.utime(path, (end_s - took_s * (1 - number / (len(names) - 1)),) * 2)


def test_costs_and_distances_are_read_from_the_files(tmp_path) -> None:
    for number in range(5):
        saved(tmp_path, 100 * (number + 1), 1e9 + 600 * number, 30 + number)
    (tmp_path / "step-500/__0_0.distcp").unlink()  # not whole: it counts for nothing
    saves = measure_checkpoint_save_timings(tmp_path)
    assert (len(saves.saves), saves.formats) == (4, ("torch-dcp",))
    assert (saves.save_s, saves.save_interval_s) == (pytest.approx(31.5), pytest.approx(600))
    assert (saves.step_s, len(measure_checkpoint_save_timings(tmp_path, 2).saves)) == (
        pytest.approx(6),
        2,
    )


def test_a_run_that_went_back_is_no_distance(tmp_path) -> None:
    for number, end_s in enumerate([0, 600, 1200, 900_000, 900_600]):
        saved(tmp_path, 100 * (number + 1), 1e9 + end_s, 30)
    assert measure_checkpoint_save_timings(tmp_path).save_interval_s == pytest.approx(600)


def test_single_files_do_not_say_what_a_save_cost(tmp_path) -> None:
    for step in (10, 20):
        (tmp_path / f"step={step}.ckpt").write_bytes(torch_save({"global_step": step}))
    saves = measure_checkpoint_save_timings(tmp_path)
    assert (len(saves.saves), saves.save_s) == (2, None)
