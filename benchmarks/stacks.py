"""What it costs the head node to name the rank that a job of 1,000 waits for, and how often it is
the right one.

Made-up jobs of 125 nodes with eight ranks: all but one stand in a collective of a call stack of 40
frames, in one of four places where ranks of a pipeline's stages wait; that one stands where the
seed says. The whole way is measured: the nodes' lines of text, decoded, grouped and judged. The
rival compares every two stacks by the part of their frames that both have (Jaccard), and names the
rank that is least like the others.
"""

import random
import time
from collections.abc import Callable

from benchmarks.table import Outcome, Row, median
from hpctl.jobs.hangs.stack_groups import (
    NodeStacks,
    RankStack,
    StackFrame,
    diagnose_hang_from_rank_stacks,
    format_node_stacks,
    parse_node_stacks,
)

RANKS, PER_NODE, DEPTH, SEEDS = 1000, 8, 40, 20
C10D = "torch/distributed/distributed_c10d.py"
ODD = {
    "sleep": (StackFrame("clock_nanosleep"), StackFrame("fetch", "data.py", 88, True)),
    "spin": (StackFrame("tokenize", "data.py", 12, True),),
    "loader": (StackFrame("poll"), StackFrame("_try_get_data", "torch/utils/data/dataloader.py",
        1251)),
    "file": (StackFrame("open64"), StackFrame("load_shard", "data.py", 40, True)),
    "compile": (StackFrame("compile_fx", "torch/_inductor/compile_fx.py", 900),),
}  # fmt: skip


def job(seed: int) -> tuple[list[NodeStacks], int]:
    """What the nodes of a job say, and the rank that it waits for."""
    chance = random.Random(seed)
    culprit, kind = chance.randrange(RANKS), sorted(ODD)[seed % len(ODD)]
    trunk = [StackFrame(f"call_{n}", f"model/layer_{n}.py", 10 + n, True) for n in range(DEPTH)]
    stages = [StackFrame(name, C10D, 2000) for name in ("all_reduce", "recv", "send", "all_gather")]
    stacks = []
    for rank in range(RANKS):
        stage = stages[rank * len(stages) // RANKS]
        end = ODD[kind] if rank == culprit else (StackFrame("c10d::Work::wait"), stage)
        stacks.append(RankStack(rank, 1000 + rank, "0", "S", frames=(*end, *trunk)))
    nodes = range(RANKS // PER_NODE)
    return [
        NodeStacks(f"n{n}", RANKS, tuple(stacks[PER_NODE * n : PER_NODE * (n + 1)])) for n in nodes
    ], culprit


def named(text: list[str], nodes: list[str]) -> list[int]:
    """Ours: from the nodes' lines to the ranks that are named."""
    return [
        one.rank for one in diagnose_hang_from_rank_stacks(parse_node_stacks(text), nodes).suspects
    ]


def pairwise(text: list[str]) -> list[int]:
    """The rival's."""
    ranks = {
        one.rank: set(map(str, one.frames))
        for said in parse_node_stacks(text)
        for one in said.ranks
    }
    likeness = dict.fromkeys(ranks, 0.0)
    numbers = sorted(ranks)
    for at, first in enumerate(numbers):
        mine = ranks[first]
        for second in numbers[at + 1 :]:
            other = ranks[second]
            same = len(mine & other)
            alike = same / (len(mine) + len(other) - same)
            likeness[first] += alike
            likeness[second] += alike
    return [min(numbers, key=lambda rank: likeness[rank])]


def cpu_s(work: Callable[[], object]) -> float:
    """The processor's time that it takes, in seconds."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def run() -> Outcome:
    """Measure."""
    outcome = Outcome("stacks")
    jobs = [job(seed) for seed in range(SEEDS)]
    told = [[line for node in said for line in format_node_stacks(node)] for said, _ in jobs]
    nodes = [node.node for node in jobs[0][0]]
    ours = median([cpu_s(lambda: named(told[0], nodes)) for _ in range(5)])
    guessed: list[int] = []
    theirs = cpu_s(lambda: guessed.extend(pairwise(told[0])))
    right = sum(named(text, nodes) == [who] for text, (_, who) in zip(told, jobs, strict=True))
    pair = "every two stacks (Jaccard)"
    outcome.rows = [
        Row(f"CPU for {RANKS} ranks", 1000 * ours, "ms", pair, 1000 * theirs, bar=2000),
        Row(f"right of {SEEDS} culprits", 100 * right / SEEDS, "%", bar=95, least=True),
    ]
    size = sum(map(len, told[0])) / 1000
    outcome.notes = [f"{size:.0f} kB of lines; processor time; {pair}: {guessed == [jobs[0][1]]}"]
    return outcome
