"""What the recorded runs hold: every kind, its own sign in the evidence, and no machine's name."""

import json
import pickle
import re
from collections import Counter

import pytest

from hpctl.jobs.hangs.flight_files import read_dump
from hpctl.jobs.hangs.stack_groups import parse_lines
from tests.jobs.verdict_corpus.cases import CAUSES
from tests.jobs.verdict_corpus.first_half import FIRST
from tests.jobs.verdict_corpus.pack import archive_of, load_truth, read_archive
from tests.jobs.verdict_corpus.second_half import SECOND

HALVES = {"first": FIRST, "second": SECOND}
RUNS = {half: read_archive(archive_of(half)) for half in HALVES}
EVERY = {name: files for runs in RUNS.values() for name, files in runs.items()}

# In two parts, so that this file does not hold them either.
MACHINE = re.compile(rb"/wo" rb"rk/|/tmp/|/root\b|wt-|verdict_corpus")


def count_kinds(runs):
    return Counter(load_truth(files)["kind"] for files in runs.values())


def read_log(files):
    return files["job.log"].decode()


def list_ranks(files):
    lines = files.get("stacks.txt", b"").decode().splitlines()
    return {rank.rank: rank for node in parse_lines(lines) for rank in node.ranks}


def test_the_halves_hold_every_case():
    for half, cases in HALVES.items():
        assert set(RUNS[half]) == {case.name for case in cases}
        assert len(RUNS[half]) >= 30
        assert set(count_kinds(RUNS[half])) == set(CAUSES)
    assert set(count_kinds(EVERY).values()) == {5}


def test_the_halves_share_no_program_and_no_part():
    first, second = (
        {c.program for c in cases} | {c.part for c in cases} for cases in HALVES.values()
    )
    assert first & second <= {""}


def test_the_runs_of_a_kind_differ():
    for kind in CAUSES:
        rows = [case for case in (*FIRST, *SECOND) if case.kind == kind]
        assert len({(case.nodes, case.rank, case.launcher) for case in rows}) == len(rows)
        assert len({case.launcher for case in rows}) == 2


@pytest.mark.parametrize("half", HALVES)
def test_an_archive_names_no_path_of_a_machine(half):
    found = {
        f"{name}/{file}": match[0]
        for name, files in RUNS[half].items()
        for file, raw in files.items()
        if (match := MACHINE.search(decode(file, raw)))
    }
    assert found == {}


def decode(file, raw):
    """The bytes that a reader of the evidence sees: stacks are packed into their lines."""
    if file == "stacks.txt":
        return repr(parse_lines(raw.decode().splitlines())).encode()
    return raw


def test_the_archives_are_small():
    assert sum(archive_of(half).stat().st_size for half in HALVES) < 1_500_000


@pytest.mark.parametrize("name", EVERY)
def test_dumps_and_stacks_are_read(name):
    files, world = EVERY[name], sum(json.loads(EVERY[name]["case.json"])["nodes"])
    for file, raw in files.items():
        if file.startswith("flight/"):
            dump = read_dump(int(file[-1]), raw)
            assert dump.entries, file
            assert pickle.loads(raw)["version"].startswith("2.")
    if "stacks.txt" in files:
        assert list_ranks(files).keys() <= set(range(world))
        assert list_ranks(files)


SIGNS = {
    "exception": r"(ValueError|KeyError|RuntimeError: mat1|LossDivergedError|IndexError)\b",
    "device_memory": r"OutOfMemoryError: CUDA out of memory\. Tried to allocate",
    "dead_loader": r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\)",
    "disk_full": r"No space left on device|File too large|file write failed|unexpected pos|iostream error",
}
"""What a kind's log says, where every run of it says something."""


@pytest.mark.parametrize(
    "name", [name for name in EVERY if load_truth(EVERY[name])["kind"] in SIGNS]
)
def test_the_log_shows_the_failure(name):
    files = EVERY[name]
    truth = load_truth(files)
    if json.loads(files["run.json"])["hung"]:
        assert list_ranks(files)[truth["rank"]].children
    else:
        assert re.search(SIGNS[truth["kind"]], read_log(files))
