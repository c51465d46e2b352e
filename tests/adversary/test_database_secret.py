"""The password of a shared database while a daemon runs: process lists, files and its log."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from sqlalchemy import make_url

from hpctl.sandbox.proctree import list_descendants
from tests.engine.journal.conftest import postgresql as postgresql
from tests.engine.journal.servers import PostgreSQL
from tests.process import free_port
from tests.waiting import until

pytestmark = [pytest.mark.adversary, pytest.mark.integration, pytest.mark.timeout(300)]
SECRET = "hunter2hunter2"
LONG_S = 120.0


def read_command_line(pid: int) -> bytes:
    """Return what other users see of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture
def config(tmp_path: Path, postgresql: PostgreSQL) -> Path:
    """The configuration of a head whose Slurm does not answer."""
    url = make_url(postgresql.fresh()).set(password=SECRET)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    scontrol.chmod(0o755)
    settings = {
        "state_dir": str(tmp_path / "state"),
        "database_url": url.render_as_string(hide_password=False),
        "cluster": {"name": "demo", "provider": "none"},
        "slurm": {"adapter": "cli", "bin": str(tmp_path)},
        "intake": {"listen": f"127.0.0.1:{free_port()}"},
        "page": {"listen": f"unix:{tmp_path}/page.sock"},
    }
    path = tmp_path / "hpctl.yaml"
    path.touch(0o640)
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def daemon(config: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "hpctl", "daemon", "run", f"--config={config}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
    yield process
    process.terminate()
    process.wait(60)


def test_a_running_daemon_shows_the_password_to_no_other_user(
    daemon: subprocess.Popen[bytes], config: Path, tmp_path: Path
) -> None:
    until(lambda: b"running mode" in (tmp_path / "log").read_bytes(), LONG_S)
    until(lambda: len(list_descendants(daemon.pid)) >= 2, LONG_S)
    lines = [read_command_line(pid) for pid in [daemon.pid, *list_descendants(daemon.pid)]]
    assert [line for line in lines if SECRET.encode() in line] == []
    for words in (["status"], ["config", "show"], ["journal", "check"], ["journal", "audit"]):
        command = [sys.executable, "-m", "hpctl", *words, f"--config={config}"]
        done = subprocess.run(command, capture_output=True, check=False, timeout=LONG_S)
        assert SECRET.encode() not in done.stdout + done.stderr, words
    files = [path for path in tmp_path.rglob("*") if path.is_file() and os.access(path, os.R_OK)]
    holders = [path for path in files if SECRET.encode() in path.read_bytes()]
    assert holders == [config]
