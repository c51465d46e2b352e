"""What a run left, in the form in which hpctl judges it."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import KERNEL_FACILITY, KernelRecord
from hpctl.jobs.hangs.stack_groups import (
    StackHangVerdict,
    diagnose_hang_from_rank_stacks,
    parse_node_stacks,
)
from hpctl.jobs.run.post_mortem import RunEndEvidence
from hpctl.jobs.run.srun import SrunTaskEnd
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding
from tests.fakes.values import T0
from tests.jobs.verdict_corpus.cases import Case

SIGNALS = {
    "SIGKILL": "Killed",
    "SIGTERM": "Terminated",
    "SIGABRT": "Aborted",
    "SIGSEGV": "Segmentation fault",
    "SIGBUS": "Bus error",
}
"""As srun prints them (src/common/log.c's strsignal, Linux)."""
PREFIX = "nccl_trace_rank_"


def list_rank_nodes(case: Case) -> dict[int, NodeName]:
    """Return where each rank ran."""
    return {rank: NodeName(f"n{case.find_node(rank) + 1}") for rank in range(case.world)}


def read_case(files: Mapping[str, bytes]) -> Case:
    """Return the case that a run was made from."""
    return msgspec.json.decode(files["case.json"], type=Case)


def read_remains(files: Mapping[str, bytes], folder: Path) -> RunEndEvidence:
    """Return what a run left. `folder` gets its dumps of the flight recorder.

    Of the case only what a scheduler knows is used: how many ranks run, and where.
    """
    record = json.loads(files["run.json"])
    rank_nodes = list_rank_nodes(read_case(files))
    for name, raw in files.items():
        if name.startswith("flight/"):
            (folder / name.removeprefix("flight/")).write_bytes(raw)
    alone = record["ends"][: record["ended_alone"]]
    return RunEndEvidence(
        exit_code=max((shell_code(end["code"]) for end in record["ends"]), default=1),
        tail=files["job.log"].decode(errors="replace").splitlines(),
        ends=[make_end(end) for end in alone if end["code"]],
        flight_prefix=f"{folder}/{PREFIX}",
        world=len(rank_nodes),
        rank_nodes=rank_nodes,
        stacks=read_stacks(files, rank_nodes),
        findings=read_findings(record["kernel"], read_case(files)),
        step=max(map(int, record["steps"].values()), default=None),
        hung=record["hung"],
    )


def shell_code(code: int) -> int:
    """Return the shell's exit code for Python's."""
    return 128 - code if code < 0 else code


def make_end(end: Mapping[str, Any]) -> SrunTaskEnd:
    """Return how srun reports the end of a task."""
    code = int(end["code"])
    text = f"Exited with exit code {code}"
    if code < 0:
        name = signal.Signals(-code).name
        text = SIGNALS.get(name, name)
    return SrunTaskEnd(NodeName(end["node"]), int(end["task"]), shell_code(code), text)


def read_stacks(
    files: Mapping[str, bytes], rank_nodes: Mapping[int, NodeName]
) -> StackHangVerdict | None:
    """Return what the ranks' stacks show; None where none were read."""
    if "stacks.txt" not in files:
        return None
    nodes = sorted(set(rank_nodes.values()))
    return diagnose_hang_from_rank_stacks(
        parse_node_stacks(files["stacks.txt"].decode().splitlines()), nodes, nodes
    )


def read_findings(lines: list[str], case: Case) -> dict[NodeName, list[Finding]]:
    """Return what the agent's reader of the kernel log makes of a run's lines: those of the node of
    the control group, which is the culprit's."""
    if not lines:
        return {}
    records = [KernelRecord(KERNEL_FACILITY, n, T0, text) for n, text in enumerate(lines)]
    node = NodeName(f"n{case.find_node(case.rank) + 1}")
    return {node: KernelLogAnalyzer(lambda pid, at: "").findings(records)}
