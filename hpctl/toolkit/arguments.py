"""Arguments that name something: one rule for what a wrong one is.

What cannot be a name of its kind, or contradicts another argument, is a usage error (exit code 2)
before anything is asked. A name that nothing has is a refusal (1), with the nearest that there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

from hpctl.toolkit.bounds import parse_duration
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import combine_click_options

now_option = click.option(
    "--now", is_flag=True, help="Do not wait for the jobs there to end: they are requeued at once."
)


class ParsedArgumentType(click.ParamType):  # type: ignore[type-arg]
    """An argument that `read` makes a value of. What that raises is a usage error (exit code 2)."""

    name = "text"

    def read(self, value: Any) -> Any:
        """Return the value. Raises ValueError or HpctlError, which say what is wrong with it."""
        raise ValueError(value)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value. Fails with exit code 2."""
        try:
            return self.read(value)
        except (ValueError, HpctlError) as error:
            message = ": ".join(filter(None, (str(error), getattr(error, "hint", ""))))
            self.fail(message, param, ctx)


class PatternType(ParsedArgumentType):
    """Text that matches a pattern as a whole; `means` says in words what it is, with an example."""

    def __init__(self, name: str, pattern: str, means: str) -> None:
        self.name = name
        self._pattern = pattern
        self._means = means

    def read(self, value: Any) -> str:
        """Return the text; an option that is left empty names nothing."""
        text = str(value)
        if text and not re.fullmatch(self._pattern, text):
            raise ValueError(f"{text!r} is not {self._means}")
        return text


class NodeNamesType(ParsedArgumentType):
    """A node's name of any kind, or a hostlist of names."""

    name = "node"

    def read(self, value: Any) -> str:
        """Return the text. Raises ValueError where it is no hostlist."""
        from hpctl.toolkit.hostlist import HostlistError, expand_hostlist

        text = str(value)
        try:
            expand_hostlist(text)
        except HostlistError as error:
            raise ValueError(f"{text!r}: {error}") from error
        return text


class ExistingPathType(click.Path):
    """A file or directory to read. One that is not there is exit code 1, as with every name.

    `hint` says what to do then.
    """

    def __init__(self, *, hint: str = "", **how: Any) -> None:
        super().__init__(**how)
        self._hint = hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises HpctlError."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise HpctlError(error.message.rstrip("."), self._hint) from error


def make_usage_error(error: HpctlError) -> click.UsageError:
    """Return the usage error for an argument that the domain says is none."""
    return click.UsageError(": ".join(filter(None, (str(error), error.hint))))


@contextmanager
def convert_errors_to_usage_errors() -> Iterator[None]:
    """What is wrong with the command line, or with a file named in it, is an error of usage."""
    try:
        yield
    except HpctlError as error:
        raise click.UsageError("\n".join(filter(None, (str(error), error.hint)))) from error


CLUSTER = PatternType(
    "cluster",
    r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:\d{12}:cluster/[a-z0-9]{12}"
    r"|[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
    "a cluster's name, such as llm-prod, or its ARN",
)


GROUP = PatternType(
    "group", "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", "an instance group's name, such as worker-group-1"
)


NODES = NodeNamesType()


FILE_SYSTEM = PatternType(
    "fs", "fs-[0-9a-f]{8,18}", "a file system's id, such as fs-0123456789abcdef0"
)


BUCKET = PatternType(
    "bucket", r"(s3://)?[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", "a bucket's name, such as data"
)


ROLE_ARN = PatternType(
    "arn",
    r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+",
    "a role's ARN, such as arn:aws:iam::111122223333:role/hyperpod",
)


class DurationType(ParsedArgumentType):
    """A length of time, such as `90s`, `30min` or `3h`; in seconds. A bare number is seconds."""

    name = "duration"

    def __init__(self, least: str = "0s", most: str = "") -> None:
        self._least, self._most = least, most

    def read(self, value: Any) -> float:
        """Seconds. Raises ValueError with examples, or the bounds."""
        found = float(value) if isinstance(value, int | float) else parse_duration(str(value))
        least, most = parse_duration(self._least) or 0.0, parse_duration(self._most)
        if found is None:
            raise ValueError(f"{value!r} is no duration: write 90s, 30min or 3h")
        if found < least or (most is not None and found > most):
            bounds = f"from {self._least} to {self._most}"
            bounds = bounds if self._most else f"{self._least} or more"
            raise ValueError(f"{value!r} is out of bounds: {bounds}")
        return found


aws_options = combine_click_options(
    click.option("--profile", help="A profile of ~/.aws/config."),
    click.option("--region", help="The AWS region."),
    click.option("--endpoint-url", metavar="URL", help="Another endpoint for the SageMaker API."),
)
"""Give their values to `make_aws_client_for_command`."""


spec_argument = click.argument(
    "path", metavar="[FILE]", default="cluster.yaml", type=click.Path(dir_okay=False)
)


validate_option = click.option(
    "--validate/--no-validate",
    default=True,
    show_default=True,
    help="Check everything that can be known before money is spent.",
)


def complete_file_path(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter | None,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """Return the shell's own completion of files."""
    return [CompletionItem(incomplete, type="file")]
