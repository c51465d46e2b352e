"""A place of checkpoints in an object store."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.checkpoints.files import Place, RemotePath


def open_local_or_s3_checkpoint_path(
    text: str,
    *,
    profile: str | None = None,
    region: str | None = None,
    endpoint_url: str | None = None,
) -> Place:
    """Return a directory, or a prefix of S3. Raises OSError where no client can be made."""
    if not text.startswith("s3://"):
        return Path(text).absolute()
    try:
        return open_s3_prefix(text, profile=profile, region=region, endpoint_url=endpoint_url)
    except HpctlError as error:
        raise OSError(errno.EINVAL, f"{error}: {error.hint}") from error


def open_s3_prefix(
    url: str,
    *,
    profile: str | None = None,
    region: str | None = None,
    endpoint_url: str | None = None,
) -> RemotePath:
    """Return `s3://bucket/prefix` as a place of checkpoints. Makes no request yet. Raises
    HpctlError."""
    from hpctl.checkpoints.files import RemotePath
    from hpctl.sagemaker.objects import S3Bucket

    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket:
        raise HpctlError(f"the S3 URL {url!r} names no bucket", "Write s3://BUCKET/PREFIX.")
    objects = S3Bucket(bucket, profile=profile, region=region, endpoint_url=endpoint_url)
    return RemotePath(objects, key.strip("/"))
