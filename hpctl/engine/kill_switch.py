"""The kill switch: while this file exists, nothing is done."""

from pathlib import Path


def read_kill_switch_reason(kill_switch: Path) -> str:
    """Return why nothing may be done at all, where the kill switch says so; else an empty text."""
    try:
        kill_switch.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:  # it may be there: nothing is done until that is known
        return f"the kill switch {kill_switch} cannot be seen: {error.strerror}"
    return f"the kill switch {kill_switch} exists"
