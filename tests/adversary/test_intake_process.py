"""The daemon's intake as it runs: it dies with the daemon, and the daemon outlives it."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from tests.adversary.bed import drop, public_directory, python
from tests.intakes import get
from tests.process import free_port
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.adversary]

PATIENCE_S = 60.0


def intake_of(daemon: int) -> int:
    """The process of its intake; 0 where there is none."""
    for path in Path(f"/proc/{daemon}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread, or a child, that has ended
            for pid in path.read_text().split():
                if b"hpctl.daemon.intake" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
    return 0


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            text = b""
            while piece := client.recv(65536):
                text += piece
    except OSError:
        return False
    # Those of the intake, and those of the daemon.
    return b"hpctl_intake_connections" in text and b"hpctl_cycle_seconds" in text


@contextmanager
def daemon(path, port, descriptors=0, conf=None):
    config = {
        "state_dir": str(path / "state"),
        "cluster": {"provider": "none"},
        "slurm": {"adapter": "cli", "bin": str(path), "conf": conf and str(conf)},
        "intake": {"listen": f"127.0.0.1:{port}"},
        "loop": {"reconcile_s": 0.5},
    }
    (path / "hpctl.yaml").write_text(yaml.safe_dump(config))
    limit = (descriptors, descriptors)
    log = (path / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpctl", "daemon", "run", "--config", str(path / "hpctl.yaml")],
        stderr=log,
        preexec_fn=lambda: (
            resource.setrlimit(resource.RLIMIT_NOFILE, limit) if descriptors else None
        ),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()


def test_a_port_that_is_taken_is_an_error_and_no_daemon(tmp_path):
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        with daemon(tmp_path, squatter.getsockname()[1]) as process:
            assert process.wait(PATIENCE_S) not in (0, None)
    assert b"cannot listen" in (tmp_path / "log").read_bytes()


def test_an_intake_that_ends_is_started_again_and_ends_with_the_daemon(tmp_path):
    port = free_port()
    with daemon(tmp_path, port) as process:
        until(lambda: answers(port), PATIENCE_S)
        first = intake_of(process.pid)
        os.kill(first, signal.SIGKILL)
        until(lambda: intake_of(process.pid) not in (0, first), PATIENCE_S)
        until(lambda: answers(port), PATIENCE_S)
        assert get(port, "/sd") == "[]", "the daemon's own answer, in which no agent was heard"
        second = intake_of(process.pid)
        process.kill()
        process.wait()
        until(lambda: not Path(f"/proc/{second}").exists(), 5)


def test_four_thousand_idle_connections_and_few_descriptors_leave_the_daemon_its_own(tmp_path):
    """At 150 descriptors they once kept it from starting scontrol."""
    port = free_port()
    marker = tmp_path / "asked"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho x >> {marker}\nexit 1\n")
    scontrol.chmod(0o755)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        # What fails here must leave the tests after it their descriptors.
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
        process = stack.enter_context(daemon(tmp_path, port, descriptors=150))
        until(lambda: answers(port) and marker.exists(), PATIENCE_S)
        for number in range(4000):
            with suppress(OSError):
                client = stack.enter_context(socket.socket())
                client.settimeout(0.2)
                client.bind((f"127.0.4.{number % 200 + 1}", 0))
                client.connect(("127.0.0.1", port))
        asked = marker.stat().st_size
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 60
        until(lambda: marker.stat().st_size > asked, 10)
        until(lambda: answers(port), 10)
        assert b"Too many open files" not in (tmp_path / "log").read_bytes()


@pytest.fixture
def conf():
    """The cluster's slurm.conf, which every user may read."""
    with public_directory() as directory:
        (directory / "slurm.conf").touch()
        yield directory / "slurm.conf"


def test_a_second_daemon_of_the_cluster_with_another_state_directory_is_refused(tmp_path, conf):
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    logs = [place / "log" for place in places]
    with daemon(places[0], free_port(), conf=conf) as first:
        until(lambda: b"running mode" in logs[0].read_bytes(), PATIENCE_S)
        with daemon(places[1], free_port(), conf=conf) as second:
            assert second.wait(PATIENCE_S) not in (0, None)
        output = logs[1].read_text()
        assert f"another hpctl daemon (pid {first.pid}) works on the cluster of {conf}" in output
        assert f"ps -fp {first.pid}" in output
        assert "running mode" not in output
        assert first.poll() is None
    assert "another" not in logs[0].read_text()
    # Once the first is gone, the second has the cluster.
    with daemon(places[1], free_port(), conf=conf):
        until(lambda: b"running mode" in logs[1].read_bytes(), PATIENCE_S)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_user_who_locks_slurm_conf_is_reported_and_keeps_no_daemon_from_starting(tmp_path, conf):
    """Whatever that user calls the program."""
    source = (
        f"import fcntl; f = open({str(conf)!r}); fcntl.flock(f, 2); print(1, flush=True); input()"
    )
    args = [python(), "-I", "-c", source, "-m", "hpctl", "daemon", "run"]
    pipe = subprocess.PIPE
    with subprocess.Popen(args, stdin=pipe, stdout=pipe, cwd="/", **drop()) as stranger:
        assert stranger.stdout.readline() == b"1\n"
        with daemon(tmp_path, free_port(), conf=conf):
            log = tmp_path / "log"
            until(lambda: b"running mode" in log.read_bytes(), PATIENCE_S)
            until(lambda: b"another process holds" in log.read_bytes(), PATIENCE_S)
        stranger.kill()
