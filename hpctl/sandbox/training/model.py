"""The model: characters in a window -> embedding -> tanh layer -> softmax over the next one.

All parameters live in one flat float64 vector, so that the all-reduce, Adam and the shards of a
checkpoint need no names. Everything is a pure function of its arguments: bit-identical weights
are the whole point, so there is no hidden random state and every reduction has a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TEXT = Path(__file__).with_name("romeo.txt")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that decide how the flat vector is cut. `context` in characters."""

    vocabulary: int
    context: int = 16
    embedding: int = 12
    hidden: int = 64

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of embedding, first weights and bias, second weights and bias, in order."""
        wide = self.context * self.embedding
        return (
            (self.vocabulary, self.embedding),
            (wide, self.hidden),
            (self.hidden,),
            (self.hidden, self.vocabulary),
            (self.vocabulary,),
        )

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(int(np.prod(part)) for part in self.parts)


def corpus() -> tuple[Ints, int]:
    """The shipped text as indices into its sorted alphabet, and the alphabet's size."""
    text = TEXT.read_text(encoding="ascii")
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    return np.array([index[character] for character in text], dtype=np.int64), len(index)


def initial(shape: Shape, seed: int) -> Floats:
    """The weights of step 0: scaled normals for matrices, zeros for biases."""
    random = np.random.Generator(np.random.PCG64([seed, 0]))
    parts = [
        random.standard_normal(part) / np.sqrt(part[0] if i else 1.0)
        if len(part) == 2
        else np.zeros(part)
        for i, part in enumerate(shape.parts)
    ]
    return np.concatenate([part.ravel() for part in parts])


def batch(data: Ints, shape: Shape, seed: int, step: int, size: int) -> tuple[Ints, Ints]:
    """The whole batch of a step: windows and the character after each.

    Derived from (seed, step) alone, so a resumed run sees what the undisturbed one saw.
    """
    random = np.random.Generator(np.random.PCG64([seed, step]))
    starts = random.integers(0, len(data) - shape.context, size=size)
    return data[starts[:, None] + np.arange(shape.context)], data[starts + shape.context]


def loss_and_gradient(
    weights: Floats, shape: Shape, windows: Ints, targets: Ints
) -> tuple[float, Floats]:
    """Cross-entropy in nats summed over the rows, and its gradient. Sums, not means: shards of
    unequal length then add up to the whole batch's gradient."""
    table, first, first_bias, second, second_bias = _cut(weights, shape)
    rows = np.arange(len(targets))
    inputs = table[windows].reshape(len(targets), -1)
    hidden = np.tanh(_product(inputs, first) + first_bias)
    logits = _product(hidden, second) + second_bias
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(axis=1, keepdims=True)
    loss = float(-np.log(chances[rows, targets]).sum())

    chances[rows, targets] -= 1.0
    back = _product(chances, second.T) * (1.0 - hidden * hidden)
    embedded = _product(back, first.T).reshape(*windows.shape, shape.embedding)
    table_gradient = np.zeros_like(table)
    np.add.at(table_gradient, windows, embedded)
    parts = (
        table_gradient,
        _product(inputs.T, back),
        back.sum(axis=0),
        _product(hidden.T, chances),
        chances.sum(axis=0),
    )
    return loss, np.concatenate([part.ravel() for part in parts])


@dataclass(slots=True)
class State:
    """What a checkpoint holds: weights, Adam's two moments, and the steps done so far."""

    weights: Floats
    mean: Floats
    square: Floats
    step: int = 0

    @classmethod
    def start(cls, shape: Shape, seed: int) -> State:
        """Step 0."""
        weights = initial(shape, seed)
        return cls(weights, np.zeros_like(weights), np.zeros_like(weights))

    def update(self, gradient: Floats, rate: float = 1e-2) -> None:
        """One step of Adam (beta 0.9 and 0.999, epsilon 1e-8)."""
        self.step += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient * gradient
        mean = self.mean / (1.0 - 0.9**self.step)
        square = self.square / (1.0 - 0.999**self.step)
        self.weights = self.weights - rate * mean / (np.sqrt(square) + 1e-8)


def _product(left: Floats, right: Floats) -> Floats:
    """The matrix product without BLAS: BLAS picks its kernels, and so the order of additions and
    the last bits, by the CPU and by variables like OPENBLAS_CORETYPE. At this size it is no loss.
    """
    product: Floats = np.einsum("ij,jk->ik", left, right, optimize=False)
    return product


def _cut(weights: Floats, shape: Shape) -> list[Floats]:
    cuts, at = [], 0
    for part in shape.parts:
        length = int(np.prod(part))
        cuts.append(weights[at : at + length].reshape(part))
        at += length
    return cuts
