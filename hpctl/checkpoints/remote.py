"""A place of checkpoints in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.checkpoints.files import Remote


def open_objects(
    url: str,
    *,
    profile: str | None = None,
    region: str | None = None,
    endpoint_url: str | None = None,
) -> Remote:
    """`s3://bucket/prefix` as a place of checkpoints. Nothing is asked yet. Raises HpctlError."""
    from hpctl.checkpoints.files import Remote
    from hpctl.sagemaker.objects import S3Bucket

    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket:
        raise HpctlError(f"{url!r} names no bucket", "Write s3://BUCKET/PREFIX.")
    objects = S3Bucket(bucket, profile=profile, region=region, endpoint_url=endpoint_url)
    return Remote(objects, key.strip("/"))
