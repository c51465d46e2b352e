"""A job's registration with hpctl: `hpctl:{...}` in its Comment, and then the user's own words.

The Comment is the one field that a user may set, that outlives the controller's restarts and a
requeue, and that every release shows (AdminComment is not the user's, --extra came with 23.11,
WCKey is for accounting).
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from hpctl.vocabulary.run_policy import RunPolicy

COMMENT_PREFIX: Final = "hpctl:"
LONGEST_COMMENT: Final = 1024
"""Bytes of a Comment that slurmctld accepts at submission: 1024, not 1025, seen on 22.05.8
(slurmctld/job_mgr.c, _test_strlen)."""
_MAX_SPARES: Final = 10_000
_T = TypeVar("_T")


class JobRegistration(Struct, frozen=True):
    """A job that asked hpctl to look after it. Places are absolute and may hold placeholders.

    `files` are patterns of checkpoint files that no format recognizes. `policy` is the job's own
    (`RunPolicyFile.compact()`), not yet validated. `save_signal` is a name such as USR1, "" for
    none. `supervised`: a step supervisor runs in the job (`hpctl run`), which restarts its step by
    itself. `preflight`: the level of tests. `fast`: saves on the nodes' own disks between two
    flushes. `flaw` says what of the Comment cannot be read, for a person.
    """

    ckpt: str = ""
    files: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)
    spares: int = 0
    save_signal: str = ""
    supervised: bool = False
    preflight: str = ""
    fast: FastCheckpointSaveOptions | None = None
    flaw: str = ""

    def fields(self) -> dict[str, object]:
        """Return the values that are set, with the Comment's keys, in its order."""
        values = {
            "ckpt": self.ckpt,
            "files": list(self.files),
            "tiers": list(self.tiers),
            "policy": self.policy,
            "spares": self.spares,
            "save_signal": self.save_signal,
            "supervised": self.supervised,
            "preflight": self.preflight,
            "fast": msgspec.to_builtins(self.fast),
        }
        return {key: value for key, value in values.items() if value}


class EffectiveJobPolicy(Struct, frozen=True):
    """The policy under which one job is treated; `note` where its own part could not be used."""

    policy: RunPolicy = field(default_factory=RunPolicy)
    note: str = ""


def format_registration_comment(registration: JobRegistration, user_comment: str = "") -> str:
    """Return the Comment. Raises HpctlError where Slurm would not take it for its length."""
    text = json.dumps(registration.fields(), separators=(",", ":"))
    comment = f"{COMMENT_PREFIX}{text}" + (f" {user_comment}" if user_comment else "")
    size = len(comment.encode("utf-8", "surrogateescape"))
    if size > LONGEST_COMMENT:
        own = f", {len(user_comment)} of them your --comment" if user_comment else ""
        raise HpctlError(
            f"hpctl's data in the job's Comment would have {size} characters{own};"
            f" Slurm allows {LONGEST_COMMENT}",
            "Use shorter paths, or move settings that all jobs share to the cluster's or "
            "partition's policy file"
            " (docs/policy-guide.md).",
        )
    return comment


def parse_registration_comment(comment: str) -> JobRegistration | None:
    """Return what a Comment registers, or None for a job that never asked. Total over any text.

    A user may have written it: a value of a wrong type counts as not given, and is a flaw.
    """
    if not comment.startswith(COMMENT_PREFIX + "{"):
        return None
    try:
        found = _decode_leading_json_object(comment[len(COMMENT_PREFIX) :])
    except ValueError:
        return JobRegistration(flaw="its Comment is no JSON after `hpctl:`")
    reader = _RegistrationCommentReader(found)
    tiers = reader.value("tiers", list, "a list")
    files = reader.value("files", list, "a list")
    policy = reader.value("policy", dict, "a mapping")
    spares = reader.spares()
    return JobRegistration(
        ckpt=reader.value("ckpt", str, "a text"),
        files=tuple(each for each in files if isinstance(each, str) and each),
        tiers=tuple(tier for tier in tiers if isinstance(tier, str) and tier),
        policy=policy,
        spares=spares,
        save_signal=reader.value("save_signal", str, "a text"),
        supervised=found.get("supervised") is True or spares > 0,
        preflight=reader.value("preflight", str, "a text"),
        fast=reader.fast(),
        flaw="; ".join(reader.flaws),
    )


def _decode_leading_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a text begins with. Raises ValueError."""
    try:
        fields, _ = json.JSONDecoder().raw_decode(text)
        if "\\u" in text:
            # Half a surrogate pair is no text: it can be written down nowhere.
            json.dumps(fields, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    assert isinstance(fields, dict)  # the text begins with a brace
    return fields


class _RegistrationCommentReader:
    """Reads one Comment's values and notes those that are not what they should be."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found
        self.flaws: list[str] = []

    def value(self, key: str, kind: type[_T], what: str) -> _T:
        """Return the value; an empty one of its kind where it is missing or of another."""
        value = self._found.get(key)
        if isinstance(value, kind):
            return value
        if key in self._found:
            self._record_value_problem(key, what)
        return kind()

    def spares(self) -> int:
        """Return the number of spare nodes; 0 where none is given or it is no such number."""
        spares = self._found.get("spares", 0)
        if type(spares) is int and 0 <= spares <= _MAX_SPARES:
            return spares
        self._record_value_problem("spares", "a number of nodes")
        return 0

    def fast(self) -> FastCheckpointSaveOptions | None:
        """Return what is asked of fast saves; None where nothing is or it cannot be read."""
        value = self._found.get("fast")
        if not value:
            return None
        try:
            return msgspec.convert(value, FastCheckpointSaveOptions)
        except msgspec.ValidationError:
            self._record_value_problem("fast", "what fast saves take")
            return None

    def _record_value_problem(self, key: str, what: str) -> None:
        self.flaws.append(f"`{key}` in its Comment is not {what}")
