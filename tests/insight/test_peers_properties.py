"""What holds of the comparison of peers whatever the numbers are."""

from hypothesis import given
from hypothesis import strategies as st

from hpctl.insight.grey import decide
from hpctl.insight.grey.decide import GAUGES
from tests.fakes.values import at

NAMES = tuple(f"n{n}" for n in range(9))
numbers = st.floats(0, 1e9, allow_nan=False)
gauges = st.dictionaries(st.sampled_from(GAUGES), numbers)
window = st.dictionaries(st.sampled_from(NAMES), gauges)
nodes = st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple)


def group(names: tuple[str, ...]) -> decide.PeerGroup:
    return decide.PeerGroup(1, names, (names,))


def run(names: tuple[str, ...], lines: list[dict[str, dict[str, float]]]) -> decide.Memory:
    memory: decide.Memory = {}
    for n, seen in enumerate(lines):
        memory = decide.update_outlier_histories([group(names)], seen, memory, at(20 * n))
    return memory


@given(nodes, st.lists(window, max_size=8))
def test_any_numbers_are_judged_and_the_order_of_nodes_does_not_matter(names, lines):
    one = decide.make_peer_findings(run(names, lines))
    assert one == decide.make_peer_findings(run(names[::-1], lines))
    assert all(f.first <= f.last and f.evidence for found in one.values() for f in found)


@given(nodes, st.lists(window, max_size=8), st.integers(0, 8))
def test_fewer_than_four_that_were_heard_accuse_no_node(names, lines, skip):
    few = [dict(sorted(seen.items())[:3]) for seen in lines]
    assert run(names, few[skip:]) == {}


@given(st.lists(window, min_size=1, max_size=8))
def test_memory_holds_no_more_than_the_windows_that_matter(lines):
    for track in run(NAMES, lines).values():
        assert any(track.marks)
        assert len(track.marks) <= 8
