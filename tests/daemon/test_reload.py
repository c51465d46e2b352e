"""What SIGHUP changes in a daemon that runs."""

import signal
from datetime import datetime
from unittest.mock import Mock

import pytest

from hpctl.daemon import main
from hpctl.daemon.main import Daemon
from hpctl.engine.config import Config
from hpctl.engine.journal.events import HoldLifted, HoldNoted
from hpctl.toolkit.compat import UTC


def test_the_kill_switch_is_where_the_file_says_after_a_reload(tmp_path, monkeypatch):
    """Whoever pulls it in an emergency has read the configuration, and not the process."""
    path, before, after = (tmp_path / name for name in ("hpctl.yaml", "STOP", "HALT"))
    text = f"state_dir: {tmp_path}/state\nslurm: {{adapter: cli}}\nkill_switch: "
    path.write_text(f"{text}{before}\n")
    daemon = Daemon(str(path))
    path.write_text(f"{text}{after}\n")
    daemon._reload()
    before.touch()
    assert daemon._observer.stopped() == ""
    after.touch()
    assert str(after) in daemon._observer.stopped()
    after.unlink()
    after.symlink_to(after)
    assert "cannot be seen" in daemon._observer.stopped()
    # A file that cannot be read leaves the last good configuration as it is.
    path.write_text("modee: own\n")
    daemon._reload()
    assert "not reloaded" in daemon._troubles()[0]
    assert "cannot be seen" in daemon._observer.stopped()
    # Neither does one that is read and cannot be written down, nor a full disk the daemon.
    path.write_text(f"{text}{after}\n")
    for broken, at in ((Config, "changed"), (Daemon, "_audit_configuration")):
        with monkeypatch.context() as patch:
            patch.setattr(broken, at, Mock(side_effect=OSError(28, "No space left on device")))
            daemon._reload()
    daemon._store.close()
    daemon._waker.close()
    daemon._lock.close()


@pytest.mark.parametrize(("gate", "busy"), [("provider_acts", True), ("budget", False)])
def test_what_the_clouds_last_reading_holds_has_it_read_again(gate, busy, tmp_path):
    path = tmp_path / "hpctl.yaml"
    path.write_text(f"state_dir: {tmp_path}/state\nslurm: {{adapter: cli}}\n")
    daemon = Daemon(str(path))
    now = datetime(2026, 3, 1, tzinfo=UTC)
    held = HoldNoted(now, "n1", gate, "the service calls i-1 Pending", "xid-79", False)
    daemon._memory.append([held])
    daemon._look_at_cloud()
    cluster = daemon.config.cluster
    assert daemon._cloud.interval_s == (cluster.busy_poll_s if busy else cluster.poll_s)
    assert daemon._cloud._hurry.is_set() is busy
    daemon._memory.append([HoldLifted(now, "n1")])
    daemon._look_at_cloud()
    assert daemon._cloud.interval_s == cluster.poll_s
    daemon._store.close()
    daemon._waker.close()
    daemon._lock.close()


def test_a_reload_between_two_programs_waits_for_the_second(monkeypatch):
    masks = []
    monkeypatch.setattr(main, "_opened", lambda _: Mock(run=lambda: 5))
    monkeypatch.setattr(main, "hand_on", Mock())
    given = (signal.SIG_BLOCK, ())
    monkeypatch.setattr(main.os, "execv", lambda *_: masks.append(signal.pthread_sigmask(*given)))
    try:
        main.run("hpctl.yaml", Mock())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    assert signal.SIGHUP in masks[0]
    assert signal.SIGTERM not in masks[0]
