"""How often to save: the formulas against published values, simulation and each other."""

import os
import random

import pytest

from hpctl.checkpoints.save_interval import daly, effective_ratio, measure, rate
from tests.checkpoints.checkpoint_files import dcp_files, torch_save, write


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(5, 3600), (60, 86400), (300, 7200), (600, 3000)])
def test_dalys_interval_is_the_best_of_the_expected_ratio(save_s: float, mtbf_s: float) -> None:
    best = effective_ratio(daly(save_s, mtbf_s), save_s, 120, mtbf_s)
    tried = [effective_ratio(s, save_s, 120, mtbf_s) for s in range(10, int(2 * mtbf_s), 10)]
    assert best >= max(tried) * 0.9985


def test_the_expected_ratio_is_what_runs_with_random_failures_come_to() -> None:
    interval, save, restart, mtbf = 600.0, 60.0, 200.0, 3600.0
    randomness = random.Random(5)
    clock = done = 0.0
    while done < 4000 * interval:
        failure = randomness.expovariate(1 / mtbf)
        if failure >= interval + save:
            # Without memory: the rest of this time to the next failure counts for nothing.
            clock, done = clock + interval + save, done + interval
            continue
        clock += failure
        while (again := randomness.expovariate(1 / mtbf)) < restart:
            clock += again
        clock += restart
    assert done / clock == pytest.approx(effective_ratio(interval, save, restart, mtbf), rel=0.02)


def test_without_a_history_the_rate_is_the_published_one() -> None:
    published = rate(0, 0.0)
    assert published.per_node_day * 1000 == pytest.approx(6.5)
    assert published.few
    # Of an exponential: -ln(0.95) and -ln(0.05) times its mean.
    assert published.low * 1000 == pytest.approx(6.5 * 0.051293, rel=1e-4)
    assert published.high * 1000 == pytest.approx(6.5 * 2.995732, rel=1e-4)


def test_a_long_history_takes_over() -> None:
    known = rate(400, 200_000.0)
    assert known.per_node_day * 1000 == pytest.approx(2.0, rel=0.01)
    assert not known.few
    assert known.low < known.per_node_day < known.high
    assert (known.high - known.low) / known.per_node_day < 0.2


def test_the_range_is_that_of_the_gamma_distribution() -> None:
    four = rate(4, 0.0)  # shape 5 with the prior: half of chi-squared with 10 degrees of freedom
    exposure = 1 / 0.0065
    assert four.low * exposure == pytest.approx(3.940299 / 2, rel=1e-5)
    assert four.high * exposure == pytest.approx(18.307038 / 2, rel=1e-5)


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
    saves = measure(tmp_path)
    assert (len(saves.saves), saves.formats) == (4, ("torch-dcp",))
    assert (saves.save_s, saves.apart_s) == (pytest.approx(31.5), pytest.approx(600))
    assert (saves.step_s, len(measure(tmp_path, 2).saves)) == (pytest.approx(6), 2)


def test_a_run_that_went_back_is_no_distance(tmp_path) -> None:
    for number, end_s in enumerate([0, 600, 1200, 900_000, 900_600]):
        saved(tmp_path, 100 * (number + 1), 1e9 + end_s, 30)
    assert measure(tmp_path).apart_s == pytest.approx(600)


def test_single_files_do_not_say_what_a_save_cost(tmp_path) -> None:
    for step in (10, 20):
        (tmp_path / f"step={step}.ckpt").write_bytes(torch_save({"global_step": step}))
    saves = measure(tmp_path)
    assert (len(saves.saves), saves.save_s) == (2, None)
