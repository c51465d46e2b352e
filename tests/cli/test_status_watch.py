"""`hpctl status --watch`: the same screen again and again, until Ctrl-C."""

import json

import pytest

from hpctl.cli import status

pytestmark = pytest.mark.integration


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that were made; the third one is Ctrl-C."""
    found: list[float] = []

    def sleep(seconds: float) -> None:
        found.append(seconds)
        if len(found) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", sleep)
    return found


@pytest.mark.parametrize(("words", "pause"), [((), 2.0), (("30s",), 30.0), (("0.5",), 0.5)])
def test_the_screen_is_printed_until_ctrl_c_and_the_last_one_counts(history, pauses, words, pause):
    result = history.run("status", "--watch", *words)
    assert (result.exit_code, pauses) == (1, [pause] * 3)
    assert result.stdout == 3 * history.run("status").stdout


def test_each_screen_is_one_json_object(history, pauses):
    decoder, text = json.JSONDecoder(), history.run("status", "--watch", "--json").stdout
    found = []
    while text.strip():
        one, end = decoder.raw_decode(text.lstrip())
        found.append(one["schema"])
        text = text.lstrip()[end:]
    assert found == ["hpctl.status/1"] * 3


def test_what_is_no_pause_is_a_usage_error(history):
    assert history.run("status", "--watch", "never").exit_code == 2
    assert history.run("status", "--watch", "0").exit_code == 2
