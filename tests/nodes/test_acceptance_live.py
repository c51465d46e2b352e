"""Nodes tested before they serve, on a real Slurm: one passes, one fails, one is asked for."""

import json
from pathlib import Path

import pytest

from hpctl.engine.test_reservation import SUSPECTED
from hpctl.sandbox.api import Sandbox
from hpctl.vocabulary.node_recovery import NodeRecovery
from tests.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

SCRIPT = """#!/bin/sh
# As hpctl.nodes.acceptance.run is called: --level LEVEL --id ID. A node fails as often as its file
# says.
nodes={nodes} asked={asked} host=$SLURMD_NODENAME now=$(date +%s)
[ "$SLURM_JOB_RESERVATION" = "hpctl-accept-$4" ] || exit 9
status=Passed remedy=none
if [ -s $asked/$host ]; then
  status=Failed remedy=$(head -n 1 $asked/$host)
  sed -i 1d $asked/$host
fi
folder=$nodes/$host/agent/acceptance
printf '{{"id": "%s", "level": "%s", "started": %s, "finished": %s, "results": [{{"test": "gemm",
  "status": "%s", "remedy": "%s", "reason": "GPU 3", "figures": {{"tflops": 71.5}}}}]}}' \\
  "$4" "$2" $now $now $status $remedy > $folder/.new
mv $folder/.new $folder/$4.json
[ $status = Passed ]
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    asked = tmp_path_factory.mktemp("asked")
    asked.chmod(0o755)
    script = asked / "accept"
    config = {
        **FAST,
        "acceptance": {
            "replace": "quick",
            "reboot": "quick",
            "suspected": "quick",
            "command": str(script),
        },
        "catalogue": {"xid-79": {"ladder": ["reboot", "replace"]}},
    }
    with Sandbox(
        "accept", nodes=2, daemon=True, mode="own", config=config, slurm_conf=EAGER
    ) as sandbox:
        nodes = sandbox.node_dir(sandbox.nodes[0]).parent
        script.write_text(SCRIPT.format(nodes=nodes, asked=asked))
        script.chmod(0o755)
        live = Live(sandbox)
        live.asked = asked  # type: ignore[attr-defined]
        yield live


def ended(live: Live, node: str, timeout: float = 120) -> NodeRecovery:
    """The newest recovery of a node, once it has ended; nothing of its test is left then."""

    def last() -> NodeRecovery:
        state = live.state()
        return state.nodes[state.last_of_node[node]]

    until(lambda: last().ended, timeout, f"the recovery of {node} ends")
    assert not [r for r in live.scheduler.reservations() if r.startswith("hpctl-accept-")]
    return last()


def moves(rec: NodeRecovery) -> list[str]:
    return [move.signal for move in rec.trail if "test" in move.signal or "acc" in move.signal]


def test_a_node_that_passes_serves_again(live: Live) -> None:
    node = live.sandbox.nodes[0]
    live.sandbox.inject(node, "xid", code=79)
    until(lambda: bool(live.node_recoveries()), 30, "a recovery opens")
    rec = ended(live, node)
    assert rec.phase == "returned", rec.trail
    assert moves(rec) == ["remedy_accepted", "acceptance_due", "test_passed"]
    assert live.node(node).in_service
    (result,) = (f for f in rec.tests if f.check == "acceptance.gemm")
    assert (result.verdict, json.loads(result.evidence)) == ("ok", {"tflops": 71.5})
    shown = json.loads(live.hpctl("acceptance", "show", node, "--json"))
    assert shown["tests"][0]["measured"][0]["figures"] == {"tflops": 71.5}
    assert "passed its test" in live.hpctl("explain", rec.id)


def test_a_node_that_fails_its_test_gets_the_remedy_that_the_test_asks_for(live: Live) -> None:
    node = live.sandbox.nodes[1]
    before = live.instance(node)
    (live.asked / node).write_text("replace\n")  # type: ignore[attr-defined]
    live.sandbox.inject(node, "xid", code=79)
    until(lambda: node in live.state().last_of_node, 30, "a recovery opens")
    rec = ended(live, node, 180)
    assert rec.phase == "returned", rec.trail
    tests = [m for m in moves(rec) if m.startswith("test")]
    assert tests == ["test_asks_replace", "test_passed"]
    assert live.instance(node) != before
    assert live.node(node).in_service


def test_an_operator_has_a_node_tested_and_it_stays_drained_where_it_fails(live: Live) -> None:
    node = live.sandbox.nodes[0]
    job = live.submit("sleep 300", "-w", node)
    until(lambda: live.running(job), 60, "a job runs")
    assert f"job {job} is on {node}" in live.hpctl("acceptance", node, check=False)
    live.sandbox.run(["scancel", str(job)])
    until(lambda: live.node(node).state == "IDLE", 60, "the node is idle")
    (live.asked / node).write_text("reboot\n")  # type: ignore[attr-defined]
    shown = json.loads(live.hpctl("acceptance", node, "--wait", "--json", check=False))
    assert [(t["node"], t["result"]) for t in shown["tests"]] == [(node, "failed")]
    assert ended(live, node).phase == "escalated"
    assert live.node(node).drained
    live.hpctl("undrain", node)
    until(lambda: live.node(node).in_service, 60, "it is given back")


def test_a_node_on_which_two_jobs_failed_is_tested_once_it_is_idle(
    live: Live, shared: Path
) -> None:
    node = live.sandbox.nodes[1]
    until(lambda: live.node(node).state == "IDLE", 60, "the node is idle")
    known = {rec.id for rec in live.node_recoveries()}
    for name in ("first", "second"):
        job = live.sbatch(write_failing_job(shared / name), "-w", node)
        until(lambda j=job: has_failed(live, j), 90, f"the failure of job {job} is treated")

    def tests() -> list[NodeRecovery]:
        opened = [rec for rec in live.node_recoveries() if rec.id not in known]
        return [rec for rec in opened if rec.rule == SUSPECTED.rule]

    until(lambda: bool(tests()), 60, "the test of the node begins")
    rec = ended(live, node)
    assert (rec.rule, rec.phase) == (SUSPECTED.rule, "returned"), rec.trail
    assert moves(rec) == ["acceptance_due", "test_passed"]
    assert live.node(node).in_service
    assert "2 jobs failed on it" in live.explained(rec.id)


def write_failing_job(folder: Path) -> Path:
    """Write a job that fails as one does whose GPU has an uncorrectable error."""
    folder.mkdir()
    script = folder / "job.sh"
    text = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    script.write_text(f"#!/bin/sh\nsrun sh -c 'echo \"{text}\" >&2; exit 1'\n")
    (folder / "policy.yaml").write_text("restarts: 0\n")
    return script


def has_failed(live: Live, job: int) -> bool:
    recoveries = [rec for rec in live.job_recoveries() if rec.attempt.job == job]
    return any(rec.trouble is not None for rec in recoveries)
