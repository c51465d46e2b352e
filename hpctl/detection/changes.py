"""News of an agent: a finding came or went."""

from typing import Protocol


class FindingChangeListener(Protocol):
    """A receiver of news. For any thread."""

    def handle_finding_change(self) -> None:
        """Record that a finding came or went."""


class NullFindingChangeListener:
    """A listener for parts whose findings are only read."""

    def handle_finding_change(self) -> None:
        """Do nothing."""
