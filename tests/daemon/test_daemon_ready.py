"""READY=1 goes to systemd when the daemon has read Slurm once; until then it asks for more time."""

import os
import socket
import subprocess
import sys
import time

import pytest

from hpctl.cli import main as program
from hpctl.slurm.run import SlurmCommandRunner

pytestmark = pytest.mark.integration

SCONTROL = """#!/bin/sh
[ -e {up} ] || {{ echo "Unable to contact slurm controller" >&2; exit 1; }}
case "$*" in
*version*) echo slurm 22.05.8 ;;
*config*) echo "Configuration data as of 2026-03-01T12:00:00" ;;
*job*) echo "No jobs in the system" ;;
*node*) echo "No nodes in the system" ;;
esac
"""


def tools(folder, up):
    folder.mkdir()
    for name in ("scontrol", "squeue", "sinfo"):
        (folder / name).write_text(SCONTROL.format(up=up))
        (folder / name).chmod(0o755)
    return folder


def test_it_is_ready_when_slurm_was_read_and_asks_for_time_until_then(tmp_path):
    up = tmp_path / "up"
    config = tmp_path / "hpctl.yaml"
    config.write_text(
        f"state_dir: {tmp_path}/state\nintake: {{listen: '127.0.0.1:0', munge_socket: null}}\n"
        f"slurm: {{bin: {tools(tmp_path / 'bin', up)}, adapter: cli}}\nloop: {{reconcile_s: 1}}\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        daemon = subprocess.Popen(
            [sys.executable, "-m", "hpctl", "daemon", "run", "--config", str(config)],
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        )
        try:
            for _ in range(3):
                assert systemd.recv(500).startswith(b"EXTEND_TIMEOUT_USEC=")
            up.touch()
            deadline = time.monotonic() + 60
            while (output := systemd.recv(500)) != b"READY=1\nSTATUS=":
                assert output.startswith(b"EXTEND_TIMEOUT_USEC=")
                assert time.monotonic() < deadline
            assert systemd.recv(500) == b"WATCHDOG=1"
        finally:
            daemon.terminate()
            daemon.wait(60)


def test_slurm_is_found_where_hyperpod_has_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # as systemd's units have it, but for Slurm
    place = tmp_path / "opt"
    place.mkdir()
    (place / "scontrol-of-hyperpod").write_text("#!/bin/sh\necho slurm 24.11.5\n")
    (place / "scontrol-of-hyperpod").chmod(0o755)
    assert program.SLURM_BIN == "/opt/slurm/bin"
    monkeypatch.setattr(program, "SLURM_BIN", str(place))
    monkeypatch.setattr("sys.argv", ["hpctl", "--version"])
    with pytest.raises(SystemExit):
        program.main()
    assert SlurmCommandRunner().run("scontrol-of-hyperpod").text == "slurm 24.11.5\n"
