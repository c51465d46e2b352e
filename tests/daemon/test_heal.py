"""One fault healed, end to end, on a real Slurm; and what must not be touched is not."""

import time

import pytest

from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import SLEEPER, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
TOLD_AGAIN_S = 120
"""A node's message that it is done with a job may be lost while slurmctld restarts. slurmctld then
orders the node again once KillWait and twice MessageTimeout (25 s here) are over, by a look that
it takes every 60 s (`_list_find_job_old`, PURGE_JOB_INTERVAL)."""
NO_REQUEUE = SLEEPER.replace("--requeue", "--no-requeue")


@pytest.fixture(scope="module", params=["ip", pytest.param("group", marks=pytest.mark.nightly)])
def shared(request):
    """Slurm's names made from addresses, and names that tell nothing of moving instances."""
    with cluster(node_names=request.param) as live:
        yield live


@pytest.fixture
def live(shared: Chaos):
    if shared.sandbox.spec.node_names == "group":
        shared.sandbox.inject_api("no-dns")
    yield shared
    shared.settle()


def assert_off_the_fault(live: Chaos, job: int, victim: str) -> None:
    """The job is elsewhere, or on the victim after that came back healed, which is quick here."""
    returned = [r.node for r in live.node_recoveries() if r.phase == "returned"]
    assert victim not in live.job(job).nodes or victim in returned


@pytest.mark.nightly
def test_slurmctld_and_the_cloud_may_be_away(live: Chaos) -> None:
    """First: a slurmctld that is killed forgets what it has not saved, a node's return say."""
    (victim,) = live.victims(1)
    before = live.instance(victim)
    live.start("sleep 600", f"--nodelist={victim}")
    live.sandbox.inject_api("throttle")
    live.mark(victim)
    live.sandbox.kill_slurmctld()
    live.sandbox.inject(victim, "xid", code=79)
    time.sleep(3)
    live.sandbox.start_slurmctld()
    until(lambda: live.node(victim).drained, 60, "drained once slurmctld is back")
    time.sleep(2)
    live.sandbox.inject_api("clear")
    live.returned(victim, timeout_s=90)
    assert live.accepted(before) == 1


def test_a_fault_under_a_job_is_healed(live: Chaos) -> None:
    job = live.start("srun sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[-1])
    before, address = live.instance(victim), live.node(victim).address
    live.xid(victim)
    until(lambda: live.running(job, restarts=1), 15, "job runs again, without Slurm's 121 s")
    assert_off_the_fault(live, job, victim)
    live.returned(victim)
    assert live.instance(victim) != before
    kept = live.sandbox.spec.node_names == "ip"
    assert (live.node(victim).address == address) is kept
    assert live.accepted(before) == 1
    until(lambda: all(r.ended for r in live.of_job(job)), 20, "job recovery ends")
    (recovery,) = live.of_job(job)
    assert recovery.phase == "resumed", recovery.trail
    slurm = live.node(victim)
    assert not slurm.drained
    assert not slurm.down


def test_two_nodes_of_a_job_fail_at_once(live: Chaos) -> None:
    """Were both set DOWN, slurmctld 22.05 would start the job without its GPUs."""
    job = live.start("srun --gres=gpu:8 sleep 600", "--nodes=2")
    victims = list(map(str, live.job(job).nodes))
    live.xid(*victims)
    until(lambda: live.running(job, restarts=1), 15, "job runs again, with its GPUs")
    until(lambda: all(r.ended for r in live.of_job(job)), 20, "job recovery ends")
    assert [r.phase for r in live.of_job(job)] == ["resumed"]
    for victim in victims:
        live.returned(victim)
    downs = [find_last_step_attempt(r.steps, StepKind.DOWN) for v in victims for r in live.of(v)]
    assert len([step for step in downs if step]) == 1


def test_slurmctld_restarts_in_the_middle_of_a_drain(live: Chaos) -> None:
    job = live.start("srun sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[0])
    live.xid(victim)
    until(lambda: bool(live.of(victim)), 10, "a recovery")
    # SIGTERM saves the state, as a restart does; after a SIGKILL Slurm forgets its last seconds.
    live.sandbox.signal_service("slurmctld", "SIGTERM")
    until(lambda: not live.sandbox.status()["services"].get("slurmctld"), 60, "slurmctld ends")
    live.sandbox.start_slurmctld()
    until(lambda: live.running(job, restarts=1), TOLD_AGAIN_S, "the job runs again")
    # On the victim only if that was healed by then, which a slow slurmctld gives it time for.
    assert_off_the_fault(live, job, victim)
    assert live.job(job).restarts == 1
    live.returned(victim)


def test_a_lost_reply_earns_no_second_replacement(live: Chaos) -> None:
    job = live.start("srun sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[1])
    before = live.instance(victim)
    live.sandbox.inject_api("drop-reply")
    live.xid(victim)
    assert find_last_step_attempt(live.returned(victim).steps, StepKind.REPLACE) is not None
    assert live.accepted(before) == 1
    fresh = live.instance(victim)
    assert fresh != before
    assert live.asked(fresh) == [], "the fresh machine was asked for as well"
    assert live.job(job).restarts == 1


def test_a_job_that_the_fault_killed_is_requeued_once_completing_is_over(live: Chaos) -> None:
    job = live.start("srun sleep 600; exit 1", "--nodes=2")
    victim = str(live.job(job).nodes[0])
    live.sandbox.run(["scancel", "--signal=KILL", f"{job}.0"])
    live.xid(victim)
    until(lambda: live.running(job, restarts=1), 20, "job runs again")
    assert_off_the_fault(live, job, victim)


def test_an_operators_drain_is_never_touched(live: Chaos) -> None:
    (victim,) = live.victims(1)
    live.sandbox.scontrol("update", f"NodeName={victim}", "State=DRAIN", "Reason=disk swap, Ann")
    live.xid(victim)
    until(lambda: victim in live.state().holds, 10, "a hold")
    assert live.state().holds[victim].gate == "foreign_drain"
    time.sleep(2)
    node = live.node(victim)
    assert node.reason.startswith("disk swap, Ann")
    assert node.drained
    assert live.of(victim) == []
    live.sandbox.scontrol("update", f"NodeName={victim}", "State=RESUME")
    live.returned(victim)


def test_an_operator_who_resumes_our_node_cancels_the_recovery(live: Chaos) -> None:
    (victim,) = live.victims(1)
    # A job that Slurm cannot run again keeps the recovery waiting in CORDONED.
    job = live.start("sleep 600", f"--nodelist={victim}", header=NO_REQUEUE)
    live.xid(victim)
    until(lambda: live.node(victim).drained, 10, "drained")
    live.sandbox.scontrol("update", f"NodeName={victim}", "State=RESUME")
    until(lambda: live.last(victim).ended, 10, "recovery ends")
    assert live.phase(victim) == "cancelled"
    stays(lambda: not live.node(victim).drained, 3, "the old lines must not overrule the operator")
    assert live.running(job)


@pytest.mark.nightly
def test_a_job_without_requeue_is_not_killed(live: Chaos) -> None:
    (victim,) = live.victims(1)
    job = live.start("sleep 600", f"--nodelist={victim}", header=NO_REQUEUE)
    live.xid(victim)
    until(lambda: str(job) in live.state().holds, 10, "the job is held, with a reason")
    assert "submit with --requeue" in live.state().holds[str(job)].why
    stays(lambda: live.running(job), 2, "it runs on")
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@pytest.mark.nightly
def test_a_reboot_heals_what_a_reboot_can(live: Chaos) -> None:
    (victim,) = live.victims(1)
    before = live.instance(victim)
    live.xid(victim, code=95)
    live.returned(victim)
    assert live.instance(victim) == before
    assert live.accepted(before, "BatchRebootClusterNodes") == 1
    assert live.asked(before) == []


@pytest.mark.nightly
def test_observe_says_and_does_nothing(live: Chaos) -> None:
    live.reconfigure(mode="observe")
    (victim,) = live.victims(1)
    live.xid(victim)
    until(lambda: victim in live.state().holds, 10, "a hold")
    assert live.state().holds[victim].gate == "observing"
    time.sleep(1)
    assert not live.node(victim).drained
    live.reconfigure(mode="own")
    live.returned(victim)


@pytest.mark.nightly
def test_pause_approve_and_the_kill_switch(live: Chaos) -> None:
    live.hpctl("pause")
    (victim,) = live.victims(1)
    live.xid(victim)
    until(lambda: victim in live.state().holds, 10, "held")
    assert live.state().holds[victim].gate == "paused"
    live.config.kill_switch.touch()
    live.hpctl("unpause")
    until(lambda: live.state().holds[victim].gate == "kill_switch", 10, "kill switch")
    time.sleep(1)
    assert not live.node(victim).drained
    live.config.kill_switch.unlink()
    live.returned(victim)
