"""The AWS account that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpctl.vocabulary.ports import AwsClientFactory


def make_aws_client_for_command(
    profile: str | None, region: str | None, endpoint_url: str | None
) -> AwsClientFactory:
    """Return the account that the options name. Raises HpctlError."""
    from hpctl.engine.adapters import make_aws_account_client as wired

    return wired(profile, region, endpoint_url)
