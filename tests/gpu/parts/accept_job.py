"""Acceptance by its job: `hpctl acceptance NODE` under a real Slurm; its node measures the GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context

TITLE = "Acceptance by its job under Slurm"
LIMIT_S = 60
DRY_LIMIT_S = 90
SIDE_BY_SIDE = False
NEEDS = frozenset({"gpu", "slurm", "torch"})

ROOT = Path(__file__).resolve().parents[3]
CONFIG = {
    "node": {"verify_healthy_s": 0.5, "remedy_after_s": 0.0, "step_retry_s": 1.0},
    "cluster": {"busy_poll_s": 0.3, "poll_s": 1.0},
    "loop": {"reconcile_s": 2.0},
}
# On the sandbox each node has its own spool, and hpctl is not installed under /opt.
SCRIPT = """#!/bin/sh
export PYTHONPATH={root} HPCTL_TEST_PYTHON={python}
export HPCTL_AGENT_SPOOL={nodes}/$SLURMD_NODENAME/agent
exec {python} -m hpctl.nodes.acceptance.run "$@"
"""


def run(context: Context) -> None:
    """Have one idle node tested, and compare its figures with those of the programs alone."""
    from tests.gpu.boxes import hpctl_in, run_in, sandbox

    script = context.scratch / "accept"
    config = {**CONFIG, "acceptance": {"command": str(script)}}
    with sandbox(context, "accept", nodes=1 if context.dry else 2, config=config) as box:
        nodes = box.node_dir(box.nodes[0]).parent
        script.write_text(SCRIPT.format(root=ROOT, python=sys.executable, nodes=nodes))
        script.chmod(0o755)
        states = run_in(box, "sinfo", "-N", "-h", "-o", "%N %T %G").out.splitlines()
        context.record("nodes", states)
        done = hpctl_in(box, "acceptance", box.nodes[0], "--wait", "--json", limit_s=50)
        context.record("accept", {"code": done.code, "out": done.out, "err": done.err[-3000:]})
        context.say(f"hpctl accept: exit code {done.code} after {done.took_s} s {done.err[-300:]}")
        _tell(context, done.out)
        explained = hpctl_in(box, "explain", box.nodes[0])
        context.record("explain", explained.out[-4000:])


def _tell(context: Context, out: str) -> None:
    try:
        tests: list[dict[str, Any]] = json.loads(out)["tests"]
    except (ValueError, KeyError):
        return
    for test in tests:
        context.say(f"{test['node']}: {test['result']} {test['why']}")
        for measured in test["measured"]:
            figures = {name: round(value, 1) for name, value in measured["figures"].items()}
            context.say(f"{measured['test']} {measured['result']} {figures} {measured['reason']}")
