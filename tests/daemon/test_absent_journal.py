"""A daemon whose state directory is not mounted: it begins no new journal and does not lead."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.adversary.bed import STRANGER
from tests.fakes import command_line
from tests.process import free_port, room
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PATIENCE_S = 120.0


class Head:
    """A head node whose Slurm does not answer. `state`: its state directory."""

    def __init__(self, place: Path) -> None:
        self.place, self.state = place, place / "state"
        self.state.mkdir()
        (place / "scontrol").write_text("#!/bin/sh\nexit 1\n")
        (place / "scontrol").chmod(0o755)
        self.config = place / "hpctl.yaml"
        self.configure(create=False)

    def configure(self, *, create: bool) -> None:
        settings = {
            "state_dir": str(self.state),
            "cluster": {"provider": "none"},
            "slurm": {"adapter": "cli", "bin": str(self.place)},
            "intake": {"listen": f"127.0.0.1:{free_port()}"},
            "journal": {"create": create},
        }
        self.config.write_text(yaml.safe_dump(settings))

    def hpctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpctl", *words, "--config", str(self.config)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def leads(self) -> bool:
        """Start the daemon, wait until it leads or has ended, and end it."""
        with (self.place / "log").open("wb") as log:
            command = [sys.executable, "-m", "hpctl", "daemon", "run", "--config", str(self.config)]
            process = subprocess.Popen(command, stderr=log)
        try:
            until(lambda: process.poll() is not None or "running mode" in self.log, PATIENCE_S)
            return process.poll() is None
        finally:
            process.terminate()
            process.wait(PATIENCE_S)

    @property
    def log(self) -> str:
        return (self.place / "log").read_text()


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_daemon_leads_with_its_journal_and_refuses_while_its_disk_is_not_mounted(
    head: Head,
) -> None:
    with ExitStack() as mounted:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(head.state)]
        subprocess.run(mount, check=True)
        mounted.callback(subprocess.run, ["umount", "--lazy", str(head.state)], check=True)
        assert head.hpctl("journal", "create").returncode == 0
        assert head.leads(), head.log
    assert not head.leads()
    assert f"its journal {head.state}/journal.db does not exist" in head.log
    assert f"mount the file system of {head.state}" in head.log
    assert list(head.state.iterdir()) == [], "nothing is written below the mount point"


def test_a_daemon_that_may_begin_a_journal_says_that_it_does(head: Head) -> None:
    head.configure(create=True)
    assert head.leads(), head.log
    assert f"{head.state}/journal.db is not there: a new journal begins" in head.log


def test_a_journal_is_not_created_over_another(head: Head) -> None:
    first = command_line.run("journal", "create", "--config", head.config)
    assert (first.exit_code, first.output) == (0, f"{head.state}/journal.db: created\n")
    before = (head.state / "journal.db").stat().st_mtime_ns
    again = command_line.run("journal", "create", "--config", head.config)
    assert again.exit_code != 0
    assert "journal.db exists already" in str(again.exception)
    assert (head.state / "journal.db").stat().st_mtime_ns == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root creates for another user")
def test_root_creates_it_as_the_owner_of_the_directory() -> None:
    with room() as place:
        head = Head(place)
        os.chown(head.state, STRANGER.pw_uid, STRANGER.pw_gid)
        done = command_line.run("journal", "create", "--config", head.config)
        assert done.exit_code == 0, done.output
        assert (head.state / "journal.db").stat().st_uid == STRANGER.pw_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root creates for another user")
def test_root_follows_no_link_in_the_place_of_the_journal(head: Head, tmp_path: Path) -> None:
    os.chown(head.state, STRANGER.pw_uid, STRANGER.pw_gid)
    elsewhere = tmp_path / "elsewhere"
    (head.state / "journal.db").symlink_to(elsewhere)
    done = command_line.run("journal", "create", "--config", head.config)
    assert done.exit_code != 0
    assert not elsewhere.exists()
