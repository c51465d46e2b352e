"""The spot check against a metadata service over HTTP, and what becomes of its finding."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    ExpectedHardware,
)
from hpctl.detection.checks import host_spot
from hpctl.engine.journal.events import Event, NodeRecoveryOpened, SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.nodes import advance
from hpctl.nodes.actors import NodeFacts
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import RecoveryPhaseMove, StepKind
from hpctl.vocabulary.slurm_facts import SlurmNode
from tests.fakes.engine import advance_all, plan
from tests.fakes.values import OWN, at, faulty, generation, node_name, opened, slurm_job, view_of

RULES = build_fault_rules()
RULE = "host-spot-interruption"
NOTICE = {"action": "terminate", "time": "2026-03-01T12:02:00Z"}


class Metadata:
    """IMDSv2: no answer without a token; a token can be forgotten."""

    def __init__(self) -> None:
        self.notice: dict[str, str] | str | None = None
        self.token = "t-1"
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                service.asked.append("PUT")
                assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self.say(200 if service.token else 404, service.token)

            def do_GET(self) -> None:
                service.asked.append("GET")
                if self.headers["X-aws-ec2-metadata-token"] != service.token:
                    self.say(401, "")
                elif service.notice is None:
                    self.say(404, "<html>404</html>")
                else:
                    output = service.notice
                    self.say(200, output if isinstance(output, str) else json.dumps(output))

            def say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_) -> None:
                """Quietly."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def machine(self) -> CheckedMachine:
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return CheckedMachine(Path("/nowhere"), ExpectedHardware(spot=True, metadata_url=url))


@pytest.fixture
def metadata(monkeypatch):
    monkeypatch.setattr(host_spot.Ec2MetadataSessionToken, "value", "")
    made = Metadata()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_notice_is_a_finding_and_its_absence_is_none(metadata: Metadata) -> None:
    calm = host_spot.fetch_spot_interruption_notice(metadata.machine)
    assert list(host_spot.judge_spot_interruption_notice(calm, None, {})) == []
    metadata.notice = NOTICE
    (seen,) = host_spot.judge_spot_interruption_notice(
        host_spot.fetch_spot_interruption_notice(metadata.machine), calm, {}
    )
    assert (seen.code, seen.verdict) == ("interruption", DeviceVerdict.FAIL)
    assert seen.detail == "EC2 will terminate the instance at 2026-03-01T12:02:00Z"
    assert metadata.asked == ["PUT", "GET", "GET"]


def test_no_token_is_no_word_that_there_is_no_notice(metadata: Metadata) -> None:
    metadata.token = ""
    with pytest.raises(CheckResultUnknownError, match="404"):
        host_spot.fetch_spot_interruption_notice(metadata.machine)


def test_a_token_that_ran_out_is_renewed(metadata: Metadata) -> None:
    host_spot.fetch_spot_interruption_notice(metadata.machine)
    metadata.token = "t-2"
    metadata.notice = NOTICE
    assert host_spot.fetch_spot_interruption_notice(metadata.machine).action == "terminate"
    assert metadata.asked == ["PUT", "GET", "GET", "PUT", "GET"]


def test_nothing_is_asked_of_an_instance_that_is_not_spot(metadata: Metadata) -> None:
    here = replace(metadata.machine, expected=ExpectedHardware())
    with pytest.raises(DeviceAbsentError):
        host_spot.fetch_spot_interruption_notice(here)
    assert metadata.asked == []


def test_no_answer_and_nonsense_are_unknown_and_no_notice(metadata: Metadata) -> None:
    metadata.notice = "not json"
    with pytest.raises(CheckResultUnknownError, match="cannot be read"):
        host_spot.fetch_spot_interruption_notice(metadata.machine)
    nobody = replace(
        metadata.machine, expected=ExpectedHardware(spot=True, metadata_url="http://127.0.0.1:9")
    )
    with pytest.raises(CheckResultUnknownError, match="does not answer"):
        host_spot.fetch_spot_interruption_notice(nobody)


def test_a_notice_is_a_fault_that_moves_the_jobs_and_orders_nothing() -> None:
    fault = RULES.classes[RULE]
    assert (fault.urgency, fault.ladder) == (Urgency.NOW, (Remedy.AWAIT,))
    reported = Finding("host.spot", DeviceVerdict.FAIL, at(-1), at(-1), code="interruption")
    assert (
        assess_health(NodeHealth(generation(), at(0), (reported,)), RULES, at(0)).fault.rule == RULE
    )
    log = [opened(rule=RULE, ladder=fault.ladder, urgency=fault.urgency, meaning=fault.meaning)]
    rec = replace(replay_events(log).nodes[log[0].recovery], phase=NodeRecoveryPhase.VACATED)
    for facts in (NodeFacts(provider_present=True, provider_fresh=True), NodeFacts()):
        answer = advance.advance_node_recovery(rec, facts, OWN, at(1))
        assert isinstance(answer, RecoveryPhaseMove), (
            "no step: the provider brings the next instance by itself"
        )
        assert answer.signal is NodeRecoverySignal.REMEDY_ACCEPTED


def noticed(ladder, urgency, phase=()):
    """Job 1 runs on n1, which is under treatment, and EC2 takes n1's instance now."""
    log: list[Event] = [opened(ladder=ladder, urgency=urgency)]
    log += [SignalSeen(at(0), "n-1", s, "x") for s in ("cordon_seen", *phase)]
    shut = SlurmNode(
        node_name(1), "ALLOCATED", frozenset({"DRAIN"}), format_hpctl_node_reason("n-1", "x"),
        partitions=("all",),
    )  # fmt: skip
    job = slurm_job(1, comment='hpctl:{"save_signal":"USR1"}')
    view = view_of(sick=[faulty(fault=RULES.classes[RULE])], log=log, jobs=(job,))
    nodes = {**view.scheduler.nodes, node_name(1): shut}
    return replace(view, scheduler=replace(view.scheduler, nodes=nodes))


def test_an_instance_that_goes_is_not_rebooted() -> None:
    gone = noticed((Remedy.REBOOT,), Urgency.AFTER_JOBS, ("jobs_gone",))
    gone = replace(gone, scheduler=replace(gone.scheduler, jobs={}))
    progress = advance_all(gone, OWN, at(100))
    assert [m.signal for m in progress.moves] == [NodeRecoverySignal.REMEDY_ACCEPTED]
    assert progress.due == ()


def test_a_pool_that_runs_dry_is_no_broken_check_and_needs_no_budget() -> None:
    sick = [faulty(node_name(n), RULES.classes[RULE], -1) for n in range(1, 9)]
    found = plan(view_of(sick=sick, seconds=0), OWN, RULES, {}, at(0))
    assert len([e for e in found.opens if isinstance(e, NodeRecoveryOpened)]) == 8
    drained = advance_all(view_of(sick=sick, log=list(found.opens)), OWN, at(0))
    assert ({due.do.kind for due in drained.due}, drained.moves) == ({StepKind.DRAIN}, ())
