"""The culprit of a group: named in few rounds, rightly, by tests that may be wrong."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.nodes.culprit import (
    CulpritSearchResult,
    Round,
    compute_max_test_rounds,
    make_group_test_results,
    search_culprits,
)
from hpctl.vocabulary.identity import NodeName

NODES = tuple(NodeName(f"n{n:02}") for n in range(32))


def play(nodes, bad, rng, *, shows=2):
    """A search over simulated tests: all-reduces whose slowest node counts, or which hang.

    `shows`: the size of a group from which on the fault can be seen.
    """
    share = {node: rng.uniform(0.3, 0.88) if rng.random() < 0.7 else None for node in sorted(bad)}
    done: list[Round] = []
    while not isinstance(asked := search_culprits(nodes, done), CulpritSearchResult):
        tested = [node for group in asked.groups for node in group]
        assert len(tested) == len(set(tested)), "a node in two groups"
        assert asked.number == len(done) + 1
        figures = {}
        for group in asked.groups:
            value = 440 * rng.gauss(1, 0.015)
            for node in bad & set(group) if len(group) >= shows else ():
                value = None if value is None or share[node] is None else value * share[node]
            if rng.random() < 0.01:  # another job's traffic, a test that dies or does not see it
                value = rng.choice([None, 440.0, 300.0])
            figures[group] = value
        done.append(make_group_test_results(figures))
    return asked


@pytest.mark.parametrize(("shows", "right"), [(2, 0.99), (5, 0.97)])
def test_one_of_32_is_named_in_at_most_seven_rounds(shows: int, right: float) -> None:
    rng = random.Random(8)
    rounds, hits, wrong, runs = [], 0, 0, 200
    for _ in range(runs):
        bad = rng.choice(NODES)
        verdict = play(NODES, {bad}, rng, shows=shows)
        rounds.append(verdict.rounds)
        hits += verdict.culprits == (bad,)
        wrong += bool(set(verdict.culprits) - {bad})
    print(f"right {hits}/{runs}, wrong {wrong}, rounds {sum(rounds) / runs:.1f}, {max(rounds)}")
    assert max(rounds) <= compute_max_test_rounds(32) == 7
    assert hits >= right * runs
    assert wrong <= 0.01 * runs


def test_two_bad_nodes_are_both_named_and_of_none_no_node() -> None:
    rng = random.Random(3)
    both = sum(
        play(NODES, bad, rng).culprits == tuple(sorted(bad))
        for bad in (set(rng.sample(NODES, 2)) for _ in range(100))
    )
    nobody = sum(play(NODES, set(), rng).culprits == () for _ in range(100))
    assert (both >= 95, nobody >= 99) == (True, True), (both, nobody)


def test_of_two_nodes_a_healthy_partner_tells_which() -> None:
    a, b, healthy = NODES[:3]
    done: list[Round] = []
    while not isinstance(
        asked := search_culprits([a, b], done, [healthy, NODES[3]]), CulpritSearchResult
    ):
        done.append(make_group_test_results({g: None if b in g else 1.0 for g in asked.groups}))
    assert (asked.culprits, asked.rounds) == ((b,), 2)
    with pytest.raises(ValueError, match="partners"):
        search_culprits([a], [])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.lists(st.randoms(use_true_random=False), min_size=1, max_size=1))
def test_any_answers_end_within_the_rounds_and_every_node_is_in_one_group(size, randoms) -> None:
    nodes, (rng,) = [NodeName(f"n{n}") for n in range(size)], randoms
    done: list[Round] = []
    while not isinstance(asked := search_culprits(nodes, done), CulpritSearchResult):
        assert sorted(n for g in asked.groups for n in g) == sorted(nodes)
        assert asked == search_culprits(nodes, done)
        done.append(
            make_group_test_results({g: rng.choice([None, 1.0, 2.0]) for g in asked.groups})
        )
    assert len(done) <= compute_max_test_rounds(size)
