"""Dynamic nodes: one that appears is treated as any other, one that is deleted is let go."""

from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.network import NEEDS_ROOT, network_of_head
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, NEEDS_ROOT]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive\n"


@pytest.fixture(scope="module")
def live():
    # slurmctld keeps no node that it knows only from the state before its start.
    settings = {"netns": True, "slurm_conf": "MaxNodeCount=8\n"}
    with cluster(nodes=4, **settings) as live, network_of_head(live.sandbox):
        yield live


@pytest.fixture(scope="module")
def definition(live: Chaos) -> str:
    """The last node's line, which slurm.conf has no more: slurmctld starts without it."""
    node, conf = live.sandbox.nodes[-1], Path(live.sandbox.spec.layout.slurm_conf)
    lines = [line.replace(f",{node}", "") for line in conf.read_text().splitlines()]
    (own,) = (line for line in lines if line.startswith(f"NodeName={node} "))
    kept = [line for line in lines if line != own and not line.startswith("PartitionName=dev")]
    kept.append("PartitionName=dev Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    # From 23.11 on slurmctld reaches a node that was created by `scontrol` at no other port.
    kept.append(own[own.index("Port=") :].split()[0].replace("Port", "SlurmdPort"))
    conf.write_text("\n".join(kept) + "\n")
    live.sandbox.kill_slurmctld()
    live.sandbox.start_slurmctld()
    until(lambda: node not in live.scheduler.view().nodes, 60, "slurmctld runs without it")
    return own.replace("State=UNKNOWN", "State=CLOUD")


def create(live: Chaos, definition: str) -> str:
    """Have the node appear, as an autoscaler does: `scontrol create`, then its instance boots."""
    node = live.sandbox.nodes[-1]
    live.sandbox.scontrol("create", *definition.split())
    live.sandbox.inject(node, "boot-node")
    until(lambda: "DYNAMIC_NORM" in live.node(node).flags, 60, "it registers")
    until(live.all_idle, 60, "every node is in service")
    live.mark(node)
    return node


def delete(live: Chaos, node: str) -> None:
    live.sandbox.scontrol("delete", f"NodeName={node}")


@story(
    job="Batch job on a dynamic node that appeared while the daemon runs",
    act="the node has a fault, then a second node, after the first was deleted",
    slurm="The job runs again elsewhere both times; the node is replaced and returns.",
    explain="A recovery of each node and two of the job.",
    owner="The job runs again by itself.",
)
def test_a_dynamic_node_is_treated_and_may_be_deleted_afterwards(live: Chaos, definition: str):
    node = create(live, definition)
    job = live.start("sleep 600", f"--nodelist={node}", header=HEADER)
    live.xid(node)
    until(lambda: live.job(job).restarts == 1, 60, "it is requeued")
    live.sandbox.scontrol("update", f"JobId={job}", "ReqNodeList=")
    until(lambda: live.running(job, 1), 130, "it runs again")
    live.returned(node, 60)
    until(lambda: live.of_job(job)[-1].ended, 60, "its recovery ends")
    delete(live, node)
    (second,) = live.job(job).nodes
    live.xid(second)
    until(lambda: live.running(job, 2), 60, "it runs elsewhere")
    live.returned(second, 60)
    assert live.of_job(job)[-1].phase in ("proving", "resumed")
    live.sandbox.run(["scancel", str(job)])
    until(live.all_idle, 60, "every node is in service")


@story(
    job="Dynamic node with a fault",
    act="`scontrol delete` before anything was done to its instance",
    slurm="The instance is not replaced.",
    explain="Slurm has no such node any more; the recovery is canceled.",
)
def test_a_node_deleted_before_its_remedy_is_let_go(live: Chaos, definition: str):
    node = create(live, definition)
    instance = live.instance(node)
    live.reconfigure(node={"remedy_after_s": 30.0})
    live.xid(node)
    until(lambda: live.phase(node) == "vacated", 60, "its remedy waits")
    delete(live, node)
    until(lambda: live.last(node).ended, 60, "its recovery ends")
    assert live.last(node).phase == "cancelled"
    assert live.last(node).trail[-1].signal == "node_gone"
    assert live.accepted(instance) == 0
    until(lambda: "Nothing is in treatment" in live.hpctl("status"), 60, "status is fine")
    live.rewrite(live.first_config)


@story(
    job="Dynamic node that is being replaced",
    act="`scontrol delete` in mid-recovery",
    slurm="Nothing more is done once the phase's deadline has passed.",
    explain="Slurm has no such node any more; the recovery is canceled.",
)
def test_a_node_deleted_while_it_is_replaced_is_let_go(live: Chaos, definition: str):
    node = create(live, definition)
    live.reconfigure(node={"replace_deadline_s": 8.0})
    live.sandbox.inject_api("stuck-replace")
    live.xid(node)
    until(lambda: live.phase(node) == "remedying", 60, "it is being replaced")
    delete(live, node)
    until(lambda: live.last(node).ended, 60, "its recovery ends")
    assert live.last(node).trail[-1].signal == "node_gone"
    live.sandbox.inject_api("clear")
    until(lambda: "Nothing is in treatment" in live.hpctl("status"), 60, "status is fine")
    assert live.daemon().trouble == ""
    live.rewrite(live.first_config)
