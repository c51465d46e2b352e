"""What hpctl costs slurmctld at rest: RPCs a minute, by slurmctld's own count (sdiag).

A real slurmctld with eight nodes, their agents and the daemon; the other nodes of a size are
powered-down records, which slurmctld sends like all others. All sizes are measured at the same
time, over one longest interval between two readings (`loop.rest_s`), so that one falls into it.

The rival is AWS ParallelCluster's clustermgtd, which goes round once a minute. The commands of one
round at rest are played on the same slurmctld after the measurement
(aws-parallelcluster-node 3.11.1: `get_nodes_info` and `get_partitions_info` in
src/common/schedulers/slurm_commands.py): sinfo for the nodes of its partitions, `scontrol show
nodes` of those, `scontrol show partitions`, and sinfo once more for each partition. `sudo`, awk and
grep around them are left out; they ask slurmctld nothing.

`busy` is the same head while a short job is submitted every ten seconds. `reaction` is a fault
right after the rest: from the kernel's line to the node drained, by slurmctld's log.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from benchmarks.heal import SITE
from benchmarks.lab import Lab, NotSeen, records
from benchmarks.table import Outcome, Row
from hpctl.engine.config import Config
from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.rpcs import count_query_rpcs

SIZES = tuple(int(size) for size in os.environ.get("BENCH_SIZES", "8,1000,10000").split(","))
REST_S = Config().loop.rest_s
BUSY_S, JOB_EVERY_S = 60.0, 10.0
CALM_S = 30.0
"""The log is followed, and what came before it was followed is read: both within three cycles."""
ROUNDS = 3
NODES = 8
AGENT = {"budget": {"cpu_percent": 100.0, "memory_mb": 1000.0}}
"""An agent that sheds checks, as eight of them do on one busy machine, says so: no rest."""
BAR, RIVAL_BAR = 10.0, 0.2


class _Measured(Struct, frozen=True):
    """RPCs a minute of one size."""

    size: int
    rest: Counter[str]
    busy: Counter[str]
    rival: Counter[str]
    drained_s: float
    findings: tuple[str, ...]
    """What agents told during the rest: each has Slurm read."""


def run() -> Outcome:
    with ThreadPoolExecutor(len(SIZES)) as pool:
        measured = list(pool.map(_measure, SIZES))
    outcome = Outcome("rpc")
    for one in measured:
        ours, rival = one.rest.total(), one.rival.total()
        what = f"{one.size} nodes: RPCs a minute at rest"
        outcome.rows += [
            Row(what, ours, "RPCs", "clustermgtd", rival, bar=min(BAR, RIVAL_BAR * rival)),
            Row(f"{one.size} nodes: the same, a job every 10 s", one.busy.total(), "RPCs"),
            Row(f"{one.size} nodes: kernel line after the rest to drained", one.drained_s, "s"),
        ]
        outcome.notes += [
            f"{one.size} nodes, {name}: {_shown(counts)}"
            for name, counts in (("rest", one.rest), ("busy", one.busy), ("rival", one.rival))
        ]
        if one.findings:
            outcome.notes.append(f"{one.size} nodes, agents told: {', '.join(one.findings)}")
    return outcome


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:.1f}" for name, count in sorted(counts.items())) or "none"


def _measure(size: int) -> _Measured:
    name = f"bench-rpc-{size}-{time.time_ns() // 1_000_000 % 100_000_000:x}"
    with Sandbox(
        name,
        nodes=NODES,
        mode="own",
        daemon=True,
        config=SITE,
        agent_config=AGENT,
        slurm_conf=records(NODES, size),
    ) as sandbox:
        lab = Lab(sandbox)
        try:
            return _measured(size, lab)
        except Exception:
            print(lab.last_words(), file=sys.stderr)
            raise


def _measured(size: int, lab: Lab) -> _Measured:
    lab.until(lab.complete, 120, "every agent was heard once")
    time.sleep(CALM_S)
    known = len(lab.view().nodes)
    if known != size:
        raise NotSeen(f"slurmctld knows {known} nodes, not {size}")
    rest = _rate(lab.sandbox, REST_S, REST_S)
    told = [f for node in lab.sandbox.nodes for f in lab.health(node).findings]
    findings = tuple(sorted({f"{f.check} {f.code} {f.verdict}" for f in told}))
    log = lab.log()
    node = lab.sandbox.nodes[0]
    began = lab.break_gpu(node)
    drained_s = log.wait(rf"node {node} state set to DRAIN", 30) - began
    lab.until(lab.healed, 120, "the node is back")
    time.sleep(CALM_S)
    busy = _rate(lab.sandbox, BUSY_S, JOB_EVERY_S)
    return _Measured(size, rest, busy, _play_rival(lab.sandbox), drained_s, findings)


def _rate(sandbox: Sandbox, lasts_s: float, job_every_s: float) -> Counter[str]:
    """RPCs a minute; with a job in each interval after the first."""
    before, began = count_query_rpcs(sandbox), time.monotonic()
    while (left_s := began + lasts_s - time.monotonic()) > 0:
        time.sleep(min(left_s, job_every_s))
        if left_s > job_every_s:
            wrap = ("sbatch", "--output=/dev/null", "--wrap=sleep 1")
            sandbox.run(list(wrap))
    counts, took_s = count_query_rpcs(sandbox) - before, time.monotonic() - began
    return Counter({name: count * 60.0 / took_s for name, count in counts.items()})


def _play_rival(sandbox: Sandbox) -> Counter[str]:
    """RPCs of one round of clustermgtd, which is a minute's."""
    shown = sandbox.scontrol("show", "partitions", "-o")
    lines = [line for line in shown.splitlines() if line.startswith("PartitionName=")]
    partitions = [line.split()[0].partition("=")[2] for line in lines]
    sandbox.signal_service("daemon", "SIGSTOP")
    before = count_query_rpcs(sandbox)
    for _ in range(ROUNDS):
        nodes = _nodes_of(sandbox, ",".join(partitions))
        sandbox.scontrol("show", "nodes", nodes)
        sandbox.scontrol("show", "partitions", "-o")
        for partition in partitions:
            _nodes_of(sandbox, partition)
    counts = count_query_rpcs(sandbox) - before
    return Counter({name: count / ROUNDS for name, count in counts.items()})


def _nodes_of(sandbox: Sandbox, partitions: str) -> str:
    return sandbox.run(["sinfo", "-h", "-p", partitions, "-o", "%N"]).stdout.strip().splitlines()[0]
