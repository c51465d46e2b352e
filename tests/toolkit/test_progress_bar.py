"""The bar of a transfer: on a terminal, and nowhere else."""

import io
import sys

from hpctl.toolkit.progress_bar import show_transfer_progress


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_a_transfer_is(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with show_transfer_progress() as progress:
        assert progress is not None
        progress(2_000_000, 8_000_000)
        progress(2_000_000, 8_000_000)
    assert "4.0/8.0 MB" in screen.getvalue()


def test_a_file_gets_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with show_transfer_progress() as progress:
        assert progress is None
