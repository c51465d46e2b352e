"""What SIGHUP changes in a daemon that runs."""

from __future__ import annotations

from pathlib import Path

from hpctl.daemon.main import Daemon


def test_the_kill_switch_is_where_the_file_says_after_a_reload(tmp_path: Path) -> None:
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
    daemon._store.close()
    daemon._waker.close()
    daemon._lock.close()
