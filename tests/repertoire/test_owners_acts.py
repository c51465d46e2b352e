"""Acts of owners and administrators on a job: hpctl keeps what they set."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/bash\n#SBATCH --requeue --exclusive\n"
COMMENT = '--comment=hpctl:{"policy":{"restarts":2}}'
PHASES = [
    JobRecoveryPhase.HIT,
    JobRecoveryPhase.STOPPING,
    JobRecoveryPhase.RELEASED,
    JobRecoveryPhase.STARTING,
    JobRecoveryPhase.PROVING,
]


@pytest.fixture(scope="module")
def shared():
    with cluster(nodes=4) as live:
        yield live


@pytest.fixture
def live(shared: Chaos):
    yield shared
    shared.sandbox.inject_api("clear")
    shared.sandbox.run(["scancel", "--user=root"], check=False)
    until(shared.all_idle, 90, "every node serves again")


def scontrol(live: Chaos, *words: str) -> None:
    live.sandbox.run(["scontrol", *words])


def show(live: Chaos, job: int, field: str) -> str:
    """Return a field of `scontrol show job`."""
    words = live.sandbox.run(["scontrol", "show", "job", str(job)]).stdout.split()
    return next(w for w in words if w.startswith(f"{field}=")).partition("=")[2]


def hit(live: Chaos, job: int) -> str:
    """Break the first node of a job that runs."""
    victim = live.job(job).nodes[0]
    live.xid(victim)
    return victim


def hit_whole_cluster(live: Chaos) -> tuple[int, str]:
    """Start a job on every node, and break one whose replacement does not come yet."""
    job = live.start("sleep 600", "--nodes=4", header=HEADER)
    live.sandbox.inject_api("stuck-replace")
    victim = hit(live, job)
    until(lambda: live.job(job).state == "PENDING", 60, "it waits")
    until(lambda: live.of_job(job)[0].phase == "starting", 60, "hpctl has let it start")
    return job, victim


def kill_in(live: Chaos, job: int, phase: JobRecoveryPhase) -> None:
    """Kill the daemon as soon as the recovery of a job is in a phase, or beyond it."""
    order = list(JobRecoveryPhase)

    def reached() -> bool:
        mine = live.of_job(job)
        return bool(mine) and order.index(mine[-1].phase) >= order.index(phase)

    limit = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < limit, f"its recovery is not {phase}"
    live.sandbox.kill_daemon()


@pytest.mark.parametrize(("first", "then"), [("60", "30"), ("30", "60")])
@story(
    job="Batch job whose TimeLimit an administrator makes longer or shorter while it runs",
    act="its node has a fault",
    slurm="The job runs again elsewhere, with the whole of the new limit.",
    owner="The job runs again by itself.",
)
def test_a_new_time_limit_stays(live: Chaos, first: str, then: str):
    job = live.start("sleep 600", f"--time={first}", header=HEADER)
    scontrol(live, "update", f"JobId={job}", f"TimeLimit={then}")
    victim = hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")
    start, end = (datetime.fromisoformat(show(live, job, f"{t}Time")) for t in ("Start", "End"))
    assert end - start == timedelta(minutes=int(then))
    assert live.of_job(job)[0].bad_nodes == (victim,)


@story(
    job="Batch job that its owner has shrunk while it ran (`scontrol update NumNodes=1`)",
    act="the node that it kept has a fault",
    slurm="The job runs again on as many nodes as it was submitted for, as Slurm has it at a"
    " requeue.",
    explain="One recovery, which names the node.",
    owner="Shrinks it again.",
)
def test_a_job_that_was_shrunk_is_restarted_whole(live: Chaos):
    job = live.start("sleep 600", "--nodes=2", header=HEADER)
    scontrol(live, "update", f"JobId={job}", "NumNodes=1")
    until(lambda: len(live.job(job).nodes) == 1, 60, "it has one node")
    victim = hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert len(live.job(job).nodes) == 2
    assert live.of_job(job)[0].bad_nodes == (victim,)


@story(
    job="Batch job on all nodes of the cluster that its owner has shrunk while it ran",
    act="the node that it kept has a fault",
    slurm="The job may exclude the node, as Slurm shows it with the nodes that it was shrunk to; it"
    " is given the node again once that serves, or Slurm holds the job, and runs on all nodes.",
    owner="The job runs again by itself.",
)
def test_a_shrunk_job_that_needs_every_node_is_given_all_again(live: Chaos):
    job = live.start("sleep 600", "--nodes=4", header=HEADER)
    scontrol(live, "update", f"JobId={job}", "NumNodes=1")
    until(lambda: len(live.job(job).nodes) == 1, 60, "it has one node")
    live.sandbox.inject_api("stuck-replace")
    victim = hit(live, job)
    until(lambda: live.job(job).state == "PENDING", 60, "it waits")
    until(lambda: live.of_job(job)[0].phase == "starting", 60, "hpctl has let it start")
    # slurmctld of 22.05 shows the job as small as it was shrunk until it starts.
    assert live.job(job).excluded in ((), (victim,))
    live.sandbox.inject_api("clear")
    live.returned(victim)
    until(lambda: live.begun(job, 1), 60, "it runs again")
    assert len(live.job(job).nodes) == 4


@story(
    job="Batch job that its owner has shrunk while it ran (`scontrol update NumNodes=1`)",
    act="the node that it gave back has a fault",
    slurm="The job runs on; the node is replaced.",
    explain="No recovery of the job opens.",
)
def test_a_node_that_a_job_gave_back_is_not_its_own(live: Chaos):
    job = live.start("sleep 600", "--nodes=2", header=HEADER)
    before = live.job(job).nodes
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run on both")
    scontrol(live, "update", f"JobId={job}", "NumNodes=1")
    until(lambda: len(live.job(job).nodes) == 1, 60, "it has one node")
    (victim,) = set(before) - set(live.job(job).nodes)
    live.xid(victim)
    live.returned(victim)
    assert live.running(job)
    assert live.of_job(job) == []


@story(
    job="Batch job that was suspended and resumed",
    act="its node has a fault afterwards",
    slurm="The job runs again elsewhere without the begin delay.",
    owner="The job runs again by itself.",
)
def test_a_job_that_was_resumed_is_as_any_other(live: Chaos):
    job = live.start("sleep 600", header=HEADER)
    scontrol(live, "suspend", str(job))
    until(lambda: live.job(job).state == "SUSPENDED", 60, "it is suspended")
    scontrol(live, "resume", str(job))
    until(lambda: live.running(job), 60, "it runs")
    hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")


@story(
    job="Registered batch job whose owner sends it a signal (`scancel --batch --signal=USR1`)",
    act="its node has a fault afterwards",
    slurm="The script gets the signal and runs on; at the fault it is restarted once.",
    explain="Nothing of the signal.",
)
def test_an_owners_signal_is_no_end(live: Chaos):
    trap = "trap 'touch $SLURM_JOB_ID.got' USR1; touch $SLURM_JOB_ID.ready"
    body = f"{trap}; while :; do sleep 0.2; done"
    job = live.start(body, COMMENT, header=HEADER)
    until((Path(live.sandbox.state_dir) / f"{job}.ready").exists, 60, "its trap is set")
    live.sandbox.run(["scancel", "--batch", "--signal=USR1", str(job)])
    until((Path(live.sandbox.state_dir) / f"{job}.got").exists, 60, "the script has the signal")
    assert live.of_job(job) == []
    hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")
    (recovery,) = live.of_job(job)
    assert recovery.trouble is None


@story(
    job="Batch job that is restarted because of a fault",
    act="its owner puts it off before it starts (`scontrol update StartTime=now+1hour`)",
    slurm="The job waits until then.",
    explain="A person has put it off, and until when.",
    owner="`scontrol update StartTime=now` starts it sooner.",
)
def test_a_begin_time_that_a_person_sets_is_kept(live: Chaos):
    job, victim = hit_whole_cluster(live)
    scontrol(live, "update", f"JobId={job}", "StartTime=now+1hour")
    live.sandbox.inject_api("clear")
    live.returned(victim)
    put_off = "a person has put it off until"
    until(lambda: put_off in live.explained(job), 60, "explain says so")
    stays(lambda: live.job(job).is_start_postponed, 3, "it waits")
    live.end_delay(job, 1)


@story(
    job="Batch jobs with `--begin`: one that has begun, and one that waits for its time",
    act="the node of the first has a fault",
    slurm="The first runs again elsewhere without the begin delay, the other waits until its time.",
)
def test_a_begin_time_of_the_submission_is_kept(live: Chaos):
    waits = live.submit("sleep 600", "--begin=now+1hour", COMMENT, header=HEADER)
    begins = live.start("sleep 600", "--begin=now+2", COMMENT, header=HEADER)
    hit(live, begins)
    until(lambda: live.running(begins, 1), 60, "it runs again")
    assert live.job(waits).is_start_postponed
    assert live.of_job(waits) == []


@story(
    job="Registered array with `%2`",
    act="its owner requeues a task, then the node of another task has a fault",
    slurm="The first task waits as Slurm decides; the second runs again elsewhere.",
    explain="One recovery, of the second task.",
    owner="No restart is counted for the first task.",
)
def test_a_task_that_its_owner_requeues(live: Chaos):
    array = live.submit("sleep 600", "--array=1-3%2", COMMENT, header=HEADER)

    def tasks() -> dict[str, tuple[int, str]]:
        """Return the job and the state of each task."""
        rows = live.sandbox.run(["squeue", "-hrj", str(array), "-o", "%K %A %T"]).stdout
        found = (row.split() for row in rows.splitlines())
        return {task: (int(job), state) for task, job, state in found}

    until(lambda: tasks()["2"][1] == "RUNNING", 60, "two tasks run")
    requeued, other = tasks()["2"][0], tasks()["1"][0]
    scontrol(live, "requeue", f"{array}_2")
    until(lambda: tasks()["3"][1] == "RUNNING", 60, "the third takes its place")
    hit(live, other)
    # The requeued task waits out its delay and keeps its place behind the limit.
    until(lambda: live.running(other, 1), 60, "the other runs again")
    assert len(live.of_job(other)) == 1
    assert live.of_job(requeued) == []
    assert tasks()["2"][1] == "PENDING"


@pytest.mark.parametrize("phase", PHASES)
@story(
    job="Registered batch job whose node has a fault",
    act="its owner runs `scancel` in any phase of its recovery, with the daemon away meanwhile",
    slurm="The job is CANCELLED and stays so; its node is replaced and returns.",
    explain="The recovery of the job is canceled.",
)
def test_a_job_that_is_cancelled_stays_so(live: Chaos, phase: JobRecoveryPhase):
    job = live.start("sleep 600", COMMENT, header=HEADER)
    victim = hit(live, job)
    kill_in(live, job, phase)
    live.sandbox.run(["scancel", str(job)])
    live.sandbox.start_daemon()
    until(lambda: job not in live.state().open_jobs, 60, "its recovery ends")
    live.returned(victim)
    assert live.job(job).state == "CANCELLED"
    assert len(live.of_job(job)) == 1


@story(
    job="Registered batch job that Slurm has requeued because of a fault",
    act="its owner holds it before hpctl lets it start (`scontrol hold`, `uhold`)",
    slurm="The job stays held.",
    explain="Slurm does not start a held job.",
    owner="`scontrol release` starts the job.",
)
@pytest.mark.parametrize("verb", ["hold", "uhold"])
def test_a_job_that_is_held_before_its_restart_stays_held(live: Chaos, verb: str):
    job = live.start("sleep 600", COMMENT, header=HEADER)
    (victim,) = live.job(job).nodes
    live.sandbox.kill_daemon()
    scontrol(live, "update", f"NodeName={victim}", "State=DOWN", "Reason=lost")
    until(lambda: live.job(job).restarts == 1, 60, "Slurm requeues it")
    live.cleared(job)
    scontrol(live, verb, str(job))
    live.sandbox.start_daemon()
    until(lambda: live.daemon_knows(job, "PENDING"), 60, "hpctl sees that it waits")
    stays(lambda: live.job(job).reason.startswith("JobHeld"), 3, "it stays held")
    # Where its slurmd has registered since, it serves again already.
    live.sandbox.run(["scontrol", "update", f"NodeName={victim}", "State=RESUME"], check=False)
    scontrol(live, "release", str(job))
    live.end_delay(job, 1)


@story(
    job="Registered batch job that runs",
    act="its owner runs `scontrol requeue` while the daemon is away, and the daemon is started",
    slurm="The job waits and starts again as Slurm decides; it is neither held nor canceled.",
    explain="No recovery opens.",
    owner="No restart is counted against the job's policy.",
)
def test_a_requeue_while_the_daemon_is_away_is_the_owners(live: Chaos):
    job = live.start("sleep 600", COMMENT, header=HEADER)
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")
    live.sandbox.kill_daemon()
    live.requeue(job)
    live.sandbox.start_daemon()
    until(lambda: live.daemon_knows(job, "PENDING"), 60, "hpctl has seen that it waits")
    stays(lambda: live.job(job).state == "PENDING", 3, "it waits out Slurm's delay")
    live.end_delay(job, 1)
    assert live.of_job(job) == []
    assert str(job) not in live.state().holds


@story(
    job="Batch job that waits because its owner has requeued it",
    act="the node that it ran on has a fault, after `job.ended_before_fault_s`",
    slurm="The job waits out Slurm's delay; the node is replaced.",
    explain="No recovery of the job opens.",
    owner="No restart is counted.",
)
def test_a_fault_after_an_owners_requeue_is_none_of_the_job(live: Chaos):
    live.reconfigure(job={"ended_before_fault_s": 1.0})
    job = live.start("sleep 600", COMMENT, header=HEADER)
    (victim,) = live.job(job).nodes
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")
    live.requeue(job)
    stays(lambda: live.job(job).state == "PENDING", 3, "it waits")
    live.xid(victim)
    live.returned(victim)
    assert live.job(job).state == "PENDING"
    assert live.of_job(job) == []
    live.end_delay(job, 1)
    live.reconfigure()


@story(
    job="Batch job with `--no-kill` on all nodes of the cluster that has lost a node",
    act="another of its nodes has a fault",
    slurm="The job waits for the replacement, and runs on all nodes.",
    owner="The job runs again by itself.",
)
def test_a_job_that_lost_a_node_with_no_kill_is_given_all_again(live: Chaos):
    job = live.start("sleep 600", "--nodes=4", "--no-kill", header=HEADER)
    lost = live.job(job).nodes[-1]
    scontrol(live, "update", f"NodeName={lost}", "State=DOWN", "Reason=cables")
    until(lambda: len(live.job(job).nodes) == 3, 60, "it runs on without the node")
    scontrol(live, "update", f"NodeName={lost}", "State=RESUME")
    until(lambda: live.node(lost).in_service, 60, "the node serves again")
    live.sandbox.inject_api("stuck-replace")
    victim = hit(live, job)
    until(lambda: live.job(job).state == "PENDING", 60, "it waits")
    until(lambda: live.of_job(job)[0].phase == "starting", 60, "hpctl has let it start")
    # Until a scheduling pass has looked at it, slurmctld of 22.05 shows it with fewer nodes.
    assert live.job(job).excluded in ((), (victim,))
    live.sandbox.inject_api("clear")
    live.returned(victim)
    until(lambda: live.begun(job, 1), 60, "it runs again")
    assert len(live.job(job).nodes) == 4
