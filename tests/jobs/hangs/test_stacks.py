"""Whom the ranks of a job wait for, by stacks that were told."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hpctl.jobs.hangs import stacks
from hpctl.jobs.hangs.stack_groups import (
    LINE,
    MOST_RANKS,
    NodeStacks,
    RankStack,
    StackFrame,
    diagnose_hang_from_rank_stacks,
    format_node_stacks,
    parse_node_stacks,
)
from hpctl.jobs.job_processes import JobProcess, read_job_process
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.vocabulary.trouble import HangPlace
from tests.waiting import until

C10D = "torch/distributed/distributed_c10d.py"
MAIN = (StackFrame("train", "train.py", 30, True), StackFrame("<module>", "train.py", 50, True))
REDUCE = (StackFrame("all_reduce", C10D, 3252), *MAIN)
BARRIER = (StackFrame("barrier", C10D, 4000), StackFrame("evaluate", "train.py", 9, True), *MAIN)
SEND, RECEIVE = ((StackFrame(name, C10D, 2753), *MAIN) for name in ("send", "recv"))
SLEEP = (StackFrame("clock_nanosleep"), StackFrame("load", "data.py", 12, True), *MAIN)
FSDP = (StackFrame("sleep_here", "model.py", 4, True), StackFrame("forward",
        "torch/nn/modules/module.py", 8),
        StackFrame("forward", "torch/distributed/fsdp/_fsdp.py", 8), *MAIN)  # fmt: skip
SYNC = (StackFrame("cudaStreamSynchronize"), StackFrame("log", "train.py", 77, True), *MAIN)
ITEM = (StackFrame("log", "train.py", 77, True), *MAIN)
SAVE = (
    StackFrame("write", "torch/distributed/checkpoint/filesystem.py", 5),
    StackFrame("save", C10D, 1),
    *MAIN,
)


def node(name, first, *stacks, **more) -> NodeStacks:
    ranks = [RankStack(first + n, 100 + n, "0", "S", frames=s) for n, s in enumerate(stacks)]
    return NodeStacks(name, ranks=tuple(ranks), **more)


@pytest.mark.parametrize(
    ("stacks", "culprits"),
    [
        pytest.param([REDUCE, REDUCE, SLEEP, REDUCE], [2], id="one never came"),
        pytest.param([REDUCE, SLEEP], [1], id="one of two"),
        pytest.param([REDUCE, SYNC, FSDP, SYNC], [2], id="inside a model that communicates"),
        pytest.param([ITEM, ITEM, SAVE, ITEM], [2], id="most are where nothing tells a collective"),
        pytest.param([REDUCE, BARRIER, BARRIER, BARRIER], [0], id="another branch"),
        pytest.param([BARRIER, REDUCE], [], id="two branches of two"),
        pytest.param([REDUCE, REDUCE, REDUCE], [], id="all wait"),
        pytest.param([SEND, RECEIVE, RECEIVE], [], id="stages of a pipeline"),
        pytest.param([SLEEP, ITEM, SAVE, FSDP], [], id="all elsewhere"),
    ],
)
def test_the_odd_one_out_is_named(stacks, culprits) -> None:
    verdict = diagnose_hang_from_rank_stacks(
        [node("n1", 0, *stacks[:2]), node("n2", 2, *stacks[2:])], ["n1", "n2"]
    )
    assert [one.rank for one in verdict.suspects] == culprits
    assert [one.node for one in verdict.suspects] == ["n1" if c < 2 else "n2" for c in culprits]


def test_a_verdict_names_the_jobs_own_line() -> None:
    (one,) = diagnose_hang_from_rank_stacks([node("n1", 0, REDUCE, REDUCE, SLEEP)]).suspects
    assert (one.function, one.file, one.line) == ("load", "data.py", 12)


def test_lines_numbers_and_what_is_below_a_collective_do_not_tell_stacks_apart() -> None:
    other = (
        StackFrame("wait", C10D, 1),
        StackFrame("all_reduce", C10D, 2),
        StackFrame("train", "/7/train.py", 3),
    )
    alike = (StackFrame("all_reduce", C10D, 9), StackFrame("train", "/b8/train.py", 4))
    assert len(diagnose_hang_from_rank_stacks([node("n1", 0, other, alike)]).groups) == 1


def test_ranks_that_are_stopped_unread_or_missing_are_reported() -> None:
    said = node("n1", 0, REDUCE, REDUCE, REDUCE, world=6)
    stopped = RankStack(3, 9, "0", "T", frames=REDUCE)
    unread = RankStack(4, 9, "0", "D", error="py-spy did not end")
    whole = NodeStacks("n1", 6, (*said.ranks, stopped, unread))
    verdict = diagnose_hang_from_rank_stacks([whole], ["n1"])
    assert [one.rank for one in verdict.suspects] == [5, 3, 4]
    assert "rank 3 on n1 is stopped by a signal" in verdict.text
    verdict = diagnose_hang_from_rank_stacks([whole], ["n1", "n2"])
    assert (verdict.silent, verdict.missing) == (("n2",), ())
    assert verdict.text.endswith("no answer from n2")
    nobody = diagnose_hang_from_rank_stacks([NodeStacks("n1", ranks=(unread,))])
    assert nobody.text == "no stack was read: py-spy did not end"


def test_a_monitor_in_a_step_beside_is_no_rank() -> None:
    monitor = NodeStacks("n1", ranks=(RankStack(0, 1, "1", "S", frames=SLEEP),))
    assert not diagnose_hang_from_rank_stacks(
        [node("n2", 0, REDUCE, REDUCE, REDUCE), monitor]
    ).suspects


def test_lines_of_nodes_may_be_mixed_and_torn() -> None:
    said = [node(f"n{n}", 8 * n, *[SLEEP] * 8, ras="\x1b[2J" * 400 + str(n)) for n in range(3)]
    told = [list(format_node_stacks(one)) for one in said]
    assert max(len(line) for one in told for line in one) <= LINE
    mixed = [*told[2], "noise", *reversed(told[0]), "stacks n9 0 1 !!", "stacks n1 x 1 eNo="]
    assert sorted(parse_node_stacks(mixed), key=lambda one: one.node) == [said[0], said[2]]
    assert parse_node_stacks([line.replace("stacks n0", "stacks n7") for line in told[0]]) == []


def test_what_a_node_says_is_bounded_and_printable() -> None:
    assert parse_node_stacks(format_node_stacks(NodeStacks("n1", ras="a" * 5_000_000))) == []
    evil = tuple(StackFrame("\x1b]0;x\x07" * 50, "e\nvil.py", 3, True) for _ in range(3))
    many = NodeStacks("n1", 2**60, tuple(RankStack(n, 1, "0", frames=evil) for n in range(5000)))
    verdict = diagnose_hang_from_rank_stacks(
        [many, node("n2", 10**9, REDUCE), node("n3", 70, *[REDUCE] * 40)]
    )
    assert sum(len(group.ranks) for group in verdict.groups) == MOST_RANKS + 40
    assert verdict.text.isprintable()
    assert len(verdict.text) < 2000


def test_a_node_where_no_rank_is_expected_is_idle_and_no_error() -> None:
    """sandbox-on-gpu.json of the H200: two ranks on two of three nodes, one kept as a spare."""
    answers = [node("n1", 0, REDUCE), node("n2", 1, REDUCE), NodeStacks("n3")]
    asked = ["n1", "n2", "n3"]
    spare = diagnose_hang_from_rank_stacks(answers, asked, ["n1", "n2"], spares=True)
    assert (spare.errors, spare.idle) == ((), ("n3",))
    assert spare.text.endswith("; n3: spare, idle")
    unknown = diagnose_hang_from_rank_stacks(answers, asked)
    assert (unknown.errors, unknown.idle) == ((), ("n3",))
    assert unknown.text.endswith("; no process of the job runs on n3")


def test_a_node_where_ranks_are_expected_and_none_runs_is_an_error() -> None:
    answers = [node("n1", 0, REDUCE), NodeStacks("n2"), NodeStacks("n3")]
    found = diagnose_hang_from_rank_stacks(answers, ["n1", "n2", "n3"], ["n1", "n2"], spares=True)
    assert found.errors == ("no Python process of the job runs on n2",)
    assert found.idle == ("n3",)
    nobody = diagnose_hang_from_rank_stacks([NodeStacks("n1"), NodeStacks("n2")], ["n1", "n2"])
    assert nobody.errors == ("no Python process of the job runs on n[1-2]",)


def test_a_rank_whose_answer_has_no_place_on_the_disk_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rank = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}
    command = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
    process = subprocess.Popen(command, env={**os.environ, **rank}, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        found = stacks.read_node_stacks("1", os.geteuid(), "n1", "", native=False)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    (stack,) = found.ranks
    assert (stack.rank, stack.pid, stack.frames) == (0, process.pid, ())
    assert "cannot run py-spy" in stack.error


ENGINE = (StackFrame("_engine_run_backward", "torch/autograd/graph.py", 979), *MAIN)


def test_a_rank_that_sleeps_in_the_backward_pass_waits_for_the_others() -> None:
    (one,) = diagnose_hang_from_rank_stacks([node("n1", 0, ENGINE, SLEEP)]).suspects
    assert one.rank == 1
    computes = RankStack(0, 9, "0", "R", frames=ENGINE)
    busy = NodeStacks("n1", ranks=(computes, RankStack(1, 9, "0", "S", frames=SLEEP)))
    assert diagnose_hang_from_rank_stacks([busy]).suspects == ()


def test_a_stopped_rank_is_named_where_all_are_elsewhere() -> None:
    stopped = RankStack(0, 9, "0", "T", frames=ITEM)
    runs = RankStack(1, 9, "0", "R", frames=SLEEP)
    (one,) = diagnose_hang_from_rank_stacks([NodeStacks("n1", ranks=(stopped, runs))]).suspects
    assert (one.rank, one.why.partition(";")[0]) == (0, "is stopped by a signal")


@pytest.mark.parametrize(
    ("wchan", "waits"),
    [("wait_for_partner", True), ("rpc_wait_bit_killable", True), ("flock_lock_inode_wait", True),
     ("request_wait_answer", True), ("anon_pipe_write", True), ("pipe_read", False),
     ("futex_do_wait", False), ("hrtimer_nanosleep", False)],
)  # fmt: skip
def test_what_the_kernel_waits_for_tells_a_file(wchan, waits) -> None:
    odd = RankStack(1, 9, "0", "S", wchan, ITEM)
    rest = (RankStack(0, 8, "0", "S", frames=REDUCE), RankStack(2, 7, "0", "S", frames=REDUCE))
    (one,) = diagnose_hang_from_rank_stacks([NodeStacks("n1", ranks=(odd, *rest))]).suspects
    assert one.why.startswith(f"waits for a file in the kernel ({wchan})") is waits


@pytest.mark.parametrize("file", ["torch/serialization.py", "torch/utils/data/dataloader.py"])
def test_library_code_above_a_rank_s_place_is_named(file) -> None:
    inside = (
        StackFrame("_recv", "multiprocessing/connection.py", 378),
        StackFrame("f", file, 5),
        *MAIN,
    )
    (one,) = diagnose_hang_from_rank_stacks([node("n1", 0, REDUCE, inside)]).suspects
    assert f"called by {file.removesuffix('/dataloader.py')}" in one.why


def start_process(**more) -> JobProcess:
    """A rank that was started an hour ago."""
    env = {"TORCH_FR_DUMP_TEMP_FILE": more.pop("prefix")}
    known = {"owner": os.geteuid(), "started": time.time() - 3600.0, **more}
    return JobProcess(pid=1, parent=0, state="S", env=env, python=True, **known)


@pytest.mark.parametrize(
    ("age_s", "changes", "own"),
    [
        (60, {}, True),
        (3602, {}, True),  # a file server's clock is a little behind
        (7200, {}, False),
        (60, {"owner": 65534}, False),
    ],
)
def test_a_dump_is_the_rank_s_only_if_it_is_its_user_s_and_younger(
    tmp_path, age_s, changes, own
) -> None:
    """Jobs of a node dump to the same name unless they set another."""
    dump = tmp_path / "nccl_trace_rank_3"
    dump.touch()
    os.utime(dump, (time.time() - age_s,) * 2)
    process = start_process(prefix=f"{tmp_path}/nccl_trace_rank_", **changes)
    assert stacks.request_flight_recorder_dump(process, 3) == (str(dump) if own else "")


def test_the_start_of_a_process_is_known() -> None:
    child = subprocess.Popen(["sleep", "60"], env={"SLURM_JOB_ID": "7", "PATH": os.environ["PATH"]})
    try:
        until(lambda: read_job_process(child.pid, None, "7") is not None, seconds=10)
        assert abs(read_job_process(child.pid, None, "7").started - time.time()) < 15
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("there", "missing"), [(3, 1), (2, 2), (1, 0)])
def test_missing_ranks_are_named_where_most_ranks_are_there(there, missing) -> None:
    """Where most have no process of Python, their program is none of Python, or has other names."""
    verdict = diagnose_hang_from_rank_stacks([node("n1", 0, *[REDUCE] * there, world=4)], ["n1"])
    assert len(verdict.suspects) == missing
    assert len(verdict.missing) == 4 - there
    said = "3 of 4 ranks have no Python process that names its rank"
    assert (said in verdict.errors) == (missing == 0)


LOCK = (StackFrame("_poll_until_acquired", "filelock/_acquire.py", 177), StackFrame("acquire",
        "filelock/_lock.py", 195), StackFrame("load", "data.py", 12, True), *MAIN)  # fmt: skip
LOADER = (StackFrame("_try_get_data", "torch/utils/data/dataloader.py", 1251), *MAIN)
COPY = (StackFrame("copyfile", "shutil.py", 256), StackFrame("stage", "data.py", 9, True), *MAIN)
QUEUE = (StackFrame("_poll", "multiprocessing/connection.py", 440), StackFrame("get",
         "multiprocessing/queues.py", 113), StackFrame("feed", "data.py", 9, True),
         *MAIN)  # fmt: skip
PATH = (StackFrame("Path.open", "pathlib.py", 1045), StackFrame("read", "data.py", 9, True), *MAIN)


@pytest.mark.parametrize(
    ("stack", "state", "wchan", "place"),
    [
        (SLEEP, "S", "", HangPlace.CODE),
        (SLEEP, "T", "do_signal_stop", HangPlace.STOPPED),
        (SLEEP, "D", "nfs_wait", HangPlace.FILES),
        (SLEEP, "S", "fuse_simple_request", HangPlace.FILES),
        (SAVE, "S", "", HangPlace.FILES),
        (PATH, "S", "", HangPlace.FILES),
        (LOCK, "S", "hrtimer_nanosleep", HangPlace.FILES),
        (LOADER, "S", "", HangPlace.LOADER),
        (COPY, "S", "", HangPlace.FILES),
        (COPY, "R", "", HangPlace.CODE),
        (QUEUE, "S", "", HangPlace.CODE),
        ((), "Z", "", HangPlace.GONE),
    ],
)
def test_the_place_of_a_rank_is_known_by_its_state_and_stack(stack, state, wchan, place) -> None:
    odd = RankStack(2, 102, "0", state, wchan, stack)
    rest = node("n1", 0, REDUCE, REDUCE)
    (one,) = diagnose_hang_from_rank_stacks([NodeStacks("n1", ranks=(*rest.ranks, odd))]).suspects
    assert (one.rank, one.hang_place) == (2, place)


def test_a_rank_that_waits_for_a_process_that_does_not_run_is_in_its_loader() -> None:
    odd = RankStack(2, 102, "0", "S", "", QUEUE, children=("12 (dead)",))
    rest = node("n1", 0, REDUCE, REDUCE)
    (one,) = diagnose_hang_from_rank_stacks([NodeStacks("n1", ranks=(*rest.ranks, odd))]).suspects
    assert (one.rank, one.hang_place) == (2, HangPlace.LOADER)


@pytest.mark.parametrize(
    ("command", "own"),
    [
        (("python3", "/opt/hpctl/bin/hpctl", "run", "--", "srun"), True),
        (("python3", "-m", "hpctl", "run"), True),
        (("python3", "-I", "-m", "hpctl", "run"), True),
        (("python3", *SAFE_PATH, "hpctl", "run"), True),
        (("python3", "-m", "hpctl.jobs.elastic"), False),
        (("python3", "train.py", "hpctl"), False),
        (("python3", "-c", "import hpctl"), False),
        ((), False),
    ],
)
def test_a_command_of_hpctl_is_no_rank(command, own, monkeypatch) -> None:
    """The supervisor has SLURM_PROCID=0 of the batch script. Where the ranks are no Python
    processes it would be rank 0."""
    env = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
    one = JobProcess(pid=1, owner=0, parent=0, state="S", env=env, python=True, command=command)
    monkeypatch.setattr(stacks, "list_process_ids", lambda: [1])
    monkeypatch.setattr(stacks, "read_job_process", lambda *_: one)
    assert one.is_hpctl_command is own
    assert (stacks.find_rank_processes("7", None, "n1", "") == {}) is own
