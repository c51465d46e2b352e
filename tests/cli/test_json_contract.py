"""docs/cli-json.md and what the commands print are the same fields, in both directions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpctl.cli import doctor
from hpctl.cli.doctor import CheckView
from tests.cli.conftest import Head
from tests.cli.test_cluster_file import PLAIN

PAGE = Path(__file__).parents[2] / "docs" / "cli-json.md"
SECTION = re.compile(r"^#{2,3} (.+)$")
ROW = re.compile(r"^(\w+): ([^#]+?)(?:  # .*)?$")
LINK = re.compile(r"\(#([\w.]+)\)")

LOG = Path(__file__).parent / "kmsg"
LAST_LINE = Path(__file__).parent / "last_line"
TRAINING = Path(__file__).parents[1] / "jobs" / "logs" / "samples" / "megatron.txt"
WRONG_CLUSTER = Path(__file__).parent / "validate" / "cluster.yaml"
ROLE = "arn:aws:iam::111122223333:role/hyperpod"
STORY = Path(__file__).parent / "policy" / "story.yaml"

CHECKPOINTS = str(Path(__file__).parent / "checkpoints")

SHOWS = {
    "status": [("status",)],
    "nodes": [("nodes",)],
    "jobs": [("jobs", "--all")],
    "recoveries": [("recoveries", "--all")],
    "lemons": [("lemons", "--all")],
    "explain": [("explain", "n-44444444"), ("explain", "ip-10-1-0-5"), ("explain", "4545")],
    "requests": [("pause", "--no-wait")],
    "audit": [("audit",)],
    "audit-verify": [("audit", "verify")],
    "preview": [("replace", "ip-10-1-0-3", "--dry-run")],
    "cluster-list": [("cluster", "list")],
    "cluster-describe": [("cluster", "describe")],
    "cluster-nodes": [("cluster", "nodes", "--details")],
    "cluster-events": [("cluster", "events")],
    "cluster-order": [("cluster", "replace", "ip-10-1-0-3", "--dry-run")],
    "cluster-maintenance": [
        ("cluster", "health-check", "ip-10-1-0-3", "--yes", "--every", "0.05s")
    ],
    "doctor": [("doctor",)],
    "agent-check": [("agent", "check", "--kmsg", str(LOG), "--only", "kernel")],
    "triage": [("triage", str(LAST_LINE))],
    "logs-test": [("logs", "test", "--preset", "megatron", str(TRAINING))],
    "policy-test": [("policy", "test", "--scenario", str(STORY))],
    "policy-check": [("policy", "check", str(STORY))],
    "policy-show": [("policy", "show")],
    "cluster-validate": [("cluster", "validate", str(WRONG_CLUSTER), "--offline")],
    "iam": [("iam", "head-node"), ("iam", "operator")],
    "iam-check": [("iam", "check", ROLE, "--as", "head-node")],
    "cluster-init": [("cluster", "init", *PLAIN, "--dry-run")],
    "checkpoint-ls": [("checkpoint", "ls", CHECKPOINTS)],
    "checkpoint-verify": [("checkpoint", "verify", f"{CHECKPOINTS}/step-8")],
    "checkpoint-last": [("checkpoint", "last", CHECKPOINTS, "--tier", __file__)],
    "advise": [
        ("checkpoint", "advise", CHECKPOINTS, "--nodes", "4", "--save-cost", "30s"),
    ],
}


def sections() -> dict[str, dict[str, str]]:
    """Heading -> field -> type, as the page has them."""
    found: dict[str, dict[str, str]] = {}
    here: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        if heading := SECTION.match(line):
            here = found.setdefault(heading[1], {})
        elif row := ROW.match(line):
            assert row[1] not in here, f"{row[1]} is documented twice"
            here[row[1]] = kind_of(row[2])
    fields = {name: fields for name, fields in found.items() if fields}
    return {n: {"schema": "text"} | f if n.startswith("hpctl.") else f for n, f in fields.items()}


def kind_of(written: str) -> str:
    """`Node[]` is a list of [Node](#Node), `text?` is text or null."""
    kind = written.removesuffix("?")
    one = kind.removesuffix("[]")
    if one[0].isupper() or "." in one:
        said = f"[{one}](#{one})"
    else:
        said = {"{text: number}": "map"}.get(one, "object" if one[0] == "{" else one)
    if kind != one:
        said = "list of numbers" if one == "number" else f"list of {said}"
    return said if kind == written else f"{said} or null"


PARTS = sections()


def documented(section: str, prefix: str = "") -> dict[str, str]:
    """Path -> type for a section, its parts opened up."""
    paths = {}
    for field, kind in PARTS[section].items():
        paths[prefix + field] = kind
        if link := LINK.search(kind):
            dots = "[]." if kind.startswith("list") else "."
            paths |= documented(link[1], f"{prefix}{field}{dots}")
    return paths


def printed(value: Any, prefix: str, maps: set[str]) -> dict[str, list[Any]]:
    """Path -> the values found there."""
    paths: dict[str, list[Any]] = {}
    for field, inner in value.items():
        path = prefix + field
        paths.setdefault(path, []).append(inner)
        parts = [inner] if isinstance(inner, dict) and path not in maps else []
        dots = "."
        if isinstance(inner, list):
            parts, dots = [i for i in inner if isinstance(i, dict)], "[]."
        for part in parts:
            for deep, values in printed(part, path + dots, maps).items():
                paths.setdefault(deep, []).extend(values)
    return paths


def shown(head: Head, name: str) -> list[Any]:
    return [json.loads(head.run(*args, "--json").stdout) for args in SHOWS[name]]


@pytest.fixture
def healthy_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (CheckView("munge", "ok", "fine", ""),)
    monkeypatch.setattr(doctor, "examine", lambda config, now: checks)


@pytest.mark.usefixtures("healthy_doctor")
@pytest.mark.parametrize("name", SHOWS)
def test_every_printed_field_is_documented_and_the_other_way_round(
    history: Head, name: str
) -> None:
    said = documented(f"hpctl.{name}/1")
    maps = {path for path, kind in said.items() if kind.startswith(("map", "object"))}
    found: set[str] = set()
    for document in shown(history, name):
        found |= set(printed(document, "", maps))
    assert found == set(said)


IS = {
    "text": lambda v: isinstance(v, str),
    "time": lambda v: isinstance(v, str) and bool(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", v)),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "map": lambda v: isinstance(v, dict) and all(isinstance(n, int) for n in v.values()),
    "object": lambda v: isinstance(v, dict),
    "list of object": lambda v: all(isinstance(one, dict) for one in v),
    "any": lambda v: True,
    "list of text": lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v),
    "list of numbers": lambda v: isinstance(v, list) and all(isinstance(n, int) for n in v),
}


@pytest.mark.usefixtures("healthy_doctor")
@pytest.mark.parametrize("name", SHOWS)
def test_every_value_has_the_type_that_is_documented(history: Head, name: str) -> None:
    said = documented(f"hpctl.{name}/1")
    maps = {path for path, kind in said.items() if kind.startswith(("map", "object"))}
    for document in shown(history, name):
        for path, values in printed(document, "", maps).items():
            kind, _, orelse = said[path].partition(" or ")
            if "](#" in kind:
                continue
            for value in values:
                assert (orelse == "null" and value is None) or IS[kind](value), (path, value)


def test_every_part_is_used() -> None:
    links = {
        link[1]
        for fields in PARTS.values()
        for kind in fields.values()
        if (link := LINK.search(kind))
    }
    assert {name for name in PARTS if not name.startswith("hpctl.")} == links
