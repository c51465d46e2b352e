"""Check that only root can have written a file: the agent is root and trusts no other user."""

import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def list_trusted_owner_uids() -> frozenset[int]:
    """Return the owners whose files are trusted: root's, and the agent's own where it runs as
    another user."""
    return frozenset({0, os.geteuid()})


def explain_untrusted_path(path: Path, status: os.stat_result) -> str:
    """Return why a file or directory of that status is not trusted; empty where it is.

    `status` must be of the file itself, not of what a symbolic link points to.
    """
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link"
    if status.st_uid not in list_trusted_owner_uids():
        return f"{path} belongs to uid {status.st_uid}, not to root"
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & _OTHERS_WRITE and not sticky:
        return f"{path} can be written by others than its owner"
    return ""


def explain_untrusted_directory(directory: Path) -> str:
    """Return why nothing in a directory is trusted: another user can change it or one above it.

    Raises OSError. A sticky directory (/tmp) above is harmless: no other user can rename there.
    """
    resolved = directory.resolve(strict=True)
    for place in (resolved, *resolved.parents):
        trouble = explain_untrusted_path(place, place.lstat())
        if not trouble and place == resolved and place.stat().st_mode & _OTHERS_WRITE:
            trouble = f"{place} can be written by others than its owner"
        if trouble:
            return trouble
    return ""
