"""Drains of Slurm's own: a fault is treated, and what remains is listed for a person.

Where slurmctld 22.05 cannot be brought to drain by itself on one machine, the test writes the
Reason as root, as a slurmd or slurmstepd does.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from hpctl.faults.slurm_reasons import (
    describe_action_for_drained_node,
    list_drained_node_fault_rows,
)
from tests.daemon.chaos import Chaos, cluster
from tests.live import EAGER, until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"
EPILOG = "#!/bin/sh\n[ -e {base}/epilog-$SLURMD_NODENAME ] && exit 1\nexit 0\n"
HEALTH = """#!/bin/sh
export SLURM_CONF={base}/s/etc/slurm.conf
for sick in {base}/sick-*; do
    [ -e "$sick" ] || exit 0
    scontrol update nodename="${sick##*/sick-}" state=drain reason="NHC: check_fs_mount:  /fsx"
    rm -f "$sick"
done
"""
CONF = "Epilog={base}/epilog\nHealthCheckProgram={base}/health\nHealthCheckInterval=5\n"
REBOOT = "BatchRebootClusterNodes"
SOON = {"catalogue": {"slurm-unkillable": {"settle_s": 0.0}}}


@pytest.fixture(scope="module")
def live():
    files = {"epilog": EPILOG, "health": HEALTH}
    # A node for each story: on 24.11 a resumed node keeps its Reason, and so does the next drain.
    with cluster(SOON, files, nodes=7, slurm_conf=EAGER + CONF) as live:
        yield live


def place(live: Chaos) -> Path:
    return Path(live.sandbox.state_dir).parent


def problems(live: Chaos) -> str:
    return "\n".join(json.loads(live.hpctl("status", "--json", check=False))["problems"])


def resume(live: Chaos, node: str) -> None:
    live.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    until(lambda: live.node(node).in_service, 60, "it serves again")
    until(lambda: node not in problems(live), 60, "and is a problem no more")


def listed(live: Chaos, node: str, code: str, advice: str) -> None:
    """`hpctl status` lists the node with what to do, and nothing is done to it."""
    until(lambda: f"{node}: slurm {code}: " in problems(live), 60, "status lists it")
    assert advice in problems(live)
    assert live.of(node) == []
    assert not live.node(node).in_service


def fail_epilog(live: Chaos, node: str) -> None:
    """A job's Epilog fails on the node, once."""
    sign = place(live) / f"epilog-{node}"
    sign.touch()
    job = live.submit("true", f"--nodelist={node}", header=HEADER)
    until(lambda: live.node(node).drained, 60, f"job {job} ends, and Slurm drains the node")
    sign.unlink()


@story(
    job="Node without a known fault",
    act="an Epilog of the site's fails there",
    slurm="The node stays drained (`Epilog error`).",
    explain="`hpctl status` lists it with what to do, and exits with 1.",
)
def test_an_epilog_that_fails_on_a_healthy_node_is_a_persons(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    fail_epilog(live, node)
    listed(live, node, "epilog", "read slurmd's log there")
    assert "slurmctld closed it ('Epilog error')" in live.explained(node)
    resume(live, node)


@story(
    job="Node with a fault that hpctl knows",
    act="an Epilog fails there, and Slurm drains it (`Epilog error`) before hpctl does",
    slurm="hpctl takes the drain over, treats the fault, and the node serves again.",
    explain="The recovery has Slurm's Reason in its evidence.",
)
def test_an_epilog_that_fails_on_a_faulty_node_does_not_keep_it_from_treatment(live: Chaos):
    (node,) = live.victims(1)
    live.hpctl("pause")
    live.mark(node)
    fail_epilog(live, node)
    live.xid(node)
    until(lambda: node in live.state().holds, 60, "the daemon knows of the fault")
    live.hpctl("unpause")
    until(lambda: live.node(node).reason.startswith("hpctl:"), 60, "the drain is hpctl's")
    recovery = live.returned(node)
    assert any("Reason=Epilog error" in finding.evidence for finding in recovery.findings)
    assert "Epilog error" in live.explained(recovery.id)


@story(
    job="Node without a known fault",
    act="the site's HealthCheckProgram drains it (`NHC: ...`)",
    slurm="The node stays drained.",
    explain="`hpctl status` lists it with what to do, and exits with 1.",
)
def test_a_drain_by_the_sites_health_check_program_is_a_persons(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    (place(live) / f"sick-{node}").touch()
    until(lambda: live.node(node).reason.startswith("NHC: "), 60, "its health check drains it")
    listed(live, node, "health", "fix what the check found")
    resume(live, node)


def count_gpus(live: Chaos, node: str, last: int) -> None:
    """Have slurmd find so many GPUs, and register."""
    directory = live.sandbox.spec.layout.of_node(node)
    path = directory / "gres.conf"
    path.write_text(path.read_text().rpartition("[")[0] + f"[0-{last}]\n")
    os.kill(int((directory / "slurmd.pid").read_text()), signal.SIGHUP)


@story(
    job="Node whose slurmd finds fewer GPUs than slurm.conf says, and whose agent reports no fault",
    act="slurmctld drains it (`gres/gpu count reported lower than configured`)",
    slurm="The node stays drained.",
    explain="`hpctl status` lists it with what to do, and exits with 1.",
)
def test_fewer_gpus_than_configured_are_a_persons(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    count_gpus(live, node, 6)
    until(lambda: live.node(node).drained, 60, "slurmctld drains it")
    assert live.node(node).reason == "gres/gpu count reported lower than configured (7 < 8)"
    assert "INVALID_REG" in live.node(node).flags
    listed(live, node, "gres", "compare `slurmd -G`")
    count_gpus(live, node, 7)
    until(lambda: "INVALID_REG" not in live.node(node).flags, 60, "slurmd has registered")
    resume(live, node)


@story(
    job="Node whose slurmd finds fewer GPUs than slurm.conf says",
    act="a GPU has fallen off the bus (Xid 79), and slurmctld drains the node before hpctl does",
    slurm="hpctl takes the drain over and replaces the instance; the node serves again.",
)
def test_a_lost_gpu_is_treated_though_slurm_drained_its_node(live: Chaos):
    (node,) = live.victims(1)
    live.hpctl("pause")
    live.mark(node)
    count_gpus(live, node, 6)
    until(lambda: live.node(node).drained, 60, "slurmctld drains it")
    live.xid(node)
    until(lambda: node in live.state().holds, 60, "the daemon knows of the fault")
    live.hpctl("unpause")
    recovery = live.returned(node, timeout_s=60)
    assert any("gres/gpu count" in finding.evidence for finding in recovery.findings)


@story(
    job="Node on which a job's processes outlive SIGKILL",
    act="slurmstepd drains it (`Kill task failed`; written as root by the test)",
    slurm="hpctl takes the drain over and reboots the node, which serves again.",
)
def test_a_node_with_unkillable_processes_is_rebooted(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    before = live.instance(node)
    update = ["scontrol", "update", f"nodename={node}", "state=drain", "reason=Kill task failed"]
    live.sandbox.run(update)
    recovery = live.returned(node, timeout_s=60)
    assert recovery.rule == "slurm-unkillable"
    assert live.accepted(before, REBOOT) == 1
    assert live.instance(node) == before


@story(
    job="Node without a known fault",
    act="Slurm drains it for any other Reason of its own (written as root by the test)",
    slurm="The node stays drained.",
    explain="`hpctl status` lists it with what to do for that Reason.",
)
def test_every_other_drain_of_slurms_is_listed_with_what_to_do(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    for row in list_drained_node_fault_rows():
        if row.treatment != "H":
            continue
        reason = f"reason={row.reason[0]}"
        live.sandbox.run(["scontrol", "update", f"nodename={node}", "state=drain", reason])
        listed(live, node, row.code, describe_action_for_drained_node(live.node(node)))
    resume(live, node)


@story(
    job="Node with a fault that hpctl knows",
    act="an administrator has drained it in their own words",
    slurm="The node stays as the administrator left it.",
    explain="The gate `foreign_drain` names the Reason.",
)
def test_an_administrators_drain_is_left_alone(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    update = ["scontrol", "update", f"nodename={node}", "state=drain", "reason=swap a cable, Ann"]
    live.sandbox.run(update)
    live.xid(node)
    until(lambda: node in live.state().holds, 60, "it is held")
    assert live.state().holds[node].gate == "foreign_drain"
    assert live.of(node) == []
    assert live.node(node).reason == "swap a cable, Ann"
