"""Job arrays: each task is treated as the job that it is to slurmctld."""

from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
SLEEPER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=4) as live:
        yield live


def find_task(live: Chaos, array: int, task: int) -> tuple[int, str, str]:
    """Return the job id, the state and the node of a task, by squeue with each task by itself."""
    rows = live.sandbox.run(["squeue", "-hrj", str(array), "-o", "%K|%A|%t|%N"]).stdout
    for row in rows.splitlines():
        number, job, state, node = row.split("|")
        if number == str(task):
            return int(job), state, node
    raise KeyError(task)


def list_tasks(live: Chaos, array: int) -> list[str]:
    """Return the tasks of an array as squeue joins them."""
    return live.sandbox.run(["squeue", "-hj", str(array), "-o", "%K"]).stdout.split()


@story(
    job="Task of an array, other tasks of which still wait for their first run",
    act="a GPU of its node falls off the bus (Xid 79)",
    slurm="The task alone is requeued, excludes the node and runs elsewhere without Slurm's delay.",
    explain="One recovery of the task, which names the node.",
    owner="Nothing to do; the restart counts for this task only.",
)
def test_a_task_whose_node_is_lost_runs_elsewhere_before_its_delay_is_over(live: Chaos):
    """Other tasks wait for their first run, so that squeue joins this one with them."""
    array = live.submit("sleep 600", "--array=1-3", "--nodes=1", header=SLEEPER)
    more = live.submit("sleep 600", "--array=1-3", "--nodes=1", header=SLEEPER)
    until(lambda: find_task(live, array, 3)[1] == "R", 60, "three tasks run")
    until(lambda: find_task(live, more, 1)[1] == "R", 60, "the first task of the other runs")
    job, _, victim = find_task(live, more, 1)
    live.xid(victim)
    until(lambda: live.state().open_jobs.get(job) is not None, 60, "a recovery opens")
    until(lambda: "1-3" in list_tasks(live, more), 60, "squeue joins it with the others")
    # The other array holds all other nodes.
    live.sandbox.run(["scancel", str(array)])
    until(lambda: live.running(job, 1), 60, "the task runs again")
    (recovery,) = [r for r in live.job_recoveries() if r.attempt.job == job]
    assert recovery.bad_nodes == (victim,)
    until(lambda: live.state().jobs[recovery.id].phase == "resumed", 60, "its recovery ends")
    live.sandbox.run(["scancel", str(more)])


@story(
    job="Task of an array that fills the cluster, other tasks of which wait for their first run",
    act="a GPU of its node falls off the bus (Xid 79)",
    slurm="The task waits behind all tasks that have not run yet: Slurm starts these first where"
    " priorities are equal. It is not held, and runs once it is its turn.",
    explain="It waits its turn in Slurm's queue, with Slurm's reason and how many other tasks wait;"
    " no deadline ends its recovery meanwhile.",
    owner="The task runs again by itself; `scontrol top` or a priority starts it sooner.",
)
def test_a_task_that_waits_behind_its_siblings_is_not_given_up(live: Chaos):
    live.reconfigure(job={"start_deadline_s": 2.0})
    over = Path(live.sandbox.state_dir) / "over"
    body = f"until [ -e {over} ]; do sleep 0.1; done"
    array = live.submit(body, "--array=1-9", "--nodes=1", header=SLEEPER)
    until(lambda: find_task(live, array, 4)[1] == "R", 60, "four tasks run")
    job, _, victim = find_task(live, array, 1)
    live.xid(victim)
    until(lambda: find_task(live, array, 5)[1] == "R", 60, "the next task takes its place")
    turn = "its turn in Slurm's queue, where other jobs are before it (Slurm: "
    others = f"4 other tasks of array {array} wait, too"

    def explains_wait() -> bool:
        # The daemon's last cycle can be older than the start of the fifth task.
        text = live.explained(f"{array}_1")
        return turn in text and others in text

    until(explains_wait, 60, "explain names the queue and the tasks in it")
    stays(lambda: job in live.state().open_jobs, 5, "its recovery goes on")
    over.touch()
    until(lambda: job not in live.state().open_jobs, 60, "its recovery ends")
    assert live.of_job(job)[-1].phase == "resumed"
    live.reconfigure()
    live.returned(victim)
    until(live.all_idle, 60, "the array ends")


@story(
    job="Array with `%2`, a task on each of two nodes",
    act="both nodes have a fault",
    slurm=(
        "Tasks of the array that wait take the places; both tasks run again elsewhere once there"
        " is room, and no more than two run at once."
    ),
    explain="`12_3` shows the task, `12` lists every task.",
    owner="Both tasks run again by themselves.",
)
def test_several_tasks_that_are_hit_keep_the_limit_of_their_array(live: Chaos):
    body = "[ $SLURM_ARRAY_TASK_ID -gt 2 ] && exec sleep 2; exec sleep 600"
    array = live.submit(body, "--array=1-4%2", "--nodes=1", header=SLEEPER)
    until(lambda: find_task(live, array, 2)[1] == "R", 60, "two tasks run")
    victims = {task: find_task(live, array, task)[2] for task in (1, 2)}
    jobs = {task: find_task(live, array, task)[0] for task in (1, 2)}
    waits = f"Job {array}_4 of {array}_[3-4%2] ("
    until(lambda: waits in live.explained(f"{array}_4"), 60, "explain names the tasks that wait")
    live.xid(*victims.values())

    def both_again() -> bool:
        rows = live.sandbox.run(["squeue", "-hrj", str(array), "-t", "R", "-o", "%K"]).stdout
        assert len(rows.split()) <= 2, rows
        return all(live.running(job, 1) for job in jobs.values())

    until(both_again, 60, "both tasks run again")
    for task, job in jobs.items():
        name = f"{array}_{task}"
        (recovery,) = live.of_job(job)
        assert (recovery.shown, recovery.bad_nodes) == (name, (victims[task],))
        assert live.explained(name).startswith(f"Job {name} (")
        assert f"job {name}" in live.explained(str(job)).lower()
        assert name in live.hpctl("jobs", "--all")
    counted = "2 COMPLETED, 2 RUNNING"
    until(lambda: counted in live.explained(str(array)), 60, "explain counts the tasks")
    whole = live.explained(str(array))
    assert f"Job array {array} (" in whole
    assert all(f"{array}_{t}" in whole for t in (1, 2, 3, 4))
    live.sandbox.run(["scancel", str(array)])
    for victim in victims.values():
        live.returned(victim)
