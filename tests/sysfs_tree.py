"""A fake /sys under any root, as the sandbox plays it."""

from hpctl.sandbox.hardware import EmulatedSysfsTree

__all__ = ["EmulatedSysfsTree"]
