"""Lifecycle scripts: on this machine before they are uploaded, and in S3 as the nodes read them."""

import ast
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hpctl.clusters import bundle_wheels
from hpctl.clusters.bundle import MANIFEST, WHEELS
from hpctl.clusters.request import LARGEST, read_s3_object
from hpctl.clusters.validate.facts import (
    CONFIG,
    PARAMETERS,
    LifecycleScript,
    LifecycleScriptFacts,
    S3PrefixContents,
    SpecCheckFamily,
    SpecValidationFacts,
    call_aws_or_return_none_if_missing,
)
from hpctl.clusters.validate.wanted import (
    FailedAwsCall,
    Place,
    RequestedCluster,
    RequestedInstanceGroup,
    SpecFinding,
    list_findings_or_ok,
    make_failure_finding,
    make_ok_finding,
    make_unknown_finding,
    make_warning_finding,
)
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient

FAMILY = SpecCheckFamily(
    "scripts", "Lifecycle scripts on this machine (`--scripts`).", ("scripts",)
)

MOST = 500
"""Files that are looked at; what a person wrote are fewer."""

_SHELL = re.compile(rb"#!\s*\S*/(?:env\s+)?(sh|bash|dash)\b")
_PYTHON = re.compile(rb"#!\s*\S*/(?:env\s+)?python")


def gather_local_lifecycle_script_facts(directory: Path) -> LifecycleScriptFacts:
    """Every file below a directory. Raises OSError."""
    found: dict[str, LifecycleScript] = {}
    unfit: tuple[str, ...] = ()
    if (directory / WHEELS).is_dir() and (directory / MANIFEST).is_file():
        unfit = tuple(
            f"{place}: {why}" for place, why in bundle_wheels.find_bundle_wheel_problems(directory)
        )
    for at, path in enumerate(_walk_files(directory)):
        if at >= MOST:
            return LifecycleScriptFacts(str(directory), found, True, unfit)
        name = path.relative_to(directory).as_posix()
        found[name] = _read_local_lifecycle_script(path, name)
    return LifecycleScriptFacts(str(directory), found, unfit=unfit)


def _walk_files(directory: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        yield from (Path(where, name) for name in sorted(names))


def _read_local_lifecycle_script(path: Path, name: str) -> LifecycleScript:
    size = path.stat().st_size
    if size > LARGEST:
        return LifecycleScript(name, size, None, os.access(path, os.X_OK))
    data = path.read_bytes()
    return LifecycleScript(
        name, size, data, os.access(path, os.X_OK), find_script_syntax_error(name, data)
    )


def find_script_syntax_error(name: str, data: bytes) -> str:
    """What the interpreter says of a file that it only reads; empty where it is content."""
    line = data.partition(b"\n")[0]
    shell = _SHELL.match(line)
    if shell:
        return _find_shell_syntax_error(shell[1].decode(), data)
    if _PYTHON.match(line) or name.endswith(".py"):
        try:
            ast.parse(data, name)
        except (SyntaxError, ValueError) as error:
            return f"{error.__class__.__name__}: {error}"
        return ""
    return _find_shell_syntax_error("sh", data) if name.endswith(".sh") else ""


def _find_shell_syntax_error(shell: str, data: bytes) -> str:
    try:
        ran = subprocess.run(
            [shell, "-n"],
            input=data,
            capture_output=True,
            timeout=10,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        # Only what the shell says counts: without one there is nothing to tell.
        return ""
    lines = ran.stderr.decode(errors="replace").strip().splitlines()
    return (lines[0] if lines else f"{shell} -n failed") if ran.returncode else ""


LONGEST_KEY = 1024
"""Bytes of an S3 key (S3 User Guide, "Naming objects")."""


def find_entry_point_script_problems(
    script: LifecycleScript, where: str, place: Place
) -> Iterator[SpecFinding]:
    """The entry point: the service runs it, so the kernel must be able to."""
    name = f"{where}/{script.name}"
    if script.size == 0:
        yield make_failure_finding(
            place, f"{name} is empty", "write the script, or upload it again"
        )
    elif script.data is None:
        yield make_failure_finding(
            place, f"{name} has {script.size} bytes: that is no script", "name the script"
        )
    elif not script.first_line.startswith(b"#!"):
        start = script.first_line[:40].decode(errors="replace")
        yield make_failure_finding(
            place,
            f"{name} does not say what runs it: it begins with {start!r}",
            "begin it with #!/bin/sh, #!/bin/bash or #!/usr/bin/env python3",
        )
    if script.executable is False:
        yield make_failure_finding(place, f"{name} is not executable", f"chmod +x {name}")


def find_lifecycle_script_syntax_problems(
    script: LifecycleScript, where: str, place: Place
) -> Iterator[SpecFinding]:
    """A script or module that the entry point may call."""
    name = f"{where}/{script.name}"
    if script.is_text and script.data is not None and b"\r\n" in script.data:
        line = script.data[: script.data.index(b"\r\n")].count(b"\n") + 1
        yield make_failure_finding(
            place,
            f"{name} has Windows line ends (first on line {line}): the kernel looks for an "
            "interpreter whose name ends in a carriage return",
            f"sed -i 's/\\r$//' {name}",
        )
    if script.syntax_error:
        yield make_failure_finding(place, f"{name}: {script.syntax_error}", "fix the script")
    if script.data is not None and script.data.startswith(b"\xef\xbb\xbf"):
        yield make_failure_finding(
            place,
            f"{name} begins with a byte order mark, so its first line is not read as #!",
            f"sed -i '1s/^\\xef\\xbb\\xbf//' {name}",
        )


def find_script_file_mode_problems(
    script: LifecycleScript, where: str, place: Place
) -> Iterator[SpecFinding]:
    """A file that says what runs it is meant to be run."""
    if script.executable is False and script.first_line.startswith(b"#!"):
        yield make_warning_finding(
            place,
            f"{where}/{script.name} has a #! line and is not executable",
            f"chmod +x {where}/{script.name}, or always call it by its interpreter",
        )


def find_bundle_config_role_problems(
    config: LifecycleScript | None,
    names: Collection[str],
    where: str,
    groups: Sequence[RequestedInstanceGroup],
) -> Iterator[SpecFinding]:
    """A bundle of ours knows who is a login node: on the node nothing else says it."""
    if not {MANIFEST, "lifecycle/node.py"} <= set(names):
        return
    try:
        answer = json.loads(config.data or b"{}") if config else {}
    except ValueError:
        return
    roles = answer.get("roles") if isinstance(answer, dict) else None
    roles = roles if isinstance(roles, dict) else {}
    for group in groups:
        role, text = group.role.lower(), str(roles.get(group.name, ""))
        if (not text and role != "login") or text == role:
            continue
        yield make_warning_finding(
            group.at("LifeCycleConfig", "SourceS3Uri"),
            f"{where}/{CONFIG}: roles gives {group.name} {text or 'no role'}, so the scripts take "
            f"its {role} nodes for {text or 'compute'} nodes",
            "`hpctl cluster lifecycle bundle --spec FILE` writes the roles of the cluster's file;"
            " push it",
        )


def find_provisioning_parameter_problems(
    script: LifecycleScript | None,
    where: str,
    place: Place,
    wanted: RequestedCluster,
    legacy: bool = False,
) -> Iterator[SpecFinding]:
    """provisioning_parameters.json: there where scripts set Slurm up, and of one mind with us.

    `legacy`: a cluster of this name lives, and has its roles in that file.
    """
    if wanted.by_api:
        if script is not None and legacy:
            yield make_warning_finding(
                place,
                f"{where} holds {PARAMETERS}, which the migration to the API's configuration ends",
                "`hpctl cluster update` keeps a copy, removes it, and puts it back if need be",
            )
        elif script is not None:
            yield make_failure_finding(
                place,
                f"{where} holds {PARAMETERS}, and the groups have roles of their own: the service "
                "refuses a mixture",
                f"remove {PARAMETERS}, or write slurm_config: provisioning_parameters",
            )
        return
    if script is None:
        yield make_failure_finding(
            place,
            f"{where} has no {PARAMETERS}: the scripts would leave plain instances behind",
            "`hpctl cluster lifecycle bundle --spec FILE` writes it from the cluster's file",
        )
        return
    try:
        text = json.loads(script.data or b"")
    except ValueError as error:
        yield make_failure_finding(
            place, f"{where}/{PARAMETERS} is not JSON: {error}", "fix the file"
        )
        return
    if not isinstance(text, dict):
        yield make_failure_finding(place, f"{where}/{PARAMETERS} holds no object", "fix the file")
        return
    yield from _check_provisioning_parameter_group_names(
        text, f"{where}/{PARAMETERS}", place, wanted
    )


def _check_provisioning_parameter_group_names(
    answer: Mapping[str, Any], name: str, place: Place, wanted: RequestedCluster
) -> Iterator[SpecFinding]:
    groups = {group.name for group in wanted.groups}
    workers = [w for w in answer.get("worker_groups") or () if isinstance(w, dict)]
    named = {
        "controller_group": answer.get("controller_group"),
        "login_group": answer.get("login_group"),
        **{f"worker_groups.{at}": w.get("instance_group_name") for at, w in enumerate(workers)},
    }
    if not named["controller_group"]:
        yield make_failure_finding(
            place, f"{name} names no controller_group", "name the controller's group in it"
        )
    for key, group in named.items():
        if group and group not in groups:
            yield make_failure_finding(
                place,
                f"{name}: {key} is {group}, and there is no such group: the agent on the node ends "
                "in a KeyError",
                f"name one of {', '.join(sorted(groups))}",
            )
    left = groups - {str(group) for group in named.values()}
    for group in sorted(left):
        yield make_warning_finding(
            place,
            f"{name} does not name {group}: its nodes stay outside Slurm",
            f"add {group} to worker_groups",
        )


def list_lifecycle_script_entry_points(wanted: RequestedCluster) -> dict[str, Place]:
    """Each entry point that a group names, with the first place that names it."""
    found: dict[str, Place] = {}
    for group in wanted.groups:
        for key, name in group.scripts:
            found.setdefault(name, group.at("LifeCycleConfig", key))
    return found


@FAMILY.check("entry-point")
def check_local_entry_points(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The entry points are there, executable, and begin with a `#!` line."""
    here = facts.scripts
    for name, place in list_lifecycle_script_entry_points(wanted).items() if here.directory else ():
        script = here.files.get(name)
        if script is None:
            yield make_failure_finding(
                place,
                f"there is no {name} in {here.directory}",
                "check the name, or name another directory in --scripts",
            )
            continue
        found = find_entry_point_script_problems(script, here.directory, place)
        yield from list_findings_or_ok(found, f"{here.directory}/{name} can be run", place)


@FAMILY.check("readable")
def check_local_script_syntax(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Scripts have LF line ends, no byte order mark, and parse."""
    yield from _apply_check_to_local_scripts(
        wanted, facts, find_lifecycle_script_syntax_problems, "scripts have LF line ends and parse"
    )


@FAMILY.check("modes")
def check_local_script_file_modes(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """What has a `#!` line is executable."""
    yield from _apply_check_to_local_scripts(wanted, facts, find_script_file_mode_problems, "")


@FAMILY.check("parameters")
def check_local_provisioning_parameters(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """`provisioning_parameters.json` names groups that there are, and is used without roles of the
    API.
    """
    here = facts.scripts
    places = [group.at("LifeCycleConfig") for group in wanted.groups if group.lifecycle]
    # Where the API sets Slurm up a bundle is made without the file; it matters in the bucket.
    if not here.directory or not places or PARAMETERS not in here.files:
        return
    yield from list_findings_or_ok(
        find_provisioning_parameter_problems(
            here.files[PARAMETERS], here.directory, places[0], wanted
        ),
        f"{PARAMETERS} agrees with the groups",
        places[0],
    )


@FAMILY.check("roles")
def check_local_bundle_group_roles(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Where the API sets Slurm up, a bundle's `config.json` says who the login nodes are."""
    here = facts.scripts
    groups = [group for group in wanted.groups if group.lifecycle] if wanted.by_api else []
    yield from find_bundle_config_role_problems(
        here.files.get(CONFIG), here.files, here.directory, groups
    )


@FAMILY.check("wheels")
def check_bundle_wheels_installable(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """hpctl can be installed from a bundle's wheels with the Python that it is for."""
    place = next(iter(list_lifecycle_script_entry_points(wanted).values()), ())
    for why in facts.scripts.unfit:
        fix = "make the bundle again: hpctl cluster lifecycle bundle --wheels --python-version 3.10"
        yield make_failure_finding(place, f"{facts.scripts.directory}/{why}", fix)


def _apply_check_to_local_scripts(
    wanted: RequestedCluster, facts: SpecValidationFacts, rule: object, content: str
) -> Iterator[SpecFinding]:
    assert callable(rule)
    here = facts.scripts
    if not here.files:
        return
    place = next(iter(list_lifecycle_script_entry_points(wanted).values()), ())
    own = list_lifecycle_script_entry_points(wanted)

    def find_local_script_problems() -> Iterator[SpecFinding]:
        for name, script in here.files.items():
            if rule is find_script_file_mode_problems and name in own:
                continue
            yield from rule(script, here.directory, own.get(name, place))
        if here.truncated:
            yield make_warning_finding(
                place, f"{here.directory} has very many files: some were not looked at", "tidy it"
            )

    yield from (
        list_findings_or_ok(find_local_script_problems(), f"{len(here.files)} {content}", place)
        if content
        else find_local_script_problems()
    )


BUCKET = SpecCheckFamily("s3", "Lifecycle scripts in S3.", ("bucket", "living"))

READ = 100
"""Scripts that are read of one prefix; a bundle has fewer."""

LISTED = 5000
"""Objects that are looked for below a prefix."""

AT_ONCE = 8


def parse_s3_uri(uri: str) -> tuple[str, str] | None:
    """(bucket, prefix) of `s3://bucket/prefix`; None for the https form, which names neither."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    return (bucket, prefix.strip("/")) if scheme == "s3" and bucket else None


def gather_lifecycle_bucket_facts(
    aws: AwsClientFactory, wanted: RequestedCluster
) -> dict[str, S3PrefixContents]:
    """A listing for each prefix, and a read for each script below it."""
    entries: dict[str, set[str]] = {}
    for group in wanted.groups:
        uri = group.lifecycle.get("SourceS3Uri", "")
        if parse_s3_uri(uri):
            entries.setdefault(uri, set()).update(name for _, name in group.scripts)
    return {
        uri: _read_s3_prefix_contents(aws.service("s3"), uri, names)
        for uri, names in entries.items()
    }


def _read_s3_prefix_contents(s3: AwsServiceClient, uri: str, entries: set[str]) -> S3PrefixContents:
    place = parse_s3_uri(uri)
    assert place is not None
    bucket, prefix = place
    region = call_aws_or_return_none_if_missing(_get_s3_bucket_region, s3, bucket)
    if region is None or isinstance(region, FailedAwsCall):
        return S3PrefixContents(bucket, prefix, region)
    below = f"{prefix}/" if prefix else ""
    listed = call_aws_or_return_none_if_missing(_list_s3_objects, s3, bucket, below)
    if listed is None or isinstance(listed, FailedAwsCall):
        return S3PrefixContents(bucket, prefix, region, listed or frozenset())
    sizes = {str(o["Key"])[len(below) :]: int(o["Size"]) for o in listed}
    wanted = sorted(
        (name for name in sizes if _is_script_or_config(name, entries)),
        key=lambda name: (name not in entries, name),
    )
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="scripts") as pool:
        asked = {
            name: pool.submit(
                call_aws_or_return_none_if_missing,
                _read_s3_script,
                s3,
                bucket,
                below + name,
                name,
                sizes[name],
            )
            for name in wanted[:READ]
        }
    scripts = {name: answer.result() for name, answer in asked.items()}
    return S3PrefixContents(bucket, prefix, region, frozenset(sizes), scripts)


def _list_s3_objects(s3: AwsServiceClient, bucket: str, prefix: str) -> list[Any]:
    return list(
        islice(s3.pages("list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix), LISTED)
    )


def _get_s3_bucket_region(s3: AwsServiceClient, bucket: str) -> str:
    """Where a bucket is. S3's word for us-east-1 is none."""
    answer = s3.read("get_bucket_location", Bucket=bucket)
    return str(answer.get("LocationConstraint") or "us-east-1")


def _is_script_or_config(name: str, entries: set[str]) -> bool:
    return (
        name in entries or name in (CONFIG, PARAMETERS, MANIFEST) or name.endswith((".sh", ".py"))
    )


def _read_s3_script(
    s3: AwsServiceClient, bucket: str, key: str, name: str, size: int
) -> LifecycleScript:
    if size > LARGEST:
        return LifecycleScript(name, size, None)
    data = read_s3_object(s3, bucket, key)
    return LifecycleScript(name, size, data, None, find_script_syntax_error(name, data))


Named = tuple[S3PrefixContents, Place, list[RequestedInstanceGroup]]


@BUCKET.check("bucket")
def check_lifecycle_script_bucket(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The bucket is there, and in the cluster's region."""
    for group in wanted.groups:
        uri = group.lifecycle.get("SourceS3Uri", "")
        if uri and not parse_s3_uri(uri):
            yield make_unknown_finding(
                group.at("LifeCycleConfig", "SourceS3Uri"),
                FailedAwsCall(f"{uri} is not read here", "write it as s3://bucket/prefix"),
            )
    for prefix, place, _ in _list_lifecycle_script_s3_prefixes(wanted, facts):
        if isinstance(prefix.region, FailedAwsCall):
            yield make_unknown_finding(place, prefix.region)
        elif prefix.region is None:
            yield make_failure_finding(
                place,
                f"there is no bucket {prefix.bucket}",
                "check its name; `hpctl cluster lifecycle push` uploads the scripts",
            )
        elif prefix.region != facts.region:
            yield make_warning_finding(
                place,
                f"{prefix.bucket} is in {prefix.region}, the cluster in {facts.region}: a gateway "
                "endpoint does not reach it, and a node that is born needs it",
                f"use a bucket in {facts.region}",
            )
        else:
            yield make_ok_finding(f"{prefix.bucket} is in {prefix.region}", place)


@BUCKET.check("entry")
def check_uploaded_entry_points(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Each entry point lies under its prefix and can be run."""
    for prefix, place, groups in _list_lifecycle_script_s3_prefixes(wanted, facts):
        if isinstance(prefix.names, FailedAwsCall):
            yield make_unknown_finding(place, prefix.names)
            continue
        if not isinstance(prefix.region, str):
            continue
        entries: dict[str, Place] = {}
        for group in groups:
            for key, name in group.scripts:
                entries.setdefault(name, group.at("LifeCycleConfig", key))
        for name, at in entries.items():
            yield from _check_uploaded_entry_point(prefix, name, at)


@BUCKET.check("scripts")
def check_uploaded_script_syntax(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Scripts have LF line ends, no byte order mark, and parse."""
    for prefix, place, _ in _list_lifecycle_script_s3_prefixes(wanted, facts):
        read = [s for s in prefix.scripts.values() if isinstance(s, LifecycleScript) and s.is_text]
        found = chain.from_iterable(
            find_lifecycle_script_syntax_problems(script, prefix.url, place) for script in read
        )
        if read:
            yield from list_findings_or_ok(
                found, f"{len(read)} scripts under {prefix.url} have LF line ends and parse", place
            )


@BUCKET.check("manifest")
def check_uploaded_script_manifest(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """What lies there is what its `MANIFEST` vouches for."""
    for prefix, place, _ in _list_lifecycle_script_s3_prefixes(wanted, facts):
        manifest = prefix.scripts.get(MANIFEST)
        if isinstance(manifest, FailedAwsCall):
            yield make_unknown_finding(place, manifest)
        if not isinstance(manifest, LifecycleScript) or not isinstance(prefix.names, frozenset):
            continue
        lines = [line.partition("  ") for line in (manifest.data or b"").decode().splitlines()]
        digests = {path: digest for digest, _, path in lines}
        missing = [path for path in digests if path not in prefix.names]
        changed = [
            name
            for name, script in prefix.scripts.items()
            if isinstance(script, LifecycleScript)
            and script.data is not None
            and name in digests
            and hashlib.sha256(script.data).hexdigest() != digests[name]
        ]
        wrong = [f"{name} is in {MANIFEST} and is not there" for name in missing]
        wrong += [f"{name} is not what {MANIFEST} vouches for" for name in changed]
        failures = (
            make_failure_finding(
                place,
                f"{prefix.url}/{what}: nodes that are born would refuse the bundle",
                "`hpctl cluster lifecycle push` sends what is missing",
            )
            for what in wrong
        )
        yield from list_findings_or_ok(failures, f"{prefix.url} is as its {MANIFEST} says", place)


@BUCKET.check("who-sets-slurm-up")
def check_uploaded_provisioning_parameters(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """`provisioning_parameters.json` is there where scripts set Slurm up, names the groups, and
    is used without roles of the API.
    """
    for prefix, place, groups in _list_lifecycle_script_s3_prefixes(wanted, facts):
        if not isinstance(prefix.region, str) or isinstance(prefix.names, FailedAwsCall):
            continue
        if not wanted.by_api and not any("OnCreate" in group.lifecycle for group in groups):
            continue
        script = prefix.scripts.get(PARAMETERS)
        if isinstance(script, FailedAwsCall):
            yield make_unknown_finding(place, script)
            continue
        yield from list_findings_or_ok(
            find_provisioning_parameter_problems(
                script, prefix.url, place, wanted, facts.living.legacy
            ),
            f"{prefix.url} agrees with the groups on who sets Slurm up",
            place,
        )


@BUCKET.check("roles")
def check_uploaded_bundle_group_roles(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Where the API sets Slurm up, the `config.json` of a bundle of hpctl's says which group's
    nodes are login nodes: on a node nothing else does.
    """
    for prefix, _, groups in (
        _list_lifecycle_script_s3_prefixes(wanted, facts) if wanted.by_api else ()
    ):
        config = prefix.scripts.get(CONFIG)
        if isinstance(prefix.names, FailedAwsCall) or isinstance(config, FailedAwsCall):
            continue
        yield from find_bundle_config_role_problems(config, prefix.names, prefix.url, groups)


def _check_uploaded_entry_point(
    prefix: S3PrefixContents, name: str, place: Place
) -> Iterator[SpecFinding]:
    key = f"{prefix.prefix}/{name}"
    script = prefix.scripts.get(name)
    if len(key.encode()) > LONGEST_KEY:
        yield make_failure_finding(
            place,
            f"{key[:60]}... has {len(key.encode())} bytes; a key of S3 has at most {LONGEST_KEY}",
            "use a shorter prefix",
        )
    elif isinstance(script, FailedAwsCall):
        yield make_unknown_finding(place, script)
    elif script is None:
        yield make_failure_finding(
            place,
            f"there is no {prefix.url}/{name}",
            "`hpctl cluster lifecycle push` uploads the scripts;"
            f" {_format_s3_prefix_contents(prefix)}",
        )
    else:
        yield from list_findings_or_ok(
            find_entry_point_script_problems(script, prefix.url, place),
            f"{prefix.url}/{name} can be run",
            place,
        )


def _format_s3_prefix_contents(prefix: S3PrefixContents) -> str:
    names = sorted(prefix.names) if isinstance(prefix.names, frozenset) else []
    if not names:
        return "nothing lies under the prefix"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"there are {', '.join(names[:3])}{more}"


def _list_lifecycle_script_s3_prefixes(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[Named]:
    """Each prefix once, with the place that names it first and the groups that do."""
    groups: dict[str, list[RequestedInstanceGroup]] = {}
    for group in wanted.groups:
        groups.setdefault(group.lifecycle.get("SourceS3Uri", ""), []).append(group)
    for uri, prefix in facts.bucket.items():
        yield prefix, groups[uri][0].at("LifeCycleConfig", "SourceS3Uri"), groups[uri]
