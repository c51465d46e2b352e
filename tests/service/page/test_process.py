"""`hpctl page` as an operator starts it, and as the daemon keeps it."""

import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctl.service.page import process as page_process
from hpctl.service.page.process import StatusPageProcess
from tests.cli import worlds
from tests.fakes.command_line import run
from tests.service.page import site
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration


@pytest.fixture
def config(tmp_path: Path) -> Path:
    site.append(tmp_path, worlds.troubled())
    file = tmp_path / "hpctl.yaml"
    file.write_text(f"state_dir: {tmp_path}\npage: {{listen: 'unix:{tmp_path}/page.sock'}}\n")
    return file


def fetched(path: Path) -> str:
    """The page, through the socket's file."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(PATIENCE_S)
        line.connect(str(path))
        line.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        with line.makefile(encoding="utf-8") as answer:
            return answer.read()


def test_by_hand_it_prints_a_link_and_ends_by_ctrl_c(config: Path) -> None:
    command = [sys.executable, "-m", "hpctl", "page", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--config", str(config)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        host, _, rest = link.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
        connection.request("GET", f"/{rest}")
        assert connection.getresponse().status == 303
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


@pytest.fixture
def kept(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatusPageProcess]:
    monkeypatch.setattr(page_process, "AGAIN_S", (0.1, 60.0))
    process = StatusPageProcess(str(config), f"unix:{config.parent}/page.sock")
    process.start()
    yield process
    process.stop()
    assert process.process is not None
    assert process.process.poll() is not None


def test_the_daemon_keeps_one_on_a_socket_for_its_owner_alone(kept, config):
    path = config.parent / "page.sock"
    until(path.is_socket, 20)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    until(lambda: "n-44444444" in _or_nothing(path))  # it is bound before it listens
    assert kept.process is not None
    first = kept.process.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: kept.process is not None and kept.process.pid != first, 20)
    assert "ended: -9" in kept.trouble
    until(lambda: "n-44444444" in _or_nothing(path), 20)


def _or_nothing(path: Path) -> str:
    try:
        return fetched(path)
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("{listen: '127.0.0.1:1'}", "needs a token_file"),
        ("{listen: nowhere}", "page.listen"),
        ("{listen: '127.0.0.1:1', token_file: DIR/open}", "chmod 0640"),
        ("{listen: '127.0.0.1:1', token_file: DIR/none}", "page.token_file cannot be read"),
    ],
)
def test_what_is_wrong_is_named_before_it_starts(tmp_path: Path, page: str, says: str) -> None:
    (tmp_path / "open").write_text("x" * 32)
    (tmp_path / "open").chmod(0o644)
    file = tmp_path / "hpctl.yaml"
    file.write_text(f"page: {page.replace('DIR', str(tmp_path))}\n")
    answer = run("config", "check", file)
    assert answer.exit_code == 1
    told = f"{answer.output}{answer.exception} {getattr(answer.exception, 'hint', '')}"
    assert says in told


def test_a_link_needs_a_port_and_a_token(config: Path, tmp_path: Path) -> None:
    answer = run("page", "--link", "--config", config)
    assert "needs no link" in getattr(answer.exception, "hint", "")
    (tmp_path / "token").write_text("x" * 32)
    (tmp_path / "token").chmod(0o600)
    config.write_text(f"page: {{listen: '0.0.0.0:8472', token_file: {tmp_path}/token}}\n")
    answer = run("page", "--link", "--config", config)
    assert answer.output.startswith(f"http://{socket.gethostname()}:8472/enter/")
