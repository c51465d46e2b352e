"""One daemon after another in one process, and what an attempt to start leaves behind."""

import signal
from unittest.mock import Mock

import pytest

from hpctl.daemon import main
from hpctl.daemon.composition import compose_daemon
from hpctl.daemon.lifecycle import Daemon, DaemonRestartRequest
from hpctl.engine.journal.state import InconsistentEventError
from hpctl.toolkit.errors import HpctlError


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "hpctl.yaml"
    conf = tmp_path / "slurm.conf"
    conf.touch()
    path.write_text(
        f"state_dir: {tmp_path}/state\nslurm: {{adapter: cli, conf: {conf}}}\n"
        "intake: {listen: '127.0.0.1:0'}\n"
    )
    return path


def close(daemon: Daemon) -> None:
    daemon.cycle.waker.close()
    daemon.held.close()
    daemon.held.state_lock.close()


def test_a_reload_between_two_programs_waits_for_the_second(monkeypatch):
    masks = []
    monkeypatch.setattr(
        main,
        "compose_daemon_when_database_ready",
        lambda _: Mock(run=lambda: DaemonRestartRequest(5)),
    )
    monkeypatch.setattr(main, "pass_listening_socket_across_exec", Mock())
    given = (signal.SIG_BLOCK, ())
    monkeypatch.setattr(main.os, "execv", lambda *_: masks.append(signal.pthread_sigmask(*given)))
    try:
        main.run_daemon("hpctl.yaml", Mock())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    assert signal.SIGHUP in masks[0]
    assert signal.SIGTERM not in masks[0]


def test_an_attempt_that_fails_releases_all_that_it_held(config, monkeypatch):
    """The next attempt of the same process finds the directory and the cluster free."""
    with monkeypatch.context() as broken:
        corrupt = Mock(side_effect=InconsistentEventError("an event that cannot follow"))
        broken.setattr("hpctl.daemon.composition.JournaledState", corrupt)
        with pytest.raises(InconsistentEventError) as kept:
            compose_daemon(str(config))
    daemon = compose_daemon(str(config))
    assert kept.value.args, "the traceback still refers to the frames of the first attempt"
    with pytest.raises(HpctlError, match="another hpctl daemon uses the directory"):
        compose_daemon(str(config))
    close(daemon)
    close(compose_daemon(str(config)))
