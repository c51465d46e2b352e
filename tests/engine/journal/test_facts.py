"""What agents said last, and what operators ask."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import NodeHealth
from tests.engine.journal.events import NOW, any_health, taken
from tests.engine.journal.test_events import BRIEF

pytestmark = [pytest.mark.integration, pytest.mark.contract]

WELL = NodeHealth(NodeGeneration("n1", "i-1", "b-1"), NOW)


@BRIEF
@given(facts=st.lists(any_health, max_size=5))
def test_the_newest_word_of_each_node_is_kept_exactly(journal, facts):
    before = dict(journal.health())
    journal.record(facts)
    assert journal.health() == {**before, **{h.generation.node: h for h in facts}}


def test_a_new_generation_replaces_the_old(bed):
    journal = bed.open()
    journal.record([WELL])
    fresh = replace(WELL, generation=replace(WELL.generation, boot="b-2"))
    journal.record([fresh])
    assert bed.open().health() == {"n1": fresh}


def test_a_node_is_as_old_as_it_was_last_heard(bed):
    """Heartbeats are stored apart from findings, and neither makes the other older."""
    journal = bed.open()
    other = replace(WELL, generation=replace(WELL.generation, node="n2"))
    journal.record([WELL, other])
    later, latest = NOW + timedelta(seconds=10), NOW + timedelta(seconds=20)
    journal.store_last_heard_times({"n1": later, "n3": later})
    aged = replace(WELL, last_heard=later)
    assert bed.open().health() == {"n1": aged, "n2": other}
    journal.store_last_heard_times({"n1": latest})
    assert bed.open().health()["n1"].last_heard == latest
    journal.store_last_heard_times({"n1": NOW - timedelta(seconds=10)})
    assert bed.open().health()["n1"].last_heard == NOW


def test_ten_thousand_nodes_are_heard(bed):
    """All in one row, on every database: no limit of a column or a statement is met."""
    nodes = [f"ip-10-{n // 256}-{n % 256}-1" for n in range(10_000)]
    journal = bed.open()
    last = replace(WELL, generation=replace(WELL.generation, node=nodes[-1]))
    journal.record([last])
    later = NOW + timedelta(seconds=1, microseconds=250_000)
    journal.store_last_heard_times(dict.fromkeys(nodes, later))
    assert bed.open().health() == {nodes[-1]: replace(last, last_heard=later)}


def test_names_that_differ_in_case_are_two_nodes(journal):
    upper = replace(WELL, generation=replace(WELL.generation, node="N1"))
    journal.record([WELL, upper])
    assert journal.health() == {"n1": WELL, "N1": upper}


def test_a_request_waits_until_it_is_taken(database):
    cli, daemon = database.open(), database.open()
    number = cli.ask("replace", "n1 ✓", "ann", NOW)
    (request,) = daemon.requests()
    lines = (request.id, request.verb, request.target, request.by, request.at)
    assert lines == (number, "replace", "n1 ✓", "ann", NOW)
    assert cli.answer(number) is None
    daemon.append([taken(number, "as you wish")])
    assert daemon.requests() == []
    assert database.open().requests() == [], "a daemon that starts later must not take it again"
    assert cli.answer(number).answer == "as you wish"


def test_request_payload_is_kept_until_the_request_is_taken(database):
    cli, daemon = database.open(), database.open()
    said = '{"nodes":"n[1-3]","why":"câbles"}' + " " * 20000
    number = cli.ask("pause", "n[1-3]", "ann", NOW, detail=said)
    assert cli.ask("pause", "", "ann", NOW) > number
    for head in (daemon, database.open()):
        assert [request.detail for request in head.requests()] == [said, ""]
    daemon.append([taken(number, "paused")])
    assert [request.detail for request in daemon.requests()] == [""]


def test_requests_are_listed_oldest_first_and_taken_singly(journal):
    asked = [journal.ask("pause", str(n), "ann", NOW - timedelta(seconds=n)) for n in range(4)]
    assert [r.id for r in journal.requests()] == asked
    journal.append([taken(asked[1])])
    assert [r.id for r in journal.requests()] == [asked[0], asked[2], asked[3]]


def test_an_old_answer_is_still_found(database):
    journal = database.open()
    asked = [journal.ask("pause", str(n), "ann", NOW) for n in range(150)]
    journal.append([taken(n, f"answer {n}") for n in asked])
    assert journal.answer(asked[0]).answer == f"answer {asked[0]}"
    assert journal.answer(max(asked) + 1) is None


def test_many_ask_at_once_and_none_is_lost(bed):
    def ask(who: int) -> list[int]:
        journal = bed.open()
        return [journal.ask("pause", f"{who}.{n}", "ann", NOW) for n in range(8)]

    daemon = bed.open()
    with ThreadPoolExecutor(4) as pool:
        numbers = [n for mine in pool.map(ask, range(4)) for n in mine]
    assert len(set(numbers)) == 32
    assert [r.id for r in daemon.requests()] == sorted(numbers)
    assert {r.target for r in daemon.requests()} == {f"{w}.{n}" for w in range(4) for n in range(8)}


def test_the_outbox_is_kept_whole_and_events_come_with_their_numbers(database):
    journal = database.open()
    assert (journal.outbox(), journal.newest(), journal.newer(0, 9)) == (None, 0, [])
    for payload in ("one", "two \u2603" * 40_000):
        journal.save_outbox(payload)
        assert database.read().outbox() == payload
    journal.append([taken(n) for n in range(5)])
    assert journal.newest() == 5
    assert [number for number, _ in journal.newer(1, 3)] == [2, 3, 4]
    assert journal.newer(4, 3) == [(5, taken(4))]
