"""The reservation that keeps spare nodes, by its name."""

from typing import Final

RESERVATION: Final = "hpctl-spares-"
"""What the name of a group's reservation begins with."""
