"""Another user of the group that a run's checkpoint directory lets write: files beside the run's.

The stranger makes what lies there; the run's owner, root here, reads and writes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpctl.checkpoints.run_records import HISTORIES
from hpctl.checkpoints.save_interval import read_reported_save_costs
from hpctl.jobs.elastic.controller import RankGroupRecorder, read_rank_group_record
from hpctl.jobs.run.history import JobHistory
from hpctl.toolkit.user_files import is_own_file, open_own_file
from tests.adversary.bed import STRANGER, public_directory
from tests.jobs.run.test_run_history import START

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user"),
]


@contextmanager
def placed(kind: str) -> Iterator[tuple[Path, Path]]:
    """Something of the stranger's, in place of a run's file, and a file of the owner's."""
    with public_directory() as base:
        base.chmod(0o755)
        own = base / "own"
        own.write_text("what the owner keeps\n")
        place = base / "run-7.jsonl"
        if kind == "link":
            place.symlink_to(own)
        elif kind == "fifo":
            os.mkfifo(place)
        else:
            place.write_bytes(b'{"type":"AttemptStarted"}\n')
        os.chown(place, STRANGER.pw_uid, STRANGER.pw_gid, follow_symlinks=False)
        yield place, own


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["link", "fifo", "file"])
def test_a_run_s_history_is_its_owner_s(kind):
    with placed(kind) as (place, own):
        history = JobHistory.open(place)
        assert "cannot read" in history.pop_problem()
        history.add(START)
        assert "cannot write" in history.pop_problem()
        assert own.read_text() == "what the owner keeps\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["link", "fifo", "file"])
def test_a_launcher_s_account_and_the_end_mark_are_their_owner_s(kind):
    with placed(kind) as (place, _):
        assert not is_own_file(place)
        with pytest.raises(OSError, match=r"symbolic links|no file of this user"):
            read_rank_group_record(place)


@pytest.mark.timeout(60)
def test_a_fifo_among_the_histories_holds_no_command_up():
    with public_directory() as base:
        (base / HISTORIES).mkdir()
        os.mkfifo(base / HISTORIES / "run-7.jsonl")
        assert read_reported_save_costs(base, 10) == ()


def test_an_account_is_written_through_no_link_of_another(monkeypatch):
    with placed("file") as (place, own):
        known = place.with_name(f".run-7.account.{os.getpid()}")
        known.symlink_to(own)
        RankGroupRecorder(place.with_name("run-7.account"), "7.0").record_generation_start(
            0, "", ["n1"]
        )
        assert own.read_text() == "what the owner keeps\n"
        assert read_rank_group_record(place.with_name("run-7.account")).run_id == "7.0"


def test_the_folder_of_histories_lets_no_group_write(tmp_path):
    before = os.umask(0o002)
    try:
        path = tmp_path / HISTORIES / "run-7.jsonl"
        JobHistory.open(path).add(START)
    finally:
        os.umask(before)
    assert path.parent.stat().st_mode & 0o022 == 0
    os.close(open_own_file(path, os.O_RDONLY))
