"""What every command that talks to AWS takes, as the AWS CLI names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from hpctl.ports import Aws

F = TypeVar("F", bound=Callable[..., Any])


def aws_options(command: F) -> F:
    """`--profile`, `--region`, `--endpoint-url`: give them to `open_aws`."""
    for option in (
        click.option(
            "--endpoint-url", metavar="URL", help="Another endpoint for the SageMaker API."
        ),
        click.option("--region", help="The AWS region."),
        click.option("--profile", help="A profile of ~/.aws/config."),
    ):
        command = option(command)
    return command


def open_aws(profile: str | None, region: str | None, endpoint_url: str | None) -> Aws:
    """The account that the options name. Raises HpctlError."""
    from hpctl.wiring import open_aws as wired

    return wired(profile, region, endpoint_url)
