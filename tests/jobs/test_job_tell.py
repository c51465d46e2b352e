"""A supervisor's word over real HTTP with real munged: who is believed, what is refused, how."""

import os
import threading
import time

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from hpctl.engine.clock import SystemClock
from hpctl.engine.journal.events import JobRecoveryOpened, JobReported
from hpctl.engine.journal.state import EngineState
from hpctl.jobs import report_intake
from hpctl.jobs.report_intake import make_job_report_route
from hpctl.service.intake.app import make_agent_intake_app
from hpctl.service.intake.server import UvicornServerThread
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.policy_file import RunPolicyFile
from hpctl.vocabulary.run_policy import RunAction, RunActionDecision
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire import job_report_client
from hpctl.wire import job_reports as job_wire
from hpctl.wire.authentication import IntakeAuthenticationSettings
from hpctl.wire.job_report_client import MUNGE_SOCKET, JobReportReply
from tests.fakes.desk import NOON, OWN, Desk
from tests.intakes import Sink, credential, post, refused
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
TROUBLE = Trouble(
    TroubleKind.HANG, NOON, "rank 3 makes no progress", "hang", "n2", 3, "gpu0", 139, "x", 40, 30
)


class Head(Desk):
    """A running intake with a desk."""

    def __init__(self, munges):
        super().__init__()
        registry, settings = (
            CollectorRegistry(),
            IntakeAuthenticationSettings(munge_socket=munges.head),
        )
        routes = [make_job_report_route(self.desk.take, settings, SystemClock(), registry)]
        app = make_agent_intake_app(settings, Sink(), lambda _: None, registry, routes=routes)
        self.server = UvicornServerThread(app, "127.0.0.1")

    def post(self, body, authorization):
        return post(self.server.port, job_wire.PATH, body, {"Authorization": authorization})


@pytest.fixture
def head(munges, monkeypatch):
    running = Head(munges)
    running.server.start()
    monkeypatch.setenv("HPCTL_HEAD", running.server.url)
    monkeypatch.setenv(MUNGE_SOCKET, str(munges.n1))
    monkeypatch.setenv("X", str(munges.n1))
    yield running
    running.server.stop()


def send_report(sent: JobReport, **how) -> JobReportReply | None:
    """Send a report, and wait as long as a busy machine needs."""
    return job_report_client.send_job_report(sent, **{"timeout_s": PATIENCE_S, **how})


def report(job: int = 7, restarts: int = 0, **changes) -> JobReport:
    return replace(JobReport(job, restarts, TROUBLE), **changes)


def test_a_word_is_in_the_journal_before_it_is_acknowledged(head):
    answer = RunActionDecision(RunAction.REQUEUE, "no spare is left", 12.0, ("n2",))
    sent = JobReport.of(7, 0, TROUBLE, answer)
    assert sent.wish is RequestedAction.REQUEUE
    assert send_report(sent) == JobReportReply(True, acts=True)
    (event,) = head.stored
    assert (event.report, event.uid) == (sent, head.uid)
    assert head.desk.news() == [event]
    assert head.desk.news() == []
    assert head.poked == 1


def test_where_the_daemon_does_not_act_it_says_so(head):
    head.shut = "mode observe: decisions are written down and nothing is done"
    assert send_report(report(wish=RequestedAction.REQUEUE)) == JobReportReply(
        True, acts=False, text=head.shut
    )
    assert len(head.stored) == 1


def test_a_supervisor_learns_the_clusters_and_the_partitions_policy(head):
    partition = RunPolicyFile(on={"hang": {"max": 3}})
    site = replace(OWN, run_policy=RunPolicyFile(hang_floor_s=5.0), run_policies={"": partition})
    head.live.replace(site)
    answer = send_report(JobReport(7, 0, progress=40))
    assert answer.run_policy == ({"hang_floor_s": 5.0}, {"on": {"hang": {"max": 3}}})


def test_a_run_learns_why_the_one_before_it_ended(head):
    head.state = EngineState()
    head.sees(7, restarts=2)
    head.state.fold(JobReported(NOON, report(restarts=0), head.uid))
    assert send_report(JobReport(7, 1)).former == "rank 3 makes no progress"
    run = JobAttempt(7, NOON, 1)
    head.state.fold(JobRecoveryOpened(NOON, "j-1", run, "", ("n2",), "its node n2: off the bus"))
    assert send_report(JobReport(7, 2)).former == "its node n2: off the bus"
    assert send_report(JobReport(7, 0)).former == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can speak as another user")
def test_only_the_owner_and_root_are_believed(head):
    "host".encode("idna")  # imported now: the other user may not be able to read Python's files
    os.seteuid(65534)
    try:
        denied = send_report(report())
        head.uid = 65534
        head.sees(7)
        believed = send_report(report())
    finally:
        os.seteuid(0)
    assert denied.text.startswith("403 forbidden_uid: uid 65534 does not own job 7 (ada, uid 0)")
    assert not denied.again
    assert believed == JobReportReply(True, acts=True)
    assert send_report(report()) == JobReportReply(True, acts=True)  # root, of another's job
    assert [e.uid for e in head.stored if isinstance(e, JobReported)] == [65534, 0]
    assert refused(head.server.port, "hpctl_job_reports_refused") == {"forbidden_uid": 1}


def test_forged_and_replayed_reports_are_refused(head, munges):
    body = job_wire.encode_job_report(report())
    good = credential(munges.n1, body)
    for output, authorization, expected in (
        (body, "", (401, "missing_credential")),
        (body, credential(munges.stranger, body), (401, "invalid_credential")),
        (body, credential(munges.n1, body + b" "), (401, "bad_digest")),
        (body, good, (200, None)),
        (body, good, (409, "replayed_credential")),
    ):
        status, answer = head.post(output, authorization)
        assert (status, answer.get("error")) == expected
    assert len(head.stored) == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed"),
        (b'{"v":1}', 422, "invalid_report"),
        (b'{"v":2,"job_report":{"job":7,"restarts":0}}', 400, "unsupported_version"),
        (b'{"v":1,"job_report":{"job":0,"restarts":0}}', 422, "invalid_report"),
        (b'{"v":1,"job_report":{"job":7,"restarts":0,"exclude":["a b"]}}', 422, "invalid_report"),
        (b"x" * (job_wire.MAX_BODY + 1), 413, "too_large"),
    ],
)
def test_malformed_report_is_refused(head, munges, body, status, code):
    answer = head.post(body, credential(munges.n1, body))
    assert (answer[0], answer[1]["error"]) == (status, code)
    assert answer[1]["message"]
    assert head.stored == []


def test_words_of_runs_that_slurm_does_not_count(head):
    head.sees(7, restarts=5)
    for restarts, ok in ((2, False), (3, True), (5, True), (6, True)):
        answer = send_report(report(restarts=restarts))
        assert answer.ok is ok, (restarts, answer)
        head.sees(7, restarts=5)


def test_a_job_that_has_just_begun_is_looked_for_again(head, monkeypatch):
    monkeypatch.setattr(report_intake, "PATIENCE_S", PATIENCE_S / 2)
    assert head.view is not None
    head.view = replace(head.view, as_of=NOON)
    threading.Timer(0.3, lambda: head.sees(7, 8)).start()
    began = time.monotonic()
    assert send_report(report(job=8)) == JobReportReply(True, acts=True)
    assert time.monotonic() - began > 0.2
    assert head.poked >= 1
    monkeypatch.setattr(report_intake, "PATIENCE_S", 0.3)
    unknown = send_report(report(job=9))
    assert (unknown.ok, unknown.again) == (False, True)


def test_while_slurm_or_the_journal_is_away(head):
    head.full = "No space left on device"
    answer = send_report(report())
    assert (answer.ok, answer.again) == (False, True)
    assert "journal_unavailable: not stored: No space left" in answer.text
    assert head.desk.news() == []
    head.full, head.view = "", None
    answer = send_report(report())
    assert answer.again
    assert "slurm_unavailable" in answer.text
    # What Slurm said before it went away is enough: a job's owner does not change.
    head.sees(7)
    assert head.view is not None
    head.view = replace(head.view, as_of=NOON)
    assert send_report(report()) == JobReportReply(True, acts=True)


def test_user_that_sends_too_often_must_wait(munges, monkeypatch):
    monkeypatch.setattr(report_intake, "AT_ONCE", 5)
    monkeypatch.setattr(report_intake, "A_SECOND", 0.01)
    monkeypatch.setenv(MUNGE_SOCKET, str(munges.n1))
    head = Head(munges)
    head.sees(*range(1, 9))
    head.server.start()
    # Of one user, whatever the job: an array has a thousand tasks.
    answers = [send_report(report(job=n), head=head.server.url) for n in range(1, 7)]
    head.server.stop()
    assert all(answer is not None and answer.ok for answer in answers[:5])
    answer = answers[5]
    assert (answer.ok, answer.again) == (False, True)
    assert "too_many" in answer.text


def test_no_head_node_no_munged_no_harm(head, monkeypatch, tmp_path):
    began = time.monotonic()
    monkeypatch.setenv(MUNGE_SOCKET, str(tmp_path / "none"))
    assert send_report(report()) is None
    assert send_report(report(), head="nonsense://") is None
    monkeypatch.delenv("HPCTL_HEAD")
    monkeypatch.setenv("HPCTL_AGENT_ENV", str(tmp_path / "missing"))
    assert send_report(report()) is None
    assert time.monotonic() - began < PATIENCE_S
    output = tmp_path / "agent.env"
    output.write_text(f'# the agent\nHPCTL_AGENT_HEAD="http://127.0.0.1:9 {head.server.url}"\n')
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"AuthType=auth/munge\nAuthInfo=cred_expire=60,socket={os.environ['X']}\n")
    monkeypatch.setenv("HPCTL_AGENT_ENV", str(output))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.delenv(MUNGE_SOCKET)
    assert send_report(report()) == JobReportReply(True, acts=True)
