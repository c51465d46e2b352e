"""Which node of a group is slow or hangs: the next round of tests from the results so far. Pure.

First in pairs, as DLRover does: a node that fails with two different partners is the culprit, in
most cases after three rounds. What no pair shows is looked for in halves, as large as can be:
those whose sum of beliefs is equal, so that each round halves what is suspected (bisection, as
ByteRobust does). A test may be wrong, so nodes have beliefs (loopy belief propagation over noisy
ORs) and no single result decides. At most log2(n) + 2 rounds.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from math import ceil, exp, log, log2, prod
from typing import Final

from msgspec import Struct

from hpctl.vocabulary.identity import NodeName

FALSE_FAIL: Final = 0.02
FALSE_PASS: Final = 0.03
"""How often a test of healthy nodes fails, and one with a bad node passes."""
SURE: Final = 0.999
CLEARED: Final = 0.1
SLOW: Final = 0.93
"""A group whose figure is below this share of the others' is slow."""
PAIRED: Final = 3
"""The largest group of a round of pairs: of an odd number of nodes one is a third."""
_SWEEPS: Final = 30
_STILL: Final = 1e-3

Group = tuple[NodeName, ...]
Beliefs = Mapping[NodeName, float]


class GroupTestResult(Struct, frozen=True):
    """One group test: `failed` where it hung, ended badly or was slow."""

    nodes: Group
    failed: bool


Round = tuple[GroupTestResult, ...]


class NextTestRound(Struct, frozen=True):
    """Groups to test at the same time: no node is in two. `beliefs`: why these."""

    number: int
    groups: tuple[Group, ...]
    beliefs: Beliefs


class CulpritSearchResult(Struct, frozen=True):
    """The end of a search: the culprits, none where the tests name no node."""

    culprits: tuple[NodeName, ...]
    beliefs: Beliefs
    rounds: int


def search_culprits(
    suspects: Sequence[NodeName], done: Sequence[Round], healthy: Sequence[NodeName] = ()
) -> NextTestRound | CulpritSearchResult:
    """Return the next round, or the verdict. `healthy`: partners that are not suspected.

    Raises ValueError with fewer than two nodes.
    """
    nodes = tuple(dict.fromkeys((*suspects, *healthy)))
    if len(nodes) < 2:
        raise ValueError("a search needs two nodes or more: name partners that are healthy")
    most = compute_max_test_rounds(len(nodes))
    prior = {n: 1e-4 if n not in set(suspects) else 1 / (len(suspects) + 1) for n in nodes}
    pairs = [r for r in done if _has_only_node_pairs(r)]
    halves = [r for r in done if r not in pairs]
    believed = compute_fault_probabilities(prior, list(chain.from_iterable(halves or pairs)))
    named = tuple(
        n for n in nodes if believed[n] >= SURE and _count_failed_groups_of_node(n, done) >= 2
    )
    open_ = [n for n in nodes if CLEARED < believed[n] < SURE]
    wide = len(nodes) // 2 > PAIRED
    cleared = not wide and not open_ and len(done) >= 2
    if (named and not open_) or cleared or len(done) >= most:
        return CulpritSearchResult(named, believed, len(done))
    if halves or (wide and pairs and not named and not open_):
        known = believed if halves else prior
        return NextTestRound(len(done) + 1, _split_suspects_into_halves(nodes, known), known)
    return NextTestRound(len(done) + 1, _pair_suspect_nodes(nodes, believed, pairs), believed)


def _has_only_node_pairs(one: Round) -> bool:
    """Return whether no group of a round is larger than a pair and an odd node."""
    return all(len(result.nodes) <= PAIRED for result in one)


def compute_max_test_rounds(nodes: int) -> int:
    """Return how many rounds a search among so many nodes takes at most."""
    return ceil(log2(nodes)) + 2


def make_group_test_results(figures: Mapping[Group, float | None]) -> Round:
    """Return the results of a round from its groups' figures (more is better); None: it gave none.

    A group is slow by the others of its size: by their upper median, of two groups by the better.
    """
    measured = sorted(value for value in figures.values() if value is not None)
    least = SLOW * measured[len(measured) // 2] if measured else 0.0
    return tuple(
        GroupTestResult(group, value is None or value < least) for group, value in figures.items()
    )


def compute_fault_probabilities(
    prior: Beliefs, tests: Sequence[GroupTestResult]
) -> dict[NodeName, float]:
    """Return how likely each node is bad, by all tests: messages between tests and nodes, in log
    odds."""
    odds = {node: log(p / (1 - p)) for node, p in prior.items()}
    evidence: dict[tuple[int, NodeName], float] = {}
    for t, test in enumerate(tests):
        evidence |= {(t, node): 0.0 for node in test.nodes}
    total = dict(odds)
    for _ in range(_SWEEPS):
        most = 0.0
        for t, test in enumerate(tests):
            # How likely each of the others does not disturb the test, by all that else is known of
            # it.
            quiet = {
                n: 1 - _convert_odds_to_probability(total[n] - evidence[t, n]) * (1 - FALSE_PASS)
                for n in test.nodes
            }
            everyone = (1 - FALSE_FAIL) * prod(quiet.values())
            for n in test.nodes:
                passes = max(everyone / quiet[n], 1e-12)
                if_good = 1 - passes if test.failed else passes
                if_bad = 1 - FALSE_PASS * passes if test.failed else FALSE_PASS * passes
                new = log(if_bad / if_good)
                most = max(most, abs(new - evidence[t, n]))
                total[n] += new - evidence[t, n]
                evidence[t, n] = new
        if most < _STILL:
            break
    return {node: _convert_odds_to_probability(odds) for node, odds in total.items()}


def _convert_odds_to_probability(odds: float) -> float:
    return 1 / (1 + exp(-max(-500.0, min(odds, 500.0))))


def _count_failed_groups_of_node(node: NodeName, done: Sequence[Round]) -> int:
    """Return with how many different groups of partners a node failed."""
    results = chain.from_iterable(done)
    return len({result.nodes for result in results if node in result.nodes and result.failed})


def _pair_suspect_nodes(
    nodes: Sequence[NodeName], believed: Beliefs, done: Sequence[Round]
) -> tuple[Group, ...]:
    """Return the most suspect with the least, no two that have met; an odd node joins the last
    pair."""
    met: set[frozenset[NodeName]] = set()
    for result in chain.from_iterable(done):
        met.update(map(frozenset, combinations(result.nodes, 2)))
    order = sorted(nodes, key=lambda n: -believed[n]) if done else list(nodes)
    groups: list[list[NodeName]] = []
    while len(order) > 1:
        first = order.pop(0)
        # Without a stranger left the least suspect will do.
        fits = (n for n in reversed(order) if frozenset((first, n)) not in met)
        partner = next(fits, order[-1])
        order.remove(partner)
        groups.append([first, partner])
    if order:
        groups[-1].append(order[0])
    return tuple(tuple(group) for group in groups)


def _split_suspects_into_halves(nodes: Sequence[NodeName], believed: Beliefs) -> tuple[Group, ...]:
    """Return two groups of one size, each with half of what is suspected."""
    sides: tuple[list[NodeName], list[NodeName]] = ([], [])
    mass = [0.0, 0.0]
    for node in sorted(nodes, key=lambda n: -believed[n]):
        full = [len(side) >= (len(nodes) + 1) // 2 for side in sides]
        to = 1 if full[0] or (not full[1] and mass[1] < mass[0]) else 0
        sides[to].append(node)
        mass[to] += believed[node]
    return tuple(sides[0]), tuple(sides[1])
