"""The demo's model is a real one: its gradient is the loss's, and it learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from hpctl.sandbox.training import model

ROOT = str(Path(__file__).resolve().parents[2])


def test_the_gradient_is_the_derivative() -> None:
    shape = model.Shape(vocabulary=7, context=3, embedding=2, hidden=4)
    data = np.arange(40) % 7
    windows, targets = model.batch(data, shape, seed=1, step=1, size=9)
    weights = model.initial(shape, seed=3)
    _, gradient = model.loss_and_gradient(weights, shape, windows, targets)
    assert gradient.shape == (shape.size,)
    for index in range(shape.size):
        nudge = np.zeros(shape.size)
        nudge[index] = 1e-6
        up, _ = model.loss_and_gradient(weights + nudge, shape, windows, targets)
        down, _ = model.loss_and_gradient(weights - nudge, shape, windows, targets)
        assert abs((up - down) / 2e-6 - gradient[index]) < 1e-5


def test_shards_add_up_to_the_whole_batch() -> None:
    data, vocabulary = model.corpus()
    shape = model.Shape(vocabulary)
    windows, targets = model.batch(data, shape, 1, 1, 10)
    weights = model.initial(shape, 1)
    whole = model.loss_and_gradient(weights, shape, windows, targets)
    parts = [
        model.loss_and_gradient(weights, shape, windows[cut], targets[cut])
        for cut in (slice(0, 3), slice(3, 10))
    ]
    assert np.isclose(whole[0], sum(loss for loss, _ in parts))
    assert np.allclose(whole[1], sum(gradient for _, gradient in parts))


def test_batches_come_from_seed_and_step_alone() -> None:
    data, vocabulary = model.corpus()
    shape = model.Shape(vocabulary)
    first, _ = model.batch(data, shape, 1, 50, 8)
    assert np.array_equal(first, model.batch(data, shape, 1, 50, 8)[0])
    assert not np.array_equal(first, model.batch(data, shape, 1, 51, 8)[0])
    assert not np.array_equal(first, model.batch(data, shape, 2, 50, 8)[0])


def test_it_learns(tmp_path: Path) -> None:
    text = model.TEXT.read_text(encoding="ascii")
    assert 20_000 < len(text) < 60_000
    # A process of its own: there BLAS has one thread, here numpy may be loaded with several.
    done = subprocess.run(
        [sys.executable, "-m", "hpctl.sandbox.training", "--steps", "200", "--step-s", "0"],
        env={"PYTHONPATH": ROOT, "HPCTL_CHECKPOINT_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    losses = [float(line.split()[-1]) for line in done.splitlines() if line.startswith("step ")]
    assert len(losses) == 200
    assert losses[0] > 0.95 * np.log(len(set(text)))
    assert np.mean(losses[-20:]) < 2.6
