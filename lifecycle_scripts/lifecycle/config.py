"""config.json: what a site turns on, off or elsewhere. Every key has a default."""

from __future__ import annotations

import difflib
import json
import re
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
    "docker": {"packages": ["docker.io"], "data_path": "", "users": ["ubuntu"]},
    "mount_s3": {"bucket": "", "mount_path": "/mnt/s3", "options": []},
    "sssd": {
        "uri": "",
        "search_base": "",
        "schema": "rfc2307",
        "bind_dn": "",
        "password_file": "",
        "secret_arn": "",
        "ca_file": "",
        "home": "/home/%u",
        "allow_groups": [],
        "sudo_groups": [],
        "probe_user": "",
        "options": {},
    },
    "observability": {"exporters": [], "args": {}},
    "pam": {"admins": ["ubuntu"]},
    "hpctl": {"mode": "observe", "port": 8470, "head": "", "prolog": False, "health_check": True},
}
FREE = ("steps", "roles", "sssd.options", "observability.args")
"""Sections whose keys are names of steps, groups and such, and not settings."""

WANTED = (("mount_s3", "bucket"), ("sssd", "uri"), ("sssd", "search_base"))
"""What a step cannot do without, where it is not off."""
EXPORTERS = ("node_exporter", "dcgm-exporter", "slurm_exporter")
ABSOLUTE = (r"/[^\s%$\"'\\\\]+", "path from / without blanks")
WORD = (r"[^\s%$\"'\\\\]+", "word without blanks, quotes, % and $")
GROUP = (r"[A-Za-z0-9_.][A-Za-z0-9_.@-]*", "group's name")
LINE = (r"\S(.*\S)?", "one line of text")
SHAPES = {
    "docker.data_path": ABSOLUTE,
    "docker.packages": (r"[a-z0-9][a-z0-9+.=:~-]+", "Debian package"),
    "mount_s3.bucket": (r"[a-z0-9][a-z0-9.-]{1,62}|arn:[\w:/-]+", "name or ARN of a bucket"),
    "mount_s3.mount_path": ABSOLUTE,
    "mount_s3.options": (r"--" + WORD[0], "option of mount-s3"),
    "sssd.uri": (r"ldaps?://[^\s,]+(, ?ldaps?://[^\s,]+)*", "ldap:// or ldaps:// address"),
    "sssd.search_base": LINE,
    "sssd.schema": (r"rfc2307|rfc2307bis|IPA|AD", "one of rfc2307, rfc2307bis, IPA, AD"),
    "sssd.bind_dn": LINE,
    "sssd.password_file": ABSOLUTE,
    "sssd.secret_arn": (r"arn:[^\s]+", "ARN of a secret"),
    "sssd.ca_file": (r"[^/\s]+", "name of a file at the bundle's top"),
    "sssd.home": (r"/\S+", "path from /"),
    "sssd.allow_groups": GROUP,
    "sssd.sudo_groups": GROUP,
    "sssd.options": LINE,
    "observability.args": WORD,
}
"""What a text, or each text of a list or of a free section, must look like where it is given."""


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
    return _check_words(given, steps) + _shaped(given) + _wanted(given)


def _check_words(given: dict[str, Any], steps: list[str]) -> list[str]:
    """Return what is none of the words that steps, roles and the mode may have."""
    found = []
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


def _shaped(given: dict[str, Any]) -> list[str]:
    found = []
    for place, (pattern, what) in SHAPES.items():
        section, _, key = place.partition(".")
        for where, text in _texts(place, given.get(section, {}).get(key, "")):
            if not isinstance(text, str) or (text and not re.fullmatch(pattern, text)):
                found.append(f"{where}: {text!r} is no {what}")
    observability = given.get("observability", {})
    for name, args in observability.get("args", {}).items():
        if not isinstance(args, list):
            found.append(f"observability.args.{name}: {args!r} is no list")
    for name in observability.get("exporters", []):
        if name not in EXPORTERS:
            near = difflib.get_close_matches(str(name), EXPORTERS, 1)
            found.append(
                "observability.exporters: {!r} is none of {}{}".format(
                    name, ", ".join(EXPORTERS), f"; did you mean {near[0]}?" if near else ""
                )
            )
    return found


def _texts(place: str, value: Any) -> list[tuple[str, Any]]:
    """Return each text of a value, with its place: a text itself, a list's, a free section's."""
    if isinstance(value, dict):
        pairs = [_texts(f"{place}.{key}", inner) for key, inner in value.items()]
        return [pair for inner in pairs for pair in inner]
    return [(place, one) for one in (value if isinstance(value, list) else [value])]


def _wanted(given: dict[str, Any]) -> list[str]:
    """What the steps that are not off by `steps` cannot do without."""
    steps, sssd = given.get("steps", {}), given.get("sssd", {})
    found = [
        f"{step}.{key}: the step {step} needs it"
        for step, key in WANTED
        if steps.get(step, "off") != "off" and not given.get(step, {}).get(key)
    ]
    sources = [key for key in ("password_file", "secret_arn") if sssd.get(key)]
    if len(sources) != (1 if sssd.get("bind_dn") else 0):
        found.append(
            "sssd.bind_dn: it goes with one of password_file and secret_arn ({} given)".format(
                " and ".join(sources) or "none"
            )
        )
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
