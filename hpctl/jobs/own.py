"""hpctl's own options of `hpctl sbatch`: the same on the command line and in `#HPCTL` lines.

Their values are checked here, once, whoever said them; every error names its place: the option,
and for a directive the file and the line before it.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctl.errors import HpctlError


@dataclass(frozen=True, slots=True)
class Own:
    """One option. `value` is its value's name, "" for a flag; `directive`: `#HPCTL` knows it."""

    value: str = ""
    repeated: bool = False
    directive: bool = True


OPTIONS: Mapping[str, Own] = {
    "checkpoint-dir": Own("DIR"),
    "tier": Own("DIR|local:DIR|s3://BUCKET/PREFIX", repeated=True),
    "policy": Own("FILE|NAME"),
    "log-rules": Own("PRESET|FILE", repeated=True),
    "spares": Own("K"),
    "save-signal": Own("SIGNAL[@SECONDS]"),
    "no-resume": Own(),
    "slurm-bin": Own("DIR", directive=False),
    "dry-run": Own(directive=False),
    "json": Own(directive=False),
}
_EXAMPLES = {
    "checkpoint-dir": "/shared/my-run",
    "tier": "local:/nvme/my-run",
    "policy": "policy.yaml",
    "log-rules": "megatron",
    "spares": "1",
    "save-signal": "USR1@120",
    "slurm-bin": "/opt/slurm/bin",
}
MOST_SPARES = 1000
SAVE_BEFORE_S = 120
"""Seconds before the time limit that a save is asked for where nobody says. slurmctld looks at
time limits once in 30 to 60 s, so the request may come up to a minute earlier (sbatch(1))."""
_LAST_SECOND = 65535  # sbatch holds it in 16 bits


@dataclass(frozen=True, slots=True)
class Mention:
    """An option's value as somebody wrote it, and where."""

    value: str
    place: str


Mentions = Mapping[str, tuple[Mention, ...]]


@dataclass(frozen=True, slots=True)
class SaveSignal:
    """Which signal asks the program to save, and how many seconds before the time limit."""

    name: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked of hpctl. Directories are absolute, placeholders still in them.

    A tier is a directory, `local:` and a directory on each node's own disk, or an s3:// prefix.
    """

    checkpoint_dir: str | None = None
    tiers: tuple[str, ...] = ()
    policy: Mention | None = None
    log_rules: tuple[Mention, ...] = ()
    spares: int | None = None
    save_signal: SaveSignal | None = None
    resume: bool = True


def near(typed: str, names: Sequence[str], cutoff: float) -> str:
    """`--name` of the option that was probably meant, or ""."""
    found = difflib.get_close_matches(typed, names, n=1, cutoff=cutoff)
    return f"--{found[0]}" if found else ""


def needs_value(name: str, place: str) -> HpctlError:
    """The error for an option without its value."""
    return HpctlError(f"{place} needs a value", f"Write --{name} {_EXAMPLES[name]}.")


def directive(words: Sequence[str], place: str) -> dict[str, tuple[Mention, ...]]:
    """The options of one `#HPCTL` line. Raises HpctlError for anything else in it."""
    left, found = list(words), dict[str, tuple[Mention, ...]]()
    if not left:
        raise HpctlError(f"{place}: #HPCTL says nothing", f"hpctl knows {_known()}.")
    while left:
        word = left.pop(0)
        typed, equals, value = word.partition("=")
        name = typed.removeprefix("--")
        own = OPTIONS.get(name)
        if own is None or not typed.startswith("--") or not own.directive:
            _refuse(place, typed, name)
        assert own is not None
        at = f"{place}: --{name}"
        if own.value and not equals:
            value = left.pop(0) if left else ""
        if own.value and not value:
            raise needs_value(name, at)
        if equals and not own.value:
            raise HpctlError(f"{at} takes no value", f"Write #HPCTL --{name}.")
        if "$" in value:
            raise HpctlError(
                f"{place}: variables are not expanded in directives: {value}",
                f"Write it out, use {{job_id}} or {{array_task_id}}, or give --{name}.",
            )
        found[name] = (*found.get(name, ()), Mention(value, at))
    return found


def _refuse(place: str, typed: str, name: str) -> None:
    if name in OPTIONS and not OPTIONS[name].directive:
        raise HpctlError(
            f"{place}: --{name} is for the command line, not for #HPCTL", f"Give --{name} there."
        )
    names = [each for each, own in OPTIONS.items() if own.directive]
    meant = near(name, names, 0.5)
    raise HpctlError(
        f"{place}: unknown #HPCTL directive {typed!r}",
        f"Did you mean {meant}?" if meant else f"hpctl knows {_known()}.",
    )


def _known() -> str:
    return ", ".join(f"--{name}" for name, own in OPTIONS.items() if own.directive)


def wishes(typed: Mentions, directives: Mentions, cwd: str) -> Wishes:
    """What is asked for in sum; the command line wins. Raises HpctlError for a bad value."""
    said = {**directives, **typed}

    def last(name: str) -> Mention | None:
        return said[name][-1] if said.get(name) else None

    spares, save, where = last("spares"), last("save-signal"), last("checkpoint-dir")
    return Wishes(
        checkpoint_dir=_directory(where, cwd) if where else None,
        tiers=tuple(dict.fromkeys(_tier(each, cwd) for each in said.get("tier", ()))),
        policy=last("policy"),
        log_rules=said.get("log-rules", ()),
        spares=_spares(spares) if spares else None,
        save_signal=_save_signal(save) if save else None,
        resume="no-resume" not in said,
    )


def _directory(said: Mention, cwd: str) -> str:
    directory = os.path.abspath(os.path.join(cwd, os.path.expanduser(said.value)))
    if not directory.isprintable():
        raise HpctlError(f"{said.place} has unprintable characters: {directory!r}")
    return directory


def _tier(said: Mention, cwd: str) -> str:
    if "://" not in said.value and not said.value.startswith("s3:"):
        local = "local:" if said.value.startswith("local:") else ""
        where = Mention(said.value.removeprefix("local:"), said.place)
        if not where.value:
            raise needs_value("tier", said.place)
        return local + _directory(where, cwd)
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s\x00-\x1f]*)?", said.value):
        raise HpctlError(
            f"{said.place} is no S3 place: {said.value!r}", "Write --tier s3://BUCKET/PREFIX."
        )
    return said.value.rstrip("/")


def _spares(said: Mention) -> int:
    if not re.fullmatch(r"\d{1,4}", said.value) or int(said.value) > MOST_SPARES:
        raise HpctlError(
            f"{said.place} is no number of nodes: {said.value!r}",
            f"Write a number from 0 to {MOST_SPARES}: nodes beside those of --nodes.",
        )
    return int(said.value)


def _save_signal(said: Mention) -> SaveSignal:
    name, at, seconds = said.value.upper().partition("@")
    name = name.removeprefix("SIG")
    if name.isdigit() and int(name) in set(signal.Signals):
        name = signal.Signals(int(name)).name.removeprefix("SIG")
    if name not in SIGNALS:
        meant = difflib.get_close_matches(name, SIGNALS, n=1, cutoff=0.5)
        raise HpctlError(
            f"{said.place} is no signal that a program can save at: {said.value!r}",
            f"Did you mean {meant[0]}?" if meant else f"There are {', '.join(SIGNALS)}.",
        )
    if at and not (seconds.isdigit() and 0 < int(seconds) <= _LAST_SECOND):
        raise HpctlError(
            f"{said.place} has no number of seconds after @: {said.value!r}",
            f"Write {name}@{SAVE_BEFORE_S}; at most {_LAST_SECOND}.",
        )
    return SaveSignal(name, int(seconds) if at else SAVE_BEFORE_S)


SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM", "URG", "CONT")
"""Those that sbatch's --signal has names for and that a program can catch and go on from."""
