"""The policy that a job brings along: `--policy` and `--log-rules`, read and checked at submit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hpctl.errors import HpctlError
from hpctl.jobs.own import Mention, Wishes

NAMED = "/etc/hpctl/policies"
"""Where a cluster keeps the policies that users may name; $HPCTL_POLICIES says otherwise."""


def compact(wishes: Wishes, environment: Mapping[str, str], cwd: str) -> dict[str, object]:
    """What goes into the job's Comment. Raises HpctlError, with the option's place."""
    said: dict[str, object] = {}
    if wishes.policy is not None:
        said |= _read(wishes.policy, environment, cwd)
    if wishes.log_rules:
        said["log_rules"] = [_rules(each, cwd) for each in wishes.log_rules]
    return said


def _read(policy: Mention, environment: Mapping[str, str], cwd: str) -> dict[str, object]:
    from hpctl import policies  # pydantic: not for those who bring no policy

    try:
        return policies.read(find(policy.value, environment, cwd)).compact()
    except HpctlError as error:
        raise HpctlError(f"{policy.place}: {error}", error.hint) from None


def find(policy: str, environment: Mapping[str, str], cwd: str) -> Path:
    """The file that is meant: a path, or the bare name of a policy of the cluster's.

    Raises HpctlError for a name that nothing has; a path is not looked at further.
    """
    path = Path(cwd, os.path.expanduser(policy))
    if path.is_file() or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", policy):
        return path
    named = Path(environment.get("HPCTL_POLICIES") or NAMED)
    found = sorted(named.glob("*.yaml")) if named.is_dir() else []
    for candidate in found:
        if policy in (candidate.stem, candidate.name):
            return candidate
    names = ", ".join(each.stem for each in found)
    raise HpctlError(
        f"there is no file {policy}, and no policy of that name in {named}",
        f"There are {names}." if names else "Give the path of a policy file.",
    )


def _rules(rules: Mention, cwd: str) -> str:
    """A preset's name, or the absolute path of a file of rules; both are read to see that they
    can be."""
    from hpctl.jobs.logs import presets
    from hpctl.jobs.logs import rules as files

    path = Path(cwd, os.path.expanduser(rules.value))
    try:
        if not path.is_file() and "/" not in rules.value:
            presets.preset(rules.value)
            return rules.value
        files.load(path)
    except HpctlError as error:
        raise HpctlError(f"{rules.place}: {error}", error.hint) from None
    return os.path.abspath(path)
