"""Why a script without `hpctl run` failed, as its log tells: recorded logs of real Slurm jobs.

`script_ends/` holds logs of jobs of two nodes, n1 and n2, each rank of which ran
tests/jobs/dying_rank.py: under plain srun, and under real torchrun (2.13) started by srun.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctl.jobs.run import script_end
from hpctl.jobs.run.log_cause import find_script_end_cause
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import T0 as NOW
from tests.process import run_text
from tests.tables import beside

LOGS = Path(__file__).with_name("script_ends")
CASES = beside(__file__, "script_end_cases.yaml")
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


def cause(code: int, text: str, **environ: str) -> Trouble | None:
    return find_script_end_cause(code, text.encode(), {**JOB, **environ}, NOW)


@pytest.mark.parametrize(("log", "code", "kind", "node", "rank", "why"), CASES["recorded"])
def test_the_cause_rank_and_node_of_a_recorded_end(log, code, kind, node, rank, why):
    found = cause(code, (LOGS / f"{log}.txt").read_text())
    assert (found.kind, found.node, found.rank) == (kind, node, rank)
    assert found.why == why


@pytest.mark.parametrize(("log", "code", "kind", "node", "rank", "why"), CASES["recorded"])
def test_the_labels_of_srun_change_nothing(log, code, kind, node, rank, why):
    task = 0 if log.startswith("torchrun-") else rank  # of launchers the label is no rank
    lines = (LOGS / f"{log}.txt").read_text().splitlines(keepends=True)
    labeled = [
        line if line.startswith(("srun: ", "slurmstepd")) else f"{task}: {line}" for line in lines
    ]
    found = cause(code, "".join(labeled))
    assert (found.kind, found.node, found.rank, found.why) == (kind, node, rank, why)


def test_every_recorded_end_has_its_row():
    assert {row[0] for row in CASES["recorded"]} == {path.stem for path in LOGS.glob("*.txt")}


@pytest.mark.parametrize(("text", "code"), CASES["says no more"])
def test_log_without_more_than_the_exit_code_names_no_cause(text, code):
    assert cause(code, text) is None


@pytest.mark.parametrize(("text", "code", "kind", "why"), CASES["one line"])
def test_single_line_names_the_cause(text, code, kind, why):
    found = cause(code, text)
    assert (found.kind, found.why) == (kind, why)


def test_a_program_of_a_job_of_one_node_is_on_it():
    text = 'Traceback (most recent call last):\n  File "/u/a.py", line 1, in main\nKeyError: 1\n'
    found = cause(1, text, SLURM_JOB_NODELIST="n5")
    assert (found.node, found.rank, found.why) == ("n5", None, "KeyError in main (a.py): 1")
    assert cause(1, text, SLURM_JOB_NODELIST="n[").node is None
    assert cause(1, text, HPCTL_POLICY="{").why == found.why


def test_the_first_error_of_a_large_job_is_read():
    """A traceback of Lightning's has more than a hundred frames, and each rank prints one."""
    frame = (
        '[rank{}]:   File "/opt/lib/python3.11/site-packages/lightning/call.py", line 7, in run\n'
    )

    def say(rank: int, error: str) -> str:
        header = f"[rank{rank}]: Traceback (most recent call last):\n"
        return header + frame.format(rank) * 120 + f"[rank{rank}]: {error}\n"

    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:7"
    ranks = (say(rank, lost) for rank in range(256) if rank != 41)
    found = cause(1, say(41, "KeyError: 'image'") + "".join(ranks))
    assert (found.rank, found.kind) == (41, TroubleKind.CRASH)
    assert "KeyError" in found.why


@pytest.mark.parametrize(("task", "node"), [(0, None), (1, "n2")])
def test_a_task_that_starts_several_ranks_is_not_the_rank_of_its_number(task, node):
    """The GPU of n1 may be the broken one: its task 0 has started rank 1, too."""
    text = (
        "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        f"srun: error: n{task + 1}: task {task}: Exited with exit code 1\n"
        f"srun: error: n{2 - task}: task {1 - task}: Terminated\n"
    )
    found = cause(1, text)
    assert (found.kind, found.rank, found.node) == (TroubleKind.CUDA, 1, node)


def test_a_node_that_is_none_of_the_job_s_is_not_named():
    found = cause(1, "srun: error: n9: task 1: Exited with exit code 3\n")
    assert (found.node, found.rank, found.why) == (None, 1, "rank 1: it ended with exit code 3")


REPORT = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  host      : {host}
  rank      : {rank} (local_rank: 1)
  exitcode  : 3 (pid: 4711)
  error_file: <N/A>
"""
AGENTS = "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Terminated\n"


@pytest.mark.parametrize(
    ("host", "rank", "node"),
    [
        ("n2.cluster.example", 9, "n2"),
        ("n2", 0, "n2"),
        ("n1", 1, "n1"),
        ("localhost", 9, "n1"),
        ("another-name", 9, "n1"),
    ],
)
def test_the_host_in_torchrun_s_report_goes_before_the_order_of_its_agents(host, rank, node):
    found = cause(143, REPORT.format(host=host, rank=rank) + AGENTS)
    assert (found.node, found.rank) == (node, rank)
    assert found.why == f"rank {rank} on {node}: it ended with exit code 3"


def test_a_rank_that_did_not_come_is_where_torchrun_s_report_says():
    text = (LOGS / "torchrun-nccl-timeout.txt").read_text()
    found = cause(1, text + "  host      : n1\n  rank      : 1 (local_rank: 0)\n")
    assert (found.kind, found.rank, found.node) == ("hang", 1, "n1")


def test_what_srun_writes_between_the_lines_of_a_traceback_is_none_of_it():
    begin, end = "Traceback (most recent call last):\n", "KeyError: 1\n"
    frame = '  File "/u/a.py", line 1, in main\n    x[1]\n'
    srun = "srun: error: n2: task 1: Exited with exit code 1\n"
    step = "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-27T10:00:00 ***\n"
    for text in (begin + srun + frame + step + end, begin + frame + srun + step + end):
        assert cause(143, text).why == "rank 1 on n2: KeyError in main (a.py): 1"


@pytest.mark.parametrize(
    "text",
    [
        "\0" * 5000,
        "srun: error: " + "n" * 5000 + ": tasks [" + "1-," * 5000 + "]: Killed\n",
        "Root Cause (first observed failure):\n  rank : 99999999999999999999\n  exitcode: -x\n",
        "  host      : "
        + "a." * 4000
        + "\n  rank      : 1 (local_rank: 0)\ntorch.distributed.elastic",
        '  File "' + "x" * 90000 + '", line 9\nSyntaxError: ' + "y" * 90000,
        "[rank1]: " * 20000,
        "\ud800\udfff\u202e\x1b[31m" * 100,
    ],
)
def test_a_hostile_log_harms_nothing(text):
    block = text.encode("utf-8", "surrogatepass")
    found = find_script_end_cause(1, block * 3, JOB, NOW)
    assert found is None or len(found.why) < 2000


def read(tmp_path: Path, began: int, code: str = "1", **environ: str) -> str:
    """What the reader writes of a run whose log is `job.log` and began at a byte of it."""
    log = tmp_path / "job.log"
    status = log.stat()
    start = f"{status.st_dev}:{status.st_ino}:{began}\n" * 2
    command = [sys.executable, "-m", "hpctl.jobs.run.script_end", code]
    env = {**os.environ, **JOB, script_end.LOG_START: start, "HPCTL_AGENT_ENV": "/nowhere"}
    before = log.read_text()
    with log.open("a") as stream:
        done = subprocess.run(
            command, env={**env, **environ}, stdout=stream, stderr=stream, timeout=60, check=False
        )
    assert done.returncode == 0
    return log.read_text().removeprefix(before)


RAISED = 'Traceback (most recent call last):\n  File "/u/a.py", line 1, in main\nKeyError: 1\n'


def test_only_this_run_s_part_of_the_log_is_read(tmp_path):
    old = RAISED.replace("KeyError: 1", "ValueError: of the run before")
    (tmp_path / "job.log").write_text(old + RAISED)
    assert "KeyError in main (a.py): 1" in read(tmp_path, len(old))
    assert read(tmp_path, (tmp_path / "job.log").stat().st_size) == ""
    assert "ValueError in main" in read(tmp_path, 10**9), "a log that was truncated is read whole"


def test_a_run_that_slurm_ended_is_no_failure(tmp_path):
    for who in ("slurmstepd", "slurmstepd-n1"):
        order = f"{who}: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-27T10:00:00 ***\n"
        (tmp_path / "job.log").write_text(RAISED + order)
        assert read(tmp_path, 0) == ""
    (tmp_path / "job.log").write_text(order.replace("JOB 7", "JOB 8") + RAISED)
    assert "KeyError" in read(tmp_path, 0), "another job's line says nothing of this one"


def test_of_a_large_log_the_end_is_read(tmp_path):
    (tmp_path / "job.log").write_text("x" * 79 + "\n")
    with (tmp_path / "job.log").open("a") as log:
        log.write("step 1 loss 2.0\n" * (script_end.MOST_BYTES // 10))
        log.write(RAISED)
    with (tmp_path / "job.log").open() as log:
        fd = log.fileno()
        assert len(script_end.read_batch_script_output("", (fd, fd))) == script_end.MOST_BYTES
    assert "KeyError" in read(tmp_path, 0)


@pytest.mark.parametrize("began", ["", "x", "1:2", "a:b:c", "1:2:" + "9" * 30, "-1:-1:-1"])
def test_a_start_that_means_nothing_is_no_start(tmp_path, began):
    path = tmp_path / "log"
    path.write_text("a line without an end")
    with path.open() as log:
        assert (
            script_end.read_batch_script_output(began, (log.fileno(),))
            == b"a line without an end\n"
        )


def test_what_is_no_file_is_not_read():
    ends = os.pipe()
    try:
        assert script_end.read_batch_script_output("", ends) == b""
    finally:
        for fd in ends:
            os.close(fd)
    assert script_end.read_batch_script_output("", (10**6,)) == b""
    assert (
        run_text([sys.executable, "-m", "hpctl.jobs.run.script_end", "no number"]).returncode == 0
    )
