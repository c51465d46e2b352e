"""Real files: what the gather reads of them, and what the checks then say."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.clusters.bundle import find_lifecycle_script_directory
from hpctl.clusters.validate import scripts
from hpctl.clusters.validate.scripts import FAMILY
from hpctl.clusters.validate.wanted import CheckLevel
from tests.clusters.validate.world import facts, wanted

pytestmark = pytest.mark.integration


def write(path: Path, text: bytes, mode: int = 0o755) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    path.chmod(mode)


def trouble(directory: Path) -> dict[str, list[str]]:
    """What the checks say of a directory, by check."""
    found = replace(facts(), scripts=scripts.gather_local_lifecycle_script_facts(directory))
    answer: dict[str, list[str]] = {}
    for verdict in FAMILY.verdicts(wanted(), found):
        if verdict.level is not CheckLevel.OK:
            answer.setdefault(verdict.check, []).append(verdict.what.replace(f"{directory}/", ""))
    return answer


@pytest.fixture
def good(tmp_path) -> Path:
    write(tmp_path / "on_init_complete.sh", b"#!/bin/sh\nset -eu\nexec ./steps/users.py\n")
    write(tmp_path / "steps" / "users.py", b"#!/usr/bin/env python3\nprint(1)\n")
    write(tmp_path / "steps" / "more.sh", b"#!/bin/bash\na=(1 2)\n")
    write(tmp_path / "users.txt", b"ana\r\n", 0o644)
    return tmp_path


def test_good_scripts_are_fine(good: Path) -> None:
    assert trouble(good) == {}


def test_a_script_is_parsed_by_its_own_interpreter(good: Path) -> None:
    write(good / "on_init_complete.sh", b"#!/bin/sh\na=(1 2)\n")
    assert "Syntax error" in trouble(good)["readable"][0]
    write(good / "on_init_complete.sh", b"#!/bin/bash\nif true; then\n")
    assert "syntax error" in trouble(good)["readable"][0]
    write(good / "on_init_complete.sh", b"#!/usr/bin/env python3\ndef f(:\n")
    assert "SyntaxError" in trouble(good)["readable"][0]


def test_what_is_no_script_is_not_read_whole(good: Path) -> None:
    write(good / "on_init_complete.sh", b"\0" * (scripts.LARGEST + 1))
    assert "that is no script" in trouble(good)["entry-point"][0]


def test_a_directory_without_end_is_cut_off(good: Path, monkeypatch) -> None:
    monkeypatch.setattr(scripts, "MOST", 2)
    assert "very many files" in trouble(good)["readable"][-1]


def test_hpctls_own_scripts_pass() -> None:
    assert trouble(find_lifecycle_script_directory()) == {}
