"""Where ranks dump their flight recorders, and how a collective's timeout is heard of."""

import os
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from hpctl.jobs.crash import CALLS_DIFFER, NOT_COME
from hpctl.jobs.hangs.flight_recorder import FlightRecorderHangCause, FlightRecorderHangVerdict
from hpctl.jobs.hangs.ras_judge import JobRankResolver, RasHangCause, RasHangFinding
from hpctl.jobs.hangs.ras_report import RasAddress, RasCommunicatorRank, RasQueryError, RasReport
from hpctl.jobs.hangs.stack_groups import StackGroup, StackHangVerdict, SuspectRank
from hpctl.jobs.run.allocation import NodeFitness
from hpctl.jobs.run.ending import StepEndEvidence
from hpctl.jobs.run.flight import (
    BUFFER,
    build_flight_recorder_environment,
    delete_old_flight_dumps,
    make_flight_dump_prefix,
)
from hpctl.jobs.run.output import COLLECTIVE_TIMED_OUT, SrunOutputReader
from hpctl.jobs.run.progress import TrackedRankProgress
from hpctl.jobs.run.settings import read_run_settings
from hpctl.jobs.run.srun import SrunTaskEnd, parse_srun_command
from hpctl.jobs.run.steps import StepRunner
from hpctl.jobs.run.timeouts import (
    CollectiveTimeoutEvidence,
    CollectiveTimeoutInvestigation,
    add_absent_rank_to_failure,
)
from hpctl.jobs.run_failure import FailedRunContext, diagnose_run_hang
from hpctl.vocabulary.run_policy import RunAction, RunPolicy, TroubleTreatment
from hpctl.vocabulary.trouble import HangPlace, Trouble, TroubleKind
from tests.fakes.values import T0 as NOW
from tests.jobs.run.supervisors import end_step, make_step, make_supervisor
from tests.waiting import until

NEW, OLD = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
NETWORK = Trouble(TroubleKind.NETWORK, NOW, "a collective timed out", "a collective timed out")


def test_ranks_dump_next_to_the_history_in_every_release() -> None:
    found = build_flight_recorder_environment({}, "/shared/.hpctl/run-7.2.flight-")
    assert found[NEW] == found[OLD] == "/shared/.hpctl/run-7.2.flight-"
    assert found["TORCH_FR_BUFFER_SIZE"] == found["TORCH_NCCL_TRACE_BUFFER_SIZE"] == BUFFER
    assert found["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({NEW: "/mine-"}, {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}),
        ({OLD: "/mine-"}, {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, {NEW, OLD}),
        ({"TORCH_FR_BUFFER_SIZE": "9"}, {NEW, OLD}),
    ],
)
def test_timeouts_of_the_user_are_kept(environ, left) -> None:
    found = build_flight_recorder_environment(
        {**environ, "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "/ours-"
    )
    assert set(found) == left


def test_the_users_own_place_is_where_dumps_are_looked_for(tmp_path, monkeypatch) -> None:
    history = tmp_path / "run-c-7.jsonl"
    assert make_flight_dump_prefix({}, history, 3) == f"{tmp_path}/run-c-7.3.flight-"
    assert make_flight_dump_prefix({}, None, 3) == ""
    monkeypatch.chdir(tmp_path)
    assert make_flight_dump_prefix({OLD: "traces/rank_"}, history, 3) == f"{tmp_path}/traces/rank_"
    assert make_flight_dump_prefix({NEW: "/new-", OLD: "/old-"}, history, 3) == "/new-"


def test_the_path_of_a_script_is_no_choice_of_the_users(tmp_path) -> None:
    """A script whose lines did not know that it calls `hpctl run`."""
    script = {"HPCTL_FLIGHT_PREFIX": "/script-", NEW: "/script-", OLD: "/script-"}
    history = tmp_path / "run-c-7.jsonl"
    assert make_flight_dump_prefix(script, history, 3) == f"{tmp_path}/run-c-7.3.flight-"
    assert build_flight_recorder_environment(script, "/ours-")[NEW] == "/ours-"
    own = {**script, NEW: "/own-"}
    assert make_flight_dump_prefix(own, history, 3) == "/own-"
    assert NEW not in build_flight_recorder_environment(own, "/ours-")


def test_only_the_last_attempts_dumps_are_kept(tmp_path) -> None:
    kept = {"run-7.jsonl", "run-7.2.flight-0", "run-77.1.flight-0", "run-7.1.account", "flight-0"}
    gone = {"run-7.1.flight-0", "run-7.1.flight-11", "run-7.3.flight-0", "run-7.4.flight-0"}
    for name in kept | gone:
        (tmp_path / name).touch()
    delete_old_flight_dumps(tmp_path / "run-7.jsonl", 3)
    assert {path.name for path in tmp_path.iterdir()} == kept
    delete_old_flight_dumps(tmp_path / "gone" / "run-7.jsonl", 3)


JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


def test_the_settings_say_where_an_attempt_dumps(tmp_path) -> None:
    one = read_run_settings(
        parse_srun_command(["x"]), {**JOB, "HPCTL_CHECKPOINT_DIR": str(tmp_path)}
    )
    assert one.flight(2) == f"{tmp_path}/.hpctl/run-7.2.flight-"


def test_a_timeout_in_the_log_is_heard_while_the_ranks_live(tmp_path) -> None:
    log, heard = tmp_path / "log", list[str]()
    log.write_bytes(COLLECTIVE_TIMED_OUT + b": of an earlier run\n")
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)
    listener = Mock(handle_collective_timeout=lambda: heard.append("now"))
    SrunOutputReader(None, listener, fds=(fd, fd))
    os.write(fd, b"step 1\n")
    time.sleep(0.3)
    assert heard == []
    os.write(fd, b"[rank0]: [Rank 0] " + COLLECTIVE_TIMED_OUT + b": WorkNCCL(SeqNum=5)\n")
    until(lambda: heard == ["now"], seconds=5)
    os.close(fd)


def supervised(tail: list[str], ask) -> tuple[Trouble, object]:
    """What the supervisor answers to the end of a step with this log."""
    ends = [
        SrunTaskEnd("n1", 0, 134, "Aborted", ((0, 0),)),
        SrunTaskEnd("n2", 1, 137, "Killed", ((1, 1), (4, 7))),
    ]
    one = make_supervisor(NodeFitness(("n1",), {}), nodes="n1")
    one.steps.collect_timeout_evidence.side_effect = ask
    outcome = end_step(one, make_step("n1"), StepEndEvidence(134, ends=ends, tail=tail))
    return outcome.trouble, outcome


def test_the_end_of_a_step_by_a_timeout_is_answered_as_it_is_explained() -> None:
    absent = FlightRecorderHangVerdict(
        FlightRecorderHangCause.ABSENT, "rank 1 did not come to it", (1,), 1, 2
    )
    line = f"[rank0]: [Rank 0] {COLLECTIVE_TIMED_OUT.decode()}: WorkNCCL(SeqNum=5, OpType=X)"
    answered, outcome = supervised([line], lambda: (CollectiveTimeoutEvidence(absent), NAMES))
    assert (answered.kind, answered.rank) == (TroubleKind.HANG, 1)
    assert answered.node == "n2", "srun says where rank 1 ran"
    assert outcome.trouble == answered
    assert outcome.why == "rank 1 on n2 did not come to it"


def test_the_rank_whose_tensor_has_another_size_is_named_by_the_dumps() -> None:
    """gloo's check fails in the rank whose message is too long for another one's buffer, and
    either of the two may be wrong."""
    line = "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4."
    differs = FlightRecorderHangVerdict(
        FlightRecorderHangCause.DIFFERENT, "rank 1 sends 8 Float", (1,), 3, 3
    )
    answered, _ = supervised([line], lambda: (CollectiveTimeoutEvidence(differs), NAMES))
    assert (answered.kind, answered.rank, answered.node) == (TroubleKind.CRASH, 1, "n2")
    silent, _ = supervised([line], lambda: (CollectiveTimeoutEvidence(), NAMES))
    assert silent.rank == 0, "the rank that reports it, where no dump shows another"


def test_another_end_asks_no_witness() -> None:
    answered, _ = supervised(["Traceback (most recent call last):", "KeyError: 1"], pytest.fail)
    assert answered.kind is TroubleKind.CRASH


def ras(cause: RasHangCause, *members: int) -> RasHangFinding:
    return RasHangFinding(
        cause, "as it is", tuple(RasCommunicatorRank(n, "10.0.0.1", 100 + n) for n in members)
    )


NAMES = JobRankResolver({5: TrackedRankProgress(5, 0.0, "n2", 101)}, {"10.0.0.1": "n2"}, 8)


@pytest.mark.parametrize(
    ("finding", "kind", "rank", "node"),
    [
        (ras(RasHangCause.BEHIND, 1), TroubleKind.HANG, 5, "n2"),
        (ras(RasHangCause.MISSING, 1), TroubleKind.HANG, 5, "n2"),
        (ras(RasHangCause.MISSING, 1, 2), TroubleKind.HANG, None, "n2"),
        (ras(RasHangCause.FAILED, 1), TroubleKind.NETWORK, 5, "n2"),
        (ras(RasHangCause.DIVERGED, 1), TroubleKind.CRASH, 5, "n2"),
    ],
)
def test_what_ras_shows_becomes_a_kind_with_the_jobs_own_names(finding, kind, rank, node) -> None:
    """RAS counts ranks by communicator; process 101 is the job's rank 5."""
    found = add_absent_rank_to_failure(NETWORK, CollectiveTimeoutEvidence(ras=finding), NAMES)
    assert (found.kind, found.rank, found.node) == (kind, rank, node)


def test_ranks_that_differ_are_a_crash_that_names_no_node() -> None:
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.DIFFERENT, "the ranks differ", (5,), 8, 8
    )
    found = add_absent_rank_to_failure(NETWORK, CollectiveTimeoutEvidence(flight), NAMES)
    assert (found.kind, found.signature, found.rank) == (TroubleKind.CRASH, CALLS_DIFFER, 5)


def test_a_collective_that_all_came_to_stays_the_networks_and_says_so() -> None:
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.TOGETHER, "all 8 ranks came", (), 8, 8
    )
    found = add_absent_rank_to_failure(NETWORK, CollectiveTimeoutEvidence(flight), NAMES)
    assert (found.kind, found.why) == (
        TroubleKind.NETWORK,
        "a collective timed out: all 8 ranks came",
    )


def test_what_the_log_says_of_a_rank_goes_before_ras() -> None:
    logged = Trouble(TroubleKind.HANG, NOW, "rank 3 did not come", rank=3)
    found = add_absent_rank_to_failure(
        logged, CollectiveTimeoutEvidence(ras=ras(RasHangCause.BEHIND, 1)), NAMES
    )
    assert (found.rank, found.why) == (3, "rank 3 did not come")


def test_a_rank_that_is_behind_only_because_others_ran_ahead_is_not_named() -> None:
    """All wait in one collective. Hosts run ahead of their GPUs, so counts and stacks differ."""
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.TOGETHER, "all 8 ranks came", (), 8, 8
    )
    stacks = StackHangVerdict("rank 1 stands elsewhere", (SuspectRank(1, "n2", "is in forward"),))
    for finding in (ras(RasHangCause.BEHIND, 1), ras(RasHangCause.DIVERGED, 1)):
        found = add_absent_rank_to_failure(
            NETWORK, CollectiveTimeoutEvidence(flight, finding, stacks), NAMES
        )
        assert (found.kind, found.rank, found.node) == (TroubleKind.NETWORK, None, None)
        assert found.why == "a collective timed out: all 8 ranks came"
    # A rank's own error may be its network's.
    found = add_absent_rank_to_failure(
        NETWORK, CollectiveTimeoutEvidence(flight, ras(RasHangCause.FAILED, 1), stacks), NAMES
    )
    assert (found.kind, found.rank) == (TroubleKind.NETWORK, 5)


def test_dumps_that_show_all_ranks_waiting_go_before_the_counts_in_the_log() -> None:
    """The log counts one group only: the rank that it misses there may wait in another."""
    logged = replace(
        NETWORK, kind=TroubleKind.HANG, why="rank 1 did not come", rank=1, signature="hang"
    )
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.TOGETHER, "all 2 ranks came", (), 8, 8
    )
    found = add_absent_rank_to_failure(logged, CollectiveTimeoutEvidence(flight), NAMES)
    assert (found.kind, found.rank, found.node) == (TroubleKind.NETWORK, None, None)
    assert (found.why, found.signature) == (
        "a collective timed out: all 2 ranks came",
        "a collective timed out",
    )


def stand(*groups: tuple[tuple[int, ...], bool]) -> StackHangVerdict:
    """Stacks that name no rank: groups of ranks, and whether theirs show that they wait."""
    made = (StackGroup(ranks, waits, f"call_{ranks[0]} (t.py:7)", ()) for ranks, waits in groups)
    return StackHangVerdict("no rank stands out", groups=tuple(made))


@pytest.mark.parametrize(
    ("waiting", "groups", "rank"),
    [
        ((0,), [((0,), False), ((1,), False)], 1),
        ((0,), [((0, 2), False), ((1,), False)], 1),  # rank 2 stands where one waits
        ((0,), [((0, 3), False), ((1,), False), ((2,), True)], 1),
        ((0,), [((0,), False), ((1, 2), False)], None),
        ((0,), [((0,), False), ((1,), False), ((2,), False)], None),
        ((), [((0,), False)], None),
    ],
)
def test_dumps_show_who_waits_where_stacks_do_not(waiting, groups, rank) -> None:
    flight = FlightRecorderHangVerdict(text="the dumps name nobody", dumps=1, waiting=waiting)
    found = add_absent_rank_to_failure(
        NETWORK, CollectiveTimeoutEvidence(flight, stacks=stand(*groups)), NAMES
    )
    assert found.rank == rank
    assert ("is in call_1 (t.py:7)" in found.why) == (rank is not None)


HUNG = Trouble(TroubleKind.HANG, NOW, "no step for 600 s", "hang: no step", node="n3")


@pytest.mark.parametrize(
    ("places", "node"),
    [({}, "n3"), ({6: "n4", 7: "n4"}, "n4"), ({6: "n3", 7: "n4"}, None), ({6: "n4"}, None)],
)
@pytest.mark.parametrize("witness", ["dumps", "stacks"])
def test_a_hang_of_several_ranks_of_one_node_names_the_node(places, node, witness) -> None:
    names = JobRankResolver(
        {n: TrackedRankProgress(n, 0.0, node=where) for n, where in places.items()}, {}, 8
    )
    flight, stacks = FlightRecorderHangVerdict(), None
    if witness == "dumps":
        flight = FlightRecorderHangVerdict(
            FlightRecorderHangCause.ABSENT, "ranks 6-7 did not come", (6, 7), 8, 8
        )
    else:
        stacks = StackHangVerdict(
            "ranks 6-7 are stopped", (SuspectRank(6, "", ""), SuspectRank(7, "", ""))
        )
    hung = HUNG if witness == "dumps" else replace(HUNG, node=None)
    found = add_absent_rank_to_failure(
        hung, CollectiveTimeoutEvidence(flight, stacks=stacks), names
    )
    assert (found.rank, found.node) == (None, node if places or witness == "dumps" else None)


@pytest.mark.parametrize(
    "ladder", [(RunAction.NOTIFY,), (RunAction.NONE,), (RunAction.STEP, RunAction.END)]
)
def test_a_job_that_wants_no_restart_for_a_hang_gets_none_for_its_cause(ladder) -> None:
    policy = RunPolicy(treatments={TroubleKind.HANG: TroubleTreatment(ladder)})
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.TOGETHER, "all 8 ranks came", (), 8, 8
    )
    found = diagnose_run_hang(
        HUNG, FailedRunContext(), lambda: (CollectiveTimeoutEvidence(flight), NAMES), policy
    )
    restarts = RunAction.STEP in ladder
    assert found.kind is (TroubleKind.NETWORK if restarts else TroubleKind.HANG)
    assert "all 8 ranks came" in found.why


def test_a_program_that_may_still_move_is_not_called_wrong() -> None:
    member = RasCommunicatorRank(1)
    ras = RasHangFinding(RasHangCause.DIVERGED, "they differ", (member,), sure=False)
    assert (
        add_absent_rank_to_failure(HUNG, CollectiveTimeoutEvidence(ras=ras), NAMES).kind
        is TroubleKind.HANG
    )
    unplaced = replace(HUNG, node=None)
    assert (
        add_absent_rank_to_failure(unplaced, CollectiveTimeoutEvidence(ras=ras), NAMES).kind
        is TroubleKind.HANG
    )
    sure = replace(ras, sure=True)
    assert (
        add_absent_rank_to_failure(unplaced, CollectiveTimeoutEvidence(ras=sure), NAMES).kind
        is TroubleKind.CRASH
    )


def test_a_rank_that_came_late_is_a_hang_of_that_rank() -> None:
    flight = FlightRecorderHangVerdict(
        FlightRecorderHangCause.LATE, "rank 5 did not come until", (5,), 8, 8
    )
    found = add_absent_rank_to_failure(NETWORK, CollectiveTimeoutEvidence(flight), NAMES)
    assert (found.kind, found.rank, found.signature) == (TroubleKind.HANG, 5, NOT_COME)


def test_a_full_limit_of_processes_does_not_stop_the_reading_of_the_log(monkeypatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    inquiry = CollectiveTimeoutInvestigation(RasAddress(), lambda _: pytest.fail("asked"))
    inquiry.begin(("n1",), {}, "", 2)
    inquiry.handle_rank_timeout()
    assert add_absent_rank_to_failure(NETWORK, *inquiry.gather({})) == NETWORK


def test_ranks_that_were_restarted_in_their_step_are_not_judged_by_the_old_ones(tmp_path) -> None:
    """A launcher's new ranks live for hours after a timeout of the old ones."""
    stacks = StackHangVerdict("rank 1 stands elsewhere", (SuspectRank(1, "n2", "sleeps"),))
    since = list[float]()

    def read(_prefix: str, began: float) -> FlightRecorderHangVerdict:
        since.append(began)
        return FlightRecorderHangVerdict()

    def refuse(_where: RasAddress, _seconds: float) -> RasReport:
        raise RasQueryError("no service", "")

    inquiry = CollectiveTimeoutInvestigation(
        RasAddress(), lambda _: stacks, flight=read, ask=refuse
    )
    inquiry.begin(("n1",), {}, "/dumps-", 2)
    inquiry.handle_rank_timeout()
    assert add_absent_rank_to_failure(NETWORK, *inquiry.gather({})).rank == 1
    output, dump = SimpleNamespace(renew=lambda: None), tmp_path / "run-7.3.flight-0"
    dump.touch()
    given = SimpleNamespace(history=tmp_path / "run-7.jsonl")
    step = SimpleNamespace(
        ranks=output, _output=output, _timeouts=inquiry, _given=given, _attempt=3
    )
    StepRunner._discard_rank_reports(step)
    assert add_absent_rank_to_failure(NETWORK, *inquiry.gather({})) == NETWORK
    assert since[1] > since[0]
    assert not dump.exists()


@pytest.mark.parametrize(
    "cause",
    [
        FlightRecorderHangCause.ABSENT,
        FlightRecorderHangCause.TOGETHER,
        FlightRecorderHangCause.NOTHING,
        FlightRecorderHangCause.SILENT,
    ],
)
def test_a_rank_that_a_signal_has_stopped_is_named_whatever_the_dumps_show(cause) -> None:
    """A rank that gave up waiting for it in one group is missing in another."""
    flight = FlightRecorderHangVerdict(cause, "rank 1 did not come", (1,), 8, 7)
    stopped = SuspectRank(3, "n2", "is stopped by a signal", hang_place=HangPlace.STOPPED)
    stacks = StackHangVerdict("rank 3 on n2 is stopped by a signal", (stopped,))
    found = add_absent_rank_to_failure(
        NETWORK, CollectiveTimeoutEvidence(flight, None, stacks), NAMES
    )
    assert (found.kind, found.rank) == (TroubleKind.HANG, 3)
    assert found.hang_place is HangPlace.STOPPED
    two = replace(stacks, suspects=(stopped, replace(stopped, rank=4)))
    assert (
        add_absent_rank_to_failure(
            NETWORK, CollectiveTimeoutEvidence(flight, None, two), NAMES
        ).rank
        != 3
    )
