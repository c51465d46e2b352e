"""Operators' requests over real HTTP with real munged: who may ask for what."""

import grp
import os
import pwd
from datetime import datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from hpctl.engine import request_intake
from hpctl.engine.clock import SystemClock
from hpctl.engine.config import AccessSection, Config
from hpctl.engine.journal.events import JobRecoveryOpened
from hpctl.engine.journal.state import EngineState
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.engine.request_intake import OperatorRequestHandler, make_operator_request_route
from hpctl.service.intake.app import make_agent_intake_app
from hpctl.service.intake.server import UvicornServerThread
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.authentication import IntakeAuthenticationSettings
from tests.intakes import Sink, post
from tests.process import run_text

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NOBODY = pwd.getpwnam("nobody")
GROUP = grp.getgrgid(NOBODY.pw_gid).gr_name


class Head:
    """A running intake with a desk for requests, on a journal of its own."""

    def __init__(self, munges, url):
        self.munges = munges
        self.store = JournalStore(url)
        self.state, self.poked = EngineState(), 0
        mine = SlurmJob(7, "RUNNING", NOON, uid=NOBODY.pw_uid)
        others = SlurmJob(8, "RUNNING", NOON, uid=1)
        self.view = SchedulerView(NOON, {}, {mine.id: mine, others.id: others})
        for rid, job in (("j-7", mine), ("j-8", others)):
            opened = JobRecoveryOpened(NOON, rid, JobAttempt(job.id, NOON, 0), "", (), "")
            self.state.fold(opened)
        here: Any = self
        self.live = LiveConfig(Config())
        self.port = RecoveryLoopAccess(here, here, SystemClock(), self.poke)
        self.desk = OperatorRequestHandler(self.store, self.port, self.live, None, munges.head)
        settings = IntakeAuthenticationSettings(munge_socket=munges.head)
        asked = make_operator_request_route(self.desk.take, settings, CollectorRegistry())
        app = make_agent_intake_app(settings, Sink(), lambda _: None, routes=[asked])
        self.server = UvicornServerThread(app, "127.0.0.1")

    def get_latest_slurm_view(self) -> SchedulerView:
        return self.view

    def poke(self) -> None:
        self.poked += 1

    def ask(self, uid, verb, target="", by="", detail=""):
        """As this user, whose credential the real munge command makes."""
        body = wire.encode_operator_request(verb, target, by, detail)
        command = [
            "munge",
            "--socket",
            str(self.munges.head),
            "--string",
            wire.make_request_credential_payload(body),
        ]
        made = run_text(command, check=True, user=uid if os.geteuid() == 0 else None)
        return self.post(body, f"MUNGE {made.stdout.strip()}")

    def post(self, body, authorization):
        return post(self.server.port, wire.REQUESTS_PATH, body, {"Authorization": authorization})


@pytest.fixture
def head(munges, tmp_path):
    running = Head(munges, f"sqlite:///{tmp_path}/journal.db")
    running.server.start()
    yield running
    running.server.stop()
    running.store.close()


def test_root_may_ask_and_name_the_person_behind_sudo(head):
    status, answer = head.ask(0, "replace", "n1", by="carol")
    assert status == 200
    (request,) = head.desk.pending()
    assert (request.id, request.verb, request.by) == (answer["request"], "replace", "carol")
    assert request.proof == "MUNGE uid 0 from 127.0.1.1"
    assert head.poked == 1


@pytest.mark.parametrize("verb", ["pause", "approve", "cancel", "replace", "return"])
def test_a_stranger_may_ask_for_nothing(head, verb):
    status, answer = head.ask(NOBODY.pw_uid, verb, "n1", by="root")
    assert (status, answer["error"]) == (403, "forbidden_uid")
    assert "access.group" in answer["hint"]
    assert head.desk.pending() == []


def test_group_members_may_request_only_in_their_own_name(head):
    head.live.replace(Config(access=AccessSection(group=GROUP)))
    assert head.ask(NOBODY.pw_uid, "pause", by="root")[0] == 200
    (request,) = head.desk.pending()
    assert request.by == "nobody"


@pytest.mark.parametrize(
    ("verb", "target", "status"),
    [
        ("cancel", "j-7", 200), ("cancel", "7", 200), ("approve", "7", 200), ("cancel", "j-8", 403),
        ("cancel", "8", 403), ("approve", "9", 403), ("replace", "7", 403),
        ("cancel", "7" * 200, 403),
    ],
)  # fmt: skip
def test_a_job_s_owner_may_ask_about_that_job(head, verb, target, status):
    assert head.ask(NOBODY.pw_uid, verb, target)[0] == status


@pytest.mark.parametrize(
    "body",
    [
        b"{", b'{"v":1,"verb":"erase"}', b'{"v":1,"verb":"pause","target":"' + b"x" * 300 + b'"}',
        b'{"v":1,"verb":"pause","target":"\\u001b[2J"}', b'{"v":9,"verb":"pause"}',
        b'{"v":1,"verb":"pause","extra":1}', b" " * 40000,
        b'{"v":1,"verb":"pause","detail":"\\u001b[2J"}',
    ],
)  # fmt: skip
def test_malformed_request_is_refused(head, body):
    proof = munge.encode_munge_credential(
        wire.make_request_credential_payload(body), head.munges.head
    )
    status, answer = head.post(body, f"MUNGE {proof}")
    assert status in (400, 413, 422), answer
    assert head.desk.pending() == []


def test_one_user_can_ask_so_often_and_no_other_suffers(head, monkeypatch):
    monkeypatch.setattr(request_intake, "PER_MINUTE", 5)
    head.live.replace(Config(access=AccessSection(group=GROUP)))
    answers = [head.ask(NOBODY.pw_uid, "pause")[0] for _ in range(6)]
    assert answers == [200] * 5 + [429]
    assert head.ask(0, "resume")[0] == 200


def test_a_row_that_came_by_another_way(head):
    head.store.ask("pause", "", "eve", NOON)
    (request,) = head.desk.pending()
    assert request.proof == "written to the journal's file"


def test_request_payload_reaches_the_daemon(head):
    detail = '{"nodes":"n[1-3]","why":"cables"}'
    assert head.ask(0, "pause", "n[1-3]", detail=detail)[0] == 200
    (request,) = head.desk.pending()
    assert (request.target, request.detail) == ("n[1-3]", detail)
