"""What no committed file may hold."""

import re

import pytest

from tests.architecture.source import ROOT, text, tracked

# Written in two parts, so that this file does not hold them either.
BANNED = {
    "a path of somebody's machine": r"/wo" r"rk/|/opt/py" r"pi|/opt/wh" r"eels",
    "a package registry's host": r"py" r"pi\.org|pytho" r"nhosted\.org|deb\.deb" r"ian\.org"
    r"|registry\.np" r"mjs\.org|archive\.ubu" r"ntu\.com",
    "unfinished work": r"\bTO" r"DO\b|\bFIX" r"ME\b|NotImpl" r"ementedError",
    "a secret": r"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY",
}  # fmt: skip


def readable(path):
    """A file's text; nothing for what is not text."""
    try:
        return text(path)
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("what", BANNED)
def test_no_tracked_file_holds(what: str) -> None:
    pattern = re.compile(BANNED[what])
    found = [
        f"{path}:{number} {line.strip()[:100]}"
        for path in tracked()
        for number, line in enumerate(readable(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_no_large_file_is_tracked() -> None:
    sizes = {path: (ROOT / path).stat().st_size for path in tracked()}
    assert {path: size for path, size in sizes.items() if size > 2_000_000} == {}


def test_scripts_can_be_run() -> None:
    def is_script(path):
        return readable(path).startswith("#!")

    closed = [p for p in tracked() if is_script(p) and not (ROOT / p).stat().st_mode & 0o100]
    assert closed == []
