"""A GPU reset: what the node runs and refuses, who may order it, and what the core makes of it."""

import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from hpctl.detection.settings import AgentSettings
from hpctl.engine.journal.state import replay_events
from hpctl.engine.node_deadlines import find_node_recovery_phase_deadline
from hpctl.faults import health as faults_health
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.faults.health import merge_agent_report
from hpctl.nodes.advance import advance_node_recovery
from hpctl.nodes.agent_orders import AgentOrderHandler
from hpctl.nodes.gpu_reset import FABRIC_MANAGER, GpuReset, GpuResetRefusedError, GpuResetRunner
from hpctl.vocabulary import reset_order
from hpctl.vocabulary.assessment import NodeCondition, Remedy
from hpctl.vocabulary.model import AgentReport, DeviceVerdict, Finding
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import RecoveryStepRecord, StepKind, WaitDecision
from hpctl.wire import munge
from tests.fakes import nvidia_smi
from tests.fakes.nvidia_smi import DONE, GPUS, IN_USE, PEERS, UNSUPPORTED
from tests.fakes.values import (
    OWN,
    at,
    does,
    faulty,
    finding,
    generation,
    moves,
    opened,
    slurm_job,
)  # fmt: skip
from tests.nodes.test_node_recovery import FACTS, OURS
from tests.proc_files import add_slurmstepd
from tests.waiting import until

LADDER = (Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE)


@contextmanager
def nothing():
    yield


def run(root, devices=GPUS[:1]):
    return [gpu.pci for gpu in GpuReset(root, nothing).carry_out(devices)]


def test_what_is_stopped_for_a_reset_is_started_again_however_it_ends(tmp_path):
    nvidia_smi.install(tmp_path, units="nvidia-dcgm.service nvidia-persistenced.service")
    assert run(tmp_path) == ["0000:53:00.0"]
    stopped, back = ["stop nvidia-dcgm.service", "stop nvidia-persistenced.service"], "start "
    off = [f"--persistence-mode=0 --id=GPU-{n}" for n in (0, 1)]
    on = [f"--persistence-mode=1 --id=GPU-{n}" for n in (1, 0)]
    started = [back + unit.split()[1] for unit in reversed(stopped)]
    done = [c for c in nvidia_smi.calls(tmp_path) if not c.startswith(("--query", "is-active"))]
    assert done == [*stopped, *off, "--gpu-reset --id=GPU-0", *on, *started]
    nvidia_smi.install(tmp_path, IN_USE, units="nvidia-dcgm.service")
    (tmp_path / "calls").unlink()
    with pytest.raises(GpuResetRefusedError, match=r"53:00\.0: In use by another client") as no:
        run(tmp_path)
    assert no.value.code == faults_health.RESET_FAILED
    assert nvidia_smi.calls(tmp_path)[-1] == "start nvidia-dcgm.service"


def test_nvlink_peers_that_the_driver_names_are_reset_in_the_same_command(tmp_path):
    nvidia_smi.install(tmp_path, PEERS, DONE)
    assert run(tmp_path) == list(GPUS)
    assert "--gpu-reset --id=GPU-0,GPU-1" in nvidia_smi.calls(tmp_path)
    assert run(tmp_path, ()) == list(GPUS)  # none named: all


@pytest.mark.parametrize(
    ("machine", "code", "why"),
    [
        ({"mig": "Enabled"}, faults_health.RESET_REFUSED, "MIG is enabled on 0000:53:00.0"),
        (
            {"capability": "7.0"},
            faults_health.RESET_REFUSED,
            "older than Ampere, on an NVSwitch system",
        ),
        ({"capability": "8.0"}, faults_health.RESET_REFUSED, f"{FABRIC_MANAGER} does not run"),
        ({"capability": "8.0", "units": FABRIC_MANAGER}, faults_health.RESET_DONE, ""),
        ({"capability": "9.0"}, faults_health.RESET_DONE, ""),
    ],
)
def test_a_machine_on_which_one_gpu_cannot_be_reset_says_why(tmp_path, machine, code, why):
    nvidia_smi.install(tmp_path, **machine)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia-nvswitch0").touch()
    if code == faults_health.RESET_DONE:
        assert run(tmp_path)
        return
    with pytest.raises(GpuResetRefusedError, match=why) as no:
        run(tmp_path)
    assert no.value.code == code
    assert not any("--gpu-reset" in call for call in nvidia_smi.calls(tmp_path))


def test_what_is_lost_unsupported_or_silent_is_not_reset(tmp_path):
    with pytest.raises(GpuResetRefusedError, match="does not answer"):
        run(tmp_path)
    nvidia_smi.install(tmp_path, UNSUPPORTED)
    with pytest.raises(GpuResetRefusedError, match="is not supported"):
        run(tmp_path)
    with pytest.raises(GpuResetRefusedError, match=r"no GPU at 0000:99:00\.0"):
        run(tmp_path, ("0000:99:00.0",))


def test_a_stray_process_is_ended_and_a_job_s_is_refused(tmp_path):
    nvidia_smi.install(tmp_path)
    stray = subprocess.Popen(["sleep", "600"])
    process = tmp_path / "proc" / str(stray.pid)
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("/dev/nvidia1")
    (process / "comm").write_text("python3\n")
    group = process / "cgroup"
    group.write_text("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n")
    with pytest.raises(
        GpuResetRefusedError, match=r"job 7 runs on the node's GPUs: python3\[\d+\]"
    ) as no:
        run(tmp_path)
    assert (no.value.code, stray.poll()) == (faults_health.RESET_REFUSED, None)
    group.write_text("0::/user.slice\n")

    def gone():  # as the kernel takes a process's files away
        stray.wait(60)
        (process / "fd/3").unlink()

    threading.Thread(target=gone).start()
    assert run(tmp_path)
    assert stray.wait(60) == -15


def test_a_job_s_process_is_known_without_control_groups(tmp_path):
    nvidia_smi.install(tmp_path)
    rank = subprocess.Popen(["sleep", "600"])
    folders = (tmp_path / "proc/400", tmp_path / "proc" / str(rank.pid))
    for folder, name, parent in zip(folders, ("slurmstepd", "python3"), (1, 400), strict=True):
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text("0::/\n")
        (folder / "stat").write_text(f"{folder.name} ({name}) S {parent} " + "0 " * 20)
        (folder / "cmdline").write_text("slurmstepd: [7.0]\0")
    add_slurmstepd(folders[0], tmp_path / "usr/sbin/slurmstepd")
    (folders[1] / "fd/3").symlink_to("/dev/nvidia1")
    try:
        with pytest.raises(
            GpuResetRefusedError, match=r"job 7 runs on the node's GPUs: python3\[\d+\]"
        ):
            run(tmp_path)
        assert rank.poll() is None
    finally:
        rank.kill()
        rank.wait(60)


def test_an_order_is_obeyed_once_and_answered_by_a_finding(tmp_path, monkeypatch):
    nvidia_smi.install(tmp_path)
    found: list[Finding] = []
    mine = generation()
    settings = AgentSettings((), mine.node, mine.instance, mine.boot, root=tmp_path)
    word = reset_order.GpuResetOrder("n-1", mine, time.time() + 60, GPUS[:1])
    monkeypatch.setattr(munge, "decode_order_credential", lambda *_: word)

    def make_opener(earlier):
        begin = GpuResetRunner(settings, nothing, found.extend, earlier).begin
        return AgentOrderHandler(settings, {reset_order.GpuResetOrder: begin})

    opener = make_opener(())
    for credential in ("a", "a", "b"):
        opener.obey(credential)
    until(lambda: found)
    make_opener(found).obey("c")  # the agent was started again
    time.sleep(0.05)
    (answer,) = found
    assert (answer.device, answer.code, answer.evidence) == (
        "n-1",
        faults_health.RESET_DONE,
        "0000:53:00.0",
    )


RESETTING = replace(
    replay_events([opened(ladder=LADDER)]).nodes["n-1"], phase=NodeRecoveryPhase.VACATED
)
STEP = RecoveryStepRecord(StepKind.RESET, 1, "n1", at(60), Outcome.accepted(), at(60))
NO_CLOUD = replace(FACTS, slurm=OURS, provider_present=False)


def said(code, seconds=70):
    when = at(seconds)
    return Finding(
        faults_health.RESET_CHECK,
        DeviceVerdict.OK,
        when,
        when,
        "n-1",
        code,
        "words",
        "0000:3b:00.0",
    )


def test_a_reset_is_ordered_once_for_the_boot_and_the_gpus_that_were_sick():
    facts = replace(NO_CLOUD, running=(slurm_job(7),))
    assert "job 7 runs" in advance_node_recovery(RESETTING, facts, OWN, at(61)).why
    assert isinstance(advance_node_recovery(RESETTING, NO_CLOUD, OWN, at(59)), WaitDecision)
    lines = replace(RESETTING, findings=(replace(finding("48"), device="0000:3b:00.0"),))
    order = does(advance_node_recovery(lines, NO_CLOUD, OWN, at(60))).order
    until_s = at(60).timestamp() + faults_health.ORDER_S
    assert order == reset_order.GpuResetOrder("n-1", generation(), until_s, ("0000:3b:00.0",))
    for outcome in (Outcome.accepted(), Outcome.ambiguous("in_doubt"), None):
        doubted = replace(RESETTING, steps=(replace(STEP, outcome=outcome),))
        assert (
            moves(advance_node_recovery(doubted, NO_CLOUD, OWN, at(61))).signal
            is NodeRecoverySignal.REMEDY_ACCEPTED
        )
    booted = replace(NO_CLOUD, heard=generation(boot=2), instance=None)
    assert (
        moves(advance_node_recovery(RESETTING, booted, OWN, at(61))).signal
        is NodeRecoverySignal.REMEDY_ACCEPTED
    )
    no = replace(STEP, outcome=Outcome.rejected("no_agents", "nobody"))
    refused = moves(advance_node_recovery(replace(RESETTING, steps=(no,)), NO_CLOUD, OWN, at(61)))
    assert (refused.signal, refused.why) == (
        NodeRecoverySignal.RESET_IN_VAIN,
        "not ordered: no_agents nobody",
    )
    assist = moves(
        advance_node_recovery(RESETTING, FACTS, RecoveryPolicy(mode=OperatingMode.ASSIST), at(61))
    )
    assert "left to HyperPod's own recovery" in assist.why


@pytest.mark.parametrize(
    "code", [faults_health.RESET_DONE, faults_health.RESET_FAILED, faults_health.RESET_REFUSED, ""]
)
def test_a_reset_is_verified_and_what_cannot_be_reset_climbs_to_reboot(code):
    waiting = replace(RESETTING, phase=NodeRecoveryPhase.REMEDYING, steps=(STEP,), since=at(60))
    due = find_node_recovery_phase_deadline(waiting, OWN)
    assert (due - at(60)).total_seconds() == OWN.node.reset_deadline_s
    facts = replace(FACTS, reset=said(code) if code else None)
    if not code:
        assert isinstance(advance_node_recovery(waiting, facts, OWN, at(61)), WaitDecision)
    move = moves(advance_node_recovery(waiting, facts, OWN, at(61) if code else due))
    after = waiting.on(move.signal, at(71), move.why)
    if code == faults_health.RESET_DONE:
        assert (after.phase, after.remedy) == (NodeRecoveryPhase.VERIFYING, Remedy.RESET_GPU)
    else:
        assert (after.phase, after.remedy) == (NodeRecoveryPhase.VACATED, Remedy.REBOOT)
        assert does(advance_node_recovery(after, FACTS, OWN, at(72))).kind is StepKind.REBOOT
    assert not code or move.why.endswith("words")


def test_a_mark_that_asks_for_replacement_skips_the_reboot():
    assert RESETTING.on(NodeRecoverySignal.REPLACE_ASKED, at(1), "").remedy is Remedy.REPLACE


def test_a_reset_clears_what_its_gpus_said_before_and_nothing_else():
    def heard(*findings, seq=1, known=None):
        report = AgentReport("n1", *generation_of(), seq, at(100), at(0), findings)
        return merge_agent_report(known, report, at(100))[0]

    def generation_of():
        return generation().instance, generation().boot

    def line(seconds, device="0000:3b:00.0"):
        return replace(finding("48", seconds), device=device)

    shipped = build_fault_rules(silent_after_s=1e6)
    health = heard(line(10))
    assert assess_health(health, shipped, at(100)).condition is NodeCondition.FAULTY
    done = said(faults_health.RESET_DONE)
    for failed in (faults_health.RESET_FAILED, faults_health.RESET_REFUSED):
        still = heard(line(10), said(failed), seq=2, known=health)
        assert assess_health(still, shipped, at(100)).condition is NodeCondition.FAULTY
    healed = heard(line(10), done, seq=2, known=health)
    assert assess_health(healed, shipped, at(100)).condition is NodeCondition.HEALTHY
    assert heard(line(10), done).findings == (done,)  # a head that knew nothing yet
    for another in (line(80), line(10, "0000:64:00.0")):
        sick = heard(another, done, seq=3, known=healed)
        assert assess_health(sick, shipped, at(100)).condition is NodeCondition.FAULTY


def test_what_is_verified_after_a_reset_has_no_old_fault_left():
    verifying = replace(RESETTING, phase=NodeRecoveryPhase.VERIFYING, steps=(STEP,), since=at(70))
    facts = replace(FACTS, assessment=faulty(seconds=-10))
    assert (
        moves(advance_node_recovery(verifying, facts, OWN, at(101))).signal
        is NodeRecoverySignal.FAULT_AGAIN
    )
