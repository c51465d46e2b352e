"""Whom the ranks of real NCCL runs waited for: the recordings are `nccl/` of an H200.

nccl_skip (2 ranks) and nccl_skip3 (3 ranks): rank 1 stays away from collective 5 until torch's
watchdog ends the ranks. nccl_kill: rank 1 is killed, and rank 0 loses it.
"""

import shutil
from pathlib import Path

import pytest

from hpctl.jobs.crash import NOT_COME, classify_crash
from hpctl.jobs.hangs.flight_files import (
    diagnose_hang_from_dumps_in_subprocess,
    parse_flight_recorder_dump,
)
from hpctl.jobs.hangs.flight_recorder import (
    FlightRecorderHangCause,
    FlightRecorderHangVerdict,
    diagnose_hang_from_recorder_dumps,
)
from hpctl.jobs.hangs.ras_judge import JobRankResolver
from hpctl.jobs.hangs.ras_report import (
    RankAbsenceReason,
    RasAddress,
    RasJsonUnsupportedError,
    RasQueryError,
    RasReport,
    parse_ras_report,
)
from hpctl.jobs.hangs.stack_groups import (
    NodeStacks,
    RankStack,
    StackFrame,
    StackHangVerdict,
    diagnose_hang_from_rank_stacks,
)
from hpctl.jobs.run.ending import StepEndEvidence, diagnose_step_end
from hpctl.jobs.run.srun import SrunTaskEnd
from hpctl.jobs.run.timeouts import (
    CollectiveTimeoutEvidence,
    CollectiveTimeoutInvestigation,
    add_absent_rank_to_failure,
)
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import T0 as NOW
from tests.gpu.recordings import H200
from tests.gpu.recordings import read_text as recorded

pytestmark = pytest.mark.integration

NCCL = H200 / "nccl"
RANKS = {"nccl_skip": 2, "nccl_skip3": 3, "nccl_kill": 2}
SKIPS = ["nccl_skip", "nccl_skip3"]
N1 = NodeName("n1")
HOSTS = {"127.0.0.1": N1}
NETWORK = Trouble(TroubleKind.NETWORK, NOW, "a collective timed out", "a collective timed out")
NOBODY = RasAddress("127.0.0.1", 1)


def printed(run: str, *ranks: int) -> list[str]:
    """What these ranks of a run printed, one after the other."""
    return [line for r in ranks for line in recorded(f"nccl/{run}.rank{r}.stderr").splitlines()]


def dumped(run: str) -> FlightRecorderHangVerdict:
    paths = sorted(NCCL.glob(f"{run}.nccl_trace_rank_*.pickle"))
    return diagnose_hang_from_recorder_dumps(
        [parse_flight_recorder_dump(int(path.stem[-1]), path.read_bytes()) for path in paths]
    )


def reported(run: str) -> RasReport:
    return parse_ras_report((NCCL / f"{run}.ras.json").read_bytes())


def beside(folder: Path, run: str) -> str:
    """The dumps of a run as torch writes them; where, as a path's beginning."""
    for path in NCCL.glob(f"{run}.nccl_trace_rank_*.pickle"):
        shutil.copyfile(path, folder / f"flight-{path.stem[-1]}")
    return f"{folder}/flight-"


@pytest.mark.parametrize("run", SKIPS)
def test_the_flight_recorder_names_the_rank_that_did_not_come(run: str) -> None:
    found = dumped(run)
    assert (found.cause, found.ranks, found.world) == (
        FlightRecorderHangCause.ABSENT,
        (1,),
        RANKS[run],
    )
    assert (
        "rank 1 did not come to collective 5 of default_pg (all_reduce of 65536 Float)"
        in found.text
    )
    assert "in train_step (rank.py:87); its last is 4 (all_reduce)" in found.text


def test_a_rank_that_wrote_no_dump_is_not_named_where_half_of_them_are_missing() -> None:
    """nccl_kill: only rank 0 lived to dump."""
    found = dumped("nccl_kill")
    assert (found.cause, found.ranks, found.dumps) == (FlightRecorderHangCause.NOTHING, (), 1)
    assert "rank 1 wrote no dump" in found.text


@pytest.mark.parametrize("run", RANKS)
def test_ras_names_the_rank_that_did_not_come(run: str) -> None:
    inquiry = CollectiveTimeoutInvestigation(NOBODY, no_stacks, ask=lambda *_: reported(run))
    inquiry.begin([N1], HOSTS, "", RANKS[run])
    inquiry.handle_rank_timeout()
    found = add_absent_rank_to_failure(NETWORK, *inquiry.gather({}))
    assert (found.kind, found.rank, found.node) == (TroubleKind.HANG, 1, N1)
    assert found.signature == NOT_COME


def test_the_json_of_nccl_2_28_9_is_read_although_a_comma_is_missing() -> None:
    """nccl_kill.ras.json: the service forgets a comma in each missing rank."""
    (missing,) = reported("nccl_kill").communicators[0].missing
    assert (missing.member.rank, missing.absence) == (1, RankAbsenceReason.UNRESPONSIVE)


@pytest.mark.parametrize("run", SKIPS)
def test_the_watchdogs_own_lines_of_all_ranks_name_it_too(run: str) -> None:
    found = classify_crash(134, printed(run, *range(RANKS[run])), at=NOW, policy=RunPolicy())
    assert (found.kind, found.rank, found.signature) == (TroubleKind.HANG, 1, NOT_COME)
    assert found.why.startswith("rank 1 did not come to collective 5 of default_pg, where")


def no_stacks(_nodes: object) -> StackHangVerdict:
    raise HpctlError("the step ended meanwhile")


def no_ras(*_: object) -> RasReport:
    raise RasQueryError("nobody listens")


def stacks_of(run: str) -> StackHangVerdict:
    waits = (StackFrame("all_reduce", "torch/distributed/distributed_c10d.py", 3068),)
    sleeps = (StackFrame("load", "rank.py", 12, own=True),)
    ranks = [RankStack(n, frames=sleeps if n == 1 else waits) for n in range(RANKS[run])]
    return diagnose_hang_from_rank_stacks([NodeStacks("n1", ranks=tuple(ranks))], ["n1"], ["n1"])


def ended(run: str) -> Trouble:
    """What the log of rank 0 alone amounts to: it waited, and says not for whom."""
    evidence = StepEndEvidence(134, ends=[SrunTaskEnd(N1, 0, 134, "Aborted")], tail=printed(run, 0))
    trouble = diagnose_step_end(evidence, RunPolicy(), NOW, classify_crash)
    assert trouble is not None
    assert (trouble.kind, trouble.rank) == (TroubleKind.NETWORK, None)
    return trouble


@pytest.mark.parametrize("run", SKIPS)
@pytest.mark.parametrize("witness", ["flight", "ras", "stacks", "none"])
def test_only_without_any_witness_is_it_the_network(tmp_path, run: str, witness: str) -> None:
    inquiry = CollectiveTimeoutInvestigation(
        NOBODY,
        (lambda _: stacks_of(run)) if witness == "stacks" else no_stacks,
        ask=(lambda *_: reported(run)) if witness == "ras" else no_ras,
    )
    prefix = beside(tmp_path, run) if witness == "flight" else f"{tmp_path}/flight-"
    inquiry.begin([N1], HOSTS, prefix, RANKS[run])
    inquiry.handle_rank_timeout()
    found = add_absent_rank_to_failure(ended(run), *inquiry.gather({}))
    if witness == "none":
        assert (found.kind, found.why) == (TroubleKind.NETWORK, "a collective timed out")
    else:
        assert (found.kind, found.rank, found.signature) == (TroubleKind.HANG, 1, NOT_COME)


def test_a_service_that_answers_no_json_is_the_reason_in_the_evidence() -> None:
    def without_json(*_: object) -> RasReport:
        raise RasJsonUnsupportedError

    inquiry = CollectiveTimeoutInvestigation(NOBODY, no_stacks, ask=without_json)
    inquiry.begin([N1], HOSTS, "", 2)
    inquiry.handle_rank_timeout()
    found = add_absent_rank_to_failure(NETWORK, *inquiry.gather({}))
    assert found.kind is TroubleKind.NETWORK
    assert "RAS answers no JSON before NCCL 2.28" in found.evidence


def test_the_flight_recorder_goes_first_and_the_others_add_the_place() -> None:
    names = JobRankResolver({}, HOSTS, 2)
    said = CollectiveTimeoutEvidence(dumped("nccl_skip"), None, stacks_of("nccl_skip"))
    found = add_absent_rank_to_failure(ended("nccl_skip"), said, names)
    assert found.why.startswith("rank 1 did not come to collective 5 of default_pg")
    assert found.why.endswith("it is in load (rank.py:12)")
    assert found.node == N1
    assert found.evidence.startswith("flight recorder (2 dumps): rank 1 did not come")
    assert "stacks: rank 1 on n1" in found.evidence


def test_a_rank_that_was_killed_is_the_cause_and_the_peers_loss_its_consequence() -> None:
    """nccl_kill: srun reports rank 1 first, and rank 0 prints ncclRemoteError."""
    ends = [SrunTaskEnd(N1, 1, 137, "Killed"), SrunTaskEnd(N1, 0, 134, "Aborted")]
    evidence = StepEndEvidence(137, ends=ends, tail=printed("nccl_kill", 0, 1))
    found = diagnose_step_end(evidence, RunPolicy(), NOW, classify_crash)
    assert (found.kind, found.rank, found.node) == (TroubleKind.KILLED, 1, N1)
    assert found.why == (
        "rank 1: it was killed by SIGKILL; the other ranks report: a peer was lost"
    )


def test_a_rank_that_lost_its_peer_and_aborted_itself_is_not_the_cause() -> None:
    """nccl_kill.rank0.stderr, where the end of rank 1 is not known."""
    evidence = StepEndEvidence(
        134, ends=[SrunTaskEnd(N1, 0, 134, "Aborted")], tail=printed("nccl_kill", 0)
    )
    assert diagnose_step_end(evidence, RunPolicy(), NOW, classify_crash).kind is TroubleKind.NETWORK


def test_a_launchers_abort_is_explained_by_the_log_of_the_timeout() -> None:
    """nccl_skip under `hpctl run --torch`: the launcher knows only that rank 0 aborted."""
    aborted = Trouble(
        TroubleKind.CRASH, NOW, "rank 0 died of SIGABRT", "SIGABRT", N1, 0, exit_code=134
    )
    logged = StepEndEvidence(1, tail=printed("nccl_skip", 0, 1), account=aborted)
    assert diagnose_step_end(logged, RunPolicy(), NOW, classify_crash).kind is TroubleKind.HANG
    silent = StepEndEvidence(1, tail=["step 3"], account=aborted)
    assert diagnose_step_end(silent, RunPolicy(), NOW, classify_crash).signature == "SIGABRT"


def test_the_dumps_are_read_in_a_separate_process(tmp_path) -> None:
    """nccl_skip3, beside a file that is no dump."""
    prefix = beside(tmp_path, "nccl_skip3")
    Path(f"{prefix}7").write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    assert diagnose_hang_from_dumps_in_subprocess(prefix, 0.0) == dumped("nccl_skip3")
    assert diagnose_hang_from_dumps_in_subprocess(prefix, 4e9).dumps == 0, (
        "dumps of an earlier attempt are left out"
    )
