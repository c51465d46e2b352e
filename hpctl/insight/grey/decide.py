"""Grey failure: a node that is slow or lossy compared with its peers, and reports no fault.

Peers are the nodes of one Slurm job that are of one kind: they do the same work at the same time. A
node stands out in a window when it lies far from its peers' middle in units of their own spread
(robust z) and by an amount that matters; it is found when it did so in k of the last n windows. In
synchronous training all nodes slow down together, so being slow is no evidence: every signal points
at the node that is *not* waiting (its GPU is throttled or clocked low while busy, its own link
repeats). Idle nodes, missing gauges and small jobs are no evidence at all.

Method and numbers: Minder (NSDI'25) for similarity and continuity, Iglewicz and Hoaglin (1993)
for the robust z, and what each signal's row says.

SIGNALS has the gauges that are compared, and what standing out means in each. Sources of its
numbers: the ways in which a GPU is slowed and what is normal (NVML, NVIDIA's documentation of the
clocks' event reasons), EFA's counters (amzn-drivers), and the robust z of 3.5 that Iglewicz and
Hoaglin (1993) advise; 5 where a counter's noise has a long tail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding
from hpctl.vocabulary.slurm_facts import SchedulerView

BUSY = "gpu.busy"
POWER = "gpu.power_w"
REMOTE = "efa.remote_events_per_s"
VBIOS = "gpu.vbios"
"""The version's bytes as one number: 96.00.74.00.01 is 0x9600740001."""


class PeerGauge(Struct, frozen=True):
    """One gauge and when a node stands out by it.

    `name`: the finding's check is `peer.<name>`. `worse`: +1 where more is worse, -1 where less is.
    It must be off by `floor` (in `unit`) and by `share` of the reference, with a robust z of `z`.
    `low`: the reference is the peers' lower quartile and not their median, because healthy is zero
    whatever the others do. `crowd`: where more than this share of the peers stands out, the cause
    is shared and no node is marked. `busy`: only working nodes count. `wide`: all nodes of the job
    are compared, for healthy is the same on every instance type. Found when `seen[0]` of the last
    `seen[1]` windows stood out, gone when at most one did. `odd`: a setting and no measure: a node
    that differs at all from what three quarters of its peers have stands out.
    """

    name: str
    gauge: str
    unit: str
    worse: int
    floor: float
    share: float
    z: float
    why: str
    low: bool = False
    crowd: float = 0.25
    busy: bool = False
    wide: bool = False
    odd: bool = False
    seen: tuple[int, int] = (6, 7)


SIGNALS: tuple[PeerGauge, ...] = (
    PeerGauge(
        "throttle",
        "gpu.throttle_share",
        "of the time",
        +1,
        0.05,
        0.0,
        3.5,
        "hardware slowdown (heat, power brake) of the worst GPU, from the nanosecond counters",
        low=True,
        crowd=0.75,
        busy=True,
        wide=True,
    ),
    PeerGauge(
        "clock",
        "gpu.sm_clock_mhz",
        "MHz",
        -1,
        50.0,
        0.10,
        3.5,
        "SM clock of the slowest busy GPU, under nine tenths of its peers'",
        busy=True,
    ),
    PeerGauge(
        "replay",
        "gpu.pcie_replays_per_minute",
        "a minute",
        +1,
        60.0,
        9.0,
        5.0,
        "PCIe replays of the worst GPU, over ten times its peers'",
        crowd=0.5,
    ),
    PeerGauge(
        "retrans",
        "efa.retrans_ratio",
        "of the packets",
        +1,
        1e-4,
        1.0,
        5.0,
        "EFA packets sent again",
        crowd=0.1,
        wide=True,
    ),
    PeerGauge(
        "remote",
        REMOTE,
        "/s",
        +1,
        0.02,
        0.0,
        0.0,
        "EFA's unresponsive and impaired remote events: many nodes name the one that has none",
        wide=True,
        seen=(4, 8),
    ),
    *(
        PeerGauge(name, gauge, unit, -1, 0.0, 0.0, 0.0, why, odd=True)
        for name, gauge, unit, why in (
            ("vbios", VBIOS, "", "VBIOS of the GPUs"),
            ("persistence", "gpu.persistence", "(1: on)", "persistence mode of every GPU"),
            (
                "setclock",
                "gpu.application_clock_mhz",
                "MHz",
                "lowest application clock that is set",
            ),
            ("rate", "rdma.gbps", "Gb/s", "rate of the slowest InfiniBand or RoCE port in use"),
        )
    ),
)
GAUGES: tuple[str, ...] = (BUSY, POWER, *(s.gauge for s in SIGNALS))
"""The gauges that this module reads, per node; an agent that lacks one leaves it out."""
SIGNAL = {signal.name: signal for signal in SIGNALS}
"""The same by name."""


WINDOW = timedelta(seconds=20)
"""Two reports of an agent. Six of seven such windows take two minutes and outlast a nuisance of a
minute and a half, as five of six of 30 s do half a minute later."""
LEAST_PEERS = 4
"""Below this many members the odd one cannot be identified."""
SETTLE = timedelta(seconds=90)
"""After a job's start its nodes load images and data at their own pace."""
FORGET = timedelta(minutes=10)
"""A suspicion about which no window could say anything for this long is dropped."""
_TO_SIGMA = 0.6745
_NORMAL = 0.3
_SIMILAR = 0.7
_DRAWING = 0.4
"""The least share of time with a kernel on the GPU, for its clocks to mean anything."""
_MOST = 0.75
_TINY = 0.01
"""The spread is never taken to be less than this share of the reach: tiny MADs do not alarm."""


Seen = Mapping[NodeName, Mapping[str, float]]
"""The means of one window, by node and gauge. What was not reported is not there."""


class PeerGroup(Struct, frozen=True):
    """The nodes of one job, and the same in parts of one kind (instance group) each."""

    job: JobId
    nodes: tuple[NodeName, ...]
    parts: tuple[tuple[NodeName, ...], ...]


class WindowOutlierMeasurement(Struct, frozen=True):
    """A node stood out in one window: its value, the peers' reference, z, and how many peers."""

    value: float
    centre: float
    z: float
    peers: int
    job: JobId
    beside: str = ""


class NodeOutlierHistory(Struct, frozen=True):
    """What is remembered of one node and signal: kept only while some window stood out.

    `marks`: the last windows that were judged, oldest first; the end of one that stood out,
    None for one that did not. `onset` stays what it was when the fault was found.
    """

    marks: tuple[datetime | None, ...]
    onset: datetime
    last: datetime
    judged: datetime
    count: int
    mark: WindowOutlierMeasurement
    found: bool = False


Memory = Mapping[tuple[NodeName, str], NodeOutlierHistory]


def group_peers(
    view: SchedulerView, kinds: Mapping[NodeName, str], now: datetime
) -> tuple[PeerGroup, ...]:
    """Return which nodes can be compared: those of running jobs past their start, without shared
    nodes.

    `kinds` is the instance group of each node; nodes without one are a kind of their own.
    """
    running = [j for j in view.jobs.values() if j.state == "RUNNING"]
    taken: set[NodeName] = set()
    shared: set[NodeName] = set()
    for job in running:
        shared.update(taken.intersection(job.nodes))
        taken.update(job.nodes)
    groups = []
    for job in running:
        if len(job.nodes) < LEAST_PEERS or (job.start and now - job.start < SETTLE):
            continue
        if job.components:  # each of them does different work
            continue
        parts: dict[str, list[NodeName]] = {}
        for node in job.nodes:
            if node not in shared:
                parts.setdefault(kinds.get(node, ""), []).append(node)
        alone = tuple(chain.from_iterable(parts.values()))
        groups.append(PeerGroup(job.id, alone, tuple(map(tuple, parts.values()))))
    return tuple(groups)


def update_outlier_histories(
    groups: Iterable[PeerGroup], seen: Seen, memory: Memory, now: datetime
) -> Memory:
    """Return the memory after one more window, which ended at `now`; `memory` is that before it."""
    after = {key: t for key, t in memory.items() if now - t.judged <= FORGET}
    tracked = {node for node, _ in after}
    for group in groups:
        mine = tracked.intersection(group.nodes)
        everyone = _ComparedPeerNodes.of(group.nodes, seen)
        parts = (
            [everyone]
            if len(group.parts) == 1
            else [_ComparedPeerNodes.of(p, seen) for p in group.parts]
        )
        for signal in SIGNALS:
            for part in (everyone,) if signal.wide else parts:
                members = part.working if signal.busy else part.members
                found = _find_peer_outliers_in_window(signal, group.job, members, mine)
                if found is not None:
                    _update_outlier_history(after, signal.name, *found, now)
    return after


def make_peer_findings(memory: Memory) -> dict[NodeName, tuple[Finding, ...]]:
    """Return what is found at present, by node: WARN, with the onset as `first`."""
    found: dict[NodeName, tuple[Finding, ...]] = {}
    for (node, name), track in sorted(memory.items()):
        if track.found:
            found[node] = (*found.get(node, ()), _make_outlier_finding(SIGNAL[name], track))
    return found


_Members = Sequence[tuple[NodeName, Mapping[str, float]]]


class _ComparedPeerNodes(Struct, frozen=True):
    """Nodes that are compared with each other, as far as they reported."""

    members: _Members
    working: _Members

    @classmethod
    def of(cls, nodes: Iterable[NodeName], seen: Seen) -> _ComparedPeerNodes:
        members = [(node, seen[node]) for node in nodes if node in seen]
        return cls(members, _select_busy_members(members))


def _select_busy_members(members: _Members) -> _Members:
    """Return the members whose GPUs do the work: at least seven tenths as busy as the middle one.

    Where no agent reports the utilization, power replaces it: an idle GPU draws a fifth of a busy
    one's. With neither, all: agents send a clock and a throttle share of busy GPUs only.
    """
    for gauge, least, similar in ((BUSY, _NORMAL, _SIMILAR), (POWER, 0.0, _DRAWING)):
        readings = sorted(g[gauge] for _, g in members if gauge in g)
        if len(readings) >= LEAST_PEERS:
            bar = max(least, readings[len(readings) // 2] * similar)
            return [m for m in members if m[1].get(gauge, -1.0) >= bar]
    return members


def _find_peer_outliers_in_window(
    signal: PeerGauge, job: JobId, members: _Members, tracked: set[NodeName]
) -> tuple[dict[NodeName, WindowOutlierMeasurement], list[NodeName]] | None:
    """Return who stood out, and which of the tracked nodes certainly did not; None where neither
    can be decided. A node that is far off among widely scattered peers is neither."""
    gauge = signal.gauge
    readings = [(g[gauge], node) for node, g in members if gauge in g]
    if len(readings) < LEAST_PEERS:
        return None
    if gauge == REMOTE or signal.odd:
        marks = (
            _find_nodes_with_mismatched_settings(job, readings)
            if signal.odd
            else _find_remote_error_source(signal, job, readings)
        )
        return marks, [node for _, node in readings if node in tracked and node not in marks]
    ordered = sorted(value for value, _ in readings)
    centre = _compute_peer_reference_value(signal, ordered)
    reach = max(signal.floor, signal.share * abs(centre))
    worst = ordered[-1] if signal.worse > 0 else ordered[0]
    marks = {}
    if (worst - centre) * signal.worse >= reach:
        marks = _find_outlier_nodes(signal, job, readings, centre, reach)
        power = {node: g[POWER] for node, g in members if POWER in g} if marks else {}
        usual = _compute_median(sorted(power.values())) if len(power) >= LEAST_PEERS else None
        marks = {
            node: _add_power_draw_to_outlier(mark, power.get(node), usual)
            for node, mark in marks.items()
        }
    clean = [
        node
        for value, node in (readings if tracked else ())
        if node in tracked and (value - centre) * signal.worse < reach
    ]
    return marks, clean


def _find_outlier_nodes(
    signal: PeerGauge,
    job: JobId,
    readings: Sequence[tuple[float, NodeName]],
    centre: float,
    reach: float,
) -> dict[NodeName, WindowOutlierMeasurement]:
    """Return the members that lie far out on the bad side, unless so many do that it is not
    theirs."""
    offs = [(value - centre) * signal.worse for value, _ in readings]
    # Those that are not quite so far out show too whether the cause is shared.
    bar = max(reach / 2, max(offs) / 4)
    if sum(off >= bar for off in offs) > max(1, signal.crowd * len(readings)):
        return {}
    out = {}
    ordered = sorted(value for value, _ in readings)
    for off, (value, node) in zip(offs, readings, strict=True):
        if off < reach:
            continue
        # Its peers are the others: in a small job one's own value would widen the spread.
        others = _LeaveOneOutValues(ordered, bisect_left(ordered, value))
        centre = _compute_peer_reference_value(signal, others)
        near = (len(others) - 1) // 4 * 2 + 1 if signal.low else len(others)
        spread = max(_compute_median_distance(others, near, centre), _TINY * reach)
        z = _TO_SIGMA * (value - centre) * signal.worse / spread
        if z >= signal.z:
            out[node] = WindowOutlierMeasurement(value, centre, z, len(others), job)
    return out


class _LeaveOneOutValues(Struct, frozen=True):
    """Sorted values but for the one at a place, without a copy of them for each outlier."""

    ordered: Sequence[float]
    place: int

    def __len__(self) -> int:
        return len(self.ordered) - 1

    def __getitem__(self, at: int) -> float:
        return self.ordered[at + (at >= self.place)]


def _compute_median_distance(ordered: _LeaveOneOutValues, count: int, centre: float) -> float:
    """Return the middle one of the distances of the first `count` values from a center."""
    half = count // 2
    if count % 2:
        return _find_nth_distance(ordered, count, centre, half + 1)
    return (
        _find_nth_distance(ordered, count, centre, half)
        + _find_nth_distance(ordered, count, centre, half + 1)
    ) / 2


def _find_nth_distance(ordered: _LeaveOneOutValues, count: int, centre: float, nth: int) -> float:
    """Return the `nth` smallest distance: the nearest values are a contiguous run, which bisection
    finds."""
    first, last = 0, count - nth
    while first < last:
        half = (first + last) // 2
        if centre - ordered[half] > ordered[half + nth] - centre:
            first = half + 1
        else:
            last = half
    return max(abs(ordered[first] - centre), abs(ordered[first + nth - 1] - centre))


def _compute_peer_reference_value(
    signal: PeerGauge, ordered: Sequence[float] | _LeaveOneOutValues
) -> float:
    return ordered[(len(ordered) - 1) // 4] if signal.low else _compute_median(ordered)


def _find_remote_error_source(
    signal: PeerGauge, job: JobId, readings: Sequence[tuple[float, NodeName]]
) -> dict[NodeName, WindowOutlierMeasurement]:
    """Return the node that such events point at. They name the *other* end: if all but one raise
    them, it is that one; if only one raises them, it is that node itself. Anything between points
    at no node."""
    raising = [(value, node) for value, node in readings if value >= signal.floor]
    if len(raising) == 1:
        odd, centre = raising[0], 0.0
    elif len(raising) == len(readings) - 1:
        odd = next(item for item in readings if item[0] < signal.floor)
        centre = _compute_median(sorted(value for value, _ in raising))
    else:
        return {}
    return {odd[1]: WindowOutlierMeasurement(odd[0], centre, 0.0, len(readings) - 1, job)}


def _find_nodes_with_mismatched_settings(
    job: JobId, readings: Sequence[tuple[float, NodeName]]
) -> dict[NodeName, WindowOutlierMeasurement]:
    """Return who is not set up as most are; no node where most do not agree."""
    ((usual, count),) = Counter(value for value, _ in readings).most_common(1)
    if count < _MOST * len(readings):
        return {}
    return {
        node: WindowOutlierMeasurement(value, usual, 0.0, len(readings) - 1, job)
        for value, node in readings
        if value != usual
    }


def _compute_median(ordered: Sequence[float] | _LeaveOneOutValues) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _add_power_draw_to_outlier(
    mark: WindowOutlierMeasurement, power: float | None, usual: float | None
) -> WindowOutlierMeasurement:
    """Add the power to the detail, for the reader: a node that waits draws little."""
    if power is None or usual is None:
        return mark
    return replace(mark, beside=f"; draws {power:.0f} W, peers {usual:.0f} W")


def _update_outlier_history(
    memory: dict[tuple[NodeName, str], NodeOutlierHistory],
    name: str,
    marks: Mapping[NodeName, WindowOutlierMeasurement],
    clean: Iterable[NodeName],
    now: datetime,
) -> None:
    need, of = SIGNAL[name].seen
    for node, mark in marks.items():
        old = memory.get((node, name))
        kept = (*old.marks, now)[-of:] if old else (now,)
        found = old is not None and old.found
        memory[node, name] = NodeOutlierHistory(
            marks=kept,
            onset=old.onset if old and found else _find_first_outlier_time(kept, now) - WINDOW,
            last=now,
            judged=now,
            count=old.count + 1 if old else 1,
            mark=mark,
            found=found or _count_outlier_windows(kept) >= need,
        )
    for node in clean:
        old = memory.get((node, name))
        if old is None:
            continue
        kept = (*old.marks, None)[-of:]
        # One stray window is no trace of a fault, and is not what keeps a finding alive.
        if _count_outlier_windows(kept) <= (len(kept) == of):
            del memory[node, name]
        else:
            memory[node, name] = replace(old, marks=kept, judged=now)


def _count_outlier_windows(marks: Iterable[datetime | None]) -> int:
    return sum(mark is not None for mark in marks)


def _find_first_outlier_time(marks: Iterable[datetime | None], now: datetime) -> datetime:
    return next((mark for mark in marks if mark is not None), now)


def _make_outlier_finding(signal: PeerGauge, track: NodeOutlierHistory) -> Finding:
    mark = track.mark
    need = (
        f"{_count_outlier_windows(track.marks)} of {len(track.marks)} windows of {WINDOW.seconds} s"
    )
    if signal.gauge == REMOTE:
        contrast = "its peers raise these, it does not" if mark.centre else "it alone raises these"
        text = (
            f"{signal.gauge} {_format_number(mark.value)} {signal.unit}, peers' median "
            f"{_format_number(mark.centre)}: {contrast}, {mark.peers} peers, {need}"
        )
    elif signal.odd:
        shown = _format_version if signal.gauge == VBIOS else _format_number
        unit = f" {signal.unit}" if signal.unit else ""
        text = (
            f"{signal.gauge} {shown(mark.value)}{unit}, most of {mark.peers} peers have "
            f"{shown(mark.centre)}, {need}"
        )
    else:
        middle = "lower quartile" if signal.low else "median"
        text = (
            f"{signal.gauge} {_format_number(mark.value)} {signal.unit}, peers' {middle} "
            f"{_format_number(mark.centre)}, z {min(mark.z, 999.0):.1f} by MAD, "
            f"{mark.peers} peers, {need}{mark.beside}"
        )
    return Finding(
        check=f"peer.{signal.name}",
        verdict=DeviceVerdict.WARN,
        first=track.onset,
        last=track.last,
        evidence=text,
        count=track.count,
        clears=ClearCondition.GONE,
        job=str(mark.job),
    )


def _format_version(value: float) -> str:
    digits = f"{parse_count(f'{value:.0f}'):010x}"
    return ".".join(digits[n : n + 2] for n in range(0, len(digits), 2))


def _format_number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
