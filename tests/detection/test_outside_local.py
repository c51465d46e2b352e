"""The agent's own socket, with the real commands and with peers that misbehave."""

import json
import os
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.detection.outside import local_server
from hpctl.detection.outside.ask import AgentRequestRefusedError, send_agent_request
from hpctl.detection.outside.local_server import MAX_PEERS, AgentSocketServer
from hpctl.detection.outside.node_verdict import NodeVerdict, compute_node_verdict
from hpctl.detection.outside.reported import ReportedFindingTable
from hpctl.detection.outside.verdict_formats import FORMATS, parse_health_tool_verdict
from hpctl.detection.outside.verdict_readers import HealthToolOutput, rank_verdict_severity
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.process import run_text

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
NODE = NodeGeneration("n1", "i-1", "b-1")


class Node:
    """An agent as far as its socket goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reported = ReportedFindingTable(NODE.boot)
        self.seen: list[Finding] = []
        self.judge = self.verdict
        self.server = AgentSocketServer(path, self.reported, lambda: self.judge())
        self.server.start()

    def verdict(self) -> NodeVerdict:
        now = datetime.now(UTC)
        return compute_node_verdict(
            NODE, (*self.seen, *self.reported.findings()), now, build_fault_rules(), now
        )

    def sees(self, check: str, code: str, verdict: DeviceVerdict = DeviceVerdict.FAIL) -> None:
        now = datetime.now(UTC)
        self.seen.append(Finding(check, verdict, now, now, code=code, evidence="a line"))

    def hpctl(self, *args):
        return hpctl(*args, "--socket", str(self.path))

    def ask(self, request):
        return send_agent_request(str(self.path), request, 5.0)


def hpctl(*args):
    return run_text([sys.executable, "-m", "hpctl", *args], cwd=ROOT)


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path / "run" / "agent.sock")
    yield node
    node.server.stop()


def test_a_script_s_report_is_the_agent_s_finding(node):
    shown = node.hpctl(
        *("agent", "report", "--check", "scratch-space", "--code", "full", "--device", "/scratch"),
        *("--detail", "97 %", "--evidence", "df: 97%", "--clears", "boot", "--job", "77"),
    )
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")
    (found,) = node.reported.findings()
    assert (found.check, found.code, found.device) == ("report.scratch.space", "full", "/scratch")
    assert (found.detail, found.evidence, found.job) == ("97 %", "df: 97%", "77")
    assert (found.verdict, found.clears.value) == (DeviceVerdict.FAIL, "boot")
    assert (
        node.hpctl("agent", "report", "--check", "scratch-space", "--verdict", "ok").returncode == 0
    )
    assert [f.verdict for f in node.reported.findings()] == [DeviceVerdict.OK]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--check", "No Spaces"), "small letters"),
        (("--check", "a", "--for", "8d"), "from 1s to 7d"),
        (("--check", "a", "--for", "soon"), "write 90s, 30min"),
        (
            ("--check", "a", "--for", "5m", "--clears", "boot"),
            ("--for works only with --clears gone"),
        ),
        (("--code", "7"), "--check"),
    ],
)
def test_a_script_s_author_is_reported_of_his_mistakes(args, says):
    shown = hpctl("agent", "report", *args)
    assert shown.returncode == 2
    assert says in shown.stderr


@pytest.mark.parametrize("command", [("agent", "report", "--check", "a"), ("agent", "verdict")])
def test_without_an_agent_a_prolog_continues(command, tmp_path):
    nobody = str(tmp_path / "none.sock")
    shown = hpctl(*command, "--socket", nobody)
    assert (shown.returncode, shown.stdout) == (0, "")
    assert (
        f"warning: hpctl's agent on this node does not answer at the socket {nobody}"
    ) in shown.stderr
    assert hpctl(*command, "--socket", nobody, "--strict").returncode == 3


def test_a_stuck_agent_costs_a_prolog_half_a_second(tmp_path):
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / "stuck.sock"))
        stuck.listen(1)
        begun = time.monotonic()
        shown = hpctl("agent", "verdict", "--socket", str(tmp_path / "stuck.sock"))
    assert shown.returncode == 0
    assert "did not answer within 0.5 s" in shown.stderr
    assert time.monotonic() - begun < 5


def test_a_node_that_is_about_to_be_drained_fails_a_prolog(node):
    assert "n1 is healthy" in node.hpctl("agent", "verdict").stdout
    node.sees("kernel.xid", "13")
    shown = node.hpctl("agent", "verdict")
    assert shown.returncode == 0, "an application's own error keeps no job off the node"
    node.sees("kernel.xid", "79")
    shown = node.hpctl("agent", "verdict")
    assert shown.returncode == 1
    assert shown.stdout.startswith("n1 is faulty: Xid 79: GPU fell off the bus")


def test_an_agent_that_no_longer_looks_knows_nothing(node):
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    node.judge = lambda: compute_node_verdict(
        NODE, (), long_ago, build_fault_rules(), datetime.now(UTC)
    )
    assert node.hpctl("agent", "verdict").returncode == 0
    shown = node.hpctl("agent", "verdict", "--strict")
    assert (shown.returncode, "n1 is unknown" in shown.stdout) == (3, True)


def test_another_user_is_refused_even_where_the_mode_was_opened(node, monkeypatch):
    monkeypatch.setattr(
        local_server, "list_trusted_owner_uids", lambda: frozenset({os.geteuid() + 1})
    )
    with pytest.raises(AgentRequestRefusedError, match="may not speak to the agent") as caught:
        node.ask({"op": "verdict"})
    assert caught.value.code == "forbidden"


def test_a_silent_peer_keeps_no_other_waiting_and_is_dropped(node):
    for _ in range(2):  # the dropped ones do not count: as many are served again
        silent = []
        for _ in range(MAX_PEERS - 2):
            link = socket.socket(socket.AF_UNIX)
            link.connect(str(node.path))
            link.sendall(b'{"op": ')
            silent.append(link)
        begun = time.monotonic()
        assert node.ask({"op": "verdict"})["verdict"]["condition"] == "healthy"
        assert time.monotonic() - begun < 5
        for link in silent:
            link.settimeout(60)
            assert link.recv(1) == b""
            link.close()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense\n", "malformed"),
        (b"x" * 40_000 + b"\n", "too_large"),
        (b'{"op": "report", "check": "gpu.ecc", "verdict": "fail"}\n', "malformed"),
    ],
)
def test_what_is_no_request_is_refused(node, line, code):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect(str(node.path))
        link.sendall(line)
        assert json.loads(link.recv(65536))["error"] == code
    assert "verdict" in node.ask({"op": "verdict"})


def test_a_trouble_of_the_agent_s_own_does_not_end_the_answers(node):
    def broken() -> NodeVerdict:
        raise RuntimeError("a bug")

    node.judge = broken
    with pytest.raises(AgentRequestRefusedError, match="RuntimeError: a bug"):
        node.ask({"op": "verdict"})
    node.judge = node.verdict
    assert "verdict" in node.ask({"op": "verdict"})


def test_a_dead_agent_s_socket_is_taken_over_and_a_living_one_s_is_not(tmp_path):
    path = tmp_path / "agent.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    first = Node(path)
    with pytest.raises(ServiceUnavailable, match="another agent serves it"):
        Node(path)
    assert "verdict" in first.ask({"op": "verdict"})
    first.server.stop()
    assert not path.exists()


def test_a_place_that_cannot_be_had_is_named(tmp_path):
    (tmp_path / "file").write_text("not to be lost")
    with pytest.raises(ServiceUnavailable, match="is no socket"):
        Node(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "not to be lost"
    with pytest.raises(ServiceUnavailable) as caught:
        Node(tmp_path / ("x" * 120))
    assert "107 characters" in caught.value.hint


@pytest.mark.parametrize("command", [("agent", "verdict"), ("agent", "report", "--check", "a")])
def test_a_prolog_pays_for_nothing_that_it_does_not_need(command, tmp_path):
    heavy = (
        "asyncio",
        "msgspec",
        "pydantic",
        "rich",
        "starlette",
        "yaml",
        "hpctl.vocabulary.model",
    )
    code = (
        "import sys, hpctl.cli.main as m\n"
        f"m.cli([*{command!r}, '--socket', {str(tmp_path / 'none')!r}], standalone_mode=False)\n"
        f"print('loaded:', *sorted(set({heavy}) & set(sys.modules)))"
    )
    shown = run_text([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert shown.stdout.splitlines()[-1].strip() == "loaded:"


FAILURE = {"body": {"Overall Health": {"value": "Failure"}}}
HEALTHY = {"body": {"Overall Health": {"value": "Healthy"}}}


def read_dcgm(node: Node, text: object, *options: str):
    """Report an output of dcgmi by the real command, which reads it from stdin."""
    command = [sys.executable, "-m", "hpctl", "agent", "report", "--check", "dcgm"]
    command += ["--read", "dcgm-health", "--socket", str(node.path), *options]
    said = text if isinstance(text, str) else json.dumps(text)
    return run_text(command, cwd=ROOT, input=said)


def test_another_tools_output_is_reported_and_a_good_one_clears_it(node):
    assert read_dcgm(node, FAILURE).returncode == 0
    (found,) = node.reported.findings()
    assert (found.check, found.code, found.verdict) == (
        "report.dcgm",
        "overall",
        DeviceVerdict.FAIL,
    )
    assert found.detail == "Overall Health is Failure"
    odd = read_dcgm(node, {"body": {"Overall Health": {"value": "odd"}}})
    assert (odd.returncode, len(node.reported.findings())) == (0, 1), "unknown clears nothing"
    assert read_dcgm(node, HEALTHY).returncode == 0
    assert node.reported.findings() == ()


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("Error: no watch", ("--exit-code", "1"), "dcgmi ended with exit code 1: Error: no watch"),
        ("", ("--exit-code", "137"), "was ended by signal 9"),
        ("x" * 70000, (), "prints more than 65536 bytes"),
    ],
)
def test_an_output_that_cannot_be_read_reports_nothing(node, text, options, says):
    read_dcgm(node, FAILURE)
    done = read_dcgm(node, text, *options)
    assert (done.returncode, len(node.reported.findings())) == (0, 1)
    assert f"hpctl: warning: dcgm-health: the tool {says}" in done.stderr
    strict = read_dcgm(node, text, *options, "--strict")
    assert strict.returncode == 1
    assert says in " ".join(strict.stderr.split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--code", "x", "--read", "nhc"), "with --read, the code comes from stdin"),
        (("--verdict", "ok", "--read", "nhc"), "with --read, the verdict comes from stdin"),
        (("--exit-code", "1"), "--exit-code works only with --read"),
    ],
)
def test_options_that_contradict_are_a_usage_error(options, says):
    done = hpctl("agent", "report", "--check", "x", *options)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("check", "code", "verdict", "expected", "status"),
    [
        ("", "", None, ("PASS", None), 0),
        ("kernel.xid", "13", DeviceVerdict.NOTE, ("PASS", "PASS"), 0),
        ("plugin.dcgm", "nvlink", DeviceVerdict.FAIL, ("WARNING", "WARNING"), 0),
        ("kernel.xid", "79", DeviceVerdict.FAIL, ("CRITICAL", "CRITICAL"), 1),
        ("gpu.state", "cannot_tell", DeviceVerdict.UNKNOWN, ("UNKNOWN", "UNKNOWN"), 1),
    ],
)
def test_the_verdict_has_the_form_and_exit_codes_of_health_validation(
    node, check, code, verdict, expected, status
):
    if verdict is not None:
        node.sees(check, code, verdict)
    shown = node.hpctl("agent", "verdict", "--format", "health-validation")
    assert shown.returncode == status
    document = json.loads(shown.stdout)
    components = document["affected_components"]
    severities = [one["max_severity"] for one in components] or [None]
    assert (document["overall_severity"], severities[0]) == expected
    if verdict is not None:
        assert components[0]["check_ids"] == [f"{check}.{code}"]
        assert components[0]["category"] == check.partition(".")[0]
    assert node.hpctl("agent", "verdict", "--exit-code").returncode == status
    read = parse_health_tool_verdict("health-validation", HealthToolOutput(shown.stdout, status))
    worst = max((one.verdict for one in read), key=rank_verdict_severity, default=DeviceVerdict.OK)
    assert worst == FORMATS["health-validation"].levels[document["overall_severity"]]


@pytest.mark.parametrize("option", [("--exit-code",), ("--format", "health-validation")])
def test_without_an_agent_there_is_no_verdict(tmp_path, option):
    done = hpctl("agent", "verdict", *option, "--socket", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "hpctl: warning: hpctl's agent on this node does not answer" in done.stderr
