"""config.json: what a site turns on, off or elsewhere. Every key has a default."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, Dict

from lifecycle.failure import Failure

WEIGHTS = ("required", "optional", "off")
ROLES = ("controller", "login", "compute")
DEFAULTS: dict[str, Any] = {
    "steps": {},
    "roles": {},
    "failure_wait_s": 60,
    "fsx_lustre": {"dns_name": "", "mount_name": "", "mount_path": "/fsx"},
    "fsx_openzfs": {"dns_name": "", "volume": "/fsx", "mount_path": "/home"},
    "users": {"file": "shared_users.txt", "default": ["ubuntu"]},
    "accounting": {"endpoint": "", "port": 3306, "user": "", "secret_arn": "", "database": ""},
    "containers": {"data_path": ""},
    "pam": {"admins": ["ubuntu"]},
    "hpctl": {"mode": "observe", "port": 8470, "head": "", "prolog": False},
}
FREE = ("steps", "roles")
"""Sections whose keys are names of steps and groups, and not settings."""


class Config(Dict[str, Any]):
    """The whole file over its defaults; `weight` says how much a step matters here."""

    def weight(self, step: str, default: str) -> str:
        """`required`, `optional` or `off`."""
        return str(self["steps"].get(step, default))


def load(path: Path, steps: list[str]) -> Config:
    """Read a file; where there is none, the defaults. Raises Failure with every problem."""
    given: Any = {}
    if path.exists():
        try:
            given = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise Failure(f"{path.name}: {error}") from error
    wrong = problems(given, steps)
    if wrong:
        raise Failure("{}: {}".format(path.name, "; ".join(wrong)))
    config = Config()
    for key, default in DEFAULTS.items():
        value = given.get(key, default)
        config[key] = {**default, **value} if isinstance(default, dict) else value
    return config


def problems(given: Any, steps: list[str]) -> list[str]:
    """All that is wrong with a file's content, each with its place."""
    if not isinstance(given, dict):
        return ["it is no JSON object"]
    found = []
    for key, value in given.items():
        if key not in DEFAULTS:
            found.append(_no_such(key, list(DEFAULTS)))
        else:
            found += _typed(key, value, DEFAULTS[key])
    if found:
        return found
    for step, weight in given.get("steps", {}).items():
        if step not in steps:
            found.append(_no_such("steps." + step, ["steps." + name for name in steps]))
        elif weight not in WEIGHTS:
            found.append("steps.{}: {!r} is none of {}".format(step, weight, ", ".join(WEIGHTS)))
    for group, role in given.get("roles", {}).items():
        if role not in ROLES:
            found.append("roles.{}: {!r} is none of {}".format(group, role, ", ".join(ROLES)))
    mode = given.get("hpctl", {}).get("mode", "observe")
    if mode not in ("observe", "assist", "own"):
        found.append(f"hpctl.mode: {mode!r} is none of observe, assist, own")
    return found


def _typed(place: str, value: Any, default: Any) -> list[str]:
    kind = type(default)
    fits = isinstance(value, (int, float)) and value >= 0 if kind is int else type(value) is kind
    if not fits or (kind is int and isinstance(value, bool)):
        return [f"{place}: {value!r} is no {_words(kind)}"]
    if kind is not dict or place in FREE:
        return []
    found = []
    for key, inner in value.items():
        where = place + "." + key
        if key not in default:
            found.append(_no_such(where, [place + "." + name for name in default]))
        else:
            found += _typed(where, inner, default[key])
    return found


def _words(kind: type) -> str:
    names = {dict: "object", list: "list", str: "text", int: "number from 0", bool: "true or false"}
    return names[kind]


def _no_such(place: str, known: list[str]) -> str:
    near = difflib.get_close_matches(place, known, 1)
    return "{}: no such key{}".format(place, f"; did you mean {near[0]}?" if near else "")
