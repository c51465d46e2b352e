"""Dumps of the flight recorder as files: pickle, JSON, and what a hostile rank could write."""

import json
import os
import pickle
import signal
import struct

import msgspec
import pytest

from hpctl.jobs.hangs.flight_files import (
    KEPT_COMPLETED,
    KEPT_OPEN,
    LARGEST,
    PER_PROCESS,
    InvalidFlightRecorderDumpError,
    diagnose_hang_from_dumps_in_subprocess,
    parse_flight_recorder_dump,
    read_flight_recorder_dump_files,
    read_flight_recorder_dumps_in_parallel,
)
from hpctl.jobs.hangs.flight_recorder import (
    FlightRecorderDump,
    FlightRecorderHangCause,
    diagnose_hang_from_recorder_dumps,
)
from tests.gpu.recordings import H200

SKIP = [(H200 / f"nccl/nccl_skip.nccl_trace_rank_{rank}.pickle").read_bytes() for rank in (0, 1)]
LATER = float("inf")


def document(count: int, done: int, ranks: str = "[0, 1]") -> dict[str, object]:
    row = {
        "frames": [{"name": "step", "filename": "/home/ada/train.py", "line": 7}],
        "process_group": ("0", "default_pg"), "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4, 16]], "input_dtypes": ["Float"], "is_p2p": False,
    }  # fmt: skip
    made = [
        {**row, "record_id": seq - 1, "collective_seq_id": seq,
         "state": "completed" if seq <= done else "scheduled"}
        for seq in range(1, count + 1)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "entries": made}


@pytest.mark.parametrize("write", [pickle.dumps, lambda one: json.dumps(one).encode()])
def test_both_forms_say_the_same(write) -> None:
    found = diagnose_hang_from_recorder_dumps(
        [
            parse_flight_recorder_dump(0, write(document(5, 4))),
            parse_flight_recorder_dump(1, write(document(4, 4))),
        ]
    )
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.ABSENT, (1,))
    assert "(all_reduce of 64 Float), where rank 0 waits in step (train.py:7)" in found.text


def test_the_recorded_dump_as_json_says_the_same_as_the_pickle() -> None:
    """nccl_skip.nccl_trace_rank_0.pickle of the H200."""
    as_json = json.dumps(pickle.loads(SKIP[0])).encode()
    assert parse_flight_recorder_dump(0, as_json) == parse_flight_recorder_dump(0, SKIP[0])


def test_what_the_alignment_needs_is_kept_of_a_long_dump() -> None:
    found = parse_flight_recorder_dump(0, pickle.dumps(document(4000, 3000)))
    open_ = [entry.seq for entry in found.entries if not entry.completed]
    assert (open_[0], len(open_)) == (3001, KEPT_OPEN)
    assert len(found.entries) == KEPT_OPEN + KEPT_COMPLETED


def coalesced(record: int, number: int, state: str, **what: object) -> list[dict[str, object]]:
    """One coalesced operation as torch records it: its two parts keep the state `scheduled`."""
    row = document(1, 0)["entries"][0] | what
    numbered = {"p2p_seq_id": number} if row["is_p2p"] else {"collective_seq_id": number}
    names = [row["profiling_name"]] * 2 + ["nccl:coalesced"]
    states = ["scheduled", "scheduled", state]
    return [
        {**row, **numbered, "record_id": record + n, "profiling_name": name, "state": states[n]}
        for n, name in enumerate(names)
    ]


def test_a_part_of_a_coalesced_collective_is_completed_with_the_whole() -> None:
    """torch's test_allgather_uneven and test_batched_send_recv: the parts stay `scheduled`."""
    dumps = []
    for rank, steps in ((0, 401), (1, 400)):
        rows = [
            row
            for step in range(1, steps + 1)
            for row in coalesced(
                3 * step - 3, step, "completed" if step < 401 else "started",
                profiling_name="nccl:_broadcast_oop",
            )
        ]  # fmt: skip
        dumps.append(
            parse_flight_recorder_dump(rank, pickle.dumps(document(0, 0) | {"entries": rows}))
        )
    found = diagnose_hang_from_recorder_dumps(dumps)
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.ABSENT, (1,))
    assert "rank 1 did not come to collective 401" in found.text


def test_a_batch_of_sends_that_is_over_is_no_wait() -> None:
    sent = coalesced(0, 9, "completed", is_p2p=True, profiling_name="nccl:send 1->0")
    dumps = []
    for rank, count in ((0, 5), (1, 4)):
        other = document(count, 4)
        other["entries"] = sent + [row | {"record_id": 99} for row in other["entries"]]
        dumps.append(parse_flight_recorder_dump(rank, pickle.dumps(other)))
    assert diagnose_hang_from_recorder_dumps(dumps).ranks == (1,)
    waits = coalesced(0, 9, "started", is_p2p=True, profiling_name="nccl:recv 1<-0")
    dumps[1] = parse_flight_recorder_dump(1, pickle.dumps(document(4, 4) | {"entries": waits}))
    assert diagnose_hang_from_recorder_dumps(dumps).ranks == ()


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


BOMBS = {
    "a function": pickle.dumps(Evil()),
    "a function among entries": pickle.dumps({"version": "2.10", "entries": [Evil()]}),
    "nothing": b"",
    "half a dump": SKIP[0][: len(SKIP[0]) // 2],
    "another version": pickle.dumps({"version": "3.0", "entries": []}),
    "a list": pickle.dumps([1]),
    "a number for entries": pickle.dumps({"version": "2.10", "entries": 7}),
    "a number for a group": pickle.dumps({"version": "2.10", "entries": [{"process_group": 7}]}),
    "an endless number": b"\x80\x02\x8b" + struct.pack("<I", 1 << 31) + b"\x01.",
    "a deep nest": b"\x80\x02" + b"(" * 100_000 + b".",
    "JSON that is torn": b'{"version": "2.10", "entries": [',
    "JSON that is deep": b'{"version":' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_no_dump_is_refused(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidFlightRecorderDumpError):
        parse_flight_recorder_dump(0, BOMBS[name])
    assert list(tmp_path.iterdir()) == []


MEMO_BOMB = b"\x80\x02]r" + struct.pack("<I", (1 << 31) - 1) + b"."
"""Eight bytes that ask CPython's unpickler for a memo of 32 GiB."""
LENGTH_BOMB = b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"."
"""A byte array of a terabyte, of which nothing follows."""


@pytest.mark.parametrize("bomb", [MEMO_BOMB, LENGTH_BOMB], ids=["memo", "length"])
def test_a_file_that_asks_for_all_memory_costs_itself_alone(tmp_path, bomb: bytes) -> None:
    for rank, raw in enumerate([*SKIP, bomb]):
        (tmp_path / f"fr-{rank}").write_bytes(raw)
    found = diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/fr-", 0.0)
    assert (found.dumps, found.ranks) == (2, (1,))


def test_repeated_mentions_cost_no_more_than_the_bounds(tmp_path) -> None:
    """A list that mentions one entry a million times."""
    one = document(1, 0)["entries"][0]
    one["frames"] = one["frames"] * 1000
    (tmp_path / "fr-0").write_bytes(pickle.dumps(document(5, 4) | {"entries": [one] * 1_000_000}))
    assert diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/fr-", 0.0).dumps == 1


def test_only_plain_files_of_ours_are_read(tmp_path) -> None:
    """A FIFO would wait for ever, a link leads to another's file, a large one fills the memory."""
    (tmp_path / "fr-0").write_bytes(SKIP[0])
    (tmp_path / "fr-x").write_bytes(SKIP[1])
    (tmp_path / "fr-1234567").write_bytes(SKIP[1])
    os.mkfifo(tmp_path / "fr-1")
    (tmp_path / "fr-2").symlink_to(tmp_path / "fr-0")
    (tmp_path / "fr-3").mkdir()
    with (tmp_path / "fr-4").open("wb") as file:
        file.truncate(LARGEST + 1)
    dumps, unread = read_flight_recorder_dump_files(f"{tmp_path}/fr-", 0.0, LATER)
    assert ([dump.rank for dump in dumps], unread) == ([0], {1, 2, 3, 4})


def test_reading_stops_at_its_deadline(tmp_path) -> None:
    (tmp_path / "fr-0").write_bytes(SKIP[0])
    assert read_flight_recorder_dump_files(f"{tmp_path}/fr-", 0.0, 0.0) == ([], {0})


def test_no_process_is_started_where_there_is_no_dump(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "hpctl.jobs.hangs.flight_files.subprocess.run", lambda *_, **__: pytest.fail("started")
    )
    (tmp_path / "fr-").write_bytes(SKIP[0])
    assert diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/fr-", 0.0).dumps == 0


def test_a_full_disk_and_an_odd_name_cost_the_verdict_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / "fr-0").write_bytes(SKIP[0])

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpctl.jobs.hangs.flight_files.tempfile.TemporaryFile", full)
    assert diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/fr-", 0.0).dumps == 0
    assert diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/a\0b/fr-", 0.0).dumps == 0


def test_without_a_folder_there_are_no_dumps(tmp_path) -> None:
    assert diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/gone/fr-", 0.0).dumps == 0


def test_a_terminals_commands_do_not_pass() -> None:
    hostile = document(5, 4)
    for entry in hostile["entries"]:
        entry["profiling_name"] = "nccl:\x1b[2Jall_reduce"
    others = parse_flight_recorder_dump(1, msgspec.json.encode(document(4, 4)))
    assert (
        "\x1b"
        not in diagnose_hang_from_recorder_dumps(
            [parse_flight_recorder_dump(0, pickle.dumps(hostile)), others]
        ).text
    )


def test_many_dumps_are_shared_between_processes(tmp_path) -> None:
    """One dump in each share asks for all memory, and one is torn."""
    world = 2 * PER_PROCESS
    ranks = str(list(range(world)))
    for rank in range(world):
        late = rank == 77
        raw = pickle.dumps(document(4 if late else 5, 4, ranks))
        (tmp_path / f"fr-{rank}").write_bytes(raw)
    (tmp_path / "fr-4").write_bytes(MEMO_BOMB)
    (tmp_path / "fr-5").write_bytes(SKIP[0][:100])
    dumps, unread = read_flight_recorder_dumps_in_parallel(f"{tmp_path}/fr-", 0.0, LATER, 2)
    assert unread == {4, 5}
    assert (len(dumps), diagnose_hang_from_recorder_dumps(dumps, unread).ranks) == (
        world - 2,
        (77,),
    )


def test_a_process_that_is_ended_costs_the_ranks_of_its_share(tmp_path, monkeypatch) -> None:
    world = 2 * PER_PROCESS
    for rank in range(world):
        (tmp_path / f"fr-{rank}").write_bytes(pickle.dumps(document(5, 4)))
    own = os.getpid()

    def end_process(rank: int, raw: bytes, kept: object) -> FlightRecorderDump:
        if rank == 1 and os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        return parse_flight_recorder_dump(rank, raw)

    monkeypatch.setattr("hpctl.jobs.hangs.flight_files.parse_flight_recorder_dump", end_process)
    dumps, unread = read_flight_recorder_dumps_in_parallel(f"{tmp_path}/fr-", 0.0, LATER, 2)
    assert unread == set(range(1, world, 2))
    assert {dump.rank for dump in dumps} == set(range(0, world, 2))


def test_less_is_kept_of_each_dump_where_there_are_very_many(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hpctl.jobs.hangs.flight_files.MANY_FILES", 1)
    for rank in (0, 1):
        (tmp_path / f"fr-{rank}").write_bytes(pickle.dumps(document(4000, 3000)))
    dumps, _ = read_flight_recorder_dumps_in_parallel(f"{tmp_path}/fr-", 0.0, LATER, 1)
    assert [len(one.entries) for one in dumps] == [(KEPT_OPEN + KEPT_COMPLETED) // 8] * 2


def gloo_document(count: int, retired: int) -> dict[str, object]:
    """A dump as ProcessGroupGloo writes it: without states, and its group without a name."""
    made = document(count, 0)
    for number, row in enumerate(made["entries"], 1):
        row |= {"profiling_name": "gloo:all_reduce", "retired": number <= retired}
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    return {**made, "pg_config": config}


def test_a_dump_of_gloo_names_the_rank_that_did_not_come() -> None:
    dumps = [
        parse_flight_recorder_dump(rank, pickle.dumps(gloo_document(5 - rank, 4)))
        for rank in (0, 1)
    ]
    found = diagnose_hang_from_recorder_dumps(dumps)
    assert (found.cause, found.ranks, found.world) == (FlightRecorderHangCause.ABSENT, (1,), 2)
    assert "collective 5 of default_pg" in found.text


def test_what_nccl_has_aborted_is_retired_and_not_completed() -> None:
    made = document(5, 4)
    made["entries"][-1]["retired"] = True
    assert [entry.completed for entry in parse_flight_recorder_dump(0, pickle.dumps(made)).entries][
        -1
    ] is False


def test_the_ranks_of_a_group_without_a_name_are_not_guessed_between_two() -> None:
    made = gloo_document(5, 5)
    made["entries"][0]["process_group"] = ("1", "data")
    groups = parse_flight_recorder_dump(0, pickle.dumps(made)).groups
    assert [(group.name, group.ranks) for group in groups] == [("0", ()), ("1", ())]


def test_a_dump_says_when_a_collective_was_issued_and_how_long_it_may_take() -> None:
    made = document(2, 2)
    made["entries"][0] |= {"time_created_ns": 3_000_000_000, "timeout_ms": 18_000}
    made["entries"][1] |= {"time_created_ns": "late", "timeout_ms": -1}
    found = parse_flight_recorder_dump(0, pickle.dumps(made)).entries
    assert [(one.created_ns, one.timeout_s) for one in found] == [(3_000_000_000, 18.0), (0, 0.0)]


@pytest.mark.parametrize(("world", "dumps"), [(0, 2), (2, 2), (3, 0), (1, 0)])
def test_a_dump_of_another_number_of_ranks_is_another_run_s(tmp_path, world, dumps) -> None:
    for rank, count in ((0, 5), (1, 4)):
        (tmp_path / f"fr-{rank}").write_bytes(pickle.dumps(document(count, 4)))
    found = diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/fr-", 0.0, world=world)
    assert found.dumps == dumps
    assert found.ranks == ((1,) if dumps else ())


def test_a_rank_whose_dump_is_another_run_s_is_not_called_silent(tmp_path) -> None:
    """What it did is not known: its own dump may have been overwritten by the other run's."""
    for rank in (0, 1):
        (tmp_path / f"fr-{rank}").write_bytes(pickle.dumps(document(5, 4, "[0, 1, 2]")))
    (tmp_path / "fr-2").write_bytes(pickle.dumps(document(5, 4, "[0, 1, 2, 3]")))
    found = diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/fr-", 0.0, world=3)
    assert found.dumps == 2
    assert found.cause is not FlightRecorderHangCause.SILENT
    (tmp_path / "fr-2").unlink()
    assert (
        diagnose_hang_from_dumps_in_subprocess(f"{tmp_path}/fr-", 0.0, world=3).cause
        is FlightRecorderHangCause.SILENT
    )
