"""The group as a value: what comes of each fact, without a process or a clock."""

import random

import pytest

from hpctl.jobs.elastic.group import (
    LOST,
    STOPPED,
    EndRankGroupOrder,
    PrepareRankGenerationOrder,
    RankFailure,
    RankGroup,
    RankGroupPhase,
    RankGroupResult,
    RankRestartLimits,
    StopRankGenerationOrder,
    format_rank_group_end_line,
)


def running(nodes: int = 2, ranks: int = 2, **limits) -> RankGroup:
    group = RankGroup(nodes, RankRestartLimits(**limits))
    for node in range(nodes - 1):
        assert group.add_launcher(node, ranks) is None
    assert group.add_launcher(nodes - 1, ranks) == PrepareRankGenerationOrder(0)
    group.mark_generation_running()
    return group


def bad(rank: int = 1, code: int = 1, at: float = 10.0, message: str = "") -> RankFailure:
    return RankFailure(rank, f"n{rank}", code, at, "RuntimeError" if message else "", message)


def stop_all(group: RankGroup, now: float = 0.0) -> PrepareRankGenerationOrder | EndRankGroupOrder:
    orders = [
        group.handle_stopped_ranks(node, group.generation, now) for node in list(group.members)
    ]
    assert orders[:-1] == [None] * (len(orders) - 1)
    last = orders[-1]
    assert isinstance(last, PrepareRankGenerationOrder | EndRankGroupOrder)
    return last


def test_global_ranks_follow_the_nodes_whatever_their_sizes() -> None:
    group = RankGroup(3, RankRestartLimits())
    group.add_launcher(2, 4)
    group.add_launcher(0, 1)
    group.add_launcher(1, 2)
    assert ([group.base(node) for node in range(3)], group.world) == ([0, 1, 3], 7)


def test_a_failure_stops_all_once_and_a_new_generation_follows_when_all_have_stopped() -> None:
    group = running()
    assert isinstance(group.handle_failed_rank(0, bad()), StopRankGenerationOrder)
    assert group.handle_failed_rank(0, bad(2)) is None
    assert group.handle_finished_rank(0, 0) is None
    assert group.handle_stopped_ranks(0, 0, 1.0) is None
    assert group.handle_stopped_ranks(0, 0, 1.0) is None
    assert group.handle_stopped_ranks(1, 0, 1.0) == PrepareRankGenerationOrder(1)
    assert ([each.rank for each in group.previous], group.failures) == ([1, 2], [])


def test_the_end_comes_with_the_last_rank_and_each_counts_once() -> None:
    group = running()
    assert [group.handle_finished_rank(0, rank) for rank in (0, 1, 1, 2)] == [None] * 4
    assert group.handle_finished_rank(0, 3) == EndRankGroupOrder(
        RankGroupResult.DONE, 0, "all ranks are done"
    )


def test_the_budget_is_a_sliding_window() -> None:
    group = running(max_restarts=2, window_s=100.0)
    for now in (0.0, 50.0, 101.0):
        group.handle_failed_rank(group.generation, bad(code=7))
        assert isinstance(stop_all(group, now), PrepareRankGenerationOrder)
        group.mark_generation_running()
    group.handle_failed_rank(group.generation, bad(code=7))
    end = stop_all(group, 140.0)
    assert (end.verdict, end.code) == (RankGroupResult.GAVE_UP, 7)
    assert "restarts used up: 2 within 100 s" in format_rank_group_end_line(end)


def test_a_final_code_wins_over_whatever_else_failed() -> None:
    group = running()
    group.handle_failed_rank(0, bad(0, code=1, at=1.0))
    group.handle_failed_rank(0, bad(3, code=93, at=2.0))
    end = stop_all(group)
    assert (end.verdict, end.code) == (RankGroupResult.FINAL, 93)


def test_a_command_that_is_not_there_is_not_tried_again() -> None:
    group = running()
    group.handle_failed_rank(0, bad(0, code=127))
    end = stop_all(group)
    assert (end.verdict, end.code) == (RankGroupResult.FINAL, 127)
    assert format_rank_group_end_line(end).startswith(
        "final, exit code 127 (its command was not found): rank 0"
    )
    # One that was there before may be there again.
    group = running()
    group.handle_failed_rank(0, bad(0))
    stop_all(group)
    group.mark_generation_running()
    group.handle_failed_rank(1, bad(0, code=127))
    assert isinstance(stop_all(group), PrepareRankGenerationOrder)


@pytest.mark.parametrize("complaint", ["Connection reset by peer", "remote process exited"])
def test_a_peers_complaint_is_not_the_cause_though_it_came_first(complaint: str) -> None:
    group = running()
    group.handle_failed_rank(0, bad(0, at=1.0, message=complaint))
    group.handle_failed_rank(0, bad(3, code=137, at=1.1))
    stop_all(group)
    assert group.why == "rank 3 on n3 ended with signal 9 (SIGKILL)"


def test_a_lost_launcher_ends_the_group_when_the_others_have_stopped() -> None:
    group = running(nodes=3)
    assert isinstance(
        group.handle_lost_launcher(1, "the launcher on n1 is gone", 0.0), StopRankGenerationOrder
    )
    assert group.handle_stopped_ranks(0, 0, 0.0) is None
    end = group.handle_stopped_ranks(2, 0, 0.0)
    assert end == EndRankGroupOrder(RankGroupResult.LOST, LOST, "the launcher on n1 is gone")
    assert group.handle_lost_launcher(0, "later", 0.0) is None


def test_requests_count_as_restarts_and_are_refused_while_one_is_under_way() -> None:
    group = running(max_restarts=1)
    assert group.request_rank_restart("it hangs") == StopRankGenerationOrder(
        0, "restart asked for: it hangs"
    )
    assert group.request_rank_restart("it still hangs") is None
    assert stop_all(group) == PrepareRankGenerationOrder(1)
    assert group.request_rank_restart("again") is None
    group.mark_generation_running()
    group.request_rank_restart("again")
    end = stop_all(group)
    assert (end.verdict, end.code) == (RankGroupResult.GAVE_UP, 1)


def test_launchers_that_do_not_come_and_a_step_that_is_ended() -> None:
    group = RankGroup(2, RankRestartLimits())
    group.add_launcher(0, 1)
    assert group.handle_lost_launcher(0, "gone", 0.0) is None
    assert group.add_launcher(0, 1) is None
    assert group.handle_launcher_join_timeout("1 of 2 did not come").code == LOST
    other = running()
    assert other.handle_launcher_join_timeout("late") is None
    assert other.handle_step_end("SIGTERM") == EndRankGroupOrder(
        RankGroupResult.STOPPED, STOPPED, "SIGTERM"
    )
    assert other.handle_step_end("SIGTERM") is None


def test_no_order_of_facts_starts_a_generation_over_living_ranks() -> None:
    """Random facts in random order: PREPARING is reached only when every node has stopped."""
    for seed in range(300):
        dice = random.Random(seed)
        group = running(nodes=3, max_restarts=5)
        alive = {0, 1, 2}  # nodes with ranks of the current generation
        for now in range(200):
            node, generation = dice.randrange(3), dice.choice([group.generation, 0])
            fact = dice.randrange(6)
            if fact == 0:
                order = group.handle_failed_rank(generation, bad(node))
            elif fact == 1 and group.phase is RankGroupPhase.STOPPING and node in group.members:
                if generation == group.generation:
                    alive.discard(node)
                order = group.handle_stopped_ranks(node, generation, now)
            elif fact == 2:
                order = group.request_rank_restart("hang")
            elif fact == 3 and dice.random() < 0.02:
                order = group.handle_lost_launcher(node, "gone", now)
                alive.discard(node)
            else:
                order = group.handle_finished_rank(generation, node)
            if isinstance(order, PrepareRankGenerationOrder):
                assert not alive & set(group.members), f"seed {seed}"
                alive = set(group.members)
                group.mark_generation_running()
            if isinstance(order, EndRankGroupOrder):
                break
