"""Nodes tested before they serve, on a real Slurm: one passes, one fails, one is asked for."""

import json

import pytest

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
        "acceptance": {"replace": "quick", "reboot": "quick", "command": str(script)},
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
