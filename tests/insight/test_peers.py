"""Who stands out among a job's nodes, who does not, and for how long before it is said."""

import statistics
import time
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.insight.grey import decide
from hpctl.insight.grey.decide import SIGNALS
from hpctl.vocabulary.model import DeviceVerdict
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import at, node_name, slurm_job

NAMES = tuple(node_name(n) for n in range(1, 9))
N1 = NAMES[0]
GROUP = decide.PeerGroup(1, NAMES, (NAMES,))
USUAL = {
    "gpu.busy": 0.95, "gpu.power_w": 600.0, "gpu.throttle_share": 0.0, "gpu.sm_clock_mhz": 1900.0,
    "gpu.pcie_replays_per_minute": 0.0, "efa.retrans_ratio": 2e-6, "efa.remote_events_per_s": 0.0,
}  # fmt: skip
SET_UP = {
    "gpu.vbios": float(0x9600740001),
    "gpu.persistence": 1.0,
    "gpu.application_clock_mhz": 1980.0,
    "rdma.gbps": 400.0,
}
BAD = {
    "throttle": {"gpu.throttle_share": 0.4},
    "clock": {"gpu.sm_clock_mhz": 1300.0},
    "replay": {"gpu.pcie_replays_per_minute": 3000.0},
    "retrans": {"efa.retrans_ratio": 3e-3},
    "remote": {"efa.remote_events_per_s": 2.0},
    "vbios": {"gpu.vbios": float(0x9600610001)},
    "persistence": {"gpu.persistence": 0.0},
    "setclock": {"gpu.application_clock_mhz": 1200.0},
    "rate": {"rdma.gbps": 200.0},
}
Change = Mapping[str, float]


def seen(window, changes, names=NAMES):
    """One window in which no two nodes are quite alike."""
    answer = {}
    for n, name in enumerate(names):
        noise = 1 + ((n * 7 + window * 3) % 5) / 100
        noisy = {g: v * noise for g, v in USUAL.items()}
        answer[name] = noisy | SET_UP | dict(changes.get(name, {}))
    return answer


def windows(count, changes, group=GROUP, memory=None, start=0):
    memory = {} if memory is None else memory
    for window in range(start, start + count):
        text = seen(window, changes(window), group.nodes)
        memory = decide.update_outlier_histories([group], text, memory, at(20 * (window + 1)))
    return memory


def found(memory: decide.Memory) -> dict[str, list[str]]:
    return {
        node: [f.check for f in text] for node, text in decide.make_peer_findings(memory).items()
    }


def only(node: str, change: Change) -> Callable[[int], Mapping[str, Change]]:
    return lambda _: {node: change}


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda s: s.name)
def test_a_node_that_stands_out_is_found_by_each_signal(signal):
    need = signal.seen[0]
    bad = only(N1, BAD[signal.name])
    assert found(windows(need - 1, bad)) == {}
    assert found(windows(need, bad)) == {N1: [f"peer.{signal.name}"]}


def test_nodes_that_do_not_agree_on_a_setting_are_left_alone():
    """Three of eight are not the odd ones, nor are the five."""
    assert found(windows(9, lambda _: dict.fromkeys(NAMES[:3], BAD["vbios"]))) == {}
    two = found(windows(9, lambda _: dict.fromkeys(NAMES[:2], BAD["vbios"])))
    assert set(two) == set(NAMES[:2])


def test_a_finding_tells_onset_value_median_z_peers_and_windows():
    memory = windows(3, lambda _: {})
    memory = windows(7, only(N1, BAD["clock"]), memory=memory, start=3)
    (answer,) = decide.make_peer_findings(memory)[N1]
    assert (answer.verdict, answer.job, answer.first) == (DeviceVerdict.WARN, "1", at(60))
    assert (answer.last, answer.count) == (at(200), 7)
    assert "gpu.sm_clock_mhz 1300 MHz, peers' median 19" in answer.evidence
    assert "7 peers, 7 of 7 windows of 20 s" in answer.evidence
    assert "draws" in answer.evidence


def test_one_window_missed_of_seven_does_not_matter_but_two_do():
    def flaps(*good: int) -> Callable[[int], Mapping[str, Change]]:
        return lambda window: {} if window in good else {N1: BAD["throttle"]}

    assert found(windows(7, flaps(2))) == {N1: ["peer.throttle"]}
    assert found(windows(7, flaps(2, 4))) == {}


def test_a_finding_ends_when_the_node_is_among_its_peers_again():
    memory = windows(6, only(N1, BAD["clock"]))
    memory = windows(5, lambda _: {}, memory=memory, start=6)
    assert found(memory) == {N1: ["peer.clock"]}
    assert windows(1, lambda _: {}, memory=memory, start=11) == {}


def test_a_finding_without_evidence_is_dropped_after_ten_minutes():
    memory = windows(6, only(N1, BAD["clock"]))
    assert found(decide.update_outlier_histories([], {}, memory, at(120 + 600))) == {
        N1: ["peer.clock"]
    }
    assert decide.update_outlier_histories([], {}, memory, at(120 + 601)) == {}


def test_a_whole_job_that_slows_down_accuses_no_node():
    for change in BAD.values():
        assert found(windows(10, lambda _, c=change: dict.fromkeys(NAMES, c))) == {}


def test_a_cause_that_several_nodes_share_is_not_theirs():
    hit = dict.fromkeys(NAMES[:3], BAD["retrans"])
    assert found(windows(10, lambda _: hit)) == {}


def test_a_power_brake_on_most_of_a_job_is_found_on_each():
    hit = dict.fromkeys(NAMES[:5], BAD["throttle"])
    assert found(windows(6, lambda _: hit)) == {n: ["peer.throttle"] for n in NAMES[:5]}


def test_a_node_that_waits_is_not_the_slow_one():
    """A leader or a data server: idle most of the time, its clock low for that."""
    idle = {"gpu.busy": 0.2, "gpu.power_w": 120.0, "gpu.sm_clock_mhz": 345.0}
    assert found(windows(10, only(N1, idle))) == {}


def test_without_utilisation_power_tells_who_works():
    answer = seen(0, {N1: {"gpu.sm_clock_mhz": 345.0, "gpu.power_w": 90.0}})
    for gauges in answer.values():
        del gauges["gpu.busy"]
    assert decide.update_outlier_histories([GROUP], answer, {}, at(30)) == {}
    answer[N1]["gpu.power_w"] = 500.0
    assert set(decide.update_outlier_histories([GROUP], answer, {}, at(30))) == {(N1, "clock")}


def test_what_was_not_heard_is_no_evidence():
    parts = seen(0, {N1: BAD["clock"]})
    assert (
        decide.update_outlier_histories(
            [GROUP], {name: parts[name] for name in NAMES[:3]}, {}, at(30)
        )
        == {}
    )
    del parts[N1]["gpu.sm_clock_mhz"]
    assert decide.update_outlier_histories([GROUP], parts, {}, at(30)) == {}


def test_clocks_are_compared_within_one_kind_and_throttling_across():
    group = decide.PeerGroup(1, NAMES, (NAMES[:4], NAMES[4:]))
    slow_kind = {name: {"gpu.sm_clock_mhz": 1400.0} for name in NAMES[4:]}
    assert found(windows(10, lambda _: slow_kind, group)) == {}
    hit = dict.fromkeys(NAMES[4:], BAD["throttle"])
    assert set(found(windows(6, lambda _: hit, group))) == set(NAMES[4:])


def test_many_that_name_a_remote_side_accuse_the_silent_peer():
    raised = dict.fromkeys(NAMES[1:], BAD["remote"])
    memory = windows(4, lambda _: raised)
    assert found(memory) == {N1: ["peer.remote"]}
    assert "its peers raise these, it does not" in decide.make_peer_findings(memory)[N1][0].evidence


@pytest.mark.parametrize("raising", range(2, 7))
def test_remote_events_in_between_accuse_no_node(raising):
    raised = dict.fromkeys(NAMES[:raising], BAD["remote"])
    assert found(windows(10, lambda _: raised)) == {}


@given(
    values=st.lists(st.integers(0, 50) | st.floats(-9, 9), min_size=3, max_size=40),
    place=st.integers(0, 39),
    low=st.booleans(),
)
def test_the_spread_is_that_of_all_the_others_in_full(values, place, low):
    ordered = sorted(values)
    place %= len(ordered)
    rest = ordered[:place] + ordered[place + 1 :]
    others = decide._LeaveOneOutValues(ordered, place)
    assert [others[i] for i in range(len(others))] == rest
    count = (len(rest) - 1) // 4 * 2 + 1 if low else len(rest)
    centre = statistics.median(rest)
    plain = statistics.median(abs(v - centre) for v in rest[:count])
    assert decide._compute_median_distance(others, count, centre) == plain


def test_half_of_a_large_job_that_throttles_takes_no_time_squared():
    nodes = tuple(node_name(n) for n in range(10_000))
    slow = seen(0, dict.fromkeys(nodes[::2], BAD["throttle"]), nodes)
    begun = time.process_time()
    assert (
        len(
            decide.update_outlier_histories([decide.PeerGroup(1, nodes, (nodes,))], slow, {}, at(0))
        )
        == 5000
    )
    assert time.process_time() - begun < 4


def view(*jobs) -> SchedulerView:
    return SchedulerView(at(0), jobs={j.id: j for j in jobs})


def test_peers_are_the_nodes_of_one_running_job_of_one_kind():
    kinds = {n: "p5" if n in NAMES[:5] else "p4d" for n in NAMES}
    (group,) = decide.group_peers(view(slurm_job(nodes=NAMES)), kinds, at(0))
    assert (group.nodes, group.parts) == (NAMES, (NAMES[:5], NAMES[5:]))


@pytest.mark.parametrize(
    "change",
    [{"nodes": NAMES[:3]}, {"state": "PENDING"}, {"state": "SUSPENDED"}, {"start": at(-89)}],
    ids=str,
)
def test_small_jobs_and_those_that_do_not_compute_yet_have_no_peers(change):
    assert decide.group_peers(view(slurm_job(**{"nodes": NAMES, **change})), {}, at(0)) == ()


def test_a_node_that_two_jobs_share_is_no_nodes_peer():
    jobs = slurm_job(1, nodes=NAMES), slurm_job(2, nodes=NAMES[:1])
    (group,) = decide.group_peers(view(*jobs), {}, at(0))
    assert group.nodes == NAMES[1:]
