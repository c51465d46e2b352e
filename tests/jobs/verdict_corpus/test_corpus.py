"""What the recorded runs hold: every kind, its own sign in the evidence, and no machine's name."""

import json
import pickle
import re
from collections import Counter
from itertools import combinations

import pytest

from hpctl.jobs.hangs.flight_files import parse_flight_recorder_dump
from hpctl.jobs.hangs.stack_groups import parse_node_stacks
from tests.jobs.verdict_corpus.__main__ import PARTS
from tests.jobs.verdict_corpus.cases import CAUSES
from tests.jobs.verdict_corpus.evidence import read_case
from tests.jobs.verdict_corpus.pack import archive_of, load_truth, read_archive

RUNS = {part: read_archive(archive_of(part)) for part in PARTS}
EVERY = {name: files for runs in RUNS.values() for name, files in runs.items()}

# In two parts, so that this file does not hold them either.
MACHINE = re.compile(rb"/wo" rb"rk/|/tmp/|/root\b|wt-|verdict_corpus")


def count_kinds(runs):
    return Counter(load_truth(files)["kind"] for files in runs.values())


def read_log(files):
    return files["job.log"].decode()


def list_ranks(files):
    lines = files.get("stacks.txt", b"").decode().splitlines()
    return {rank.rank: rank for node in parse_node_stacks(lines) for rank in node.ranks}


def test_the_parts_hold_every_case():
    for part, cases in PARTS.items():
        assert set(RUNS[part]) == {case.name for case in cases}
        assert len(RUNS[part]) >= 35
        assert set(count_kinds(RUNS[part])) == set(CAUSES)
    assert min(count_kinds(EVERY).values()) >= 10


def test_the_parts_share_no_program_and_no_code_that_fails():
    used = [{c.program for c in cases} | {c.part for c in cases} for cases in PARTS.values()]
    for one, other in combinations(used, 2):
        assert one & other <= {""}


def test_the_runs_of_a_kind_differ():
    every = [case for cases in PARTS.values() for case in cases]
    for kind in CAUSES:
        rows = [case for case in every if case.kind == kind]
        assert len({(case.nodes, case.rank, case.launcher) for case in rows}) == len(rows)
        assert len({case.launcher for case in rows}) >= 2


@pytest.mark.parametrize("part", PARTS)
def test_an_archive_names_no_path_of_a_machine(part):
    found = []
    for name, files in RUNS[part].items():
        for file, raw in files.items():
            found += [f"{name}/{file}: {text!r}" for text in MACHINE.findall(decode(file, raw))]
    assert found == []


def decode(file, raw):
    """The bytes that a reader of the evidence sees: stacks are packed into their lines."""
    if file == "stacks.txt":
        return repr(parse_node_stacks(raw.decode().splitlines())).encode()
    return raw


def test_the_archives_are_small():
    """2.1 KB a run: a part of 40 runs is 84 KB."""
    assert sum(archive_of(part).stat().st_size for part in PARTS) < 2_100 * len(EVERY)


RECEIVE_ONLY = {"gil_held-17", "slow_rank-14"}
"""Runs whose parameter server only receives from any rank, which gloo's recorder does not note."""


@pytest.mark.parametrize("name", EVERY)
def test_dumps_and_stacks_are_read(name):
    files, world = EVERY[name], sum(json.loads(EVERY[name]["case.json"])["nodes"])
    for file, raw in files.items():
        if file.startswith("flight/"):
            dump = parse_flight_recorder_dump(int(file[-1]), raw)
            assert dump.entries or name in RECEIVE_ONLY, file
            assert pickle.loads(raw)["version"].startswith("2.")
    if "stacks.txt" in files:
        assert list_ranks(files).keys() <= set(range(world))
        assert list_ranks(files)


SIGNS = {
    "exception": r"(ValueError|KeyError|RuntimeError: mat1|LossDivergedError|IndexError"
    r"|AssertionError|AttributeError|ZeroDivisionError|CalledProcessError|JSONDecodeError"
    r"|TypeError|RuntimeError: Trying to resize storage|train: error"
    r"|RuntimeError: Error\(s\) in loading state_dict|RuntimeError: The size of tensor a|ReadError"
    r"|RuntimeError: Expected to have finished reduction|RuntimeError: probability tensor)\b",
    "device_memory": r"OutOfMemoryError: CUDA out of memory\. Tried to allocate"
    r"|AcceleratorError: CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Cuda failure 2 'out of memory'|Triton Error \[CUDA\]: out of memory"
    r"|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
    "dead_loader": r"DataLoader worker \(pid\S* \d+\) (is killed by signal: |exited unexpectedly)"
    r"|DataLoader timed out after",
    "disk_full": r"No space left on device|File too large|unexpected pos \d+ vs \d+",
    "wrong_shape": r"terminate called after throwing an instance of 'gloo::EnforceNotMet'"
    r"|Detected mismatch between collectives on ranks",
}
"""What the log of a kind says, where a run of it did not hang."""


def list_runs(*kinds):
    return [name for name, files in EVERY.items() if load_truth(files)["kind"] in kinds]


SIGN_CUT_OFF = {"device_memory-16"}
"""Runs of which the end of the log, which `hpctl run` keeps, has only what other ranks wrote."""


@pytest.mark.parametrize("name", list_runs(*SIGNS))
def test_the_log_shows_the_failure(name):
    files = EVERY[name]
    truth = load_truth(files)
    if json.loads(files["run.json"])["hung"]:
        assert list_ranks(files)[truth["rank"]].children
    else:
        shown = re.search(SIGNS[truth["kind"]], read_log(files))
        assert (shown is None) == (name in SIGN_CUT_OFF)


KILLS = {
    "torchrun": "(SIGKILL)",
    "spawn": "terminated with signal SIGKILL",
    "deepspeed": "exits with return code = -9",
    "accelerate": "(SIGKILL)",
    # Lightning says nothing where its first rank fails before it looks: the others lose a peer.
    "lightning": "by peer",
}
"""What a launcher says of a process that was killed."""


@pytest.mark.parametrize("name", list_runs("killed"))
def test_a_killed_rank_ends_by_sigkill(name):
    files = EVERY[name]
    first = json.loads(files["run.json"])["ends"][0]
    launcher = json.loads(files["case.json"]).get("launcher")
    if launcher is not None:
        assert KILLS[launcher] in read_log(files)
    else:
        assert (first["task"], first["code"]) == (load_truth(files)["rank"], -9)


@pytest.mark.parametrize("name", list_runs("stopped"))
def test_a_stopped_rank_has_the_kernels_state(name):
    ranks = list_ranks(EVERY[name])
    stopped = [number for number, rank in ranks.items() if rank.state == "T"]
    assert stopped == [load_truth(EVERY[name])["rank"]]


@pytest.mark.parametrize("name", list_runs("gil_held"))
def test_a_rank_that_holds_the_gil_writes_no_dump(name):
    files = EVERY[name]
    dumped = {int(file[-1]) for file in files if file.startswith("flight/")}
    # The others' first dump takes long on a busy machine: not every run has them all.
    assert load_truth(files)["rank"] not in dumped
    # A process of torch.multiprocessing.spawn does not say which rank it is.
    shown = load_truth(files)["rank"] in list_ranks(files)
    assert shown or read_case(files).launcher == "spawn"


@pytest.mark.parametrize("name", list_runs("host_memory"))
def test_a_rank_without_memory_says_so_or_the_kernel_does(name):
    files = EVERY[name]
    kernel = json.loads(files["run.json"])["kernel"]
    bounded = "memory_mib" in json.loads(files["case.json"])
    assert bounded == any(line.startswith("oom-kill:") for line in kernel)
    if not bounded:
        assert re.search(r"Unable to allocate|can't allocate memory|MemoryError\b", read_log(files))
