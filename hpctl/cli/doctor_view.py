"""What a check of `hpctl doctor` answers, and whom it asks for Slurm's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class CheckView:
    """One check: `verdict` is ok, note, warn, fail or unknown; `mend` says what to do about it.

    `source` says where a fact about Slurm comes from.
    """

    name: str
    verdict: str
    what: str
    mend: str
    source: str = ""


@runtime_checkable
class ShowsConfig(Protocol):
    """A scheduler that can say its release and print its configuration."""

    def version(self) -> tuple[int, int, int]:
        """Slurm's release. Raises Unavailable."""
        ...

    def show_config(self) -> Mapping[str, str]:
        """`scontrol show config` as key and value. Raises Unavailable."""
        ...
