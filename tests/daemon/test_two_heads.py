"""A leader and a standby: nothing is lost, nobody is sent astray, whoever asks finds the leader."""

import json
import math
import socket
import threading
import time
from contextlib import contextmanager
from http.client import MISDIRECTED_REQUEST
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from hpctl.detection.send import DISTRUST_S, HeadNodeClient, ReportDeliveryResult
from hpctl.engine import request_client
from hpctl.engine.adapters import open_journal_writer
from hpctl.engine.clock import SystemClock
from hpctl.engine.config import parse_config
from hpctl.engine.leadership import Leadership
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.request_intake import make_operator_request_route as request_route
from hpctl.jobs.report_intake import make_job_report_route
from hpctl.service.intake import channel, process
from hpctl.service.intake.app import make_agent_intake_app
from hpctl.service.intake.line import IntakeConnection
from hpctl.service.intake.process import IntakeBackend, IntakeProcess
from hpctl.service.intake.server import UvicornServerThread
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.wire import heads
from hpctl.wire import reports as wire
from hpctl.wire.authentication import IntakeAuthenticationSettings, LeadershipNotice, RequestRefusal
from hpctl.wire.heads import HeadNodeAddress as At
from hpctl.wire.heads import parse_leader_address, post_request_to_leader
from hpctl.wire.job_report_client import MUNGE_SOCKET, JobReportReply, send_job_report
from tests.agent_process import AgentProcess
from tests.fakes.desk import Desk
from tests.intakes import Sink, credential, post
from tests.reports import beat, report
from tests.service.test_intake_agent import Daemon
from tests.waiting import LONGER_AND_LONGER, PATIENCE_S, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


class Pair:
    """Two intakes, of which the first leads."""

    def __init__(self, realm):
        self.leading = LeadershipNotice(), LeadershipNotice(until=0.0)
        self.heads = [Daemon(realm, leading=each) for each in self.leading]
        for head in self.heads:
            head.server.start()
        self.at = [At.parse(head.server.url) for head in self.heads]
        self.urls = [head.server.url for head in self.heads]
        self.leads(0)

    def leads(self, which: int | None, named: str | None = None) -> None:
        for number, leading in enumerate(self.leading):
            leading.until = math.inf if number == which else 0.0
            there = "" if which is None else self.urls[which].removeprefix("http://")
            leading.leader = there if named is None else named


@pytest.fixture
def pair(munges):
    made = Pair(munges)
    yield made
    for head in made.heads:
        head.server.stop()


@contextmanager
def mute():
    """A head node that is frozen: the kernel takes connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield At("127.0.0.1", listener.getsockname()[1]), listener


def test_an_agent_follows_the_leader_and_loses_nothing(pair, tmp_path):
    agent = AgentProcess(tmp_path, ",".join(reversed(pair.urls)), pair.heads[0].realm.n1)
    one, other = pair.heads
    try:
        agent.start(HPCTL_AGENT_HEARTBEAT_S="0.2")
        agent.xid(48)
        one.knows("48")
        until(lambda: one.beats or one.count("heartbeats") > 2, 15)
        pair.leads(1)
        other.knows("48")  # by a heartbeat, which has it sent all, in a session of its own
        pair.leads(None)
        agent.xid(79)
        time.sleep(1.0)
        assert "79" not in {f.code for f in (*one.findings(), *other.findings())}
        pair.leads(0)
        back = time.monotonic()
        one.knows("48", "79")
        assert time.monotonic() - back < DISTRUST_S
        other.server.stop()
        one.server.stop()
        agent.xid(31)
        time.sleep(0.5)
        pair.leads(1)
        other.come_back()
        other.knows("31", "48", "79")
    finally:
        agent.end()


def test_only_heads_that_are_configured_are_followed(pair, munges):
    with mute() as (elsewhere, listener):
        pair.leads(None, f"{elsewhere.host}:{elsewhere.port}")
        client = HeadNodeClient(tuple(pair.at), munges.n1)
        assert client.post(report()).answer is ReportDeliveryResult.RETRY
        pair.leads(1, f"{elsewhere.host}:{elsewhere.port}")
        assert client.post(report(seq=2)).answer is ReportDeliveryResult.ACKED
        client.close()
        # Whoever hears a standby name itself asks the next.
        pair.leads(1, pair.urls[0].removeprefix("http://"))
        client = HeadNodeClient(tuple(pair.at), munges.n1)
        assert client.post(report(seq=3)).answer is ReportDeliveryResult.ACKED
        client.close()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    for text in (b"", b"[]", b"{}", b'{"leader": 5}', b'{"leader": ""}', b'{"leader": "//["}'):
        assert parse_leader_address(text, pair.at) is None
    assert parse_leader_address(f'{{"leader": "{pair.urls[1]}"}}'.encode(), pair.at) == pair.at[1]


def test_frozen_leader_delays_clients_only_briefly(pair, munges, monkeypatch):
    monkeypatch.setattr("hpctl.detection.send.STANDBY_TIMEOUT_S", 0.4)
    monkeypatch.setattr(heads, "TRY_S", 0.4)
    with mute() as (frozen, _):
        pair.leads(None, f"{frozen.host}:{frozen.port}")
        client = HeadNodeClient((frozen, pair.at[1]), munges.n1)
        assert client.post(report()).answer is ReportDeliveryResult.RETRY
        begun = time.monotonic()
        answers = [client.post(report(seq=n)).answer for n in (2, 3)]
        assert answers == [ReportDeliveryResult.RETRY] * 2
        pair.leads(1)
        assert client.post(report(seq=4)).answer is ReportDeliveryResult.ACKED
        assert time.monotonic() - begun < 0.4  # it was not asked again
        client.close()
        body, end = wire.encode_agent_report(report(seq=5)), time.monotonic() + 5
        status, answer = post_request_to_leader(
            (frozen, pair.at[1]), wire.PATH, body, end, munges.n1
        )
        assert (status, b"forged_node" in answer) == (403, True)  # not from the node's address
        # What a head node has got is not sent twice where that could do something twice.
        end = time.monotonic() + 0.3
        with pytest.raises(TimeoutError):
            post_request_to_leader((frozen, pair.at[1]), wire.PATH, body, end, munges.n1, once=True)


def test_a_request_reaches_the_leader_from_any_head(munges, tmp_path, monkeypatch):
    asked: list[wire.OperatorRequest] = []

    def take(what: wire.OperatorRequest, _uid: int, _address: str) -> int:
        asked.append(what)
        return len(asked)

    leading, servers = (LeadershipNotice(until=0.0), LeadershipNotice()), []
    for each in leading:
        settings = IntakeAuthenticationSettings(munge_socket=munges.head, leading=each)
        routes = [request_route(take, settings, CollectorRegistry())]
        app = make_agent_intake_app(settings, Sink(), lambda _: None, routes=routes)
        servers.append(UvicornServerThread(app, "127.0.0.1"))
        servers[-1].start()
    urls = [server.url for server in servers]
    settings = {"heads": urls, "intake": {"munge_socket": str(munges.head)}}
    config = parse_config(json.dumps({**settings, "state_dir": str(tmp_path)}))
    open_journal_writer(config).close()
    try:
        sent = request_client.send_operator_requests(config, "pause", [""], wait_s=0.0)
        assert [row.id for row in sent.requests] == [1]
        assert [what.verb for what in asked] == ["pause"]
        leading[1].until = 0.0
        monkeypatch.setattr(request_client, "SEND_S", 0.3)
        with pytest.raises(ServiceUnavailable, match="no head"):
            request_client.send_operator_requests(config, "pause", [""], wait_s=0.0)
    finally:
        for server in servers:
            server.stop()


def test_a_job_s_report_waits_for_the_new_leader(munges, monkeypatch):
    desk, leading = Desk(), LeadershipNotice(until=0.0)
    settings = IntakeAuthenticationSettings(munge_socket=munges.head, leading=leading)
    routes = [make_job_report_route(desk.desk.take, settings, SystemClock(), CollectorRegistry())]
    server = UvicornServerThread(
        make_agent_intake_app(settings, Sink(), lambda _: None, routes=routes), "127.0.0.1"
    )
    server.start()
    monkeypatch.setenv("HPCTL_HEAD", f"http://127.0.0.1:9,{server.url}")
    monkeypatch.setenv(MUNGE_SOCKET, str(munges.n1))
    try:
        # It asks until its time is over: on a busy machine a short one brings no answer at all.
        times = iter(LONGER_AND_LONGER)
        refused = until(
            lambda: send_job_report(JobReport(7, 0), timeout_s=next(times), failover_s=0.0)
        )
        assert refused.again
        assert "not_leader" in refused.text
        threading.Timer(1.0, lambda: setattr(leading, "until", math.inf)).start()
        reply = send_job_report(JobReport(7, 0), timeout_s=PATIENCE_S)
        assert reply == JobReportReply(True, acts=True)
        assert len(desk.stored) == 1
    finally:
        server.stop()


def test_the_intake_s_process_leads_as_long_as_its_daemon_says_so(munges, monkeypatch):
    monkeypatch.setattr(process, "LEADS_S", 0.6)
    leadership = Mock(spec=Leadership, serves=True, leader_address="10.0.0.2:8470")
    taken: list[Any] = []
    health = Mock(
        spec=NodeHealthStore, accept=lambda *reports: taken.extend(reports), heard=lambda _: False
    )
    parts: Any = (health, None, None, None, leadership)
    backend = IntakeBackend(*parts)
    line, setup = IntakeConnection(), channel.Setup(str(munges.head), (0,), None)
    intake = IntakeProcess(setup, "127.0.0.1:0", backend, line)
    intake.start()
    line.set_node_addresses({report().node: "127.0.1.2"})
    seq = iter(range(1, 100))

    def send(*, brief: bool = False) -> tuple[int, dict[str, Any]]:
        body = wire.encode_agent_report(report(seq=next(seq)))
        if brief:
            body = wire.encode_heartbeat(beat(seq=next(seq)))
        proof = {"Authorization": credential(munges.n1, body)}
        return post(intake.port, wire.PATH, body, proof, "127.0.1.2")

    try:
        until(lambda: send()[0] == 200)
        assert send(brief=True)[0] == 200
        leadership.serves = False
        with pytest.raises(RequestRefusal, match="the standby: 10"):  # whatever the intake believes
            backend.answer(channel.StoreReports((report(),)))
        until(lambda: send()[0] == MISDIRECTED_REQUEST)
        answer = send()[1]
        assert (answer["error"], answer["leader"]) == ("not_leader", "10.0.0.2:8470")
        leadership.serves = True
        until(lambda: send(brief=True)[0] != MISDIRECTED_REQUEST)
        # The other may have heard other findings meanwhile.
        assert send(brief=True)[1]["error"] == "unknown_digest"
        assert send()[0] == 200
        # A daemon that is frozen says nothing more, and cannot say that it leads no more.
        monkeypatch.setattr(intake, "_leads", lambda: channel.IntakeNodes({}))
        until(lambda: send()[0] == MISDIRECTED_REQUEST, 5)
        assert send()[1]["leader"] == ""
    finally:
        intake.stop()
    assert taken
