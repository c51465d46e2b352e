"""Peers without rights, and root of one node, at the daemon's port of a live cluster."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import pickle
from datetime import datetime, timedelta

import pytest

from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import AgentReport, DeviceVerdict, Finding
from hpctl.wire import munge
from hpctl.wire import reports as wire
from tests.adversary.bed import Siege, attack, begin
from tests.live import until
from tests.munged import munged, public_directory

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(300),
]

JOBS, REPORTS = "/v1/jobs", wire.PATH


def word(job: int, **more) -> bytes:
    answer = {"job": job, "restarts": 0, "wish": "requeue", "why": "x", **more}
    return json.dumps({"v": 1, "job_report": answer}).encode()


NOT_REPORTS = {
    "a pickle": lambda: pickle.dumps(print),
    "gzip": lambda: gzip.compress(b"0" * 10_000_000),
    "nan": lambda: b'{"v":1,"job_report":{"job":NaN,"restarts":Infinity}}',
    "deep": lambda: b'{"v":1,"job_report":' + b"[" * 30_000,
    "a number of ten thousand digits": lambda: b'{"v":' + b"9" * 10_000 + b"}",
    "bytes that are no text": lambda: b"\xff\xfe\x80" * 100,
    "nothing": lambda: b"",
    "half a surrogate pair": lambda: b'{"v":1,"job_report":{"job":1,"restarts":0,"why":"\\ud800"}}',
}


@pytest.mark.parametrize("path", [JOBS, REPORTS, "/v1/requests"])
def test_what_is_no_message_is_refused(siege, path):
    """Each with a true credential of the stranger, and so read as far as he is believed."""
    bodies = [make().hex() for make in NOT_REPORTS.values()]
    answer = attack("posts", port=siege.port, path=path, bodies=bodies, munge_socket=siege.munge)
    assert [s for s, _ in answer if not 400 <= s < 500] == []
    siege.holds()


@pytest.mark.parametrize("announced", [10**9, 0], ids=["announced", "not announced"])
def test_a_gigabyte_is_not_taken(siege, announced):
    got = attack("endless", port=siege.port, path=REPORTS, announced=announced, most=10**9)
    assert got["sent"] < 50_000_000
    assert got["status"] in (0, 408, 413)
    siege.holds()


@pytest.mark.nightly
def test_crowds_that_never_finish_are_bounded_and_others_are_healed_meanwhile(siege):
    """Idle ones, and ones that drip a header, while a node faults and its job must run again."""
    head = "POST /v1/reports HTTP/1.1\r\nX: "
    crowds = [
        begin("crowd", port=siege.port, count=2000, begin="", drip="", seconds=8),
        begin("crowd", port=siege.port, count=2000, begin=head, drip="x", seconds=8),
    ]
    for one in crowds:
        one.ready()
    siege.stands()
    assert sum(one.result()["open"] for one in crowds) <= 600


@pytest.mark.nightly
def test_a_flood_of_unknown_jobs_wakes_the_loop_seldom(siege):
    flood = begin(
        "flood", port=siege.port, path=JOBS, body=word(4_000_000_000).hex(),
        munge_socket=siege.munge, times=120,
    )  # fmt: skip
    siege.stands()
    assert "200" not in flood.result()["counts"]
    siege.holds()


@pytest.mark.nightly
def test_a_flood_of_words_fills_no_journal(siege):
    job = siege.sbatch()
    until(lambda: siege.job(job).running, 20, "the stranger's job runs")
    journal = siege.sandbox.state_dir / "daemon"
    before = size(journal)
    trouble = {
        "kind": "hang", "at": "2026-01-01T00:00:00Z", "why": "x" * 500, "evidence": "\u0001" * 2000,
    }  # fmt: skip
    body = word(job, wish="none", trouble=trouble)
    flood = begin(
        "flood", port=siege.port, path=JOBS, body=body.hex(), munge_socket=siege.munge, times=300
    )
    siege.stands()
    flood.result()
    assert size(journal) - before < 8_000_000
    siege.sandbox.run(["scancel", str(job)])


def size(directory):
    return sum(path.stat().st_size for path in directory.glob("journal.db*"))


def test_a_stranger_speaks_for_no_job_of_another(siege):
    job = siege.live.start("sleep 600", "--time=10")
    siege.treated.add(job)
    bodies = [word(job).hex(), word(job, wish="hold").hex()]
    answer = attack("posts", port=siege.port, path=JOBS, bodies=bodies, munge_socket=siege.munge)
    assert [s for s, _ in answer] == [403, 403]
    assert siege.live.running(job)
    siege.holds()
    siege.sandbox.run(["scancel", str(job)])


class Node:
    """What root of one node can send: its munged has the cluster's key."""

    def __init__(self, siege: Siege, name: str) -> None:
        self.siege, self.name = siege, name
        siege.hostile.add(name)
        directory = siege.sandbox.node_dir(name)
        self.munge = directory / "munge.sock"
        self.boot = (directory / "boot_id").read_text().strip()
        self.instance = siege.live.instance(name)
        self.address = str(siege.sandbox.spec.address(siege.sandbox.nodes.index(name) + 1))
        self.seq = 10**6

    def report(self, of: Node | None = None, **more) -> AgentReport:
        of = of or self
        self.seq += 1
        now = datetime.now(UTC)
        whole = {"sent_at": now, "agent_start": now, **more}
        names = of.name, of.instance, of.boot
        return AgentReport(*names, self.seq, **whole)

    def post(self, body, authorization):
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.siege.port, timeout=60, source_address=(self.address, 0)
        )
        connection.request("POST", REPORTS, body, {"Authorization": authorization})
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    def send(self, report, socket=None):
        body = wire.encode_agent_report(report)
        proof = munge.encode_munge_credential(
            wire.make_request_credential_payload(body), socket or self.munge
        )
        return self.post(body, f"MUNGE {proof}")


@pytest.fixture(scope="module")
def pair(siege: Siege) -> tuple[Node, Node]:
    """A node whose root is hostile, and its victim: both in service."""
    bad, victim = siege.live.victims(2)
    return Node(siege, bad), Node(siege, victim)


def fault(at: datetime) -> tuple[Finding, ...]:
    return (Finding("kernel.xid", DeviceVerdict.FAIL, at, at, code="79"),)


def test_root_of_a_node_with_the_key_speaks_for_no_other(siege, pair):
    """`munged --origin=VICTIM` makes the credential; the connection still comes from his node."""
    bad, victim = pair
    key = siege.sandbox.spec.layout.munge_key
    with public_directory() as directory, munged(directory, "forged", key, victim.address) as other:
        report = bad.report(victim, findings=fault(datetime.now(UTC)))
        status, answer = bad.send(report, other)
    assert (status, answer["error"]) == (403, "forged_node")
    siege.holds()


def test_a_replay_and_a_stolen_session_are_refused(siege, pair):
    bad, victim = pair
    body = wire.encode_agent_report(bad.report(), open_session=True)
    payload = wire.make_request_credential_payload(body)
    proof = f"MUNGE {munge.encode_munge_credential(payload, bad.munge)}"
    status, answer = bad.post(body, proof)
    assert status == 200, answer
    assert bad.post(body, proof)[1]["error"] == "replayed_credential"
    session = answer["session"]
    secret = munge.decode_munge_credential(session["key"], bad.munge).payload
    again = wire.encode_agent_report(bad.report())
    signed = wire.make_session_authorization(session["id"], secret, again)
    assert victim.post(again, signed)[1]["error"] == "moved_session"
    for_other = wire.encode_agent_report(bad.report(victim))
    signed = wire.make_session_authorization(session["id"], secret, for_other)
    assert bad.post(for_other, signed)[1]["error"] == "forged_node"
    siege.holds()


TIMES = {
    "year 1": "0001-01-01T00:00:00Z",
    "year 1 with an offset": "0001-01-01T00:00:00+14:00",
    "year 9999 with an offset": "9999-12-31T23:59:59-12:00",
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(TIMES))
def test_a_finding_of_no_clock_is_refused_or_bounded(siege, pair, name):
    """Never a 500, and never a cycle or a restart that fails over it."""
    bad, _ = pair
    document = json.loads(wire.encode_agent_report(bad.report()))
    finding = {"check": "kernel.odd", "verdict": "warn", "first": TIMES[name], "last": TIMES[name]}
    document["report"]["findings"] = [finding]
    body = json.dumps(document).encode()
    status, _ = bad.post(
        body,
        "MUNGE"
        f" {munge.encode_munge_credential(wire.make_request_credential_payload(body), bad.munge)}",
    )
    assert status in (200, 400, 422)
    siege.stands()


def test_an_agent_that_begins_in_2099_is_refused(siege, pair):
    bad, _ = pair
    status, answer = bad.send(bad.report(agent_start=datetime(2099, 1, 1, tzinfo=UTC)))
    assert (status, answer["error"]) == (403, "future_start")
    siege.holds()


@pytest.mark.nightly
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_costs_no_other_node(siege, pair, hours):
    """Its own reports may be refused; others' faults are treated on time."""
    _, node = pair
    off = datetime.now(UTC) + timedelta(hours=hours)
    finding = (Finding("kernel.odd", DeviceVerdict.WARN, off, off),)
    report = node.report(sent_at=off, agent_start=off, findings=finding)
    assert node.send(report)[0] in (200, 403, 409)
    siege.stands()


@pytest.mark.nightly
def test_after_all_of_this_a_restart_reads_its_journal(siege):
    siege.sandbox.kill_daemon()
    siege.sandbox.start_daemon()
    siege.restarted()
    siege.stands()


@pytest.mark.nightly
def test_a_stranger_who_takes_the_port_is_not_believed(siege):
    """While no daemon runs; afterwards it says why it cannot start, or it has its port."""
    if os.geteuid() != 0:
        pytest.fail("run as root: the port is taken by another user")
    siege.sandbox.kill_daemon()
    squatter = begin("hijack", port=siege.port, seconds=4)
    squatter.ready()
    apart = "--exclude=" + ",".join(sorted(siege.hostile or {siege.sandbox.nodes[0]}))
    job = siege.live.start("sleep 600", "--time=10", apart)
    siege.treated.add(job)
    (node,) = siege.live.job(job).nodes
    siege.broken.add(str(node))
    siege.live.xid(str(node))
    assert squatter.result()["answered"] > 0
    siege.sandbox.start_daemon()
    siege.restarted()
    until(
        lambda: siege.live.running(job, 1), 40, "what was acknowledged by a stranger is told again"
    )
    siege.holds()
