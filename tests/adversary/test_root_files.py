"""Root writes in a directory of another user, who replaces what is there by links, also between
root's look and root's write."""

import os
import stat
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.checkpoints import marks
from hpctl.checkpoints.hpctl_checkpoint import MARKS
from hpctl.checkpoints.marks import CheckpointMark, write_checkpoint_mark_file
from hpctl.daemon.locks import lock_state_dir
from hpctl.engine.journal import restore
from hpctl.nodes.acceptance import run
from hpctl.nodes.acceptance.result import FOLDER, AcceptanceRunResults
from hpctl.toolkit.compat import UTC
from tests.adversary.bed import STRANGER, drop, public_directory

pytestmark = [
    pytest.mark.integration,
    pytest.mark.adversary,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root and another user"),
]
SECRET = "root's\n"


@pytest.fixture
def theirs() -> Iterator[Path]:
    with public_directory() as path:
        yield path


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file that root alone may read."""
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    yield path
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (0, 0)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert path.read_text() == SECRET


def as_stranger(*script: str) -> None:
    """Run shell commands as the owner of the directory."""
    subprocess.run(["sh", "-ec", "\n".join(script)], check=True, cwd="/", timeout=60, **drop())


def test_a_link_in_the_place_of_the_log_is_not_given_away(theirs: Path, secret: Path) -> None:
    (theirs / "journal.db").write_text("")
    as_stranger(f"ln -s {secret} {theirs}/journal.db-wal")
    restore.chown_journal_files(theirs / "journal.db")
    assert (theirs / "journal.db").stat().st_uid == STRANGER.pw_uid


def test_a_link_in_the_place_of_the_lock_is_not_written_to(theirs: Path, secret: Path) -> None:
    as_stranger(f"ln -s {secret} {theirs}/daemon.lock")
    with pytest.raises(OSError, match=r"daemon\.lock"):
        lock_state_dir(theirs)


def test_a_result_of_a_test_that_becomes_a_link_changes_no_mode(
    theirs: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = theirs / FOLDER
    as_stranger(f"mkdir {folder}")
    whole = os.fsync

    def swap(descriptor: int) -> None:
        whole(descriptor)
        as_stranger(f"cd {folder}", "name=$(ls -A)", "rm -f $name", f"ln -s {secret} $name")

    monkeypatch.setattr(os, "fsync", swap)
    run.write_acceptance_result_file(AcceptanceRunResults("r-1", "quick", 1.0, 2.0), theirs)
    assert (folder / "r-1.json").is_symlink(), "the user did replace it"


def test_a_directory_of_marks_that_becomes_a_link_leads_root_nowhere(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_stranger(f"mkdir {theirs}/{MARKS}")
    target = tmp_path / "root"
    target.mkdir()
    trusted = marks.find_trusted_mark_owners

    def swap(directory: Path) -> set[int]:
        as_stranger(f"mv {theirs}/{MARKS} {theirs}/aside", f"ln -s {target} {theirs}/{MARKS}")
        return trusted(directory)

    monkeypatch.setattr(marks, "find_trusted_mark_owners", swap)
    write_checkpoint_mark_file(
        theirs, CheckpointMark(True, 3, "alice", datetime(2026, 11, 28, tzinfo=UTC))
    )
    assert list(target.iterdir()) == []
    assert len(list((theirs / "aside").glob("*.json"))) == 1


@pytest.mark.parametrize("made", ["ln -s / {}", "mkfifo {}", "touch {}"])
def test_what_is_no_directory_of_marks_is_refused(theirs: Path, made: str) -> None:
    as_stranger(made.format(theirs / MARKS))
    with pytest.raises(PermissionError, match="not a directory of the owner's"):
        write_checkpoint_mark_file(
            theirs, CheckpointMark(True, 3, "alice", datetime(2026, 11, 28, tzinfo=UTC))
        )
