"""Arguments that name something: one rule for what a wrong one is.

What cannot be a name of its kind, or contradicts another argument, is a usage error (exit code 2)
before anything is asked. A name that nothing has is a refusal (1), with the nearest that there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpctl.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.clusters.bundle import S3Prefix

F = TypeVar("F", bound=Callable[..., Any])


def now_option(command: F) -> F:
    """`--now`: the same word for whoever carries an order out, the daemon or the command itself."""
    text = "Do not wait for the jobs there to end: they are requeued at once."
    return click.option("--now", is_flag=True, help=text)(command)


class NameType(click.ParamType):  # type: ignore[type-arg]
    """Text that matches a pattern as a whole; `means` says in words what it is, with an example."""

    def __init__(self, name: str, pattern: str, means: str) -> None:
        self.name = name
        self._pattern = re.compile(pattern)
        self._means = means

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text. Fails with exit code 2; an option that is left empty names nothing."""
        text = str(value)
        if text and not self._pattern.fullmatch(text):
            self.fail(f"{text!r} is not {self._means}", param, ctx)
        return text


class NodesType(click.ParamType):  # type: ignore[type-arg]
    """A node's name of any kind, or a hostlist of names."""

    name = "node"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text. Fails with exit code 2 where it is no hostlist."""
        from hpctl.core.hostlist import HostlistError, expand

        text = str(value)
        try:
            expand(text)
        except HostlistError as error:
            self.fail(f"{text!r}: {error}", param, ctx)
        return text


class ThereType(click.Path):
    """A file or directory to read. One that is not there is exit code 1, as with every name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises HpctlError."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise HpctlError(error.message.rstrip(".")) from error


class PrefixType(click.ParamType):  # type: ignore[type-arg]
    """`s3://bucket/prefix` of a bundle."""

    name = "s3-uri"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> S3Prefix:
        """Bucket and prefix. Fails with exit code 2."""
        from hpctl.clusters.bundle import S3Prefix

        try:
            return S3Prefix.parse(str(value))
        except HpctlError as error:
            self.fail(f"{error}: {error.hint}", param, ctx)


def usage(error: HpctlError) -> click.UsageError:
    """The usage error for an argument that the domain says is none."""
    return click.UsageError(": ".join(filter(None, (str(error), error.hint))))


CLUSTER = NameType(
    "cluster",
    r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:\d{12}:cluster/[a-z0-9]{12}"
    r"|[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
    "a cluster's name, such as llm-prod, or its ARN",
)
GROUP = NameType(
    "group",
    "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
    "an instance group's name, such as worker-group-1",
)
NODES = NodesType()
FILE_SYSTEM = NameType(
    "fs", "fs-[0-9a-f]{8,18}", "a file system's id, such as fs-0123456789abcdef0"
)
BUCKET = NameType(
    "bucket", r"(s3://)?[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", "a bucket's name, such as data"
)
ROLE_ARN = NameType(
    "arn",
    r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+",
    "a role's ARN, such as arn:aws:iam::111122223333:role/hyperpod",
)
