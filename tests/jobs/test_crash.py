"""What a run died of: exit codes, Slurm's word, and the first cause among many complaints."""

import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from hpctl.jobs.crash import LINE_CHARS, TAIL_BYTES, TAIL_LINES, classify_crash, load_crash_patterns
from hpctl.jobs.log_end import SURVIVED_LINES
from hpctl.jobs.logs.patterns import LogLinePattern
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.process import run_text

CASES = yaml.safe_load(Path(__file__).with_name("crash_cases.yaml").read_text())

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ROWS = load_crash_patterns()
SAMPLES = Path(__file__).parent / "crash_samples"


def died(code: int, *tail: str, **more) -> Trouble:
    return classify_crash(code, tail, at=AT, policy=RunPolicy(), **more)


def sample(name: str) -> Trouble:
    return died(1, *(SAMPLES / f"{name}.txt").read_text().splitlines())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.says}")
def test_every_wording_matches_its_row_behind_launcher_prefixes(row):
    found = died(1, row.sample)
    assert (found.kind, row.says in found.signature) == (row.kind, True)
    if not row.pattern.startswith("^") and "|^" not in row.pattern:
        assert died(1, f"12: [rank12]: {row.sample}").kind is row.kind
    assert LogLinePattern(row.pattern).captures is False


@pytest.mark.parametrize(("name", "kind", "why", "code"), CASES["torchrun"])
def test_torchrun_summary_names_the_cause(name, kind, why, code):
    found = sample(name)
    assert [found.kind, found.why, found.exit_code] == [kind, why, code]


def test_the_rank_that_raised_goes_before_those_that_lost_it():
    found = sample("torch-raise")
    assert (found.kind, found.rank) == (TroubleKind.CRASH, 1)
    assert found.why.startswith("rank 1: ValueError in <module> (ddp.py): bad sample at step 2")
    assert found.signature == "ValueError in <module> (ddp.py): bad sample at step # id # in <tmp>"
    assert found.evidence.startswith("[rank1]: Traceback")
    assert "ValueError: bad sample" in found.evidence


def child(code: str) -> Trouble:
    ended = run_text([sys.executable, "-c", code])
    return died(ended.returncode, *ended.stderr.splitlines())


def test_real_children():
    assert child("import os; os.kill(os.getpid(), 9)").kind is TroubleKind.KILLED
    assert child("import os; os.abort()").why == "it died of SIGABRT"
    assert child("import faulthandler as f; f.enable(); f._sigsegv()").kind is TroubleKind.CRASH
    assert child("bytearray(1 << 62)").kind is TroubleKind.HOST_MEMORY
    assert child("raise SystemExit(16)").kind is TroubleKind.CORRUPTION
    assert child("import sys; sys.exit('no data')").signature == "exit 1"
    full = child("open('/dev/full', 'w', buffering=1).write('x\\n')")
    assert (full.kind, full.signature) == (TroubleKind.DISK_FULL, "file system full")
    nested = child(
        "def f(d): return d['a']\ntry: f({})\nexcept KeyError as e: raise RuntimeError(1) from e"
    )
    assert nested.signature == "KeyError in f (<string>): 'a'"


def test_the_same_error_has_the_same_signature_every_time():
    head = ("Traceback (most recent call last):", '  File "<string>", line 2, in load')
    text = "OSError: /tmp/tmp{}: bad block {:#x} at {}.25 on ip-10-0-0-{} after {} of [3, 4] shapes"
    one = died(1, *head, text.format("ab_1x2yz", 140245, 1795264006, 17, 3))
    two = died(1, *head, text.format("q9k3w0fd", 139872, 1795264999, 201, 5))
    assert one.why != two.why
    assert one.signature == two.signature
    assert one.signature.startswith("OSError in load (<string>): <tmp>: bad block # at # on ip-#")


@pytest.mark.parametrize(("code", "kind", "signature"), CASES["exit codes"])
def test_exit_codes_without_a_log_name_a_cause(code, kind, signature):
    found = died(code)
    assert (found.kind, found.signature) == (kind, signature)


def test_the_policy_s_own_exit_codes_count():
    policy = RunPolicy(final_exit_codes=(3,), corruption_exit_codes=(4,))
    kinds = [classify_crash(c, [], at=AT, policy=policy).kind for c in (3, 4, 93, 16)]
    assert kinds == [
        TroubleKind.FINAL,
        TroubleKind.CORRUPTION,
        TroubleKind.CRASH,
        TroubleKind.CRASH,
    ]


def test_a_code_that_srun_names_counts_although_a_higher_one_was_returned():
    tail = (
        "srun: error: n2: task 5: Exited with exit code 16",
        "srun: error: n1: tasks 0-3: Terminated",
    )
    assert died(143, *tail).kind is TroubleKind.CORRUPTION


def test_a_memory_kill_explains_a_kill():
    tail = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks"
    found = died(137, tail + " have been OOM Killed.", node="n3", rank=4)
    assert (found.kind, found.node, found.rank) == (TroubleKind.HOST_MEMORY, "n3", 4)


TRACE = (
    "[rank{r}]: Traceback (most recent call last):",
    '[rank{r}]:   File "/home/ada/train.py", line 7, in step',
    "[rank{r}]:     loss.backward()",
    '[rank{r}]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 5, in bw',
    "[rank{r}]:     torch.autograd.backward(self)",
    "[rank{r}]: {error}",
)
TIMEOUT = (
    "[rank{r}]:[E816 01:45:40.18 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600026"
    " milliseconds before timing out."
)


def trace(rank: int, error: str) -> list[str]:
    return [line.format(r=rank, error=error) for line in TRACE]


def test_a_cause_goes_before_echoes_that_were_printed_earlier():
    echoes = [TIMEOUT.format(r=r, n=9) for r in range(4)]
    found = died(1, *echoes, *trace(5, "torch.OutOfMemoryError: CUDA out of memory. GPU 3 has a"))
    assert (found.kind, found.rank, found.device) == (TroubleKind.GPU_MEMORY, 5, "3")


def test_interleaved_tracebacks_are_read_apart_and_the_first_to_end_wins():
    three, four = trace(3, "KeyError: 'a'"), trace(4, "ValueError: b")
    mixed = [line for pair in zip(four, three, strict=True) for line in pair]
    assert died(1, *mixed).signature == "ValueError in step (train.py): b"


def test_an_exception_of_the_network_is_an_echo():
    lost = trace(0, "torch.distributed.DistBackendError: NCCL error in: x.hpp:3, remote process")
    found = died(1, *lost, *trace(1, "KeyError: 'a'"))
    assert (found.kind, found.rank) == (TroubleKind.CRASH, 1)
    alone = died(1, *lost, node="n0", rank=0)
    assert (alone.kind, alone.rank, alone.node) == (TroubleKind.NETWORK, None, None)


def test_of_many_time_outs_the_rank_that_is_behind_is_named():
    found = died(134, *[TIMEOUT.format(r=r, n=64088 if r == 7 else 96120) for r in (0, 3, 7, 5)])
    assert (found.kind, found.rank) == (TroubleKind.NETWORK, 7)
    assert found.why == "a collective timed out: rank 7 is behind the others"
    level = died(134, *(TIMEOUT.format(r=r, n=5) for r in range(4)))
    assert level.rank is None
    assert found.signature == level.signature


def test_an_error_that_the_run_survived_did_not_end_it():
    caught = trace(2, "ConnectionResetError: retrying")
    on = [f"step {i} loss {1 / (i + 1)}" for i in range(SURVIVED_LINES)]
    assert died(137, *caught, *on).signature == "SIGKILL"
    assert died(137, *caught, *on[1:]).signature.startswith("ConnectionResetError")
    bars = [f"  {i}%|###     | {i}/1752 [00:29<1:22:01,  2.83s/it]" for i in range(SURVIVED_LINES)]
    assert died(137, *caught, *bars).signature == "SIGKILL"
    assert died(1, *caught, *on, *trace(6, "ValueError: b"), *["[rank0]: x"] * 99).rank == 6


def test_slurm_s_order_in_the_log_goes_before_what_ranks_say():
    ended = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-09-21T10:00:00"
    raised = trace(0, "ValueError: b")
    assert died(0, *raised, f"{ended} DUE TO TIME LIMIT ***").kind is TroubleKind.TIME_LIMIT
    assert died(143, *raised, f"{ended} ***").kind is TroubleKind.FINAL
    # A step that is ended because one of its tasks died is ended by srun, not by a person.
    step = ended.replace("JOB 7", "STEP 7.0")
    assert died(143, *raised, f"{step} ***").kind is TroubleKind.CRASH


def test_the_node_that_slurm_lost_is_named_and_not_the_one_that_says_so():
    tail = (
        "srun: error: Node failure on n4",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT x DUE TO NODE FAILURE, SEE SLURMCTLD",
    )
    assert died(1, *tail, node="n1").node == "n4"


def test_places_that_lines_name():
    text = "AssertionError: Rank 7: found NaN in local forward loss calculation. Device: 3,"
    nan = died(1, f"{text} node: ip-10-1-0-4.ec2.internal")
    assert (nan.kind, nan.rank, nan.device, nan.node) == (TroubleKind.NAN, 7, "3", "ip-10-1-0-4")
    text = "ip-10-1-0-4:411:733 [5] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
    port = died(1, text)
    assert (port.kind, port.device, port.node) == (TroubleKind.NETWORK, "5", "ip-10-1-0-4")
    task = died(1, *trace(3, "KeyError: 1"), "srun: error: n2: task 3: Exited with exit code 1")
    assert (task.rank, task.node) == (3, "n2")
    elsewhere = died(1, *trace(3, "KeyError: 1"), node="n9", rank=0)
    assert (elsewhere.rank, elsewhere.node) == (3, None)


def test_only_the_end_of_a_log_counts():
    crash = trace(0, "ValueError: old")
    assert died(137, *crash, *(["[rank1]: .".ljust(100)] * TAIL_LINES)).signature == "SIGKILL"
    wide = ["\t" * LINE_CHARS + "x"] * (TAIL_BYTES // LINE_CHARS + 1)
    assert died(137, *crash, *wide).signature in ("SIGKILL", "ValueError in step (train.py): old")


@pytest.mark.parametrize(("code", "tail", "why"), CASES["never started"])
def test_program_that_cannot_start_is_not_restarted(code, tail, why):
    found = died(code, *tail.splitlines())
    assert found.kind is TroubleKind.FINAL
    assert why in found.why
    gone = died(code, *tail.splitlines(), again=True)
    assert (gone.kind, gone.signature) == (TroubleKind.STORAGE, found.signature)
    assert "is a mount missing?" in gone.why


def test_a_command_that_a_script_missed_is_not_why_it_died():
    missed = "run.sh: line 3: nvidia-smi: command not found"
    assert died(1, missed, *trace(0, "ValueError: x")).kind is TroubleKind.CRASH
    assert died(127, *trace(0, "ValueError: x")).kind is TroubleKind.CRASH
    assert died(1, missed).kind is TroubleKind.CRASH


LOST = "[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:20170. It ended"


def root_cause(host: str, rank: int, code: int, minute: int) -> list[str]:
    """The block that torchrun's agent of one node prints."""
    return [
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : 2026-11-28_18:{minute:02}:18",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: 0)",
        f"  exitcode  : {code} (pid: 30)",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs",
    ]


def test_a_killed_rank_is_named_by_its_agent_whichever_agent_reports_last():
    tail = [LOST, *root_cause("n2", 1, -9, 18), *root_cause("n1", 0, 1, 17)]
    found = died(1, *tail)
    assert (found.kind, found.rank, found.node) == (TroubleKind.KILLED, 1, "n2")


def test_the_earliest_of_the_agents_reports_names_the_rank():
    found = died(1, *root_cause("n1", 0, 1, 18), *root_cause("n2", 1, 1, 17))
    assert found.rank == 1


def test_a_run_before_in_the_same_log_does_not_name_the_rank():
    found = died(1, *root_cause("n1", 0, 7, 1), *root_cause("n1", 3, 8, 30))
    assert (found.rank, found.exit_code) == (3, 8)


WORKER = "[rank1]: RuntimeError: DataLoader worker (pid 30) is killed by signal: Killed. "


def test_a_killed_data_loader_worker_is_memory_where_slurm_reports_the_kernel_s_kill():
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks"
    assert died(1, WORKER).kind is TroubleKind.CRASH
    assert died(1, WORKER, oom).kind is TroubleKind.HOST_MEMORY


def raised(rank: int, error: str, header: str = "") -> list[str]:
    """A traceback in a library, as the rank's hook prints it."""
    lines = [
        f"Traceback (most recent call last):{header}",
        '  File "/opt/venv/lib/python3.11/site-packages/lib.py", line 7, in call',
        "    work()",
        error,
    ]
    return [f"[rank{rank}]: {line}" for line in lines]


HANDLING = "[rank0]: During handling of the above exception, another exception occurred:"
WORKER = "RuntimeError: DataLoader worker (pid 43) is killed by signal: Killed. "
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


def test_a_known_error_of_the_same_failure_goes_before_the_one_that_it_was_raised_in():
    found = died(1, *raised(0, RESET), "", HANDLING, "", *raised(0, WORKER))
    assert (found.signature, found.rank) == ("a data loader worker died", 0)


def test_a_known_error_of_another_failure_does_not_replace_the_first():
    own = "KeyError: 'bird'"
    assert "KeyError" in died(1, *raised(0, own), *raised(0, WORKER)).signature
    other = HANDLING.replace("rank0", "rank1")
    assert "KeyError" in died(1, *raised(0, own), other, *raised(0, WORKER)).signature


def test_a_lost_peer_does_not_replace_the_error_in_whose_handling_it_was_met():
    lost = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:7"
    found = died(1, *raised(0, "KeyError: 'bird'"), HANDLING, *raised(0, lost))
    assert "KeyError" in found.signature


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("OSError: [Errno 28] No space left on device", TroubleKind.DISK_FULL),
        ("AttributeError: no such key", TroubleKind.CRASH),
    ],
)
def test_a_distributed_checkpoint_names_the_rank_that_failed_on_every_rank(error, kind):
    summary = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:..."
    said = [*raised(2, summary), *raised(2, error, " (RANK 1)"), *raised(0, summary)]
    found = died(1, *said, node="n1", rank=2)
    assert (found.kind, found.rank, found.node) == (kind, 1, None)


def test_a_subprocess_that_the_program_s_own_code_runs_is_its_own_failure():
    failed = "subprocess.CalledProcessError: Command 'stage-data' returned non-zero exit status 7."
    library = "/opt/venv/lib/python3.11/site-packages"
    found = died(1, *(line.replace(library, "/home/u") for line in raised(0, failed)))
    assert (found.kind, found.rank) == (TroubleKind.CRASH, 0)
    assert found.why.startswith("rank 0: subprocess.CalledProcessError in call (lib.py)")
    launched = died(1, *raised(0, failed), *raised(1, "KeyError: 'bird'"))
    assert "KeyError" in launched.signature


def test_the_rest_of_an_exception_s_message_may_explain_it():
    """DALI names the error of CUDA some lines after the title of its exception."""
    message = ["Error in GPU operator `nvidia.dali.fn.decoders.image`,", "encountered:", ""]
    error = "CUDA runtime API error cudaErrorMemoryAllocation (2):"
    lines = [*raised(1, "RuntimeError: Critical error in pipeline:")]
    mine = [*lines, *(f"[rank1]: {line}" for line in [*message, error, "out of memory"])]
    found = died(1, *mine)
    assert (found.kind, found.rank) == (TroubleKind.GPU_MEMORY, 1)
    other = [*lines, *(f"[rank2]: {line}" for line in [*message, error])]
    assert died(1, *other).kind is TroubleKind.CRASH


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED",
        "RuntimeError: CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate`",
        "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
        "RuntimeError: Curand error CURAND_STATUS_ALLOCATION_FAILED",
    ],
)
def test_a_library_of_cuda_that_cannot_allocate_is_out_of_memory(error):
    assert died(1, *raised(2, error)).kind is TroubleKind.GPU_MEMORY
