"""The RAS service's answers to values: JSON, and the text of each release."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.jobs.ras import report as document
from hpctl.jobs.ras import report as text
from hpctl.jobs.ras.report import Absence, CountGroup, RasError, RasMember, RasReport
from tests.stubs.ras.job import as_text, job

DOCUMENTED_JSON = b"""{
  "nccl_version": "2.29.1",
  "cuda_runtime_version": 13000,
  "timestamp": "2025-12-19 13:06:53",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xae94423cfbb2ef4a",
      "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
      "size": 2, "ranks_count": 1, "missing_ranks_count": 1,
      "ranks": [
        {"rank": 0, "host": "172.16.64.245", "pid": 1524344, "cuda_dev": 0, "nvml_dev": 3,
         "status": {"init_state": 0, "async_error": 0, "finalize_called": false,
                    "destroy_flag": false, "abort_flag": false},
         "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0,
                               "AllReduce": 7}}
      ],
      "missing_ranks": [
        {"rank": 1, "host": "172.16.64.245", "pid": 1524345, "cuda_dev": 1, "nvml_dev": 1,
         "status": {"unresponsive": true, "considered_dead": false}}
      ]
    }
  ],
  "ras": {"collection_time_sec": 0.000, "timeouts_count": 2}
}
"""
DOCUMENTED_TEXT = b"""NCCL version 2.24.3 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE,MISMATCH
    1         7         4         1         4        28   RUNNING      OK

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  5 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 (NVML 6) managed by process 483074 on node 172.16.64.210
  Rank 3 -- [process information not found]
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 7 -- GPU 7 managed by process 483079 on node 172.16.64.210
"""


def test_the_documented_json() -> None:
    report = document.read_json(DOCUMENTED_JSON)
    assert report.nccl_version == "2.29.1"
    (one,) = report.communicators
    assert one.whole
    assert one.name == "0xae94423cfbb2ef4a:0xb7e7187447156001:0xb8242ed28a71381e"
    assert one.counts["AllReduce"] == (
        CountGroup(7, 1, (RasMember(0, "172.16.64.245", 1524344, 0, 3),)),
    )  # fmt: skip
    (missing,) = one.missing
    assert missing.member == RasMember(1, "172.16.64.245", 1524345, 1, 1)
    assert missing.absence is Absence.UNRESPONSIVE


def test_the_documented_text() -> None:
    report = text.read_text(DOCUMENTED_TEXT)
    assert report.nccl_version == "2.24.3"
    assert report.dead == (RasMember(-1, "172.16.64.213", 3487984, 5),)
    one = report.communicators[0]
    assert (one.name, one.size, one.status) == ("0xcf264af53edbe986", 32, "RUNNING")
    (missing,) = one.missing
    assert missing.member == RasMember(21, "172.16.64.213", 3487984, 5)
    assert missing.absence is Absence.DEAD
    low, high = one.counts["collective"]
    assert (low.count, low.size) == (6649, 5)
    assert low.members[1] == RasMember(2, "172.16.64.210", 483074, 2, 6)
    assert low.members[2] == RasMember(3)
    assert high == CountGroup(6650, 26)
    assert len(report.communicators) == 2


@pytest.mark.parametrize("release", ["2.24.3", "2.26.2", "2.28.3"])
def test_each_releases_text(release: str) -> None:
    told = job(nodes=2, gpus=4, reverse=True)
    one = told.communicators[0]
    one.step(times=5)
    one.step(times=1, but=(6,))
    one.errors = {2: 2, 3: 6, 4: 6}
    told.processes[7].unresponsive = True
    report = text.read_text(as_text(told, release).encode())
    (found,) = report.communicators
    operation = "collective" if release == "2.24.3" else "AllReduce"
    low, high = found.counts[operation]
    assert low == CountGroup(5, 1, (RasMember(6, "10.0.0.2", 2002, 2, 1),))
    assert (high.count, high.size) == (6, 6)
    assert [missing.member.rank for missing in found.missing] == [7]
    assert found.missing[0].member.pid == (None if release == "2.24.3" else 2003)
    assert {(f.member.rank, f.error, f.remote) for f in found.failures} == {
        (2, "system error", False),
        (3, "remote process error", True),
        (4, "remote process error", True),
    }


@pytest.mark.parametrize("upto", ["NCCL", "Job summary", "Communicators", "Errors\n", "Warnings\n"])
def test_a_torn_text_is_an_error(upto: str) -> None:
    told = job()
    told.communicators[0].step(but=(1,))
    whole = as_text(told, "2.26.2")
    with pytest.raises(RasError, match="not whole"):
        text.read_text(whole.partition(upto)[0].encode())


@pytest.mark.parametrize("cut", [0, 1, 100, -3])
def test_a_torn_json_is_an_error(cut: int) -> None:
    with pytest.raises(RasError, match="cannot be read"):
        document.read_json(DOCUMENTED_JSON[:cut])


@pytest.mark.parametrize(
    "raw",
    [b"[]", b"{}", b'{"nccl_version": 1, "communicators": []}', b"[" * 100_000, b"\xff",
     b'{"nccl_version": "2", "communicators": [{"hash": "0x1", "ranks": [{"rank": "x"}]}]}'],
)  # fmt: skip
def test_other_json_is_an_error(raw: bytes) -> None:
    with pytest.raises(RasError):
        document.read_json(raw)


def test_fields_of_a_later_release_are_passed_over() -> None:
    said = json.loads(DOCUMENTED_JSON)
    said["new"] = {"a": [1]}
    said["communicators"][0]["ranks"][0]["collective_counts"]["AllToAll"] = 3
    said["communicators"][0]["ranks"][0]["status"]["extra"] = 1
    report = document.read_json(json.dumps(said).encode())
    assert report.communicators[0].counts["AllToAll"][0].count == 3


@given(st.binary(max_size=3000))
def test_any_bytes_are_an_answer_or_an_error(raw: bytes) -> None:
    for read in (document.read_json, text.read_text):
        try:
            report = read(raw)
        except RasError:
            continue
        assert isinstance(report, RasReport)


@given(st.data())
def test_a_text_with_lines_lost_or_mangled_never_breaks_the_reader(data: st.DataObject) -> None:
    lines = DOCUMENTED_TEXT.splitlines(keepends=True)
    mangled = [
        line if data.draw(st.integers(0, 9)) else line[: data.draw(st.integers(0, len(line)))]
        for line in lines
    ]
    try:
        text.read_text(b"".join(mangled))
    except RasError:
        return
