"""From an Xid to the node back in service: by a GPU reset, and by the reboot of its instance.

A real Slurm, the real agents and the real daemon on loopback, and the emulated service. The reset's
nodes have a stand-in of nvidia-smi (tests/fakes/nvidia_smi.py), so what is measured is hpctl's own
way: the order reaches the agent with its next report. A real reset takes seconds more. An instance
of the emulated service boots in BOOT_S; one with eight GPUs takes minutes.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.heal import SITE
from benchmarks.lab import Lab, NotSeen
from benchmarks.table import Outcome, Row, median
from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.faults import append_node_kmsg_record, format_xid_line
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.recovery import StepKind
from tests.fakes import nvidia_smi

BOOT_S = float(os.environ.get("BENCH_BOOT", "60"))
NODES = 8
RATIO_BAR = 0.5
CODES = {StepKind.RESET: 48, StepKind.REBOOT: 95}
LADDERS: dict[str, Any] = {
    "xid-48": {"ladder": ["reset_gpu", "reboot"]},
    "xid-95": {"ladder": ["reboot"]},
}


def run() -> Outcome:
    """Half of the nodes are reset and half rebooted, all at once."""
    site = {**SITE, "catalogue": LADDERS, "budgets": {**SITE["budgets"], "open_min": NODES}}
    tag = f"{time.time_ns() // 1_000_000 % 100_000_000:x}"
    sandbox = Sandbox(
        f"bench-{tag}", nodes=NODES, mode="own", daemon=True, boot_time=BOOT_S, config=site
    )
    with sandbox:
        lab = Lab(sandbox)
        try:
            return _measure(lab)
        except Exception:
            print(lab.last_words(), file=sys.stderr)
            raise


def _measure(lab: Lab) -> Outcome:
    lab.until(lab.complete, 60, "every agent was heard once")
    kinds = dict(zip(lab.sandbox.nodes, [StepKind.RESET, StepKind.REBOOT] * NODES, strict=False))
    for node, kind in kinds.items():
        if kind is StepKind.RESET:
            nvidia_smi.install(lab.sandbox.spec.layout.of_node(node) / "hardware")
    begun = time.time()
    for node, kind in kinds.items():
        append_node_kmsg_record(lab.sandbox.spec.layout, node, format_xid_line(CODES[kind]))
    lab.until(lambda: _ended(lab) == NODES, 3 * BOOT_S + 120, "every node is back")
    took: dict[StepKind, list[float]] = {kind: [] for kind in CODES}
    for rec in lab.state().nodes.values():
        kind = kinds[str(rec.node)]
        remedies = {step.kind for step in rec.steps} & set(CODES)
        if rec.phase is not NodeRecoveryPhase.RETURNED or remedies != {kind}:
            raise NotSeen(f"{rec.id} of {rec.node}: {[t.why for t in rec.trail]}")
        took[kind].append(rec.since.timestamp() - begun)
    reset, reboot = (median(took[kind]) for kind in CODES)
    name = f"reboot of an instance that boots in {BOOT_S:.0f} s"
    row = Row("Xid to node in service, by a reset", reset, "s", name, reboot, RATIO_BAR * reboot)
    return Outcome("reset", [row], [f"{(reboot - reset) / 60:.1f} minutes of a node saved"])


def _ended(lab: Lab) -> int:
    recoveries: list[NodeRecovery] = list(lab.state().nodes.values())
    return sum(rec.ended for rec in recoveries)
