"""What must be true of a lifecycle script, wherever it lies. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hpctl.clusters.bundle import MANIFEST
from hpctl.clusters.validate.script_facts import CONFIG, PARAMETERS, Script
from hpctl.clusters.validate.verdict import Finding, Place, fail, warn
from hpctl.clusters.validate.wanted import Group, Wanted

LONGEST_KEY = 1024
"""Bytes of an S3 key (S3 User Guide, "Naming objects")."""


def of_entry(script: Script, where: str, place: Place) -> Iterator[Finding]:
    """The entry point: the service runs it, so the kernel must be able to."""
    name = f"{where}/{script.name}"
    if script.size == 0:
        yield fail(place, f"{name} is empty", "write the script, or upload it again")
    elif script.data is None:
        yield fail(place, f"{name} has {script.size} bytes: that is no script", "name the script")
    elif not script.first_line.startswith(b"#!"):
        start = script.first_line[:40].decode(errors="replace")
        yield fail(
            place,
            f"{name} does not say what runs it: it begins with {start!r}",
            "begin it with #!/bin/sh, #!/bin/bash or #!/usr/bin/env python3",
        )
    if script.executable is False:
        yield fail(place, f"{name} is not executable", f"chmod +x {name}")


def of_any(script: Script, where: str, place: Place) -> Iterator[Finding]:
    """A script or module that the entry point may call."""
    name = f"{where}/{script.name}"
    if script.is_text and script.data is not None and b"\r\n" in script.data:
        line = script.data[: script.data.index(b"\r\n")].count(b"\n") + 1
        yield fail(
            place,
            f"{name} has Windows line ends (first on line {line}): the kernel looks for an "
            "interpreter whose name ends in a carriage return",
            f"sed -i 's/\\r$//' {name}",
        )
    if script.syntax_error:
        yield fail(place, f"{name}: {script.syntax_error}", "mend the script")
    if script.data is not None and script.data.startswith(b"\xef\xbb\xbf"):
        yield fail(
            place,
            f"{name} begins with a byte order mark, so its first line is not read as #!",
            f"sed -i '1s/^\\xef\\xbb\\xbf//' {name}",
        )


def of_modes(script: Script, where: str, place: Place) -> Iterator[Finding]:
    """A file that says what runs it is meant to be run."""
    if script.executable is False and script.first_line.startswith(b"#!"):
        yield warn(
            place,
            f"{where}/{script.name} has a #! line and is not executable",
            f"chmod +x {where}/{script.name}, or always call it by its interpreter",
        )


def of_roles(
    config: Script | None, names: Collection[str], where: str, groups: Sequence[Group]
) -> Iterator[Finding]:
    """A bundle of ours knows who is a login node: on the node nothing else says it."""
    if not {MANIFEST, "lifecycle/node.py"} <= set(names):
        return
    try:
        said = json.loads(config.data or b"{}") if config else {}
    except ValueError:
        return
    roles = said.get("roles") if isinstance(said, dict) else None
    roles = roles if isinstance(roles, dict) else {}
    for group in groups:
        role, told = group.role.lower(), str(roles.get(group.name, ""))
        if (not told and role != "login") or told == role:
            continue
        yield warn(
            group.at("LifeCycleConfig", "SourceS3Uri"),
            f"{where}/{CONFIG}: roles gives {group.name} {told or 'no role'}, so the scripts take "
            f"its {role} nodes for {told or 'compute'} nodes",
            "`hpctl lifecycle bundle --spec FILE` writes the roles of the cluster's file; push it",
        )


def of_parameters(
    script: Script | None, where: str, place: Place, wanted: Wanted, legacy: bool = False
) -> Iterator[Finding]:
    """provisioning_parameters.json: there where scripts set Slurm up, and of one mind with us.

    `legacy`: a cluster of this name lives, and has its roles in that file.
    """
    if wanted.by_api:
        if script is not None and legacy:
            yield warn(
                place,
                f"{where} holds {PARAMETERS}, which the migration to the API's configuration ends",
                "`hpctl cluster update` keeps a copy, removes it, and puts it back if need be",
            )
        elif script is not None:
            yield fail(
                place,
                f"{where} holds {PARAMETERS}, and the groups have roles of their own: the service "
                "refuses a mixture",
                f"remove {PARAMETERS}, or write slurm_config: provisioning_parameters",
            )
        return
    if script is None:
        yield fail(
            place,
            f"{where} has no {PARAMETERS}: the scripts would leave plain instances behind",
            "`hpctl lifecycle bundle --spec FILE` writes it from the cluster's file",
        )
        return
    try:
        said = json.loads(script.data or b"")
    except ValueError as error:
        yield fail(place, f"{where}/{PARAMETERS} is not JSON: {error}", "mend the file")
        return
    if not isinstance(said, dict):
        yield fail(place, f"{where}/{PARAMETERS} holds no object", "mend the file")
        return
    yield from _of_one_mind(said, f"{where}/{PARAMETERS}", place, wanted)


def _of_one_mind(
    said: Mapping[str, Any], name: str, place: Place, wanted: Wanted
) -> Iterator[Finding]:
    groups = {group.name for group in wanted.groups}
    workers = [w for w in said.get("worker_groups") or () if isinstance(w, dict)]
    named = {
        "controller_group": said.get("controller_group"),
        "login_group": said.get("login_group"),
        **{f"worker_groups.{at}": w.get("instance_group_name") for at, w in enumerate(workers)},
    }
    if not named["controller_group"]:
        yield fail(place, f"{name} names no controller_group", "name the controller's group in it")
    for key, group in named.items():
        if group and group not in groups:
            yield fail(
                place,
                f"{name}: {key} is {group}, and there is no such group: the agent on the node ends "
                "in a KeyError",
                f"name one of {', '.join(sorted(groups))}",
            )
    left = groups - {str(group) for group in named.values()}
    for group in sorted(left):
        yield warn(
            place,
            f"{name} does not name {group}: its nodes stay outside Slurm",
            f"add {group} to worker_groups",
        )
