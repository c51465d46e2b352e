"""What people and programs read, letter by letter. HPCTL_REGOLD=1 writes the files anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Head

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "status": ("status",),
    "nodes": ("nodes",),
    "nodes-two": ("nodes", "ip-10-1-0-4", "ip-10-1-0-10", "--no-cloud"),
    "jobs": ("jobs",),
    "jobs-all": ("jobs", "--all"),
    "recoveries": ("recoveries",),
    "recoveries-since": ("recoveries", "--since", "60s"),
    "lemons": ("lemons",),
    "lemons-all": ("lemons", "--all"),
    "explain-healed": ("explain", "n-11111111"),
    "explain-in-doubt": ("explain", "ip-10-1-0-4"),
    "explain-job": ("explain", "4242"),
    "explain-trouble": ("explain", "4545"),
    "explain-hold": ("explain", "ip-10-1-0-5"),
    "explain-foreign-drain": ("explain", "ip-10-1-0-7"),
}


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("HPCTL_REGOLD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_as_before(history: Head, name: str) -> None:
    result = history.run(*COMMANDS[name])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert result.exit_code in (0, 1), result.output
    compare(f"{name}.txt", result.stdout)
    for line in result.stdout.splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()
        assert "\x1b" not in line


@pytest.mark.parametrize("name", COMMANDS)
def test_the_json_is_as_before(history: Head, name: str) -> None:
    result = history.run(*COMMANDS[name], "--json")
    shown = json.loads(result.stdout)
    assert next(iter(shown)) == "schema"
    assert shown["schema"] == f"hpctl.{COMMANDS[name][0]}/1"
    compare(f"{name}.json", result.stdout)
