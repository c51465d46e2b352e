"""A killed daemon: what hpctl has written into Slurm lifts itself, or is lifted by hand."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.node_test import NodeTestJobSpec
from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"
PAGE = Path(__file__).parents[2] / "docs" / "written-into-slurm.md"
PHASES = [
    JobRecoveryPhase.HIT,
    JobRecoveryPhase.STOPPING,
    JobRecoveryPhase.RELEASED,
    JobRecoveryPhase.STARTING,
]


@pytest.fixture
def live() -> Iterator[Chaos]:
    # One cluster for each story: a node that an admin resumes may keep its fault. A treatment
    # lasts longer than a story, until an admin ends it.
    with cluster(nodes=3, config={"node": {"verify_healthy_s": 60.0}}) as live:
        yield live


def resume(live: Chaos, node: str) -> None:
    """Have an admin resume a node."""
    live.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])


def kill_in(live: Chaos, job: int, phase: JobRecoveryPhase) -> None:
    """Kill the daemon as soon as the recovery of a job is in a phase, or beyond it."""
    order = list(JobRecoveryPhase)

    def reached() -> bool:
        mine = live.of_job(job)
        return bool(mine) and order.index(mine[-1].phase) >= order.index(phase)

    limit = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < limit, f"its recovery is not {phase}"
    live.sandbox.kill_daemon()


def fail_whole_cluster(live: Chaos, phase: JobRecoveryPhase) -> tuple[int, str]:
    """Lose a node of a job that needs all nodes, and the daemon with it."""
    (victim,) = live.victims(1)
    job = live.start("sleep 600", "--nodes=3", header=HEADER)
    live.xid(victim)
    kill_in(live, job, phase)
    return job, victim


@pytest.mark.parametrize("phase", PHASES)
@story(
    job="Batch job that needs every node, one of which fails",
    act="the daemon is killed in each phase of the job's recovery, an admin resumes the node, and"
    " the daemon is started again",
    slurm="The job runs again within seconds; no exclusion, hold or begin time is left.",
    explain="The job's recovery goes on where it was; the node's is canceled, because the admin"
    " took over.",
)
def test_the_job_runs_once_the_node_and_the_daemon_are_back(
    live: Chaos, phase: JobRecoveryPhase
) -> None:
    job, victim = fail_whole_cluster(live, phase)
    resume(live, victim)
    live.sandbox.start_daemon()
    # Where nothing had stopped the job yet, it is called off and runs on.
    until(lambda: live.running(job) and job not in live.state().open_jobs, 60, "it runs")
    assert live.job(job).excluded == ()
    assert live.job(job).admin_comment == ""


@story(
    job="Batch job that needs every node, one of which fails",
    act="the daemon is killed and stays away, and an admin resumes the node",
    slurm="The job starts without hpctl: it excludes none of the nodes that it needs.",
)
def test_the_job_runs_without_any_daemon(live: Chaos) -> None:
    job, victim = fail_whole_cluster(live, JobRecoveryPhase.STARTING)
    until(
        lambda: find_last_step_attempt(live.of_job(job)[-1].steps, StepKind.START_NOW) is not None,
        60,
        "x",
    )
    assert live.job(job).excluded == ()
    resume(live, victim)
    until(lambda: live.running(job, 1), 90, "it runs again")


def exclude_and_kill(live: Chaos) -> tuple[int, str, str]:
    """Leave a waiting job without a node that hpctl excluded and without one that its owner did.

    All other nodes are busy. Returns the job, and the two nodes.
    """
    (victim,) = live.victims(1)
    owners, *others = [node for node in live.sandbox.nodes if node != victim]
    live.start("sleep 600", f"--nodelist={','.join(others)}", header=HEADER)
    job = live.start("sleep 600", f"--exclude={owners}", header=HEADER)
    assert live.job(job).nodes == (victim,)
    live.xid(victim)
    until(lambda: victim in live.job(job).excluded, 60, "hpctl excludes the node")
    live.sandbox.kill_daemon()
    seen = live.job(job)
    assert set(seen.excluded) == {victim, owners}
    assert seen.nodes_excluded_by_hpctl == (victim,)
    resume(live, victim)
    return job, victim, owners


def runs_on(live: Chaos, job: int, node: str) -> None:
    """Wait until a job runs on a node."""
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert live.job(job).nodes == (node,)


@story(
    job="Batch job that waits without a node that hpctl excluded",
    act="the daemon is killed, an admin resumes the node, and the daemon is started again",
    slurm="The node leaves the job's ExcNodeList and the job starts there; what its owner excludes"
    " stays excluded.",
    explain="The node that the job may have again is named.",
)
def test_an_exclusion_ends_with_the_treatment_of_its_node(live: Chaos) -> None:
    job, victim, owners = exclude_and_kill(live)
    live.sandbox.start_daemon()
    runs_on(live, job, victim)
    assert live.job(job).excluded == (owners,)
    assert live.job(job).admin_comment == ""


@story(
    job="Batch job that waits without a node that hpctl excluded",
    act="the daemon is killed, its journal is lost, an admin resumes the node, and the daemon is"
    " started again",
    slurm="As with the journal: the job's AdminComment names the nodes that hpctl excluded.",
)
def test_an_exclusion_is_known_without_the_journal(live: Chaos) -> None:
    job, victim, owners = exclude_and_kill(live)
    for path in live.config.state_dir.glob("journal*"):
        path.unlink()
    live.sandbox.start_daemon()
    runs_on(live, job, victim)
    assert live.job(job).excluded == (owners,)
    (lifted,) = live.of_job(job)
    assert lifted.lift == (victim,)
    assert victim in live.explained(str(job))


@story(
    job="Batch job that Slurm holds with BadConstraints, because hpctl excluded a node it needs",
    act="the daemon is started",
    slurm="The exclusion is lifted, Slurm takes its hold back, and the job starts.",
)
def test_what_an_earlier_daemon_left_is_repaired(live: Chaos) -> None:
    live.sandbox.kill_daemon()
    job = live.start("sleep 600", "--nodes=3", header=HEADER)
    victim = live.sandbox.nodes[0]
    run = live.sandbox.run
    live.requeue(job)
    mark = f"AdminComment=site note | hpctl:excluded={victim}"
    run(["scontrol", "update", f"jobid={job}", f"ExcNodeList={victim}", mark, "StartTime=now"])
    until(lambda: live.job(job).reason == "BadConstraints", 60, "Slurm holds it")
    live.sandbox.start_daemon()
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert live.job(job).admin_comment == "site note"


def by_hand(column: str) -> list[str]:
    """Return the command of the page's row, as words."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {column}")]
    (row,) = rows
    (command,) = re.findall(r"`([^`]*)`", row.rpartition(" | ")[2])
    return command.split()


def lift(live: Chaos, column: str, **names: str) -> None:
    """Run the command of the page's row, for this job, node or name."""
    words = by_hand(column)
    for name, value in names.items():
        words = [word.replace(name, value) for word in words]
    live.sandbox.run(words)


@story(
    job="Any job or node that hpctl has written to",
    act="no daemon runs, and an admin follows docs/written-into-slurm.md",
    slurm="`scontrol` and `scancel` alone take everything back.",
)
def test_the_page_lifts_everything_by_hand(live: Chaos) -> None:
    job, _, _ = exclude_and_kill(live)
    lift(live, "ExcNodeList", JOB=str(job))
    # On 24.11 that causes no scheduling pass: the next comes within 60 s (sched_interval).
    until(lambda: live.running(job, 1), 90, "it runs again")
    assert live.job(job).admin_comment == ""
    run, slurm = live.sandbox.run, live.scheduler
    node = next(n for n in live.sandbox.nodes if live.node(n).state == "IDLE")
    reason = format_hpctl_node_reason("n-12345678", "a test")
    for order in (slurm.drain, slurm.down):
        assert order({NodeName(node): reason})[node].kind is OutcomeKind.ACCEPTED
    lift(live, "DRAIN", NODE=node)
    until(lambda: live.node(node).in_service, 60, "the node is in service")
    until(lambda: live.node(node).state == "IDLE", 60, "the node is idle")
    for row, name, own in (
        ("a reservation for a test", "hpctl-accept-n-12345678-1", True),
        ("a reservation for spares", "hpctl-spares-g", False),
    ):
        assert slurm.reserve(name, [NodeName(node)], own=own).kind is OutcomeKind.ACCEPTED
        lift(live, row, NAME=name)
        assert name not in slurm.reservations()
    name = "hpctl-burn-in-1"
    test = NodeTestJobSpec(
        name=name, node=NodeName(node), partition="", command="sleep 60", limit_s=60, idle=True
    )
    assert slurm.test(test).kind is OutcomeKind.ACCEPTED
    lift(live, "a test job", NAME=name)
    until(lambda: not run(["squeue", "-h", f"--name={name}"]).stdout, 60, "the test is cancelled")
    held = live.submit("sleep 600", "--begin=now+1hour", header=HEADER)
    assert slurm.hold(JobId(held), "hpctl: a budget is spent").kind is OutcomeKind.ACCEPTED
    lift(live, "a user's hold", JOB=str(held))
    lift(live, "Comment", JOB=str(held))
    lift(live, "StartTime", JOB=str(held))
    until(lambda: live.running(held), 60, "it is neither held nor put off")
    assert live.job(held).comment == ""
