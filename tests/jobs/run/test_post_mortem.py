"""What a run left behind, judged: the recordings of an H200, and scripts without `hpctl run`."""

import pickle
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.jobs.crash import NOT_COME
from hpctl.jobs.run.log_cause import find_script_end_cause
from hpctl.jobs.run.post_mortem import RunEndEvidence, RunEndVerdict, diagnose_job_run_end
from hpctl.jobs.run.srun import SrunTaskEnd
from hpctl.vocabulary.failure import FailureCause, VerdictConfidence
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import DeviceVerdict
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import TroubleKind
from tests.fakes.values import T0 as NOW
from tests.fakes.values import finding
from tests.gpu.recordings import H200
from tests.gpu.recordings import read_text as recorded

pytestmark = pytest.mark.integration

N1, N2 = NodeName("n1"), NodeName("n2")
WAITED = "rank 1 on n2 did not come to collective 5 of default_pg"


def copy_dumps(folder: Path, run: str) -> str:
    """Copy a run's dumps; return their prefix."""
    for path in (H200 / "nccl").glob(f"{run}.nccl_trace_rank_*.pickle"):
        shutil.copyfile(path, folder / f"fr-{path.stem[-1]}")
    return f"{folder}/fr-"


def remains(run: str, prefix: str = "", **more: object) -> RunEndEvidence:
    """A run of two nodes of which only rank 0's output is known: it waited."""
    return RunEndEvidence(
        exit_code=134,
        tail=recorded(f"nccl/{run}.rank0.stderr").splitlines(),
        ends=[SrunTaskEnd(N1, 0, 134, "Aborted")],
        flight_prefix=prefix,
        world=2,
        rank_nodes={0: N1, 1: N2},
        **more,
    )


def judge(left: RunEndEvidence) -> RunEndVerdict:
    found = diagnose_job_run_end(left, RunPolicy(), NOW)
    assert found.trouble is not None
    assert found.verdict is not None
    return found


@pytest.mark.parametrize("run", ["nccl_skip", "nccl_skip3"])
def test_rank_1_of_the_recorded_runs_never_came_to_collective_5(tmp_path, run: str) -> None:
    found = judge(remains(run, copy_dumps(tmp_path, run)))
    assert (found.trouble.kind, found.trouble.signature) == (TroubleKind.HANG, NOT_COME)
    assert (found.verdict.rank, found.verdict.node) == (1, N2)
    assert found.verdict.reasons[0].startswith(WAITED)
    assert found.verdict.reasons[1].startswith("flight recorder (")


def test_a_dump_from_before_the_run_is_not_read(tmp_path) -> None:
    prefix = copy_dumps(tmp_path, "nccl_skip")
    found = judge(remains("nccl_skip", prefix, flight_since=4e9))
    assert (found.verdict.cause, found.verdict.rank) == (FailureCause.LINK, None)


def test_a_finding_on_the_node_of_that_rank_makes_it_the_nodes(tmp_path) -> None:
    prefix = copy_dumps(tmp_path, "nccl_skip")
    found = judge(remains("nccl_skip", prefix, findings={N2: [finding()]}))
    assert (found.verdict.cause, found.verdict.confidence) == (
        FailureCause.NODE,
        VerdictConfidence.HIGH,
    )
    assert found.verdict.node == N2


def test_ras_names_the_rank_where_there_is_no_dump() -> None:
    ras = (H200 / "nccl/nccl_skip.ras.json").read_bytes()
    found = judge(remains("nccl_skip", ras=ras))
    assert (found.trouble.kind, found.verdict.rank) == (TroubleKind.HANG, 1)
    torn = judge(remains("nccl_skip", ras=ras[:100]))
    assert torn.trouble.kind is TroubleKind.NETWORK


def test_a_rank_that_was_killed_is_named_by_the_order_of_the_ends() -> None:
    ends = [SrunTaskEnd(N2, 1, 137, "Killed"), SrunTaskEnd(N1, 0, 134, "Aborted")]
    left = RunEndEvidence(
        exit_code=137,
        rank_stderr={
            rank: recorded(f"nccl/nccl_kill.rank{rank}.stderr").splitlines() for rank in (0, 1)
        },
        ends=ends,
    )
    found = judge(left)
    assert (found.trouble.kind, found.verdict.rank) == (TroubleKind.KILLED, 1)
    assert found.verdict.node == N2


def test_a_run_without_progress_asks_the_dumps(tmp_path) -> None:
    found = judge(remains("nccl_skip", copy_dumps(tmp_path, "nccl_skip"), hung=True, step=12))
    assert (found.trouble.kind, found.trouble.step) == (TroubleKind.HANG, 12)
    assert found.verdict.rank == 1


def test_a_run_that_is_done_has_no_verdict() -> None:
    assert diagnose_job_run_end(RunEndEvidence(exit_code=0), RunPolicy(), NOW) == RunEndVerdict(
        None, None
    )


@pytest.mark.parametrize("prefix", ["", "missing"])
def test_a_script_s_end_reads_the_dumps_of_its_ranks(tmp_path, prefix: str) -> None:
    written = copy_dumps(tmp_path, "nccl_skip")
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1",
        "TORCH_FR_DUMP_TEMP_FILE": written + prefix,
        "HPCTL_RUN_START": "1",
    }
    block = recorded("nccl/nccl_skip.rank0.stderr").encode()
    found = find_script_end_cause(134, block, environ, NOW)
    assert found is not None
    if prefix:
        assert (found.kind, found.rank) == (TroubleKind.NETWORK, None)
    else:
        assert (found.kind, found.rank) == (TroubleKind.HANG, 1)
        assert found.why.startswith("rank 1 on n1 did not come to collective 5")


CLOSED = (
    "[rank{}]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:20170. It ended"
)


def left_early(*ends: SrunTaskEnd, tail: tuple[str, ...] = ()) -> RunEndEvidence:
    """A run of three ranks over gloo, of which ranks 0 and 1 lost a peer."""
    tail = (*tail, CLOSED.format(0), CLOSED.format(1))
    return RunEndEvidence(exit_code=1, tail=tail, ends=ends, world=3, rank_nodes={2: N2})


ENDS = [SrunTaskEnd(N1, rank, 1, "Exited with exit code 1") for rank in (0, 1)]


def test_a_rank_that_ended_without_an_error_before_the_others_is_named() -> None:
    found = judge(left_early(*ENDS))
    assert (found.verdict.cause, found.verdict.rank) == (FailureCause.PROGRAM, 2)
    assert found.verdict.node == N2


def test_no_rank_has_left_where_srun_reports_too_few_ends_or_a_launcher_s() -> None:
    launched = "E1128 torch.distributed.elastic.multiprocessing failed"
    for left in (left_early(ENDS[0]), left_early(*ENDS, tail=(launched,))):
        assert judge(left).verdict.cause is FailureCause.LINK
        assert judge(left).verdict.rank is None


def test_no_rank_has_left_where_one_of_the_others_aborted() -> None:
    aborted = SrunTaskEnd(N1, 1, 134, "Aborted")
    assert judge(left_early(ENDS[0], aborted)).verdict.rank is None


@pytest.mark.parametrize(
    ("check", "seconds", "cause"),
    [
        ("kernel.oom", -10, FailureCause.MEMORY),
        ("kernel.oom", -7200, FailureCause.UNKNOWN),
        ("kernel.other", -10, FailureCause.UNKNOWN),
    ],
)
def test_a_kill_is_memory_where_the_node_s_kernel_killed_for_memory(check, seconds, cause) -> None:
    oom = replace(finding(seconds=seconds), check=check, verdict=DeviceVerdict.NOTE)
    ends = [SrunTaskEnd(N2, 1, 137, "Killed")]
    found = judge(RunEndEvidence(exit_code=137, ends=ends, findings={N2: [oom]}))
    assert (found.verdict.cause, found.verdict.rank) == (cause, 1)


def test_a_killed_data_loader_worker_is_memory_by_a_finding_only() -> None:
    said = "[rank1]: RuntimeError: DataLoader worker (pid 30) is killed by signal: Killed. "
    oom = replace(finding(), check="kernel.oom", verdict=DeviceVerdict.NOTE)
    for findings, cause in (({}, FailureCause.DATA), ({N2: [oom]}, FailureCause.MEMORY)):
        ends = [SrunTaskEnd(N2, 1, 1, "Exited with exit code 1")]
        left = RunEndEvidence(exit_code=1, tail=[said], ends=ends, findings=findings)
        assert judge(left).verdict.cause is cause


def write_sizes(folder: Path, sizes: dict[int, int], op: str, *, retired: bool) -> None:
    """Write dumps of ranks that came to their first collective with so many elements each."""
    for rank, size in sizes.items():
        row = {
            "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0,
            "is_p2p": False, "profiling_name": f"gloo:{op}", "input_sizes": [[size]],
            "input_dtypes": ["Float"], "state": "scheduled", "retired": retired, "record_id": 0,
        }  # fmt: skip
        config = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]"}}
        document = {"version": "2.10", "pg_config": config, "entries": [row]}
        (folder / f"fr-{rank}").write_bytes(pickle.dumps(document))


SAID = "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4."
ABORTED = RunEndEvidence(
    exit_code=134, tail=[SAID], ends=[SrunTaskEnd(N1, 0, 134, "Aborted")], world=4
)


def test_the_rank_whose_tensor_differs_is_named_by_the_dumps(tmp_path) -> None:
    write_sizes(tmp_path, {0: 64, 1: 128, 2: 64}, "all_reduce", retired=False)
    assert judge(ABORTED).verdict.rank == 0
    found = judge(replace(ABORTED, flight_prefix=f"{tmp_path}/fr-"))
    assert (found.verdict.cause, found.verdict.rank) == (FailureCause.PROGRAM, 1)


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [
        ({1: 64, 2: 128}, 2),
        ({1: 64, 2: 64, 3: 128}, 3),
        ({1: 128, 2: 128, 3: 64}, 0),  # two of two: open, so that the report's own rank stays
        ({1: 64, 2: 64, 3: 64}, 0),  # the others agree: it is the reporter's that is short
        ({1: 32, 2: 64, 3: 128}, 0),
        ({2: 128}, 0),
        ({0: 64, 1: 128}, 0),  # one of each
    ],
)
def test_the_rank_that_reports_a_longer_message_has_one_of_the_shorter_tensors(
    tmp_path, sizes, rank
) -> None:
    write_sizes(tmp_path, sizes, "all_gather", retired=True)
    found = judge(replace(ABORTED, flight_prefix=f"{tmp_path}/fr-"))
    assert (found.verdict.cause, found.verdict.rank) == (FailureCause.PROGRAM, rank)
