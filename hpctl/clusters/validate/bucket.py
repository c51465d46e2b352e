"""Lifecycle scripts in S3, as the nodes will read them."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from hpctl.clusters.bundle import MANIFEST
from hpctl.clusters.request import LARGEST, read_object
from hpctl.clusters.validate import scripts
from hpctl.clusters.validate.facts import CONFIG, PARAMETERS, Facts, Family, Prefix, Script, ask
from hpctl.clusters.validate.scripts import syntax_error
from hpctl.clusters.validate.wanted import (
    Finding,
    Group,
    Place,
    Unanswered,
    Wanted,
    fail,
    ok,
    settled,
    unknown,
    warn,
)
from hpctl.ports import Aws, Service

FAMILY = Family("s3", "Lifecycle scripts in S3.", ("bucket", "living"))

READ = 100
"""Scripts that are read of one prefix; a bundle has fewer."""

LISTED = 5000
"""Objects that are looked for below a prefix."""

AT_ONCE = 8


def parsed(uri: str) -> tuple[str, str] | None:
    """(bucket, prefix) of `s3://bucket/prefix`; None for the https form, which names neither."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    return (bucket, prefix.strip("/")) if scheme == "s3" and bucket else None


def gather(aws: Aws, wanted: Wanted) -> dict[str, Prefix]:
    """A listing for each prefix, and a read for each script below it."""
    entries: dict[str, set[str]] = {}
    for group in wanted.groups:
        uri = group.lifecycle.get("SourceS3Uri", "")
        if parsed(uri):
            entries.setdefault(uri, set()).update(name for _, name in group.scripts)
    return {uri: _prefix(aws.service("s3"), uri, names) for uri, names in entries.items()}


def _prefix(s3: Service, uri: str, entries: set[str]) -> Prefix:
    place = parsed(uri)
    assert place is not None
    bucket, prefix = place
    region = ask(_region, s3, bucket)
    if region is None or isinstance(region, Unanswered):
        return Prefix(bucket, prefix, region)
    below = f"{prefix}/" if prefix else ""
    listed = ask(_listed, s3, bucket, below)
    if listed is None or isinstance(listed, Unanswered):
        return Prefix(bucket, prefix, region, listed or frozenset())
    sizes = {str(o["Key"])[len(below) :]: int(o["Size"]) for o in listed}
    wanted = sorted(
        (name for name in sizes if _is_script(name, entries)),
        key=lambda name: (name not in entries, name),
    )
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="scripts") as pool:
        asked = {
            name: pool.submit(ask, _read, s3, bucket, below + name, name, sizes[name])
            for name in wanted[:READ]
        }
    scripts = {name: answer.result() for name, answer in asked.items()}
    return Prefix(bucket, prefix, region, frozenset(sizes), scripts)


def _listed(s3: Service, bucket: str, prefix: str) -> list[Any]:
    return list(
        islice(s3.pages("list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix), LISTED)
    )


def _region(s3: Service, bucket: str) -> str:
    """Where a bucket is. S3's word for us-east-1 is none."""
    answer = s3.read("get_bucket_location", Bucket=bucket)
    return str(answer.get("LocationConstraint") or "us-east-1")


def _is_script(name: str, entries: set[str]) -> bool:
    return (
        name in entries or name in (CONFIG, PARAMETERS, MANIFEST) or name.endswith((".sh", ".py"))
    )


def _read(s3: Service, bucket: str, key: str, name: str, size: int) -> Script:
    if size > LARGEST:
        return Script(name, size, None)
    data = read_object(s3, bucket, key)
    return Script(name, size, data, None, syntax_error(name, data))


Named = tuple[Prefix, Place, list[Group]]


@FAMILY.check("bucket")
def bucket_there(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The bucket is there, and in the cluster's region."""
    for group in wanted.groups:
        uri = group.lifecycle.get("SourceS3Uri", "")
        if uri and not parsed(uri):
            yield unknown(
                group.at("LifeCycleConfig", "SourceS3Uri"),
                Unanswered(f"{uri} is not read here", "write it as s3://bucket/prefix"),
            )
    for prefix, place, _ in _named(wanted, facts):
        if isinstance(prefix.region, Unanswered):
            yield unknown(place, prefix.region)
        elif prefix.region is None:
            yield fail(
                place,
                f"there is no bucket {prefix.bucket}",
                "check its name; `hpctl lifecycle push` uploads the scripts",
            )
        elif prefix.region != facts.region:
            yield warn(
                place,
                f"{prefix.bucket} is in {prefix.region}, the cluster in {facts.region}: a gateway "
                "endpoint does not reach it, and a node that is born needs it",
                f"use a bucket in {facts.region}",
            )
        else:
            yield ok(f"{prefix.bucket} is in {prefix.region}", place)


@FAMILY.check("entry")
def entry_there(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Each entry point lies under its prefix and can be run."""
    for prefix, place, groups in _named(wanted, facts):
        if isinstance(prefix.names, Unanswered):
            yield unknown(place, prefix.names)
            continue
        if not isinstance(prefix.region, str):
            continue
        entries: dict[str, Place] = {}
        for group in groups:
            for key, name in group.scripts:
                entries.setdefault(name, group.at("LifeCycleConfig", key))
        for name, at in entries.items():
            yield from _entry(prefix, name, at)


@FAMILY.check("scripts")
def readable(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Scripts have LF line ends, no byte order mark, and parse."""
    for prefix, place, _ in _named(wanted, facts):
        read = [s for s in prefix.scripts.values() if isinstance(s, Script) and s.is_text]
        found = (f for script in read for f in scripts.of_any(script, prefix.url, place))
        if read:
            yield from settled(
                found, f"{len(read)} scripts under {prefix.url} have LF line ends and parse", place
            )


@FAMILY.check("manifest")
def vouched(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """What lies there is what its `MANIFEST` vouches for."""
    for prefix, place, _ in _named(wanted, facts):
        manifest = prefix.scripts.get(MANIFEST)
        if isinstance(manifest, Unanswered):
            yield unknown(place, manifest)
        if not isinstance(manifest, Script) or not isinstance(prefix.names, frozenset):
            continue
        said = [line.partition("  ") for line in (manifest.data or b"").decode().splitlines()]
        digests = {path: digest for digest, _, path in said}
        missing = [path for path in digests if path not in prefix.names]
        changed = [
            name
            for name, script in prefix.scripts.items()
            if isinstance(script, Script)
            and script.data is not None
            and name in digests
            and hashlib.sha256(script.data).hexdigest() != digests[name]
        ]
        yield from settled(
            (
                fail(
                    place,
                    f"{prefix.url}/{name} {what}: nodes that are born would refuse the bundle",
                    "`hpctl lifecycle push` sends what is missing",
                )
                for names, what in (
                    (missing, f"is in {MANIFEST} and is not there"),
                    (changed, f"is not what {MANIFEST} vouches for"),
                )
                for name in names
            ),
            f"{prefix.url} is as its {MANIFEST} says",
            place,
        )


@FAMILY.check("who-sets-slurm-up")
def parameters(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """`provisioning_parameters.json` is there where scripts set Slurm up, names the groups, and
    stands beside no roles of the API.
    """
    for prefix, place, groups in _named(wanted, facts):
        if not isinstance(prefix.region, str) or isinstance(prefix.names, Unanswered):
            continue
        if not wanted.by_api and not any("OnCreate" in group.lifecycle for group in groups):
            continue
        script = prefix.scripts.get(PARAMETERS)
        if isinstance(script, Unanswered):
            yield unknown(place, script)
            continue
        yield from settled(
            scripts.of_parameters(script, prefix.url, place, wanted, facts.living.legacy),
            f"{prefix.url} agrees with the groups on who sets Slurm up",
            place,
        )


@FAMILY.check("roles")
def roles(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Where the API sets Slurm up, the `config.json` of a bundle of hpctl's says which group's
    nodes are login nodes: on a node nothing else does.
    """
    for prefix, _, groups in _named(wanted, facts) if wanted.by_api else ():
        config = prefix.scripts.get(CONFIG)
        if isinstance(prefix.names, Unanswered) or isinstance(config, Unanswered):
            continue
        yield from scripts.of_roles(config, prefix.names, prefix.url, groups)


def _entry(prefix: Prefix, name: str, place: Place) -> Iterator[Finding]:
    key = f"{prefix.prefix}/{name}"
    script = prefix.scripts.get(name)
    if len(key.encode()) > scripts.LONGEST_KEY:
        yield fail(
            place,
            f"{key[:60]}... has {len(key.encode())} bytes; a key of S3 has at most "
            f"{scripts.LONGEST_KEY}",
            "use a shorter prefix",
        )
    elif isinstance(script, Unanswered):
        yield unknown(place, script)
    elif script is None:
        yield fail(
            place,
            f"there is no {prefix.url}/{name}",
            f"`hpctl lifecycle push` uploads the scripts; {_has(prefix)}",
        )
    else:
        yield from settled(
            scripts.of_entry(script, prefix.url, place), f"{prefix.url}/{name} can be run", place
        )


def _has(prefix: Prefix) -> str:
    names = sorted(prefix.names) if isinstance(prefix.names, frozenset) else []
    if not names:
        return "nothing lies under the prefix"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"there are {', '.join(names[:3])}{more}"


def _named(wanted: Wanted, facts: Facts) -> Iterator[Named]:
    """Each prefix once, with the place that names it first and the groups that do."""
    groups: dict[str, list[Group]] = {}
    for group in wanted.groups:
        groups.setdefault(group.lifecycle.get("SourceS3Uri", ""), []).append(group)
    for uri, prefix in facts.bucket.items():
        yield prefix, groups[uri][0].at("LifeCycleConfig", "SourceS3Uri"), groups[uri]
