"""What a command waits for that has asked the daemon for something."""

from pathlib import Path

import pytest

from hpctl.engine import request_client
from hpctl.engine.config import parse_config
from hpctl.engine.journal.events import RequestTaken
from hpctl.engine.request_client import wait_for_request_answers
from tests.fakes.values import at

TAKEN = RequestTaken(at(0), 1, "replace-now", "n1", "eve", "recovery n-1 opened", True)


class OneCopy:
    """The journal as it was at one moment."""

    def __init__(self, answer: RequestTaken | None) -> None:
        self._answer = answer

    def answer(self, request: int) -> RequestTaken | None:
        return self._answer if request == TAKEN.request else None

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("writable", "answered"), [(False, {1: TAKEN}), (True, {})])
def test_a_user_who_reads_copies_looks_at_a_new_one_for_the_answer(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    writable: bool,
    answered: dict[int, RequestTaken],
) -> None:
    """The first copy is older than the answer. The journal itself is opened once."""
    copies = [OneCopy(None), OneCopy(TAKEN)]
    monkeypatch.setattr("hpctl.engine.adapters.open_journal_reader", lambda _config: copies.pop(0))
    monkeypatch.setattr("hpctl.engine.request_client.os.access", lambda _path, _mode: writable)
    monkeypatch.setattr(request_client, "COPY_LOOK_S", 0.01)
    config = parse_config(f"state_dir: {tmp_path}\n")
    assert wait_for_request_answers(config, {1}, 0.3) == answered


def test_a_copy_is_awaited_for_longer_than_the_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copies = [OneCopy(None)] * 40 + [OneCopy(TAKEN)]
    monkeypatch.setattr("hpctl.engine.adapters.open_journal_reader", lambda _config: copies.pop(0))
    monkeypatch.setattr("hpctl.engine.request_client.os.access", lambda _path, _mode: False)
    monkeypatch.setattr(request_client, "COPY_LOOK_S", 0.01)
    config = parse_config(f"state_dir: {tmp_path}\n")
    assert wait_for_request_answers(config, {1}, 0.02) == {1: TAKEN}
    copies[:] = [OneCopy(None)]
    assert wait_for_request_answers(config, {1}, 0.0) == {}
