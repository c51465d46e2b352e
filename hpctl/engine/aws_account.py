"""The AWS account that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpctl.vocabulary.ports import Aws


def open_aws(profile: str | None, region: str | None, endpoint_url: str | None) -> Aws:
    """Return the account that the options name. Raises HpctlError."""
    from hpctl.engine.adapters import open_aws_account as wired

    return wired(profile, region, endpoint_url)
