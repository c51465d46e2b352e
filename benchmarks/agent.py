"""What the agent costs the node: processor time and memory, beside NHC's and node_exporter's.

The agent is the real process at its shipped settings, on eight GPUs and 704 counter files that
are not there. Rivals that are not installed are named as missing, and their rows left out.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from benchmarks import agent_machine
from benchmarks.agent_bed import Bed, bed
from benchmarks.agent_process import Cost, cost, read
from benchmarks.agent_rivals import NHC, NODE_EXPORTER, Nhc, NodeExporter, Run, find, node_exporter
from benchmarks.agent_round import Looks, looks
from benchmarks.table import Outcome, Row, median
from hpctl.detection.budget import CPU_PERCENT, MEMORY_MB
from hpctl.detection.checks.efa_reading import DEVICE, PORT

WARM_UP_S = 20.0
MEASURED_S = 90.0
SCRAPE_S = 10.0
NHC_RUNS = 7
NHC_EVERY_S = 300.0
"""What NHC's documentation shows for HealthCheckInterval."""
OUR_EVERY_S = 30.0
"""How often the agent looks at most of what NHC looks at."""
CHILD_MB = 20.0
"""Python and nvidia-ml-py; the library is a stand-in. NVIDIA's own comes on top: on an H200 (driver
580.159.04) the child had 51 MB resident, 41 MB of them its own, before it gave free memory back."""
CPU_BAR_S = CPU_PERCENT / 100 * 3600
_EXPORTER, _USUAL, _NHC = "node_exporter", "node_exporter, all", "NHC"


class Measured(Struct, frozen=True):
    """The agent, its NVML child, and the exporters by name."""

    agent: Cost
    child: Cost
    exporters: Mapping[str, Cost]


def run() -> Outcome:
    """The agent and node_exporter at the same time, then NHC, then single looks."""
    outcome = Outcome("agent")
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        directory = Path(name)
        ports = directory / "infiniband"
        agent_machine.infiniband(ports)
        with ExitStack() as stack:
            exporters = dict(_exporters(stack, ports, outcome))
            node = stack.enter_context(bed(directory))
            measured = _measure(node, exporters)
            outcome.notes.append(_laid_out(node, ports))
            nhc = _nhc(directory, outcome)
        each = looks(directory / "root", agent_machine.gpus(directory).env())
    outcome.rows = [
        *_agent_rows(measured),
        *_child_rows(measured.child),
        *_exporter_rows(measured, each),
        *_nhc_rows(measured.agent, nhc, each),
    ]
    outcome.notes += _notes(measured, each)
    return outcome


def _exporters(
    stack: ExitStack, ports: Path, outcome: Outcome
) -> Iterator[tuple[str, NodeExporter]]:
    program = find(NODE_EXPORTER)
    if program is None:
        outcome.notes.append(_missing("node_exporter", NODE_EXPORTER))
        return
    for name, only in ((_EXPORTER, True), (_USUAL, False)):
        yield name, stack.enter_context(node_exporter(program, ports, only_infiniband=only))


def _measure(node: Bed, exporters: Mapping[str, NodeExporter]) -> Measured:
    _live(node, exporters, WARM_UP_S)
    pids = {"agent": node.pid, "child": node.child_pid}
    pids |= {name: exporter.pid for name, exporter in exporters.items()}
    before = {name: read(pid) for name, pid in pids.items()}
    _live(node, exporters, MEASURED_S)
    costs = {name: cost(before[name], read(pid)) for name, pid in pids.items()}
    return Measured(costs.pop("agent"), costs.pop("child"), costs)


def _live(node: Bed, exporters: Mapping[str, NodeExporter], seconds: float) -> None:
    """Let time go by as on a healthy node, with a scrape now and then."""
    begun = time.monotonic()
    turn = 0
    while (at := begun + turn * SCRAPE_S) < begun + seconds:
        time.sleep(max(0.0, at - time.monotonic()))
        node.tick()
        for exporter in exporters.values():
            exporter.read()
        turn += 1
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


def _nhc(directory: Path, outcome: Outcome) -> list[Run]:
    program = find(NHC)
    if program is None:
        outcome.notes.append(_missing("NHC", NHC))
        return []
    # munged runs here for the agent.
    nhc = Nhc(program, directory, "munged")
    nhc.once()
    return [nhc.once() for _ in range(NHC_RUNS)]


def _missing(what: str, where: tuple[str, tuple[str, ...]]) -> str:
    variable, names = where
    return f"{what} IS NOT INSTALLED: not compared with (looked for {names[0]}, and in ${variable})"


AGENT_TIME = "agent: processor time, with its NVML child and the programs it runs"


def _agent_rows(measured: Measured) -> list[Row]:
    agent, child = measured.agent, measured.child
    exporter = measured.exporters.get(_EXPORTER)
    rival = {"rival_name": _EXPORTER if exporter else ""}
    return [
        Row(
            AGENT_TIME, agent.s_per_hour + child.s_per_hour, "s/h",
            rival=exporter and exporter.s_per_hour, bar=CPU_BAR_S, **rival,
        ),
        Row(
            "agent: peak memory", agent.peak_mb, "MB",
            rival=exporter and exporter.peak_mb, bar=MEMORY_MB, **rival,
        ),
        Row(
            "agent: wakeups", agent.wakeups_per_s, "/s",
            rival=exporter and exporter.wakeups_per_s, **rival,
        ),
    ]  # fmt: skip


def _child_rows(child: Cost) -> list[Row]:
    return [
        Row("of it the NVML child: processor time", child.s_per_hour, "s/h"),
        Row("NVML child without NVIDIA's library: peak memory", child.peak_mb, "MB", bar=CHILD_MB),
        Row("NVML child: wakeups", child.wakeups_per_s, "/s"),
    ]


def _exporter_rows(measured: Measured, each: Looks) -> list[Row]:
    """One reading of the 704 counters; and against an exporter with all that is on by default."""
    rows = []
    counters_ms = 1000 * max(cost for name, cost in each.cost_s.items() if name.startswith("efa."))
    if exporter := measured.exporters.get(_EXPORTER):
        scrape_ms = 1000 * exporter.s_per_hour / (3600 / SCRAPE_S)
        rows.append(
            Row("704 counters read and judged once", counters_ms, "ms", _EXPORTER, scrape_ms)
        )
    if usual := measured.exporters.get(_USUAL):
        whole = measured.agent.s_per_hour + measured.child.s_per_hour
        rows.append(Row(AGENT_TIME, whole, "s/h", _USUAL, usual.s_per_hour))
    return rows


def _nhc_rows(agent: Cost, runs: list[Run], each: Looks) -> list[Row]:
    round_ms = 1000 * each.round_s
    if not runs:
        return [Row("every check once", round_ms, "ms")]
    once_s, peak_mb = median([run.cpu_s for run in runs]), median([run.peak_mb for run in runs])
    host_ms = 1000 * sum(s for name, s in each.cost_s.items() if name.startswith("host."))
    what = "agent: processor time, with the programs it runs"
    return [
        Row("every check once", round_ms, "ms", _NHC, 1000 * once_s),
        Row("the host's checks once", host_ms, "ms", _NHC, 1000 * once_s),
        Row(what, agent.s_per_hour, "s/h", f"{_NHC} each 5 min", once_s * 3600 / NHC_EVERY_S),
        Row(what, agent.s_per_hour, "s/h", f"{_NHC} each 30 s", once_s * 3600 / OUR_EVERY_S),
        Row("agent: peak memory", agent.peak_mb, "MB", f"{_NHC}, while it runs", peak_mb),
    ]


def _laid_out(node: Bed, ports: Path) -> str:
    """What the processes read. Raises RuntimeError where that is not what it should be."""
    ours = agent_machine.counter_files(node.root / "sys", (*DEVICE, *PORT))
    theirs = agent_machine.counter_files(ports, agent_machine.INFINIBAND)
    last = node.reports[-1].findings
    seen = {f"{finding.check} {finding.code}" for finding in last}
    return (
        f"{agent_machine.GPUS} GPUs, {ours} counter files (node_exporter: {theirs}),"
        f" {agent_machine.KERNEL_THREADS + agent_machine.PROCESSES} tasks;"
        f" {node.start_s:.2f} s of processor time to the first report, {len(node.reports)}"
        f" reports; findings at the end: {', '.join(sorted(seen)) or 'none'}"
    )


def _notes(measured: Measured, each: Looks) -> Iterator[str]:
    agent = measured.agent
    yield (
        f"over {MEASURED_S:.0f} s after {WARM_UP_S:.0f} s: {agent.own_s_per_hour:.1f} s/h its own,"
        f" {agent.children_s_per_hour:.1f} s/h of the programs it runs;"
        f" {agent.resident_mb:.1f} MB resident at the end"
    )
    if measured.exporters:
        yield (
            f"{_EXPORTER}: its InfiniBand collector only; {_USUAL}: every collector that is on by"
            f" default; each scraped every {SCRAPE_S:.0f} s"
        )
    hourly = each.hourly_s()
    dearest = ", ".join(f"{name} {s:.2f}" for name, s in list(hourly.items())[:8])
    yield f"by single looks the checks cost {sum(hourly.values()):.1f} s/h: {dearest}"
    absent = sorted(name for name, here in each.here.items() if not here)
    yield f"not on this machine: {', '.join(absent)}"
