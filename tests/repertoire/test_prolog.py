"""A Prolog that fails: its owner did nothing wrong, whoever's script it is.

slurmctld drains the node ("Prolog error"), requeues the job, and holds it where SchedulerParameters
lacks `nohold_on_prolog_fail`.
"""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import EAGER, until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
ROOT = Path(__file__).parents[2]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"
PROLOG = f"""#!/bin/sh
[ -e {{base}}/fails-$SLURMD_NODENAME ] && exit 1
here=${{SLURM_CONF%/*}}
export HPCTL={{base}}/hpctl HPCTL_AGENT_SOCKET=$here/agent.sock
{ROOT}/slurm_plugins/prolog.sh 2>{{base}}/said
status=$?
echo "$SLURM_JOB_ID $SLURMD_NODENAME $status $(cat {{base}}/said)" >>{{base}}/prologs
exit $status
"""
HPCTL = f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m hpctl "$@"\n'
FILES = {"prolog": PROLOG, "hpctl": HPCTL}
CONF = "Prolog={base}/prolog\nPrologFlags=Alloc\n"
FLAGGED = EAGER.replace("\n", ",nohold_on_prolog_fail\n")


def broken(live: Chaos) -> str:
    """Break the node that the next job gets, and keep hpctl from closing it first."""
    (node,) = live.victims(1)
    live.sandbox.run(["scontrol", "update", f"nodename={node}", "weight=1"])
    for other in live.sandbox.nodes:
        if other != node:
            live.sandbox.run(["scontrol", "update", f"nodename={other}", "weight=100"])
    return node


def fault(live: Chaos, node: str) -> None:
    """A GPU of the node is lost; hpctl is paused, as if it were late."""
    live.hpctl("pause")
    live.xid(node)
    until(lambda: node in live.state().holds, 60, "the daemon knows of the fault, and waits")


def prologs(live: Chaos) -> str:
    path = Path(live.sandbox.state_dir).parent / "prologs"
    return path.read_text() if path.exists() else ""


def site_fails(live: Chaos, node: str, *, fails: bool) -> None:
    """The site's own part of the Prolog fails on a node, or does so no more."""
    path = Path(live.sandbox.state_dir).parent / f"fails-{node}"
    path.touch() if fails else path.unlink()


def problems(live: Chaos) -> str:
    return "\n".join(json.loads(live.hpctl("status", "--json", check=False))["problems"])


@pytest.fixture(scope="module")
def unheld():
    with cluster(nodes=3, files=FILES, slurm_conf=CONF + FLAGGED) as live:
        yield live


@pytest.fixture(scope="module")
def held():
    with cluster(nodes=3, files=FILES, slurm_conf=CONF) as live:
        yield live


@story(
    job="Batch job that Slurm sends to a faulty node before hpctl has drained it",
    act="hpctl's Prolog fails there, with `nohold_on_prolog_fail`",
    slurm="The job starts at once on another node; hpctl takes over Slurm's drain.",
    explain="The node's recovery has Slurm's Reason in its evidence.",
    owner="Nothing to do.",
)
def test_hpctls_prolog_keeps_a_job_off_a_faulty_node(unheld: Chaos):
    live = unheld
    node = broken(live)
    fault(live, node)
    job = live.submit("sleep 600", header=HEADER)
    until(lambda: live.node(node).reason == "Prolog error", 60, "Slurm drains the node")
    assert f"{job} {node} 1 hpctl: " in prologs(live)
    live.hpctl("unpause")
    until(lambda: live.running(job, 1), 60, "it runs elsewhere, without Slurm's 121 s")
    assert node not in live.job(job).nodes
    recovery = live.returned(node)
    assert any("Prolog error" in finding.evidence for finding in recovery.findings)
    assert "Prolog error" in live.explained(recovery.id)
    assert [r.phase for r in live.of_job(job)] in (["resumed"], ["proving"])
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Job of `srun` on a faulty node that hpctl has not drained yet",
    act="hpctl's Prolog runs there, with `nohold_on_prolog_fail`",
    slurm="The job starts there: Slurm would cancel it.",
    owner="The step ends by the fault, not by the Prolog.",
)
def test_hpctls_prolog_lets_a_job_start_that_slurm_would_cancel(unheld: Chaos):
    live = unheld
    node = broken(live)
    fault(live, node)
    done = live.sandbox.run(["srun", "--exclusive", "hostname"], check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    assert f"{node} 0 hpctl: " in prologs(live)
    live.hpctl("unpause")
    live.returned(node)


@story(
    job="Batch job that Slurm sends to a faulty node before hpctl has drained it",
    act="hpctl's Prolog runs there, without `nohold_on_prolog_fail`",
    slurm="The job starts there, for Slurm would hold it; hpctl moves it to another node.",
    owner="Nothing to do; the restart counts.",
)
def test_hpctls_prolog_lets_a_job_start_that_slurm_would_hold(held: Chaos):
    live = held
    node = broken(live)
    fault(live, node)
    job = live.start("sleep 600", header=HEADER)
    until(lambda: f"{job} {node} 0 hpctl: " in prologs(live), 60, "its Prolog says why it starts")
    live.hpctl("unpause")
    until(lambda: live.running(job, 1), 60, "it runs elsewhere")
    assert node not in live.job(job).nodes
    live.returned(node)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job whose Prolog fails on a faulty node: another Prolog than hpctl's",
    act="Slurm holds it (`launch failed requeued held`)",
    slurm="hpctl releases it, and it starts at once on another node.",
    explain="The job's recovery names the node; the node's names `Prolog error`.",
    owner="Nothing to do.",
)
def test_a_job_that_slurm_holds_for_a_faulty_node_is_released(held: Chaos):
    live = held
    node = broken(live)
    fault(live, node)
    site_fails(live, node, fails=True)
    job = live.submit("sleep 600", header=HEADER)
    until(lambda: live.job(job).has_launch_failed, 60, "Slurm holds it")
    site_fails(live, node, fails=False)
    live.hpctl("unpause")
    until(lambda: live.running(job, 1), 60, "it is released, and runs elsewhere")
    assert node not in live.job(job).nodes
    assert node in live.explained(str(job))
    assert any("Prolog error" in finding.evidence for finding in live.returned(node).findings)
    assert str(job) not in live.state().holds
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job that Slurm holds for a faulty node (`launch failed requeued held`)",
    act="an administrator runs `scontrol hold` before hpctl releases it",
    slurm="The job stays held.",
    explain="`hpctl status` lists the job.",
    owner="Whoever held it releases it.",
)
def test_a_job_that_an_administrator_holds_meanwhile_stays_held(held: Chaos):
    live = held
    node = broken(live)
    fault(live, node)
    site_fails(live, node, fails=True)
    job = live.submit("sleep 600", header=HEADER)
    until(lambda: live.job(job).has_launch_failed, 60, "Slurm holds it")
    site_fails(live, node, fails=False)
    live.sandbox.run(["scontrol", "hold", str(job)])
    live.hpctl("unpause")
    live.returned(node)
    until(lambda: all(r.ended for r in live.of_job(job)), 60, "its recovery ends")
    assert live.job(job).state == "PENDING"
    until(lambda: f"job {job} is held back by the gate launch_failed" in problems(live), 60, "said")
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job whose Prolog fails on a node without a known fault",
    act="a Prolog of the site's fails",
    slurm="Node and job stay as Slurm left them: drained (`Prolog error`) and held.",
    explain="`hpctl status` lists both with what to do, and exits with 1.",
    owner="An administrator fixes the Prolog, resumes the node and releases the job.",
)
def test_a_foreign_prolog_on_a_healthy_node_is_a_persons(held: Chaos):
    live = held
    node = broken(live)
    live.mark(node)
    site_fails(live, node, fails=True)
    job = live.submit("sleep 600", header=HEADER)
    until(lambda: live.job(job).has_launch_failed, 60, "Slurm holds it")
    until(lambda: f"job {job} is held back by the gate launch_failed" in problems(live), 60, "job")
    until(
        lambda: f"{node}: slurm prolog: a Prolog failed on the node" in problems(live), 20, "node"
    )
    assert "read slurmd's log there" in problems(live)
    assert "slurmctld closed it ('Prolog error')" in live.explained(node)
    assert "scontrol release" in live.explained(str(job))
    time.sleep(3)
    assert live.job(job).has_launch_failed
    assert live.of(node) == []
    site_fails(live, node, fails=False)
    live.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    live.cleared(job)
    live.sandbox.run(["scontrol", "release", str(job)])
    live.end_delay(job, 1)
    until(lambda: problems(live) == "", 60, "nothing is left")
    live.sandbox.run(["scancel", str(job)])
