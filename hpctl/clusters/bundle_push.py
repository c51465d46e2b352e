"""A bundle's way to S3: what is there already is not sent, MANIFEST goes last.

A node that comes up while a bundle is on its way finds files that its MANIFEST does not vouch for,
and says so; it never runs half of one and half of another.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from hpctl.clusters.bundle import MANIFEST, Bundle
from hpctl.errors import Absent, HpctlError, InDoubt
from hpctl.ports import Aws, Service

TRIES = 3
"""A put that may have been taken is simply put again: the second is the same as the first."""

_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


@dataclass(frozen=True, slots=True)
class S3Prefix:
    """`s3://bucket/prefix`, without a slash at its end."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, uri: str) -> S3Prefix:
        """Raises HpctlError."""
        match = _URI.fullmatch(uri.rstrip("/"))
        if not match:
            raise HpctlError(f"not an S3 prefix: {uri!r}", "write it as s3://bucket/prefix")
        if len(uri) > 1024:
            raise HpctlError("an S3 prefix has at most 1024 letters", "choose a shorter one")
        return cls(match[1], (match[2] or "").strip("/"))

    def key(self, path: str) -> str:
        """The key of a bundle's file."""
        return f"{self.prefix}/{path}" if self.prefix else path

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What a push sends, leaves and finds left over, by path."""

    send: tuple[str, ...]
    unchanged: tuple[str, ...]
    left_over: tuple[str, ...]


def plan(aws: Aws, bundle: Bundle, to: S3Prefix) -> PushPlan:
    """Compare a bundle with what its prefix holds. Raises Absent, Refused, Unavailable."""
    s3 = aws.service("s3")
    there: dict[str, str] = {}
    try:
        for item in s3.pages("list_objects_v2", "Contents", Bucket=to.bucket, Prefix=to.key("")):
            there[str(item["Key"])] = str(item["ETag"]).strip('"')
    except Absent as error:
        raise Absent(
            f"there is no bucket {to.bucket}", "create it first, in the cluster's region"
        ) from error
    send: list[str] = []
    unchanged: list[str] = []
    for path in [*(file.path for file in bundle.files), MANIFEST]:
        same = there.pop(to.key(path), None) == _md5(bundle, path)
        (unchanged if same else send).append(path)
    start = len(to.key(""))
    return PushPlan(tuple(send), tuple(unchanged), tuple(sorted(key[start:] for key in there)))


def push(
    aws: Aws,
    bundle: Bundle,
    to: S3Prefix,
    planned: PushPlan,
    told: Callable[[str], None] = lambda _path: None,
) -> None:
    """Send what a plan names, in its order. Raises Absent, Refused, InDoubt."""
    s3 = aws.service("s3")
    for path in planned.send:
        told(path)
        _put(s3, bundle, to, path)


def prune(aws: Aws, to: S3Prefix, planned: PushPlan) -> None:
    """Delete what lies in the prefix and in no bundle. Raises Refused, InDoubt."""
    s3 = aws.service("s3")
    for path in planned.left_over:
        s3.order("delete_object", Bucket=to.bucket, Key=to.key(path))


def _md5(bundle: Bundle, path: str) -> str:
    """What S3 calls the ETag of an object that was put whole; with KMS keys it is another."""
    content = (bundle.directory / path).read_bytes()
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _put(s3: Service, bundle: Bundle, to: S3Prefix, path: str) -> None:
    content = (bundle.directory / path).read_bytes()
    # S3 itself compares: what arrives otherwise is refused.
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    for attempt in range(1, TRIES + 1):
        try:
            s3.order(
                "put_object",
                Bucket=to.bucket,
                Key=to.key(path),
                Body=content,
                ChecksumSHA256=digest,
            )
        except InDoubt:
            if attempt == TRIES:
                raise
        else:
            return
