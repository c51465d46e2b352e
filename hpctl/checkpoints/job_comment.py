"""What a job's Comment says to hpctl: `hpctl:{...}`, and after it whatever the user wrote.

The Comment is the one field that a user may set, that outlives the controller's restarts and a
requeue, and that every release shows (AdminComment is not the user's, --extra came with 23.11,
WCKey is for accounting).
"""

import json
from collections.abc import Mapping

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from hpctl.checkpoints.fast.spec import FastSaves
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.registration import COMMENT_PREFIX, parted

LONGEST = 1024
"""Bytes of a Comment that slurmctld accepts at submission: 1024, not 1025, seen on 22.05.8
(slurmctld/job_mgr.c, _test_strlen)."""


class JobRegistration(Struct, frozen=True):
    """A job as it was registered. Places are absolute and may hold placeholders.

    `policy` is `PolicyFile.compact()`. `save_signal` is a name such as USR1, "" for none.
    `supervised`: the script starts its program with `hpctl run`. `preflight`: the level of tests.
    `fast`: saves on the nodes' own disks between two flushes.
    """

    ckpt: str = ""
    tiers: tuple[str, ...] = ()
    policy: Mapping[str, object] = field(default_factory=dict)
    spares: int = 0
    save_signal: str = ""
    supervised: bool = False
    preflight: str = ""
    fast: FastSaves | None = None

    def fields(self) -> dict[str, object]:
        """The values that are set, with the Comment's keys, in its order."""
        values = asdict(self) | {"tiers": list(self.tiers), "fast": msgspec.to_builtins(self.fast)}
        return {key: value for key, value in values.items() if value}


def encode(registration: JobRegistration, user_comment: str = "") -> str:
    """The Comment. Raises HpctlError where Slurm would not take it for its length."""
    text = json.dumps(registration.fields(), separators=(",", ":"))
    comment = f"{COMMENT_PREFIX}{text}" + (f" {user_comment}" if user_comment else "")
    if (size := len(comment.encode("utf-8", "surrogateescape"))) > LONGEST:
        own = f", {len(user_comment)} of them your --comment" if user_comment else ""
        raise HpctlError(
            f"what is registered in the job's Comment has {size} characters{own};"
            f" Slurm takes {LONGEST}",
            "Leave to the cluster's or the partition's policy file what all jobs share"
            " (docs/policy-guide.md), or shorten the paths.",
        )
    return comment


def decode(comment: str) -> JobRegistration | None:
    """Read a Comment back; None where it is not ours. What has a wrong type counts as not given:
    a user may have written it, and a daemon must not stumble."""
    try:
        registered = parted(comment)
    except ValueError:
        return None
    if registered is None:
        return None
    found, _ = registered
    return JobRegistration(
        ckpt=_text(found.get("ckpt")),
        tiers=tuple(filter(None, map(_text, _list(found.get("tiers"))))),
        policy=policy if isinstance(policy := found.get("policy"), dict) else {},
        spares=_count(found.get("spares")),
        save_signal=_text(found.get("save_signal")),
        supervised=found.get("supervised") is True,
        preflight=_text(found.get("preflight")),
        fast=_fast(found.get("fast")),
    )


def _fast(value: object) -> FastSaves | None:
    try:
        return msgspec.convert(value, FastSaves) if value else None
    except msgspec.ValidationError:
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
