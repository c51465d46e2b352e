"""Who speaks for whom: a node for itself alone, the daemon alone for the daemon."""

import http.server
import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest

from hpctl.detection.send import HeadNodeClient, ReportDeliveryResult
from hpctl.toolkit.bounds import EARLIEST, LATEST
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.reset_order import GpuResetOrder
from hpctl.wire import authentication, munge
from hpctl.wire import job_reports as job_wire
from hpctl.wire import reports as wire
from hpctl.wire.heads import HeadNodeAddress as At
from hpctl.wire.heads import (
    UnauthenticatedAnswerError,
    list_trusted_head_node_uids,
    verify_head_node_answer_proof,
)
from hpctl.wire.job_report_client import MUNGE_SOCKET, send_job_report
from tests.intakes import Head, Session
from tests.reports import report

pytestmark = [pytest.mark.adversary, pytest.mark.slurm, pytest.mark.integration]


@contextmanager
def squatter(answer: bytes, proof: str = ""):
    """Any user's program on the daemon's port: it acknowledges whatever comes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.send_header(wire.PROOF_HEADER, proof)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
@pytest.mark.parametrize("field", ["agent_start", "sent_at", "first", "last"])
def test_times_that_no_clock_shows_are_bounded_or_refused(head, field, time):
    document = json.loads(wire.encode_agent_report(report()))
    finding = {"check": "a", "verdict": "fail", "first": time, "last": time}
    if field in finding:
        document["report"]["findings"] = [finding]
    else:
        document["report"][field] = time
    status, answer = head.send(json.dumps(document).encode())
    assert (status, answer.get("error")) in ((200, None), (403, "future_start"))
    for taken in head.accepted:
        found = [taken.sent_at, taken.agent_start]
        found += [at for f in taken.findings for at in (f.first, f.last)]
        assert all(EARLIEST <= at <= LATEST for at in found)
    trouble = {"kind": "hang", "at": time, "why": ""}
    word = json.dumps({"v": 1, "job_report": {"job": 1, "restarts": 0, "trouble": trouble}})
    assert EARLIEST <= job_wire.decode_job_report(word.encode()).trouble.at <= LATEST


@pytest.mark.nightly
def test_a_node_that_writes_all_the_time_is_reported_to_wait(munges, monkeypatch):
    monkeypatch.setattr(authentication, "REPORTS", 3)
    monkeypatch.setattr(authentication, "REPORTS_A_SECOND", 0.01)
    head = Head(munges)
    head.server.start()
    session = Session(head)
    answers = [session.send(session.report())[0] for _ in range(4)]
    other = Session(head, "n2", munges.n2)
    assert (answers, other.send(other.report())[0]) == ([200, 200, 429, 429], 200)
    head.server.stop()


def test_an_agent_believes_only_its_daemon_on_the_port(head, munges):
    client = HeadNodeClient((At.parse(head.server.url),), munges.n1)
    for seq in (1, 2):  # by credential, and within the session
        assert client.post(report(seq=seq)).answer is ReportDeliveryResult.ACKED
    client.close()
    acknowledged = wire.encode_report_ack(wire.ReportAck(1))
    for proof in ("", "MUNGE x", f"MUNGE {munge.encode_munge_credential(b'other', munges.n2)}"):
        with squatter(acknowledged, proof) as url:
            client = HeadNodeClient((At.parse(url),), munges.n1)
            assert client.post(report(seq=3)).answer is ReportDeliveryResult.RETRY
            client.close()


def test_a_supervisor_believes_no_acknowledgement_of_a_stranger(munges, monkeypatch):
    monkeypatch.setenv(MUNGE_SOCKET, str(munges.n1))
    with squatter(job_wire.encode_job_report_ack(job_wire.JobReportAck(1, True))) as url:
        assert send_job_report(JobReport(1, 0), head=url) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can encode as another user")
def test_a_proof_of_another_user_is_none(munges):
    uid = 65534
    output = wire.make_answer_proof_payload("MUNGE a", 200, b"{}")
    made = subprocess.run(
        ["munge", f"--socket={munges.n1}"],
        input=output, user=uid, group=uid, extra_groups=[],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    with pytest.raises(UnauthenticatedAnswerError, match=f"uid {uid}"):
        verify_head_node_answer_proof(f"MUNGE {made.stdout.decode().strip()}", output, munges.n2)
    verify_head_node_answer_proof(
        f"MUNGE {munge.encode_munge_credential(output, munges.n1)}", output, munges.n2
    )


def order(realm, uid=None, **changes):
    """A credential of the head node's that orders a reset, as whoever has `uid` can make it."""
    mine = NodeGeneration("n1", "i-1", "b-1")
    values = {"recovery": "n-1", "generation": mine, "until": time.time() + 60, **changes}
    wanted = GpuResetOrder(**values)
    if uid is None:
        return munge.encode_order_credential(wanted, realm.head)
    made = subprocess.run(
        ["munge", f"--socket={realm.n1}"], input=b"hpctl1-order:" + msgspec.json.encode(wanted),
        user=uid, group=uid, extra_groups=[], capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return made.stdout.decode().strip()


def test_an_agent_obeys_its_daemon_once_and_no_order_for_another_boot(munges):
    mine = NodeGeneration("n1", "i-1", "b-1")

    def opened(credential):
        return munge.decode_order_credential(
            credential, mine, list_trusted_head_node_uids(), munges.n1
        )

    good = order(munges)
    assert opened(good).recovery == "n-1"
    with pytest.raises(munge.MungeCredentialError, match=r"[Rr]eplayed"):
        opened(good)
    others = [NodeGeneration("n2", "i-1", "b-1"), NodeGeneration("n1", "i-2", "b-1")]
    bad = [order(munges, generation=one) for one in (*others, NodeGeneration("n1", "i-1", "b-2"))]
    bad += [order(munges, until=time.time() - 1)]
    bad += [
        munge.encode_munge_credential(
            wire.make_request_credential_payload(b"a report"), munges.head
        )
    ]
    bad += [munge.encode_munge_credential(b"hpctl1-order:[" * 99, munges.head)]
    if os.geteuid() == 0:
        bad += [order(munges, uid=65534)]
    for credential in bad:
        with pytest.raises(munge.OrderRefusedError):
            opened(credential)
    with pytest.raises(munge.MungeCredentialError):
        opened("MUNGE:nonsense:")


def test_an_order_reaches_its_own_node_alone_and_in_a_proved_answer(munges):
    head = Head(munges)
    head.order_for = {"n1": "MUNGE:order:"}.get
    head.server.start()
    url = At.parse(head.server.url)
    for node, socket, expected in (("n1", munges.n1, "MUNGE:order:"), ("n2", munges.n2, "")):
        client = HeadNodeClient((url,), socket)
        got = [client.post(report(node, seq)).order for seq in (1, 2)]
        assert got == [expected] * 2
        client.close()
    head.server.stop()
