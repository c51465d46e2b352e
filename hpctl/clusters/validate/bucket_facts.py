"""Asks S3 for the lifecycle scripts under each prefix that a group names."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hpctl.clusters.bundle import MANIFEST
from hpctl.clusters.objects import LARGEST, read_object
from hpctl.clusters.validate.ask import ask
from hpctl.clusters.validate.script_facts import CONFIG, PARAMETERS, Script, syntax_error
from hpctl.clusters.validate.verdict import Unanswered
from hpctl.clusters.validate.wanted import Wanted
from hpctl.ports import Aws, Service

READ = 100
"""Scripts that are read of one prefix; a bundle has fewer."""

LISTED = 5000
"""Objects that are looked for below a prefix."""

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Prefix:
    """The objects below one prefix. `scripts` holds those that were read, by name below it."""

    bucket: str
    prefix: str
    region: str | Unanswered | None
    """Of the bucket; None where there is no such bucket."""
    names: frozenset[str] | Unanswered = frozenset()
    scripts: Mapping[str, Script | Unanswered | None] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """As people write it."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """By SourceS3Uri as given."""

    prefixes: Mapping[str, Prefix] = field(default_factory=dict)


def parsed(uri: str) -> tuple[str, str] | None:
    """(bucket, prefix) of `s3://bucket/prefix`; None for the https form, which names neither."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    return (bucket, prefix.strip("/")) if scheme == "s3" and bucket else None


def gather(aws: Aws, wanted: Wanted) -> BucketFacts:
    """A listing for each prefix, and a read for each script below it."""
    entries: dict[str, set[str]] = {}
    for group in wanted.groups:
        uri = group.lifecycle.get("SourceS3Uri", "")
        if parsed(uri):
            entries.setdefault(uri, set()).update(name for _, name in group.scripts)
    s3 = aws.service("s3") if entries else None
    if s3 is None:
        return BucketFacts()
    return BucketFacts({uri: _prefix(s3, uri, names) for uri, names in entries.items()})


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
