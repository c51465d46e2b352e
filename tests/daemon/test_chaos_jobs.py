"""What a fault does to the jobs on its node, in the shapes that users' jobs really have."""

from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

# Slow only while a file says so, so that one cluster serves quick and slow tests.
EPILOG = """#!/bin/sh
[ -e {base}/slow ] && sleep 6
exit 0
"""


@pytest.fixture(scope="module")
def shared():
    conf = "Epilog={base}/epilog\n"
    config = {"job": {"save_grace_s": 3.0}}
    with cluster(config, {"epilog": EPILOG}, slurm_conf=conf) as live:
        yield live


@pytest.fixture
def live(shared: Chaos):
    yield shared
    slow_flag(shared).unlink(missing_ok=True)
    shared.settle()


def slow_flag(live: Chaos) -> Path:
    return Path(live.sandbox.state_dir).parent / "slow"


@pytest.mark.nightly  # test_heal has one whose job died of the fault
def test_a_job_that_is_completing_is_requeued_only_after_it(live: Chaos) -> None:
    pid = live.sandbox.status()["services"]["slurmctld"]
    fail = Path(live.sandbox.state_dir) / "fail"
    body = f"until [ -e {fail} ]; do sleep 0.1; done; rm {fail}; exit 1"
    job = live.start(body, "--nodes=2")
    victim = str(live.job(job).nodes[0])
    slow_flag(live).touch()
    fail.touch()
    until(lambda: live.job(job).completing, 10, "COMPLETING")
    live.xid(victim)
    until(lambda: bool(live.of_job(job)), 5, "the job's recovery opens while it completes")
    assert live.job(job).completing
    until(lambda: live.running(job, restarts=1), 20, "it runs again")
    assert victim not in live.job(job).nodes or live.phase(victim) == "returned"
    assert live.sandbox.status()["services"]["slurmctld"] == pid, "slurmctld died"


def test_of_an_array_only_the_task_on_the_node_moves(live: Chaos) -> None:
    whole = live.submit("sleep 600", "--array=0-2")
    until(lambda: len(tasks(live, whole)) == 3, 20, "three tasks run")
    before = tasks(live, whole)
    hit, victim = sorted(before.items())[1]
    live.xid(victim)
    until(lambda: live.running(hit, restarts=1), 20, "the task runs again")
    after = tasks(live, whole)
    assert after[hit] != victim or live.phase(victim) == "returned"
    for task in before.keys() - {hit}:
        assert after[task] == before[task]
        assert live.job(task).restarts == 0


def tasks(live: Chaos, whole: int) -> dict[int, str]:
    """The running tasks of an array by job id, each with its node."""
    listed = live.sandbox.run(
        ["squeue", "-h", "-t", "R", "-j", str(whole), "-O", "JobID:20,NodeList:60"]
    )
    return {int(i): n for i, n in (line.split() for line in listed.stdout.splitlines())}


def test_a_run_that_slurm_requeues_right_after_its_restart_starts_at_once(live: Chaos) -> None:
    """Slurm would keep it waiting for 121 s, with nothing to wait for."""
    live.reconfigure(job={"prove_s": 30.0})
    job = live.start("sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[0])
    live.mark(victim)
    live.xid(victim)
    until(lambda: live.running(job, restarts=1), 20, "it runs again")
    until(lambda: live.of_job(job)[-1].phase == "proving", 10, "it is proving itself")
    live.returned(victim)
    live.requeue(job)
    until(lambda: live.running(job, restarts=2), 60, "it runs once more")
    live.reconfigure()
    until(lambda: live.of_job(job)[-1].ended, 60, "its recovery ends")
    (recovery,) = live.of_job(job)
    assert recovery.phase == "resumed", recovery.trail
    # A node may refuse the launch as well, which is one more requeue of the kind.
    assert "requeued_again" in [str(move.signal) for move in recovery.trail]
    live.sandbox.run(["scancel", str(job)])


def test_a_run_that_its_owner_holds_right_after_its_restart_stays_held(live: Chaos) -> None:
    live.reconfigure(job={"prove_s": 30.0})
    job = live.start("sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[0])
    live.mark(victim)
    live.xid(victim)
    until(lambda: live.running(job, restarts=1), 20, "it runs again")
    until(lambda: live.of_job(job)[-1].phase == "proving", 10, "it is proving itself")
    live.returned(victim)
    live.requeue(job, "requeuehold")
    until(lambda: live.of_job(job)[-1].ended, 20, "its recovery ends")
    stays(lambda: live.job(job).is_held, 8, "its owner holds it")
    live.reconfigure()
    recovery = live.of_job(job)[0]
    assert recovery.phase == "gave_up", recovery.trail
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.nightly
def test_a_spent_restart_budget_holds_the_job_and_says_so_to_its_user(live: Chaos) -> None:
    live.reconfigure(job={"max_restarts": 1})
    job = live.start("sleep 600", "--comment=mine")
    live.xid(str(live.job(job).nodes[0]))
    until(lambda: live.running(job, restarts=1), 20, "moved once")
    until(lambda: not live.state().open_jobs, 10, "proved")
    live.xid(str(live.job(job).nodes[0]))
    until(lambda: [r.phase for r in live.of_job(job)][-1:] == ["held"], 20, "held")
    shown = live.sandbox.run(["squeue", "-h", "-j", str(job), "-o", "%T|%r|%k"]).stdout.strip()
    state, reason, comment = shown.split("|", 2)
    assert (state, reason) == ("PENDING", "JobHeldUser")
    assert comment.startswith("mine")
    assert f"scontrol release {job}" in comment
    live.cleared(job)
    live.sandbox.scontrol("release", str(job))
    live.end_delay(job, live.job(job).restarts)


@pytest.mark.nightly
def test_an_operators_replacement_lets_the_job_save_first(live: Chaos) -> None:
    output = Path(live.sandbox.state_dir) / "saved"
    ready = Path(live.sandbox.state_dir) / "ready"
    said = "echo saved in run ${SLURM_RESTART_COUNT:-0}"
    loop = f"echo ready >> {ready}; while :; do sleep 0.2; done"
    task = f'trap "{said} >> {output}" USR1; {loop}'
    body = f"trap : USR1\nsrun sh -c '{task}' &\nwait; wait; wait"
    job = live.start(body, "--nodes=2", '--comment=hpctl:{"save_signal":"USR1"}')
    until(lambda: ready.exists() and ready.read_text().count("ready") == 2, 60, "both ranks listen")
    victim = str(live.job(job).nodes[0])
    old = live.instance(victim)
    live.hpctl("replace", victim, "--yes", "--now")
    until(lambda: live.running(job, restarts=1), 20, "it runs elsewhere")
    heard = output.read_text().splitlines()
    assert heard == ["saved in run 0"] * 2, "once each, before they were stopped"
    assert [t.phase for t in live.of_job(job)[0].trail][:2] == ["saving", "stopping"]
    assert live.returned(victim).by
    assert live.accepted(old) == 1
