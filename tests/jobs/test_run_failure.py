"""What the daemon adds to a trouble that was reported: the findings of the nodes."""

import pytest
from msgspec.structs import replace

from hpctl.engine.explain_view import FailureToExplain
from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened, JobReported
from hpctl.engine.view import PlanningView
from hpctl.engine.world import World
from hpctl.jobs.crash import CALLS_DIFFER, NOT_COME, PEER_LOST, SIZES_DIFFER, WORKER_DIED
from hpctl.jobs.explain import diagnose_failed_job_run
from hpctl.jobs.hangs.flight_recorder import FlightRecorderHangCause, FlightRecorderHangVerdict
from hpctl.jobs.hangs.ras_judge import JobRankResolver
from hpctl.jobs.plan import list_past_job_failures, plan_failed_run_recoveries
from hpctl.jobs.run.srun import SrunTaskEnd
from hpctl.jobs.run.timeouts import CollectiveTimeoutEvidence
from hpctl.jobs.run_failure import (
    FailedRunContext,
    diagnose_run_failure,
    remove_findings_from_kill_failure,
)
from hpctl.vocabulary.failure import FailureCause
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import DeviceVerdict, NodeHealth
from hpctl.vocabulary.registration import EffectiveJobPolicy
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.trouble import HangPlace, Trouble, TroubleKind
from hpctl.wire.job_reports import decode_job_report, encode_job_report
from tests.fakes.values import N1, OWN, at, finding, generation, slurm_job, view_of
from tests.unflawed import unflawed

GPU = Trouble(
    TroubleKind.CUDA, at(0), "rank 3: uncorrectable ECC error", "ECC error", rank=3
)  # fmt: skip


@pytest.mark.parametrize(("first", "node"), [(0, None), (3, "n3")])
def test_an_error_of_a_rank_is_placed_by_its_task_only_where_that_ended_first(first, node) -> None:
    """A task of srun's may start eight ranks, unseen: its number is then no rank."""
    ends = [
        SrunTaskEnd(f"n{first}", first, 1, "Exited with exit code 1", ((first, first),)),
        SrunTaskEnd("n3", 3, 9, "Killed", ((3, 3),)),
    ]
    facts = FailedRunContext(ends=ends, task_nodes={n: f"n{n}" for n in range(4)})
    assert diagnose_run_failure(GPU, facts).node == node


KILL = Trouble(
    TroubleKind.KILLED, at(-30), f"rank 1 on {N1}: it was killed by SIGKILL", "SIGKILL", N1, 1,
    exit_code=137,
)  # fmt: skip
OOM = replace(finding(seconds=-31), check="kernel.oom", code="job", verdict=DeviceVerdict.NOTE)
MEMORY = "the kernel killed a process for its memory"
FAILED = slurm_job(
    7, state="FAILED", comment='hpctl:{"ckpt":"/ckpt"}', exit_code="137:0", partition="all",
    batch_host=N1, nodes=(N1, "n2"), end=at(-29),
)  # fmt: skip


def tell(trouble: Trouble, restarts: int = 0) -> JobReported:
    """What the script of a job without a supervisor reports at its end."""
    return JobReported(trouble.at, JobReport(7, restarts, trouble))


def see(job=FAILED, log=(), oom=True, policy: RunPolicy | None = None) -> PlanningView:
    """A cluster whose node n1 has, or has not, reported that its kernel killed a process."""
    view = view_of(jobs=[job], log=log, ruled={job.id: EffectiveJobPolicy(policy or RunPolicy())})
    lines = (OOM,) if oom else ()
    return replace(view, health={**view.health, N1: NodeHealth(generation(), at(-5), lines)})


def decide_one(view: PlanningView) -> JobRecoveryOpened | GateBlocked:
    (found,) = unflawed(plan_failed_run_recoveries(view, OWN, (), at(0)))
    return found


@pytest.mark.parametrize("oom", [True, False])
def test_the_daemon_acts_on_a_kill_for_memory_as_memory(oom) -> None:
    found = decide_one(see(log=[tell(KILL)], oom=oom))
    assert isinstance(found, JobRecoveryOpened)
    assert found.trouble.kind is (TroubleKind.HOST_MEMORY if oom else TroubleKind.KILLED)
    assert (MEMORY in found.why) is oom


def test_the_daemon_s_verdict_on_a_job_that_stays_ended_is_memory() -> None:
    found = decide_one(see(log=[tell(KILL)], policy=RunPolicy(restarts=0)))
    assert isinstance(found, GateBlocked)
    assert MEMORY in found.why
    assert "(cause: memory (high confidence))" in found.why


@pytest.mark.parametrize(("job", "kind"), [("7", "host_memory"), ("8", "killed")])
def test_a_kill_in_another_job_of_the_node_is_not_this_one_s(job, kind) -> None:
    facts = FailedRunContext(findings={N1: [replace(OOM, job=job)]}, job="7")
    assert diagnose_run_failure(KILL, facts).kind == kind


@pytest.mark.parametrize(("nodes", "kind"), [((N1,), "host_memory"), ((N1, "n2"), "killed")])
def test_an_exit_code_of_a_kill_is_memory_where_the_job_has_one_node(nodes, kind) -> None:
    found = decide_one(see(replace(FAILED, nodes=nodes)))
    assert found.trouble.kind == kind


def test_explain_joins_the_findings_of_the_nodes() -> None:
    view = see(log=[tell(KILL)])
    world = World(at(60), OWN, view.state, slurm=view.scheduler, health=view.health)
    found = diagnose_failed_job_run(FailureToExplain(world, FAILED.id, KILL, FAILED.nodes))
    assert (found.cause, found.node, found.rank) == (FailureCause.MEMORY, N1, 1)
    assert MEMORY in found.reasons[0]
    bare = diagnose_failed_job_run(
        FailureToExplain(replace(world, health={}), FAILED.id, KILL, FAILED.nodes)
    )
    assert bare.cause is FailureCause.UNKNOWN


def test_a_kill_that_was_explained_is_no_second_trouble() -> None:
    """A supervisor reports the kill, and the recovery has it with what the node's kernel says."""
    report = JobReport(7, 0, KILL, RunAction.STEP, "a new step")
    state = see(log=[JobReported(KILL.at, report)]).state
    explained = diagnose_run_failure(KILL, FailedRunContext(findings={N1: [OOM]}))
    assert explained.kind is TroubleKind.HOST_MEMORY
    assert list_past_job_failures(state, FAILED.id, now=explained) == ()
    assert len(list_past_job_failures(state, FAILED.id, now=replace(explained, rank=2))) == 1


def test_what_is_explained_stays_as_it_is_when_it_is_explained_again() -> None:
    facts = FailedRunContext(findings={N1: [OOM]})
    explained = diagnose_run_failure(KILL, facts)
    assert diagnose_run_failure(explained, facts) == explained
    assert remove_findings_from_kill_failure(explained) == remove_findings_from_kill_failure(KILL)
    died = replace(
        KILL, kind=TroubleKind.CRASH, signature=WORKER_DIED, evidence="killed by signal: Killed."
    )
    assert diagnose_run_failure(died, facts).kind is TroubleKind.HOST_MEMORY
    assert remove_findings_from_kill_failure(
        diagnose_run_failure(died, facts)
    ) == remove_findings_from_kill_failure(died)


def test_a_launcher_s_task_is_not_the_rank_of_its_number() -> None:
    """srun's task 1 is the launcher of ranks 8 to 15, so that it does not say where rank 1 ran."""
    crash = Trouble(TroubleKind.CRASH, at(0), "rank 1: KeyError", "KeyError", rank=1)
    ends = [SrunTaskEnd("n2", 1, 1, "Exited with exit code 1", ((1, 1),))]
    launched = FailedRunContext(tail=["torch.distributed.elastic failed"], ends=ends)
    assert diagnose_run_failure(crash, launched).node is None
    assert diagnose_run_failure(crash, FailedRunContext(ends=ends)).node == "n2"


NODES = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}
SPAWN = (
    "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV"
)
DIED = Trouble(TroubleKind.CRASH, at(0), "it died of SIGSEGV", "SIGSEGV", "n2", exit_code=139)


@pytest.mark.parametrize(
    ("facts", "rank"),
    [
        (FailedRunContext(tail=[SPAWN], rank_nodes=NODES), 3),
        (FailedRunContext(tail=[SPAWN], nodes=["n2"]), 1),
        (FailedRunContext(tail=[SPAWN], nodes=["n1", "n2"]), None),
        (FailedRunContext(tail=[SPAWN], rank_nodes={0: "n1", 1: "n2"}), None),
        (FailedRunContext(rank_nodes=NODES), None),
    ],
)
def test_a_process_that_a_launcher_numbers_on_its_node_is_the_rank_there(facts, rank) -> None:
    found = diagnose_run_failure(DIED, facts)
    assert found.rank == rank
    assert found.why.startswith(f"rank {rank} on n2: it died") == (rank is not None)


@pytest.mark.parametrize("kind", [TroubleKind.TIME_LIMIT, TroubleKind.PREEMPTED, TroubleKind.FINAL])
def test_no_rank_is_named_where_slurm_or_the_owner_ends_the_run(kind: TroubleKind) -> None:
    ended = Trouble(kind, at(0), "its time limit is over", "")
    assert diagnose_run_failure(ended, FailedRunContext(tail=[SPAWN], nodes=["n2"])) == ended


LOST = Trouble(TroubleKind.NETWORK, at(0), "a peer was lost", PEER_LOST)


def lose(*ranks: int) -> list[str]:
    """What the ranks print that lose a peer."""
    lines = []
    for rank in ranks:
        lines.append(f"[rank{rank}]: Traceback (most recent call last):")
        lines.append(f"[rank{rank}]: RuntimeError: Connection closed by peer [10.0.0.1]:9")
    return lines


def end_with(code: int, *ranks: int) -> list[SrunTaskEnd]:
    return [SrunTaskEnd("n1", rank, code, f"Exited with exit code {code}") for rank in ranks]


@pytest.mark.parametrize(
    ("ends", "tail", "rank"),
    [
        (end_with(1, 2, 1, 3), lose(0, 1, 3), 2),
        (end_with(1, 2, 1, 3), lose(0, 1, 2, 3), None),
        (end_with(1, 2, 1), ["[rank2]: Traceback (most recent call last):", *lose(1)], None),
        (end_with(134, 2) + end_with(1, 1), lose(0, 1), None),
        (end_with(1, 2, 0), lose(1), None),
        (end_with(1, 2, 1), [*lose(1), "torch.distributed.elastic"], None),
    ],
)
def test_a_rank_that_ends_first_without_an_error_of_python_s_is_behind_lost_peers(
    ends, tail, rank
) -> None:
    """`sys.exit("error: ...")` prints a message and no traceback."""
    found = diagnose_run_failure(LOST, FailedRunContext(ends=ends, tail=tail, world=4))
    assert (found.rank if found.kind is TroubleKind.CRASH else None) == rank
    assert (found.signature == "exit 1") == (rank is not None)


def test_a_killed_rank_that_no_launcher_names_is_the_one_without_a_dump() -> None:
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.SILENT, "rank 2 wrote no dump", (2,), 4, 3
    )
    killed = replace(DIED, kind=TroubleKind.KILLED, signature="SIGKILL", why="it was killed")
    said = (CollectiveTimeoutEvidence(flight), JobRankResolver({}, {}, 4))
    assert diagnose_run_failure(killed, FailedRunContext(rank_nodes=NODES), lambda: said).rank == 2
    elsewhere = replace(killed, node="n1")
    assert (
        diagnose_run_failure(elsewhere, FailedRunContext(rank_nodes=NODES), lambda: said).rank
        is None
    )
    several = (CollectiveTimeoutEvidence(replace(flight, ranks=(1, 2))), JobRankResolver({}, {}, 4))
    assert diagnose_run_failure(killed, FailedRunContext(), lambda: several).rank is None


def test_ranks_beyond_the_tasks_show_a_launcher_that_has_said_nothing() -> None:
    hang = Trouble(TroubleKind.HANG, at(0), "rank 1 did not come", NOT_COME, rank=1)
    tasks = {0: "n1", 1: "n2"}
    assert diagnose_run_failure(hang, FailedRunContext(task_nodes=tasks)).node == "n2"
    assert (
        diagnose_run_failure(hang, FailedRunContext(task_nodes=tasks, rank_nodes={0: "n1"})).node
        == "n2"
    )
    assert (
        diagnose_run_failure(hang, FailedRunContext(task_nodes=tasks, rank_nodes={5: "n1"})).node
        is None
    )


@pytest.mark.parametrize("place", HangPlace)
def test_the_place_of_a_hung_rank_reaches_the_daemon(place) -> None:
    hang = Trouble(TroubleKind.HANG, at(0), "rank 1", NOT_COME, rank=1, hang_place=place)
    body = encode_job_report(JobReport(7, 0, hang))
    assert decode_job_report(body).trouble == hang
    # A daemon of an earlier version refuses a field that it does not know.
    assert (b"hang_place" in body) == (place is not HangPlace.UNKNOWN)


GONE = FlightRecorderHangVerdict(
    text="no rank waits in a collective", world=4, dumps=3, only_silent=3
)


def explain_lost(flight: FlightRecorderHangVerdict, *findings) -> Trouble:
    """Return the trouble of four ranks of which one is gone, on the node n2."""
    facts = FailedRunContext(tail=[PEER_LOST], rank_nodes={3: "n2"}, findings={"n2": findings})
    return diagnose_run_failure(
        LOST, facts, lambda: (CollectiveTimeoutEvidence(flight), JobRankResolver({}, {}, 4))
    )


def test_the_one_rank_without_a_dump_is_the_lost_peer() -> None:
    found = explain_lost(GONE)
    assert (found.rank, found.node, found.hang_place) == (3, "n2", HangPlace.GONE)
    assert "rank 3 on n2: it ended without a flight recorder dump" in found.why
    assert explain_lost(replace(GONE, only_silent=None)).rank is None


def test_the_lost_peer_was_killed_for_its_memory_where_its_kernel_says_so() -> None:
    oom = replace(OOM, last=at(-1))
    assert explain_lost(GONE, oom).kind is TroubleKind.HOST_MEMORY
    assert explain_lost(GONE).kind is TroubleKind.HANG


SIZES = Trouble(TroubleKind.CRASH, at(0), SIZES_DIFFER, SIZES_DIFFER, rank=2)


def abort(*ranks: int) -> list[SrunTaskEnd]:
    return [SrunTaskEnd("n1", rank, 134, "Aborted", ((rank, rank),)) for rank in ranks]


@pytest.mark.parametrize(
    ("aborted", "world", "rank"),
    [((0, 2, 3), 4, 1), ((2,), 4, 2), ((2, 3), 4, 2), ((1,), 2, 2), ((0, 1, 2, 3), 4, 2)],
)
def test_the_sender_of_a_longer_message_is_the_only_rank_that_does_not_abort(
    aborted, world, rank
) -> None:
    assert (
        diagnose_run_failure(SIZES, FailedRunContext(ends=abort(*aborted), world=world)).rank
        == rank
    )


def test_dumps_name_the_rank_where_two_ranks_differ() -> None:
    calls = Trouble(TroubleKind.CRASH, at(0), CALLS_DIFFER, CALLS_DIFFER)
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.DIFFERENT, "the ranks differ", ranks=(1,), world=3, dumps=3
    )
    names = JobRankResolver({}, {}, 3)
    assert (
        diagnose_run_failure(
            calls, FailedRunContext(), lambda: (CollectiveTimeoutEvidence(flight), names)
        ).rank
        == 1
    )
    absent = CollectiveTimeoutEvidence(replace(flight, cause=FlightRecorderHangCause.ABSENT))
    assert diagnose_run_failure(calls, FailedRunContext(), lambda: (absent, names)).rank is None
