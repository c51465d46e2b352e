"""Who did not come to a collective, by entries of the flight recorder."""

import pytest
from msgspec.structs import replace

from hpctl.jobs.hangs.flight_recorder import (
    FlightRecorderDump,
    FlightRecorderEntry,
    FlightRecorderHangCause,
    FlightRecorderHangVerdict,
    FlightRecorderProcessGroup,
    diagnose_hang_from_recorder_dumps,
)

WORLD = 8
ALL = FlightRecorderProcessGroup("0", "default_pg", tuple(range(WORLD)))


def entries(
    count: int, *, group: str = "0", done: int | None = None, **last: object
) -> list[FlightRecorderEntry]:
    """A rank's collectives 1 to `count` of a group, completed up to `done`."""
    upto = count if done is None else done
    made = [
        FlightRecorderEntry(
            group, seq, "all_reduce", (64,), ("Float",), seq <= upto, place="step (t.py:7)"
        )
        for seq in range(1, count + 1)
    ]
    if last:
        made[-1] = FlightRecorderEntry(
            group, count, **{"op": "all_reduce", "completed": False, **last}
        )
    return made


def dump(
    rank: int, *made: list[FlightRecorderEntry], groups=(ALL,), whole: bool = True
) -> FlightRecorderDump:
    return FlightRecorderDump(rank, groups, tuple(entry for part in made for entry in part), whole)


def waiting(*ranks: int) -> list[FlightRecorderDump]:
    """Ranks that wait in collective 5."""
    return [dump(rank, entries(5, done=4)) for rank in ranks]


def named(dumps: list[FlightRecorderDump]) -> tuple[FlightRecorderHangCause, tuple[int, ...]]:
    found = diagnose_hang_from_recorder_dumps(dumps)
    return found.cause, found.ranks


def test_the_rank_that_did_not_come_is_named() -> None:
    found = diagnose_hang_from_recorder_dumps([*waiting(0, 1, 2, 4, 5, 6, 7), dump(3, entries(4))])
    assert (found.cause, found.ranks, found.world, found.dumps) == (
        FlightRecorderHangCause.ABSENT,
        (3,),
        8,
        8,
    )
    assert found.text == (
        "rank 3 did not come to collective 5 of default_pg (all_reduce of 64 Float), where ranks"
        " 0, 1, 2, 4, 5, 6, 7 wait in step (t.py:7); its last is 4 (all_reduce) in step (t.py:7)"
    )


def test_a_rank_that_issued_nothing_at_all_is_named_where_its_dump_is_whole() -> None:
    others = waiting(0, 1, 2, 4, 5, 6, 7)
    assert named([*others, dump(3)]) == (FlightRecorderHangCause.ABSENT, (3,))
    assert named([*others, dump(3, whole=False)])[1] == ()


def test_hosts_that_run_ahead_of_their_gpus_are_not_behind_each_other() -> None:
    """All wait in collective 5; some have issued further ones already."""
    dumps = [dump(rank, entries(5 + rank, done=4)) for rank in range(WORLD)]
    found = diagnose_hang_from_recorder_dumps(dumps)
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.TOGETHER, ())
    assert "all 8 ranks came to collective 5" in found.text


def test_no_one_is_named_where_most_did_not_come() -> None:
    assert named([*waiting(0, 1), *(dump(rank, entries(4)) for rank in range(2, 8))])[1] == ()


def test_a_victim_in_one_group_that_waits_in_another_is_not_named() -> None:
    """Rank 1 waits for rank 3 in its own small group, and the rest of the world for both."""
    pair = FlightRecorderProcessGroup("1", "tensor", (1, 3))
    stuck = dump(1, entries(4), entries(9, group="1", done=8), groups=(ALL, pair))
    culprit = dump(3, entries(4), entries(8, group="1"), groups=(ALL, pair))
    assert named([*waiting(0, 2, 4, 5, 6, 7), stuck, culprit]) == (
        FlightRecorderHangCause.ABSENT,
        (3,),
    )


def test_ranks_that_came_together_and_do_not_get_on_are_not_behind_in_another_group() -> None:
    """Ranks 1 and 3 wait for the network in their small group, and the others for both."""
    pair = FlightRecorderProcessGroup("1", "tensor", (1, 3))
    small = [
        dump(rank, entries(4), entries(9, group="1", done=8), groups=(ALL, pair)) for rank in (1, 3)
    ]
    found = diagnose_hang_from_recorder_dumps([*waiting(0, 2, 4, 5, 6, 7), *small])
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.TOGETHER, ())
    assert "all 2 ranks came to collective 9 of tensor" in found.text


def test_ranks_that_wait_for_each_other_in_two_groups_are_not_named() -> None:
    pair = FlightRecorderProcessGroup("1", "tensor", (0, 1))
    one = dump(0, entries(5, done=4), entries(8, group="1"), groups=(ALL, pair))
    two = dump(1, entries(4), entries(9, group="1", done=8), groups=(ALL, pair))
    assert named([one, two]) == (FlightRecorderHangCause.NOTHING, ())


def test_groups_of_one_name_are_distinguished_by_their_ranks() -> None:
    """Up to torch 2.7, split_group gives all groups of one call the same name."""
    left = FlightRecorderProcessGroup("2", "mesh_tp", (0, 1))
    right = FlightRecorderProcessGroup("2", "mesh_tp", (2, 3))
    ahead = [dump(rank, entries(90, group="2"), groups=(left,)) for rank in (0, 1)]
    waits = dump(2, entries(41, group="2", done=40), groups=(right,))
    late = dump(3, entries(40, group="2"), groups=(right,))
    assert named([*ahead, waits, late]) == (FlightRecorderHangCause.ABSENT, (3,))
    # One pair stands together at 41, and the other has not come so far: nobody is late.
    behind = [dump(rank, entries(7, group="2", done=6), groups=(left,)) for rank in (0, 1)]
    stands = [dump(rank, entries(41, group="2", done=40), groups=(right,)) for rank in (2, 3)]
    assert named([*behind, *stands]) == (FlightRecorderHangCause.TOGETHER, ())


def test_a_rank_in_a_point_to_point_operation_waits_itself() -> None:
    receives = [FlightRecorderEntry("0", 4, "recv 2<-3", p2p=True)]
    late = dump(3, entries(4), receives)
    assert named([*waiting(0, 1, 2, 4, 5, 6, 7), late])[1] == ()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"op": "all_gather", "sizes": (64,), "dtypes": ("Float",)}, "all_gather of 64 Float"),
        ({"sizes": (32,), "dtypes": ("Float",)}, "all_reduce of 32 Float"),
        ({"sizes": (64,), "dtypes": ("Half",)}, "all_reduce of 64 Half"),
    ],
    ids=["operation", "size", "type"],
)
def test_a_rank_in_another_collective_is_named(other, said) -> None:
    found = diagnose_hang_from_recorder_dumps(
        [*waiting(0, 1, 2, 4, 5, 6, 7), dump(3, entries(5, done=4, **other))]
    )
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.DIFFERENT, (3,))
    assert f"the ranks differ in collective 5 of default_pg: rank 3 called {said}" in found.text


def test_of_two_ranks_that_differ_neither_is_named() -> None:
    pair = FlightRecorderProcessGroup("0", "default_pg", (0, 1))
    two = [
        dump(0, entries(5, done=4), groups=(pair,)),
        dump(1, entries(5, done=4, op="barrier"), groups=(pair,)),
    ]
    assert named(two) == (FlightRecorderHangCause.DIFFERENT, ())


def test_collectives_whose_sizes_may_differ_are_not_compared_by_size() -> None:
    dumps = [
        dump(rank, entries(5, done=4, op="all_to_all", sizes=(rank,))) for rank in range(WORLD)
    ]
    assert named(dumps)[0] is FlightRecorderHangCause.TOGETHER


def test_ranks_without_a_dump_are_named_where_they_are_few() -> None:
    found = diagnose_hang_from_recorder_dumps(waiting(0, 1, 2, 4, 5, 6, 7))
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.SILENT, (3,))
    assert found.text.startswith("rank 3 wrote no flight recorder dump")
    assert named(waiting(0, 1, 2, 4)) == (FlightRecorderHangCause.NOTHING, ())


@pytest.mark.parametrize(
    ("world", "dumped", "silent"), [(4, (0, 1, 3), 2), (4, (0, 1), None), (2, (0,), None)]
)
def test_the_only_rank_without_a_dump_is_known_where_none_waits(world, dumped, silent) -> None:
    group = FlightRecorderProcessGroup("0", "default_pg", tuple(range(world)))
    dumps = [dump(rank, entries(5), groups=(group,)) for rank in dumped]
    assert diagnose_hang_from_recorder_dumps(dumps).only_silent == silent


def test_a_rank_whose_dump_could_not_be_read_is_not_the_only_rank_without_a_dump() -> None:
    dumps = [dump(rank, entries(5)) for rank in range(WORLD - 1)]
    assert diagnose_hang_from_recorder_dumps(dumps).only_silent == WORLD - 1
    assert diagnose_hang_from_recorder_dumps(dumps, unread={WORLD - 1}).only_silent is None


def test_a_rank_whose_dump_could_not_be_read_is_not_called_silent() -> None:
    found = diagnose_hang_from_recorder_dumps(waiting(0, 1, 2, 4, 5, 6, 7), unread={3})
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.NOTHING, ())


def test_a_run_that_is_well_names_no_one() -> None:
    found = diagnose_hang_from_recorder_dumps([dump(rank, entries(5)) for rank in range(WORLD)])
    assert found.text == "no rank waits in a collective"
    assert diagnose_hang_from_recorder_dumps([]) == FlightRecorderHangVerdict(
        text="no rank waits in a collective"
    )


def test_a_thousand_ranks_are_aligned() -> None:
    group = FlightRecorderProcessGroup("0", "default_pg", tuple(range(1000)))
    dumps = [dump(rank, entries(5, done=4), groups=(group,)) for rank in range(1000) if rank != 617]
    found = diagnose_hang_from_recorder_dumps([*dumps, dump(617, entries(4), groups=(group,))])
    assert (found.ranks, found.world) == ((617,), 1000)
    assert len(found.text) < 400


def test_a_rank_that_completed_another_collective_is_named() -> None:
    """The root of a broadcast returns at once, and waits nowhere."""
    other = dump(3, entries(5, op="broadcast", sizes=(8,), dtypes=("Long",), completed=True))
    found = diagnose_hang_from_recorder_dumps([*waiting(0, 1, 2, 4, 5, 6, 7), other])
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.DIFFERENT, (3,))
    assert "rank 3 called broadcast of 8 Long" in found.text


def test_a_swapped_order_of_two_collectives_is_named() -> None:
    def issued(rank: int, *ops: str) -> FlightRecorderDump:
        later = [FlightRecorderEntry("0", 5 + n, op, (64,), ("Float",)) for n, op in enumerate(ops)]
        return dump(rank, entries(4), later)

    others = [issued(rank, "all_reduce", "all_gather") for rank in range(WORLD) if rank != 3]
    found = diagnose_hang_from_recorder_dumps([*others, issued(3, "all_gather", "all_reduce")])
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.DIFFERENT, (3,))
    assert found.text.endswith("; rank 3 called them in another order")
    skipped = diagnose_hang_from_recorder_dumps([*others, issued(3, "all_gather", "barrier")])
    assert "another order" not in skipped.text


def test_a_dump_that_cannot_be_read_is_mentioned() -> None:
    found = diagnose_hang_from_recorder_dumps(waiting(0, 1, 2, 4, 5, 6, 7), unread={3})
    assert "the dump of rank 3 cannot be read" in found.text


@pytest.mark.parametrize("world", [2, 3, 64, 16_384])
def test_one_late_rank_is_named_in_every_size_of_job(world: int) -> None:
    group = FlightRecorderProcessGroup("0", "default_pg", tuple(range(world)))
    dumps = [dump(rank, entries(2, done=1), groups=(group,)) for rank in range(world - 1)]
    found = diagnose_hang_from_recorder_dumps(
        [*dumps, dump(world - 1, entries(1), groups=(group,))]
    )
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.ABSENT, (world - 1,))


def over(count: int, op: str = "all_reduce") -> list[FlightRecorderEntry]:
    """A rank's collectives over gloo, of which all ended, maybe with an error."""
    return [
        FlightRecorderEntry("0", seq, op, completed=True, may_fail=True)
        for seq in range(1, count + 1)
    ]


def test_a_collective_that_a_rank_never_issued_failed_on_the_others() -> None:
    others = [dump(rank, over(5)) for rank in (0, 1, 2, 4, 5, 6, 7)]
    assert named([*others, dump(3, over(4))]) == (FlightRecorderHangCause.ABSENT, (3,))
    assert named([*others, dump(3, over(5))])[0] is FlightRecorderHangCause.NOTHING


def test_the_root_of_a_broadcast_completes_it_without_the_others() -> None:
    others = [dump(rank, over(5, "broadcast")) for rank in (0, 1, 2, 4, 5, 6, 7)]
    assert named([*others, dump(3, over(4, "broadcast"))])[0] is FlightRecorderHangCause.NOTHING


def test_failed_collectives_name_no_rank_where_as_many_are_behind_as_ahead() -> None:
    ahead = [dump(rank, over(5)) for rank in range(4)]
    behind = [dump(rank, over(4)) for rank in range(4, 8)]
    assert named([*ahead, *behind])[0] is FlightRecorderHangCause.NOTHING


UNLISTED = FlightRecorderProcessGroup("0", "default_pg")
PAIR = FlightRecorderProcessGroup("1", "undefined")


def test_ranks_that_differ_are_named_where_no_dump_lists_the_ranks_of_its_groups() -> None:
    groups = (UNLISTED, PAIR)
    dumps = [dump(rank, entries(5, done=4), groups=groups) for rank in (0, 1)]
    dumps += [dump(2, entries(5, done=4, op="barrier"), groups=groups)]
    dumps += [dump(3, entries(4), entries(2, group="1", done=1), groups=groups)]
    assert named(dumps) == (FlightRecorderHangCause.DIFFERENT, (2,))


def test_a_rank_that_issued_in_an_unlisted_group_before_is_known_not_to_have_come() -> None:
    dumps = [dump(rank, entries(5, done=4), groups=(UNLISTED,)) for rank in (0, 1, 2)]
    dumps += [dump(3, entries(4), groups=(UNLISTED,))]
    assert named(dumps) == (FlightRecorderHangCause.ABSENT, (3,))


def test_ranks_of_an_unlisted_group_are_not_known_to_be_all_of_it() -> None:
    waits = dump(0, entries(5), entries(2, group="1", done=1), groups=(UNLISTED, PAIR))
    found = diagnose_hang_from_recorder_dumps([waits])
    assert (found.cause, found.world) == (FlightRecorderHangCause.NOTHING, 0)


def came(at_s: float, *, failed: bool = True, clock_s: float = 0.0) -> list[FlightRecorderEntry]:
    """A rank's last two collectives over gloo, so many seconds apart, by a clock that differs."""
    entry = FlightRecorderEntry("0", 4, "all_reduce", (64,), ("Float",), True, may_fail=failed)
    begun = 1_000_000 + clock_s
    return [
        replace(entry, seq=seq, created_ns=int(created_s * 1e9), timeout_s=18.0)
        for seq, created_s in ((4, begun), (5, begun + at_s))
    ]


def test_a_rank_that_came_when_the_others_had_given_up_is_named() -> None:
    others = [dump(rank, came(0.1 * rank)) for rank in (0, 1, 2, 4, 5, 6, 7)]
    found = diagnose_hang_from_recorder_dumps([*others, dump(3, came(26.0))])
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.LATE, (3,))
    assert "until 25 s after the others" in found.text


@pytest.mark.parametrize(
    ("late", "other"),
    [
        (came(9.0), came(0.0)),  # within the timeout: they met
        (came(26.0), came(11.0)),  # the others came at very different times
        (came(26.0), came(26.0)),  # two are late
        (came(26.0, failed=False), came(0.0)),  # one that completed it has waited for no rank
        (came(0.1, clock_s=90.0), came(0.0)),  # the clock of its node is fast
    ],
)
def test_no_rank_is_late_where_the_others_had_not_given_up_on_it_together(late, other) -> None:
    dumps = [dump(0, came(0.0)), dump(1, other), dump(2, came(0.1)), dump(3, late)]
    assert named(dumps) == (FlightRecorderHangCause.NOTHING, ())


def test_no_rank_is_late_for_a_broadcast_whose_root_does_not_wait() -> None:
    dumps = [dump(rank, came(0.1 * rank)) for rank in (0, 1, 2)]
    dumps += [dump(3, came(26.0))]
    assert named(dumps)[0] is FlightRecorderHangCause.LATE
    sent = [
        replace(one, entries=tuple(replace(entry, op="broadcast") for entry in one.entries))
        for one in dumps
    ]
    assert named(sent)[0] is FlightRecorderHangCause.NOTHING


def test_a_verdict_lists_the_ranks_that_wait() -> None:
    assert diagnose_hang_from_recorder_dumps(waiting(0, 2)).waiting == (0, 2)
    assert diagnose_hang_from_recorder_dumps([dump(0, entries(5))]).waiting == ()


def test_a_verdict_has_the_sizes_of_the_last_collective_where_they_differ() -> None:
    def sized(rank: int, size: int) -> FlightRecorderDump:
        last = FlightRecorderEntry("0", 5, "all_gather", (size,), ("Float",), True, may_fail=True)
        return dump(rank, [last])

    assert diagnose_hang_from_recorder_dumps([sized(1, 64), sized(2, 128)]).last_sizes == (
        (1, 64),
        (2, 128),
    )
    assert diagnose_hang_from_recorder_dumps([sized(1, 64), sized(2, 64)]).last_sizes == ()


def issue(group: str, seq: int, at_s: float) -> list[FlightRecorderEntry]:
    """A rank's collectives up to `seq` of a group over gloo, the last one at this time and failed:
    the recorder calls it completed."""
    made = FlightRecorderEntry(group, seq, "all_reduce", (64,), ("Float",), True, may_fail=True)
    before = [replace(made, seq=seq - 1, created_ns=1)] if seq > 1 else []
    return [*before, replace(made, created_ns=int(at_s * 1e9), timeout_s=60.0)]


def test_a_rank_that_went_on_to_another_group_is_in_every_circle_of_waits() -> None:
    """Rank 0 calls the collective of all ranks before that of its pair."""
    pairs = [
        FlightRecorderProcessGroup("1", "replica", (0, 2)),
        FlightRecorderProcessGroup("3", "shard", (0, 1)),
        FlightRecorderProcessGroup("4", "shard", (2, 3)),
    ]
    whole = FlightRecorderProcessGroup("0", "default_pg", (0, 1, 2, 3))
    groups = (whole, *pairs)
    dumps = [
        dump(0, issue("0", 5, 9.0), issue("1", 5, 3.0), issue("3", 12, 2.0), groups=groups),
        dump(1, issue("0", 4, 2.0), issue("3", 13, 9.0), groups=groups),
        dump(2, issue("0", 4, 2.0), issue("1", 6, 9.0), issue("4", 12, 2.0), groups=groups),
        dump(3, issue("0", 4, 2.0), issue("4", 13, 9.0), groups=groups),
    ]
    found = diagnose_hang_from_recorder_dumps(dumps)
    assert (found.cause, found.ranks) == (FlightRecorderHangCause.DIFFERENT, (0,))
    assert found.text.startswith("the ranks wait for each other in different groups: rank 0")
    calm = [replace(one, entries=tuple(replace(e, may_fail=False) for e in one.entries))
            for one in dumps]  # fmt: skip
    assert diagnose_hang_from_recorder_dumps(calm).cause is FlightRecorderHangCause.NOTHING
