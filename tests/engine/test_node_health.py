"""The health of nodes: what is stored when, and what only memory holds."""

import threading
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from hpctl.engine.node_health import NodeHealthStore
from hpctl.vocabulary.model import AgentReport, ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.wire import reports as wire
from tests.fakes.values import T0

N1, N2 = "n1", "n2"
XID = Finding("kernel.xid", DeviceVerdict.FAIL, T0, T0, "0000:3b:00", "79")


class Bench:
    """A book over a disk that is a value, with a clock that is moved by hand."""

    def __init__(self, known=None):
        self.at = T0
        self.disk: dict[str, NodeHealth] = dict(known or {})
        self.heard: dict[str, datetime] = {}
        self.writes: list[int] = []
        self.pokes = 0
        self.full = False
        self.book = NodeHealthStore(self.disk, self, self.poke, self)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def poke(self) -> None:
        self.pokes += 1

    def record(self, facts):
        if self.full:
            raise OSError(28, "No space left on device")
        self.disk.update({h.generation.node: h for h in facts})
        self.writes += [len(facts)] if facts else []

    def store_last_heard_times(self, heard):
        if self.full:
            raise OSError(28, "No space left on device")
        self.heard = dict(heard)

    def later(self, seconds: float = 10) -> datetime:
        self.at += timedelta(seconds=seconds)
        return self.at


def report(node: str, *findings: Finding, boot: str = "b1") -> AgentReport:
    return AgentReport(node, "i-1", boot, 1, T0, T0, findings)


def beat(node: str, *findings: Finding, boot: str = "b1") -> wire.Heartbeat:
    return wire.Heartbeat(node, "i-1", boot, 2, T0, T0, wire.compute_findings_digest(findings))


def test_a_heartbeat_is_heard_and_not_stored_until_the_next_flush() -> None:
    bench = Bench()
    bench.book.accept(report(N1, XID))
    assert (bench.disk[N1].findings, bench.pokes) == ((XID,), 1)
    later = bench.later()
    assert bench.book.heard(beat(N1, XID))
    assert bench.book.snapshot()[N1] == replace(bench.disk[N1], last_heard=later)
    assert (bench.writes, bench.heard, bench.pokes) == ([1], {}, 1)
    bench.book.flush()
    assert (bench.writes, bench.heard) == ([1], {N1: later})
    bench.heard = {}
    bench.book.flush()
    assert bench.heard == {}, "nothing was heard since"


@pytest.mark.parametrize(
    "heartbeat",
    [
        beat(N2, XID), beat(N1), beat(N1, replace(XID, code="48")),
        beat(N1, replace(XID, verdict=DeviceVerdict.WARN)), beat(N1, replace(XID,
        clears=ClearCondition.GONE)),
        beat(N1, XID, boot="b2"),
    ],
)  # fmt: skip
def test_report_is_refused_where_health_is_not_held(heartbeat: wire.Heartbeat) -> None:
    bench = Bench()
    bench.book.accept(report(N1, XID))
    before = bench.book.snapshot()
    bench.later()
    assert not bench.book.heard(heartbeat)
    assert bench.book.snapshot() == before


def test_the_digest_is_of_what_the_agent_said_last_not_of_all_that_is_known() -> None:
    """A finding that its agent forgot (its disk was lost) stays with the head node."""
    bench = Bench()
    bench.book.accept(report(N1, XID))
    bench.book.accept(report(N1))
    assert bench.book.heard(beat(N1))
    assert not bench.book.heard(beat(N1, XID))
    assert bench.book.snapshot()[N1].findings == (XID,)


def test_grown_count_is_stored_with_the_next_flush() -> None:
    bench = Bench()
    bench.book.accept(report(N1, XID))
    bench.book.accept(report(N1, replace(XID, count=5)))
    assert bench.disk[N1].findings[0].count == 1
    bench.book.flush()
    assert bench.disk[N1].findings[0].count == 5


def test_a_daemon_that_starts_again_asks_every_agent_once() -> None:
    bench = Bench()
    bench.book.accept(report(N1, XID))
    again = Bench(bench.disk)
    assert not again.book.heard(beat(N1, XID))
    again.book.accept(report(N1, XID))
    assert again.book.heard(beat(N1, XID))
    assert (again.writes, again.pokes) == ([], 0), "nothing of it was new"


def test_report_that_cannot_be_stored_is_not_kept() -> None:
    bench = Bench()
    bench.full = True
    with pytest.raises(OSError, match="space"):
        bench.book.accept(report(N1, XID), report(N2))
    assert bench.book.snapshot() == {}
    assert not bench.book.heard(beat(N2))
    bench.full = False
    bench.book.accept(report(N1, XID))
    assert bench.disk.keys() == {N1}


def test_a_flush_that_failed_is_made_good_by_the_next() -> None:
    bench = Bench()
    bench.book.accept(report(N1, XID))
    bench.book.accept(report(N1, replace(XID, count=5)))
    bench.book.heard(beat(N1, XID))
    bench.full = True
    with pytest.raises(OSError, match="space"):
        bench.book.flush()
    bench.full = False
    bench.book.flush()
    assert bench.disk[N1].findings[0].count == 5
    assert N1 in bench.heard


def test_an_older_word_is_never_written_over_a_newer_one() -> None:
    """Flushes and reports race; when all is still, the disk says what memory says."""
    bench = Bench()
    done = threading.Event()

    def flushing() -> None:
        while not done.is_set():
            bench.book.flush()

    flusher = threading.Thread(target=flushing)
    flusher.start()
    for n in range(300):
        code = replace(XID, code=str(n % 7))
        bench.book.accept(report(N1, replace(code, count=n + 1), boot=f"b{n // 50}"))
        bench.book.heard(beat(N1, code, boot=f"b{n // 50}"))
        assert bench.disk[N1].generation.boot == f"b{n // 50}"
    done.set()
    flusher.join(60)
    bench.book.flush()
    assert bench.disk[N1].findings == bench.book.snapshot()[N1].findings


def test_more_than_is_kept_of_a_node_is_not_taken_over_from_an_older_daemon() -> None:
    many = tuple(replace(XID, code=str(n)) for n in range(3 * wire.MAX_FINDINGS))
    known = {N1: NodeHealth(report(N1).generation, T0, many)}
    bench = Bench(known)
    assert len(bench.book.list_agent_findings(N1)) == wire.MAX_FINDINGS + 1
    bench.book.take_over(known)
    assert len(bench.book.list_agent_findings(N1)) == wire.MAX_FINDINGS + 1
