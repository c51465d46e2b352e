"""A job's registration with hpctl, as its Comment in Slurm holds it."""

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from hpctl.vocabulary.run_policy import RunPolicy

COMMENT_PREFIX: Final = "hpctl:"


_MAX_SPARES: Final = 10_000


class Registration(Struct, frozen=True):
    """A job that asked hpctl to look after it.

    `supervised`: a step supervisor runs in it (`hpctl run`), which restarts its step by itself.
    `policy` is the job's own compact policy, not yet validated; `flaw` says what of the Comment
    could not be read, for a person.
    """

    save_signal: str = ""
    spares: int = 0
    supervised: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    flaw: str = ""


class Ruled(Struct, frozen=True):
    """The policy under which one job is treated; `note` where its own part could not be used."""

    policy: RunPolicy = field(default_factory=RunPolicy)
    note: str = ""


def parted(comment: str) -> tuple[dict[str, Any], str] | None:
    """What a Comment registers, and what stands after it: the user's own words, a hold's reason.

    None for a Comment that registers nothing. Raises ValueError where what it begins is no JSON.
    """
    if not comment.startswith(COMMENT_PREFIX + "{"):
        return None
    begins = len(COMMENT_PREFIX)
    try:
        fields, length = json.JSONDecoder().raw_decode(comment[begins:])
        if "\\u" in comment:
            # Half a surrogate pair is no text: it can be written down nowhere.
            json.dumps(fields, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return fields, comment[begins + length :].lstrip()


def registration(comment: str) -> Registration | None:
    """What a Comment registers; None for a job that never asked. Total over any text."""
    try:
        found = parted(comment)
    except ValueError:
        return Registration(flaw="its Comment is no JSON after `hpctl:`")
    if found is None:
        return None
    fields, _ = found
    policy, spares = fields.get("policy", {}), fields.get("spares", 0)
    flaws = []
    if not isinstance(policy, dict):
        policy = {}
        flaws.append("`policy` in its Comment is no mapping")
    if not isinstance(spares, int) or isinstance(spares, bool) or not 0 <= spares <= _MAX_SPARES:
        spares = 0
        flaws.append("`spares` in its Comment is no number of nodes")
    return Registration(
        save_signal=str(fields.get("save_signal", "")),
        spares=spares,
        supervised=fields.get("supervised") is True or spares > 0,
        policy=policy,
        flaw="; ".join(flaws),
    )
