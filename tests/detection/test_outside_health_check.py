"""HealthCheckProgram: one line in every case, no fork, and never longer than its time limit."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.detection.outside.ask import SOCKET
from hpctl.detection.outside.local_server import AgentSocketServer
from hpctl.detection.outside.node_verdict import compute_node_verdict, format_node_verdict_line
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.detection.test_outside_local import NODE, ROOT, Node
from tests.process import room, run_text

pytestmark = pytest.mark.integration

SOURCE = ROOT / "slurm_plugins" / "hpctl_verdict.c"
SCRIPT = ROOT / "slurm_plugins" / "health_check.sh"
LIMIT_S = 2.0
"""The program's time limit."""


@pytest.fixture(scope="module")
def place():
    """A directory with the script and the program, as on a node."""
    with room() as directory:
        shutil.copy(SCRIPT, directory)
        warnings = ("-Wall", "-Wextra", "-Werror", "-Wpedantic")
        command = ("cc", "-std=gnu11", *warnings, "-O2", "-o", str(directory / "hpctl_verdict"))
        subprocess.run([*command, str(SOURCE)], check=True, timeout=60)
        yield directory


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path / "agent.sock")
    yield node
    node.server.stop()


def check(place: Path, path: Path | str, *options: str, **environment: str):
    """Run the program as slurmd does, with no more environment than it needs."""
    env = {"HPCTL_AGENT_SOCKET": str(path), **environment}
    return run_text([str(place / "health_check.sh"), *options], env=env)


@contextmanager
def answering(path: Path, answer: bytes, *, close: bool = True):
    """A socket that answers every peer with these bytes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(8)
    links: list[socket.socket] = []

    def serve() -> None:
        try:
            while True:
                link, _ = listener.accept()
                links.append(link)
                link.recv(100)
                with suppress(OSError):  # the program reads no more than it has to
                    link.sendall(answer)
                if close:
                    link.close()
        except OSError:
            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for link in links:
            link.close()
        thread.join(5)


@pytest.mark.parametrize(
    ("xid", "begin", "code"),
    [("", "PASS: n1 is healthy", 0), ("79", "CRITICAL: n1 is faulty: Xid 79", 1)],
)
def test_the_program_prints_the_agents_verdict(place, node, xid, begin, code):
    if xid:
        node.sees("kernel.xid", xid)
    as_slurm_does = check(place, node.path)
    assert as_slurm_does.stdout.startswith(begin)
    assert (as_slurm_does.returncode, as_slurm_does.stderr) == (0, "")
    assert check(place, node.path, "--exit-code").returncode == code


def test_a_reported_failure_is_a_warning_that_leaves_the_node_in_service(place, node):
    node.ask({"op": "report", "check": "report.nhc", "verdict": "fail"})
    done = check(place, node.path, "--exit-code")
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "WARNING")


def test_an_agent_that_has_not_looked_for_long_has_an_unknown_verdict(place, tmp_path):
    now = datetime.now(UTC)
    old = compute_node_verdict(NODE, (), now - timedelta(hours=1), build_fault_rules(), now)
    server = AgentSocketServer(
        tmp_path / "agent.sock", Node(tmp_path / "other").reported, lambda: old
    )
    server.start()
    done = check(place, tmp_path / "agent.sock", "--exit-code")
    server.stop()
    assert (done.returncode, done.stdout.partition(":")[0]) == (1, "UNKNOWN")


@pytest.mark.parametrize(
    ("slurm", "xid", "said"),
    [
        ("no", "", "; Slurm has the node as unhealthy"),
        ("yes", "79", "; Slurm has the node as healthy still"),
        ("yes", "", ""),
        ("no", "79", ""),
        ("\x1b[2J", "", ""),
    ],
)
def test_the_line_says_where_slurm_thinks_otherwise(place, node, slurm, xid, said):
    if xid:
        node.sees("kernel.xid", xid)
    line = check(place, node.path, SLURM_NODE_IS_HEALTHY=slurm).stdout
    assert ("; Slurm" in line) is bool(said)
    assert line.endswith(f"{said}\n")


def no_verdict(place: Path, path: Path | str, why: str) -> None:
    """The program prints one line with the reason, exits with 0, and with 2 under --exit-code."""
    begun = time.monotonic()
    done = check(place, path)
    assert time.monotonic() - begun < LIMIT_S + 10
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hpctl: no verdict: ")
    assert done.stdout.count("\n") == 1
    assert why in done.stdout
    assert done.stdout.replace("\n", "").isprintable()
    assert check(place, path, "--exit-code").returncode == 2


def test_without_an_agent_the_program_says_so(place, tmp_path):
    no_verdict(place, tmp_path / "none", "No such file")
    (tmp_path / "file").touch()
    no_verdict(place, tmp_path / "file", "Connection refused")
    no_verdict(place, "/" + "x" * 200, "too long")
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    no_verdict(place, tmp_path / "dead", "Connection refused")


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\n", b"\0\n", b"hpctl.line/1", b"hpctl.line/1 PASS\n", b"hpctl.line/1 FINE n1\n",
        b"hpctl.line/2 PASS n1\n", b"hpctl.line/1 PASS n1\0\x1b[2J\n",
        b'{"error":"malformed","message":"not a request"}\n', b"x" * 5_000_000,
        b"hpctl.line/1 PASS " + b"x" * 5000,
    ],
)  # fmt: skip
def test_an_answer_that_is_no_verdict_is_none(place, tmp_path, answer):
    with answering(tmp_path / "agent.sock", answer):
        no_verdict(place, tmp_path / "agent.sock", "what answers is no agent")


def test_control_characters_of_an_answer_do_not_reach_slurmds_log(place, tmp_path):
    with answering(tmp_path / "s", b"hpctl.line/1 PASS n1\x1b[2J\r\xc2\x9b is healthy\nmore\n"):
        assert check(place, tmp_path / "s").stdout == "PASS: n1?[2J??? is healthy\n"


def test_an_agent_that_says_nothing_costs_two_seconds(place, tmp_path):
    with answering(tmp_path / "s", b"", close=False):
        no_verdict(place, tmp_path / "s", "did not answer within 2 s")


def test_an_agent_whose_queue_is_full_costs_two_seconds(place, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            first.connect(str(tmp_path / "s"))
            no_verdict(place, tmp_path / "s", "did not answer within 2 s")


@pytest.mark.adversary
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to serve as another user")
def test_another_users_socket_is_not_believed(place, tmp_path):
    path = Path("/tmp") / f"hpctl-foreign-{os.getpid()}.sock"
    body = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(8)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    link, _ = s.accept()\n"
        "    link.sendall(b'hpctl.line/1 PASS n1 is healthy\\n')\n"
    )
    command = [sys.executable, "-c", body, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as stranger:
        try:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "ready\n"
            no_verdict(place, path, "another user")
        finally:
            stranger.kill()
            path.unlink(missing_ok=True)


def test_an_unknown_option_is_refused(place, node):
    done = check(place, node.path, "--drain")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage:")


LIMITED = """
import os, resource, sys
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a program without the right to fork; root would be exempt from the limit."""


def test_the_program_starts_no_process(place):
    path = place / "open.sock"
    node = Node(path)
    path.chmod(0o666)
    env = {"HPCTL_AGENT_SOCKET": str(path), "PATH": os.environ["PATH"]}
    limited = [sys.executable, "-c", LIMITED]
    control = run_text([*limited, "/bin/sh", "-c", "/bin/true; true"], env=env)
    done = run_text([*limited, str(place / "health_check.sh")], env=env)
    node.server.stop()
    assert "fork" in control.stderr, "the limit is in force"
    # The agent serves root and its own user; that it refused shows that it was reached.
    said = "no agent of this release" if os.geteuid() == 0 else "PASS: n1 is healthy"
    assert said in done.stdout, done.stderr


@pytest.mark.parametrize("body", ["exit 2", "kill -SEGV $$", "exec sleep 300"])
def test_without_the_program_the_command_is_run_and_never_fails_the_check(tmp_path, body):
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "hpctl").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "hpctl").chmod(0o755)
    begun = time.monotonic()
    environment = {"HPCTL": str(tmp_path / "hpctl"), "PATH": os.environ["PATH"]}
    done = check(tmp_path, tmp_path / "none", **environment)
    assert time.monotonic() - begun < 60
    assert done.returncode == 0
    assert "hpctl: no verdict: " in done.stdout
    assert check(tmp_path, tmp_path / "none", "--exit-code", **environment).returncode == 2


def test_without_the_program_the_commands_line_is_printed(tmp_path, node):
    shutil.copy(SCRIPT, tmp_path)
    node.sees("kernel.xid", "79")
    (tmp_path / "hpctl").write_text(f'#!/bin/sh\ncd {ROOT}; exec {sys.executable} -m hpctl "$@"\n')
    (tmp_path / "hpctl").chmod(0o755)
    # A busy machine takes longer than the script's 2 s to import the command.
    script = tmp_path / "health_check.sh"
    script.write_text(script.read_text().replace("--kill-after=1 2 ", "--kill-after=1 60 "))
    environment = {"HPCTL": str(tmp_path / "hpctl"), "PATH": os.environ["PATH"]}
    done = check(tmp_path, node.path, **environment)
    assert (done.returncode, done.stdout[:20]) == (0, "n1 is faulty: Xid 79")


def test_the_line_is_short_and_plain():
    now = datetime.now(UTC)
    found = Finding("kernel.xid", DeviceVerdict.FAIL, now, now, code="79")
    judged = compute_node_verdict(NODE, (found,), now, build_fault_rules(), now)
    line = format_node_verdict_line(replace(judged, why="\x1b[2J\nroot@h \N{SNOWMAN}" + "y" * 5000))
    assert len(line) < 700
    assert line.decode("ascii").isprintable()


def test_the_program_has_the_socket_that_the_command_has():
    assert f'#define DEFAULT_SOCKET "{SOCKET}"' in SOURCE.read_text()
