"""docs/cli-json.md and what the commands print are the same fields, in both directions."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from hpctl.cli import doctor
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.toolkit import output
from hpctl.toolkit.checks_view import CheckView
from tests.cli import worlds
from tests.cli.test_golden import CHECKED, GOLDEN
from tests.clusters.commands.test_cluster_file import PLAIN

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "cli-json.md"
SECTION = re.compile(r"^#{2,3} (.+)$")
ROW = re.compile(r"^(\w+)(?:: ([^#]+?))?(?:  # .*)?$")
LINK = re.compile(r"\(#([\w.]+)\)")

HERE = Path(__file__).parent
SAID = (GOLDEN / "schemas.yaml").read_text()
SHOWS = yaml.safe_load(SAID.format(here=HERE, plain=" ".join(PLAIN), role=CHECKED))


def sections() -> dict[str, dict[str, str]]:
    """Heading -> field -> type, as the page has them."""
    found: dict[str, dict[str, str]] = {}
    here: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        if heading := SECTION.match(line):
            here = found.setdefault(heading[1], {})
        elif row := ROW.match(line):
            assert row[1] not in here, f"{row[1]} is documented twice"
            here[row[1]] = kind_of(row[2] or "text")
    fields = {name: fields for name, fields in found.items() if fields}
    return {n: {"schema": "text"} | f if n.startswith("hpctl.") else f for n, f in fields.items()}


def kind_of(written: str) -> str:
    """`Node[]` is a list of [Node](#Node), `text?` is text or null."""
    kind = written.removesuffix("?")
    one = kind.removesuffix("[]")
    if one[0].isupper() or "." in one:
        text = f"[{one}](#{one})"
    else:
        text = {"{text: number}": "map"}.get(one, "object" if one[0] == "{" else one)
    if kind != one:
        text = "list of numbers" if one == "number" else f"list of {text}"
    return text if kind == written else f"{text} or null"


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


def printed(value, prefix, free):
    """Path -> the values found there; what is below a `free` one is anything."""
    paths = {}
    for field, inner in value.items():
        path = prefix + field
        paths.setdefault(path, []).append(inner)
        if path in free:
            continue
        many, dots = (inner, "[].") if isinstance(inner, list) else ([inner], ".")
        for part in [one for one in many if isinstance(one, dict)]:
            for deep, values in printed(part, path + dots, free).items():
                paths.setdefault(deep, []).extend(values)
    return paths


IS = {
    "text": lambda v: isinstance(v, str),
    "time": lambda v: isinstance(v, str) and bool(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", v)),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "map": lambda v: isinstance(v, dict) and all(isinstance(n, int | float) for n in v.values()),
    "object": lambda v: isinstance(v, dict),
    "list of object": lambda v: all(isinstance(one, dict) for one in v),
    "any": lambda v: True,
    "list of text": lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v),
    "list of numbers": lambda v: isinstance(v, list) and all(isinstance(n, int) for n in v),
}


LIVE = {
    "explain": ("tasks[].", "standstill."),
    "requests": "recoveries[].",
    "checkpoint-ls": "checkpoints[].mark.",
    "checkpoint-verify": "checkpoints[].mark.",
    "status": ("pauses[].", "windows[]."),
    "checkpoint-last": ("found.mark.", "passed_over[].mark."),
}
"""Fields below what needs a running Slurm or daemon, or a marked checkpoint: here they are empty.
The live tests of arrays, of orders that are followed and of maintenance windows, and the tests of
marks, print them."""


def holds(schema: str, *documents: str) -> None:
    """What is documented of a schema is what documents have, in both directions, with its type."""
    answer = documented(f"hpctl.{schema}/1")
    anything = ("map", "object", "any", "list of object")
    free = {path for path, kind in answer.items() if kind.startswith(anything)}
    found = {}
    for document in map(json.loads, documents):
        for path, values in printed(document, "", free).items():
            found.setdefault(path, []).extend(values)
    live = {path for path in answer if path.startswith(LIVE.get(schema, "-"))}
    assert set(found) == set(answer) - live
    for path, values in found.items():
        kind, _, orelse = answer[path].partition(" or ")
        for value in values:
            fits = "](#" in kind or IS[kind](value)
            assert fits or (orelse == "null" and value is None), (path, value)


@pytest.mark.parametrize("name", SHOWS)
def test_what_is_printed_is_what_is_documented(history, name, monkeypatch):
    if name == "forecast":  # its calibration needs a week that has passed
        monkeypatch.setattr(output, "get_current_utc_time", lambda: worlds.at(15 * 86400.0))
    checks = (CheckView("munge", "ok", "fine", ""),)
    monkeypatch.setattr(doctor, "run_doctor_checks", lambda config, now: checks)
    with closing(history.store()) as store:
        store.record_standby_heartbeat(
            DaemonIdentity("head-2", 12, "0.1.0", "own", "head-2:8470"), 1, worlds.at(89.0)
        )
    holds(name, *(history.run(*line.split(), "--json").stdout for line in SHOWS[name]))


GOLDENS = {
    "capacity": ["capacity"],
    "autoscale": ["autoscale-status", "autoscale-explain"],
    "training-plans": ["training-plan"],
}


@pytest.mark.parametrize("name", GOLDENS)
def test_what_is_as_before_is_documented(name):
    holds(name, *((GOLDEN / f"{one}.json").read_text() for one in GOLDENS[name]))


def test_every_part_is_used():
    links = {
        link[1]
        for fields in PARTS.values()
        for kind in fields.values()
        if (link := LINK.search(kind))
    }
    assert {name for name in PARTS if not name.startswith("hpctl.")} == links
