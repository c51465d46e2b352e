"""The launcher's smaller parts: words, place, error files, checkpoint choice, wire, account."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from hpctl.checkpoints.resume import (
    NoCompleteCheckpointError,
    ResumePoint,
    find_resume_point_of_rank_generation,
)
from hpctl.jobs import elastic
from hpctl.jobs.elastic import controller, options
from hpctl.jobs.elastic.group import RankFailure, read_rank_failure
from hpctl.jobs.elastic.launcher import build_rank_environment, list_descendant_processes
from hpctl.jobs.elastic.options import (
    LauncherLocation,
    parse_launcher_options,
    parse_rank_command,
    read_launcher_location,
)
from hpctl.jobs.job_processes import has_signal_handler
from hpctl.slurm.node_address import find_node_address
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError
from tests.checkpoints.checkpoint_files import generic, write

SECRET = "0123456789abcdef"


@pytest.mark.parametrize(
    ("words", "runs", "script"),
    [
        ("train.py --lr 1", "/py -u train.py --lr 1", "train.py"),
        ("-m pkg.train x", "/py -u -m pkg.train x", ""),
        ("python3.11 -u train.py", "python3.11 -u train.py", "train.py"),
        ("python3 -X dev train.py", "python3 -X dev train.py", ""),
        ("./train x", "./train x", ""),
    ],
)
def test_a_script_a_module_and_a_command(monkeypatch, words, runs, script):
    monkeypatch.setattr(options, "find_default_python_interpreter", lambda: "/py")
    found = parse_rank_command(words.split())
    assert (found.argv, found.script) == (tuple(runs.split()), script)


def test_what_command_gives_is_what_the_parser_reads():
    line = elastic.build_rank_launcher_command(
        ["train.py", "--max-restarts", "9"], 4, final_exit_codes=(93, 5)
    )
    assert line[1:4] == [*SAFE_PATH, "hpctl.jobs.elastic"]
    read = parse_launcher_options(line[4:], {elastic.RESULT: "/x/account.json"})
    assert read.program.argv[2:] == ("train.py", "--max-restarts", "9")
    assert (read.nproc, read.result) == (4, Path("/x/account.json"))
    assert (read.limits.max_restarts, read.limits.final_exit_codes) == (3, {93, 5})


def test_a_program_is_begun_again_in_its_process_where_it_is_python():
    line = elastic.build_rank_launcher_command(["-m", "train", "--lr=1"], 2, in_process=True)
    argv = parse_launcher_options(line[4:], {}).program.argv
    assert argv[1:] == ("-u", options.IN_PROCESS, "-m", "train", "--lr=1")
    with pytest.raises(HpctlError, match="can start only a Python program"):
        parse_launcher_options(
            elastic.build_rank_launcher_command(["./train"], in_process=True)[4:], {}
        )


def test_without_nvidia_s_library_nothing_is_started_again_and_again():
    # -S: nothing that is installed.
    command = [sys.executable, "-S", options.IN_PROCESS, "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 93
    assert "pip install nvidia-resiliency-ext" in done.stderr


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"CUDA_VISIBLE_DEVICES": "0,3,5"}, 3),
        ({"SLURM_GPUS_ON_NODE": "", "CUDA_VISIBLE_DEVICES": ""}, 1),
    ],
)
def test_auto_is_as_many_as_gpus(environment, count):
    assert (
        parse_launcher_options(
            elastic.build_rank_launcher_command(["train.py"])[3:], environment
        ).nproc
        == count
    )


STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "ip-127-0-1-[5-6]",
    "SLURMD_NODENAME": "ip-127-0-1-6", elastic.SECRET: SECRET,
}  # fmt: skip


def test_srun_says_where_we_are():
    assert read_launcher_location(STEP) == LauncherLocation(
        1, 2, "ip-127-0-1-6", "127.0.1.5", "7.3", SECRET
    )


def test_two_tasks_on_a_node_are_refused_with_the_fix():
    with pytest.raises(HpctlError) as caught:
        read_launcher_location({**STEP, "SLURM_NTASKS": "16"})
    assert "--ntasks-per-node=1" in caught.value.hint


@pytest.mark.parametrize("secret", ["", "short"])
def test_several_nodes_need_a_secret(secret):
    with pytest.raises(HpctlError) as caught:
        read_launcher_location({**STEP, elastic.SECRET: secret})
    assert "export HPCTL_ELASTIC_SECRET=" in caught.value.hint


SCONTROL = """#!/bin/sh
echo "$@" >>{asked}
[ "$4" = gpu-compute-3 ] || {{ echo "Node $4 not found"; exit 1; }}
echo "NodeName=gpu-compute-33 NodeAddr=10.9.9.9 State=IDLE"
echo "NodeName=gpu-compute-3 Arch=x86_64 NodeAddr=10.9.8.7 NodeHostName=x State=IDLE Comment=a"
"""


def test_a_node_is_reached_by_the_address_that_its_name_spells_or_that_slurm_has(
    tmp_path, monkeypatch
):
    asked = tmp_path / "asked"
    (tmp_path / "scontrol").write_text(SCONTROL.format(asked=asked))
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (find_node_address("ip-10-9-8-7"), find_node_address("10.9.8.6")) == (
        "10.9.8.7",
        "10.9.8.6",
    )
    assert not asked.exists(), "a name that spells its address costs slurmctld nothing"
    assert (find_node_address("gpu-compute-3"), find_node_address("localhost")) == (
        "10.9.8.7",
        "localhost",
    )
    assert asked.read_text() == "-o show node gpu-compute-3\n-o show node localhost\n"
    (tmp_path / "scontrol").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_node_address("gpu-compute-3") == "gpu-compute-3"


ORDER = {
    "start": 2, "base": 4, "world": 8, "nodes": 2, "address": "a", "port": 1, "resume": "",
    "max_restarts": 3,
}  # fmt: skip


def test_a_ranks_environment_has_all_of_torchs_names():
    """The list of torch's own agent, read from its source: an import of torch takes seconds."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("TORCH NOT TESTED HERE: torch does not import")
    agent = "distributed/elastic/agent/server/local_elastic_agent.py"
    source = (Path(torch.origin).parent / agent).read_text()
    (start,) = re.findall(r"def _start_workers.*?return", source, re.DOTALL)
    names = set(re.findall(r'^ +"([A-Z_]+)": ', start, re.MULTILINE))
    assert {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} <= names
    here = LauncherLocation(1, 2, "h", "a", "7.3", SECRET)
    old = {"HPCTL_RESUME_FROM": "/old", "RANK": "9"}
    answer = build_rank_environment(old, ORDER, here, local=1, locals_=4, error_file=Path("/e"))
    assert names <= set(answer)
    assert (answer["RANK"], answer["OMP_NUM_THREADS"]) == ("5", "1")
    assert "HPCTL_RESUME_FROM" not in answer


def failed(directory: Path, text: str) -> RankFailure:
    (directory / "e.json").write_text(text)
    return read_rank_failure(3, "n", 1, 5.0, directory / "e.json")


def raised(directory: Path, message: str, trace: str) -> RankFailure:
    extra = {"py_callstack": trace, "timestamp": "1"}
    return failed(directory, json.dumps({"message": {"message": message, "extraInfo": extra}}))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"message": 7}', '{"message": {"message": null}}', "\x00"]
)
def test_an_error_file_that_says_nothing(tmp_path, text):
    assert failed(tmp_path, text).why == "rank 3 on n ended with exit code 1"


def test_a_long_traceback_keeps_its_first_line_and_its_end(tmp_path):
    lines = ["Traceback (most recent call last):", *["  File x"] * 5000, "KeyError: 'w'"]
    failure = raised(tmp_path, "KeyError: 'w'", "\n".join(lines))
    assert (failure.exception, failure.message) == ("KeyError", "'w'")
    kept = failure.trace.splitlines()
    assert (kept[0], kept[-1], set(kept[1:-1])) == (lines[0], lines[-1], {"  File x"})
    assert len(failure.trace) <= 4000


def test_undecodable_file_name_is_sent_and_kept(tmp_path):
    text = "FileNotFoundError: [Errno 2] No such file: 'caf\udce9.bin'"
    trace = f'Traceback (most recent call last):\n  File "t.py", line 3, in f\n{text}'
    generation = controller.RankGenerationRecord(
        0, 0.0, 1.0, None, "", (raised(tmp_path, text, trace),)
    )
    assert b"caf\\\\udce9.bin" in msgspec.json.encode(
        controller.find_generation_failure(generation)
    )


def test_nothing_whole_is_refused_unless_this_step_began_with_nothing(tmp_path):
    there = {"HPCTL_CHECKPOINT_DIR": str(tmp_path)}
    assert find_resume_point_of_rank_generation(there, 0, was_empty=False) == ResumePoint()
    write(tmp_path, {"step-1/manifest.json": b"{}"})
    with pytest.raises(NoCompleteCheckpointError, match="step-1"):
        find_resume_point_of_rank_generation(there, 1, was_empty=False)
    assert find_resume_point_of_rank_generation(there, 1, was_empty=True).path is None
    scratch = {**there, "HPCTL_RESUME": "scratch"}
    assert find_resume_point_of_rank_generation(scratch, 0, was_empty=False) == ResumePoint(
        judged=False
    )
    with pytest.raises(NoCompleteCheckpointError):
        find_resume_point_of_rank_generation(scratch, 1, was_empty=False)


def test_tiers_are_looked_at_too(tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    for tier, step in ((near, 7), (far, 5)):
        generic(tier, f"step-{step}", step)
    there = {"HPCTL_CHECKPOINT_DIR": str(far), "HPCTL_TIERS": json.dumps([f"local:{near}"])}
    assert find_resume_point_of_rank_generation(there, 1, was_empty=False).path == str(
        near / "step-7"
    )
    # The other node has nothing of this one's disk.
    assert find_resume_point_of_rank_generation(there, 1, was_empty=False, nodes=2).path == str(
        far / "step-5"
    )


def test_tiers_that_are_no_list_are_no_reason_to_overlook_one(tmp_path):
    there = {"HPCTL_CHECKPOINT_DIR": str(tmp_path), "HPCTL_TIERS": "local:/nvme"}
    with pytest.raises(
        HpctlError,
        match=("the environment variable HPCTL_TIERS is not a JSON list of places: local:/nvme"),
    ):
        find_resume_point_of_rank_generation(there, 0, was_empty=False)


def test_a_process_may_have_a_name_that_is_no_text():
    code = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, b'caf\\xc3', 0, 0, 0)\n"  # PR_SET_NAME
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as named:
        named.stdout.readline()
        assert named.pid in list_descendant_processes(os.getpid())
        assert has_signal_handler(named.pid, signal.SIGINT)
