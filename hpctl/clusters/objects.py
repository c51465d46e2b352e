"""A small object of S3, whole."""

from __future__ import annotations

from hpctl.errors import Unavailable
from hpctl.ports import Service

LARGEST = 1 << 20
"""Bytes that are read: scripts and settings are far smaller."""


def read_object(s3: Service, bucket: str, key: str) -> bytes:
    """The first MiB of an object. Raises Absent, Refused, Unavailable."""
    body = s3.read("get_object", Bucket=bucket, Key=key)["Body"]
    try:
        return bytes(body.read(LARGEST))
    # The HTTP libraries below have no error in common, and this layer must not know them.
    except Exception as error:
        raise Unavailable(f"s3://{bucket}/{key} could not be read to its end: {error}") from error
