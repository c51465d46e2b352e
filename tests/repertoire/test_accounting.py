"""Accounting by slurmdbd: sacct, `hpctl explain` and `hpctl report` tell the same story."""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from hpctl.vocabulary.job_recovery import JobRecovery
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.accounting import (
    AccountedRun,
    accounting,
    list_runs,
    needs_slurmdbd,
    sacctmgr,
)
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, needs_slurmdbd]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"
NEAR = timedelta(seconds=5)


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    with cluster(nodes=4, config={"job": {"settle_s": 0.0}}) as live, accounting(live):
        yield live


def two_runs(live: Chaos, job: str, states: tuple[str, str]) -> list[AccountedRun]:
    """Wait until accounting has two runs of a job in these states; return them."""
    found: list[AccountedRun] = []

    def are_there() -> bool:
        found[:] = list_runs(live, job)
        return tuple(run.state for run in found) == states

    until(are_there, 60, f"job {job} is {states} in accounting")
    return found


def agrees(recovery: JobRecovery, runs: list[AccountedRun]) -> None:
    """A recovery and the accounting place the end of the first run and the next start alike."""
    first, second = runs
    assert first.end is not None
    assert abs(first.end - recovery.opened) < NEAR
    assert first.nodes == recovery.bad_nodes[0]
    assert second.start is not None
    assert second.start >= first.end
    assert second.nodes != first.nodes


def restarts_reported(live: Chaos) -> int:
    """How many restarts `hpctl report` counts."""
    return int(json.loads(live.hpctl("report", "--json"))["report"]["restarts"]["count"])


@story(
    job="Batch job in a cluster with slurmdbd",
    act="a GPU of its node falls off the bus (Xid 79)",
    slurm=(
        "`sacct --duplicates` has two runs: NODE_FAIL, with its end, on the faulty node, and"
        " RUNNING on another."
    ),
    explain="The recovery opens when accounting has the first run end; `hpctl report` counts it.",
    owner="Plain `sacct` shows the second run alone.",
)
def test_accounting_has_both_runs_of_a_job_that_lost_its_node(live: Chaos) -> None:
    job = live.start("sleep 600", header=HEADER)
    (victim,) = live.job(job).nodes
    before = restarts_reported(live)
    live.xid(victim)
    runs = two_runs(live, str(job), ("NODE_FAIL", "RUNNING"))
    assert runs[1].end is None
    (recovery,) = live.of_job(job)
    agrees(recovery, runs)
    until(lambda: f"resumed: ran 1 s on {runs[1].nodes}" in live.explained(job), 60, "it resumed")
    until(lambda: restarts_reported(live) == before + 1, 60, "the report counts it")
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@story(
    job="Task of an array in a cluster with slurmdbd",
    act="a GPU of its node falls off the bus (Xid 79)",
    slurm="`sacct --duplicates` has two runs of that task, NODE_FAIL and RUNNING, and one of the"
    " other.",
    explain="The recovery of the task opens when accounting has its first run end.",
)
def test_accounting_has_two_runs_of_the_task_that_was_hit_alone(live: Chaos) -> None:
    array = live.submit("sleep 600", "--array=1-2", header=HEADER)
    until(lambda: len(list_runs(live, f"{array}_2")) == 1, 60, "both tasks run")
    (run,) = list_runs(live, f"{array}_2")
    live.xid(run.nodes)
    runs = two_runs(live, f"{array}_2", ("NODE_FAIL", "RUNNING"))
    (recovery,) = [r for r in live.job_recoveries() if r.shown == f"{array}_2"]
    agrees(recovery, runs)
    assert [run.state for run in list_runs(live, f"{array}_1")] == ["RUNNING"]
    live.sandbox.run(["scancel", str(array)])
    live.returned(run.nodes)


@story(
    job="Registered batch job in a cluster with slurmdbd",
    act="its script exits with 3 twice",
    slurm="`sacct --duplicates` has two runs: REQUEUED and FAILED, both with ExitCode 3:0.",
    explain="The job is not restarted, and stays FAILED with exit code 3.",
    owner="Plain `sacct` shows FAILED with the program's own exit code.",
)
def test_accounting_has_both_ends_of_a_job_that_fails_without_a_fault(live: Chaos) -> None:
    comment = 'hpctl:{"policy":{"backoff":{"first_s":0}}} my own words'
    job = live.submit("exit 3", f"--comment={comment}", header=HEADER)
    runs = two_runs(live, str(job), ("REQUEUED", "FAILED"))
    assert [run.exit_code for run in runs] == ["3:0", "3:0"]
    ends = [run.end for run in runs if run.end is not None]
    assert len(ends) == 2
    until(lambda: "not restarted and stays FAILED" in live.explained(job), 60, "explain says so")
    (recovery,) = live.of_job(job)
    assert abs(recovery.opened - ends[0]) < NEAR
    assert live.job(job).comment == comment


@story(
    job="Batch job of an account with `GrpJobs=1`, another job of which waits",
    act="a GPU of its node falls off the bus (Xid 79)",
    slurm=(
        "The job is requeued, and one of the two takes the place under the limit; the other"
        " runs once that ends."
    ),
    explain="A job that waits does so with Slurm's reason AssocGrpJobsLimit.",
    owner="Nothing to do; the job is not held.",
)
def test_a_limit_of_the_association_holds_for_the_restart(live: Chaos) -> None:
    sacctmgr(live, "modify", "account", "all", "set", "GrpJobs=1")
    account = "--account=all"
    job = live.start("sleep 600", account, header=HEADER)
    following = live.submit("sleep 600", account, header=HEADER)
    until(lambda: live.job(following).reason == "AssocGrpJobsLimit", 60, "the limit holds it")
    (victim,) = live.job(job).nodes
    live.xid(victim)
    until(lambda: live.running(job, 1) or live.running(following), 60, "one of them runs")
    first, second = (following, job) if live.running(following) else (job, following)
    until(lambda: live.job(second).reason == "AssocGrpJobsLimit", 60, "the limit holds the other")
    if second == job:
        limit = "Slurm: AssocGrpJobsLimit"
        until(lambda: limit in live.explained(job), 60, "explain names the limit")
    assert str(job) not in live.state().holds
    live.sandbox.run(["scancel", str(first)])
    until(lambda: live.running(second), 60, "the other runs")
    live.sandbox.run(["scancel", str(second)])
    sacctmgr(live, "modify", "account", "all", "set", "GrpJobs=-1")
    live.returned(victim)


@story(
    job="Batch job of a user, where the daemon's user has no association",
    act="a GPU of its node falls off the bus (Xid 79), and the new node is to be tested",
    slurm=(
        "The job runs elsewhere and the node is replaced; slurmctld refuses the reservation of the"
        " test, and the node stays drained."
    ),
    explain="The node was not tested, with slurmctld's `Invalid account`.",
    owner=(
        "An administrator gives the daemon's user an association (`sacctmgr add user`) and runs"
        " `hpctl undrain`."
    ),
)
def test_a_daemon_without_an_association_heals_and_cannot_test(live: Chaos) -> None:
    sacctmgr(live, "add", "user", "games", "account=all")
    sacctmgr(live, "delete", "user", "root")
    live.reconfigure(acceptance={"replace": "quick"})
    job = live.start("sleep 600", "--uid=games", "--output=/dev/null", header=HEADER)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "it runs elsewhere")
    until(lambda: live.phase(victim) == "escalated", 60, "the node waits for a person")
    assert "Invalid account" in live.explained(victim)
    sacctmgr(live, "add", "user", "root", "account=all")
    live.rewrite(live.first_config)
    live.put_back(victim)
    live.sandbox.run(["scancel", str(job)])
