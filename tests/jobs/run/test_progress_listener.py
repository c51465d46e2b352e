"""What arrives at the listener and the file reader, welcome or not."""

from pathlib import Path

import pytest

from hpctl.jobs.run.progress_notes import ProgressNoteFileReader, open_progress_note_listener
from hpctl.toolkit.errors import HpctlError
from tests.jobs.run.progress_talk import heard, python, sender
from tests.waiting import until

pytestmark = pytest.mark.integration


def test_only_its_own_user_can_reach_the_unix_socket() -> None:
    with open_progress_note_listener() as listener:
        directory = Path(listener.address.removeprefix("unix:")).parent
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not directory.exists()


def test_what_is_not_taken_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr("hpctl.jobs.run.progress_notes.KEPT", 10)
    with open_progress_note_listener() as listener, sender(listener.address) as send:
        for n in range(50):
            send(b"step=%d" % n)
        until(lambda: listener.dropped >= 40)
        assert [one.note.step for one in listener.take()] == list(range(40, 50))


def test_a_file_that_comes_later_is_torn_rotated_and_mixed(tmp_path) -> None:
    place = tmp_path / "progress"
    reader = ProgressNoteFileReader(place)
    assert reader.take() == []
    with place.open("w") as file:
        file.write("step=1 loss=0.5\nstep=2\nnonsense\nstep=3 lo")
    assert [one.note.step for one in reader.take()] == [1, 2]
    with place.open("a") as file:
        file.write("ss=0.25\n")
    assert [(n.note.step, n.note.loss) for n in reader.take()] == [(3, 0.25)]
    place.rename(tmp_path / "old")
    place.write_text("step=4\n")
    steps = [one.note.step for _ in range(3) for one in reader.take()]
    assert steps == [4]
    assert reader.dropped == 1
    reader.close()


def test_a_long_temporary_directory_is_no_obstacle(tmp_path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with open_progress_note_listener(directory=deep) as listener:
        python("from hpctl import progress; progress.step(4)", listener.address)
        assert heard(listener, 1)[0].step == 4


def test_peers_that_do_not_resolve_are_an_error_with_a_hint() -> None:
    with pytest.raises(HpctlError, match="cannot open a socket") as caught:
        open_progress_note_listener(["no-such-node.invalid"])
    assert "getent" in caught.value.hint
