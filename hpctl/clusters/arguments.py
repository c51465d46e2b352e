"""Arguments that name a part of a cluster: an S3 prefix, a value of cluster.yaml, a file system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from hpctl.toolkit.arguments import ParsedArgumentType

if TYPE_CHECKING:
    from hpctl.clusters.bundle import S3Prefix


class S3PrefixType(ParsedArgumentType):
    """`s3://bucket/prefix` of a bundle."""

    name = "s3-uri"

    def read(self, value: Any) -> S3Prefix:
        """Bucket and prefix. Raises HpctlError."""
        from hpctl.clusters.bundle import S3Prefix

        return S3Prefix.parse(str(value))


class SpecFieldType(ParsedArgumentType):
    """A value that one of the annotated types of `hpctl.clusters.spec.field_types` takes.

    `word` is that type's name: the module is imported only when a value is there.
    """

    def __init__(self, word: str, name: str) -> None:
        self.word = word
        self.name = name

    def read(self, value: Any) -> str:
        """Return the value. Raises ValueError with an example."""
        from hpctl.clusters.spec import field_types

        annotated: Any = getattr(field_types, self.word)
        like = next(
            part for part in get_args(annotated) if isinstance(part, field_types.TextPattern)
        )
        text = str(value).strip()
        try:
            return like.check(text)
        except ValueError as error:
            raise ValueError(f"{text!r} {error}") from error


class FsxLustreType(ParsedArgumentType):
    """An FSx for Lustre file system: `DNS-NAME/MOUNT-NAME`."""

    name = "dns-name/mount-name"

    def read(self, value: Any) -> tuple[str, str]:
        """DNS name and mount name. Raises ValueError."""
        if isinstance(value, tuple):
            return value
        dns_name, slash, mount_name = str(value).partition("/")
        if not slash:
            raise ValueError(f"{value!r} has no mount name: write DNS-NAME/MOUNT-NAME")
        dns, mount = SpecFieldType("FsxDnsName", self.name), SpecFieldType("MountName", self.name)
        return dns.read(dns_name), mount.read(mount_name)
