"""The text of `scontrol show node -o` as nodes, and Slurm's words for states, in every release.

Values are not quoted and may hold spaces and `=` (Reason, OS), so the fields are found by known
keys in the order in which scontrol prints them, never by splitting. Who is root on a node writes
its OS, and with a newline in it a line of another node's: see `nodes`. Jobs are read by `squeue`.
All times are UTC, because `run` sets TZ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache

from hpctl.core.bounds import at_text, natural
from hpctl.core.compat import UTC
from hpctl.core.model import NodeName, SlurmNode
from hpctl.core.walls import Flaw, each
from hpctl.slurm.records import JOB_BASE, node_states
from hpctl.slurm.sizes import UNASKED, Dealt, node_tres

SKEW = timedelta(seconds=30)
"""How far slurmctld's clock may be from ours."""

_WHO = re.compile(r" \[[^\s@\]]+@(?P<at>[0-9T:.-]+)\](?=\s|\Z)")
_EXPEDITED = re.compile(r"\sExpeditedRequeue=Yes(?=\s|\Z)")
_FLAG_BASE = {
    "CONFIGURING": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "RUNNING",
    "STAGE_OUT": "COMPLETED",
}
_ENDED_BY = {
    "TimeLimit": "TIMEOUT",
    "OutOfMemory": "OUT_OF_MEMORY",
    "NodeDown": "NODE_FAIL",
    "NonZeroExitCode": "FAILED",
    "JobLaunchFailure": "FAILED",
    "RaisedSignal": "FAILED",
    "DeadLine": "DEADLINE",
}


def node_lines(text: str) -> list[str]:
    """The lines of `scontrol show node -o`, one for each node, and what a node's root forged."""
    return [line for line in text.split("\n") if line.startswith("NodeName=")]


def nodes(lines: Iterable[str], by: Dealt = UNASKED) -> tuple[list[SlurmNode], list[Flaw]]:
    """The nodes of these lines, and the lines that cannot be read."""
    return each("parse", lines, _name, lambda line: _node(line, by))


def _name(line: str) -> NodeName:
    return NodeName(line[9:].partition(" ")[0])


def expedited(record: str) -> bool:
    """Whether a lone `show job ID` says that it was submitted with --requeue=expedite.

    Only text says so: the flag is not in v0.0.42. A comment could say so as well; what follows
    from it is the release of a hold that the job's owner may release himself.
    """
    return _EXPEDITED.search(record) is not None


def config(text: str) -> dict[str, str]:
    """`scontrol show config` as a dict; an unset value (`(null)`) is an empty text."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        key, is_pair, value = line.partition("=")
        if is_pair and line[:1].isalpha():
            value = value.strip()
            found[key.strip()] = "" if value == "(null)" else value
    return found


def version(text: str) -> tuple[int, int, int] | None:
    """The release in `slurm-wlm 22.05.8` or `slurm 25.11.7`."""
    match = re.search(r"\b(\d{2})\.(\d{2})\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _node(line: str, by: Dealt) -> SlurmNode:
    cpus = natural(_word(line, " CPUEfctv=", 0)) or natural(_word(line, " CPUTot=", 0))
    features, gres = _word(line, " ActiveFeatures=", 0), _word(line, " Gres=", 0)
    at = line.find(" NodeAddr=")
    address = _word(line, " NodeAddr=", at) if at >= 0 else ""
    version = _word(line, " Version=", max(at, 0))
    memory = natural(_word(line, " RealMemory=", max(at, 0)))
    at = max(at, 0)
    state, flags = _states_of(_word(line, " State=", at))
    at = max(line.find(" State=", at), 0)
    partitions = _word(line, " Partitions=", at)
    reason, set_at = _reason(line, at)
    return SlurmNode(
        name=_name(line),
        state=state,
        flags=flags,
        reason=reason,
        reason_at=_at(set_at),
        address=address,
        partitions=_names(partitions),
        boot_time=_at(_word(line, " BootTime=", at)),
        slurmd_start=_at(_word(line, " SlurmdStartTime=", at)),
        last_busy=_at(_word(line, " LastBusyTime=", at)),
        has=node_tres(cpus, memory, gres, by),
        features=_names(features),
        version=version,
    )


def _reason(line: str, at: int) -> tuple[str, str]:
    """The Reason and the time of its `[user@time]`, after which only Comment and Extra may come."""
    start = line.find(" Reason=", at)
    if start < 0:
        return "", ""
    text = line[start + 8 :]
    ends = list(_WHO.finditer(text))
    if not ends:
        return text.rstrip(), ""
    return text[: ends[-1].start()], ends[-1]["at"]


@lru_cache(maxsize=65536)
def _at(text: str) -> datetime | None:
    return at_text(text)


def _word(record: str, key: str, at: int) -> str:
    """The value after the first such key from `at` on, up to a space; `(null)` is empty."""
    start = record.find(key, at)
    if start < 0:
        return ""
    start += len(key)
    end = record.find(" ", start)
    value = record[start:] if end < 0 else record[start:end]
    return "" if value in ("(null)", "N/A") else value


def job_states(word: str, ended: str) -> tuple[str, frozenset[str]]:
    """Base state and flags of a job from the one word that `job_state_string` gives.

    A flag hides the base state there. `ended` is how a COMPLETING job ended, "" for one that waits
    to be requeued.
    """
    if word in JOB_BASE or not word:
        return word, frozenset()
    if word == "COMPLETING":
        return ended or "PENDING", frozenset({word})
    return _FLAG_BASE.get(word, "PENDING"), frozenset({word})


def ended_state(end: datetime | None, reason: str, exit_code: str) -> str:
    """The base state of a job that has ended, where a COMPLETING flag hides it; "" for no end.

    One that waits to be requeued has none, or with a time limit that of its next run, a minute
    or more from now (slurmctld's `_pack_job`).
    """
    if end is None or end > datetime.now(UTC) + SKEW:
        return ""
    by_reason = _ENDED_BY.get(reason.split(":", 1)[0])
    if by_reason:
        return by_reason
    code, _, signal = exit_code.partition(":")
    if signal not in ("", "0"):
        return "CANCELLED"
    return "COMPLETED" if code == "0" else "FAILED"


@lru_cache(maxsize=1024)
def _states_of(text: str) -> tuple[str, frozenset[str]]:
    return node_states(text.split("+"))


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
