"""Write a command's file: completely or not at all, and replace an existing one only on request."""

from __future__ import annotations

import os
from pathlib import Path

from hpctl.toolkit.errors import HpctlError


def require_overwrite_allowed(path: Path, force: bool) -> None:
    """Raise HpctlError where the file exists already and `--force` was not given."""
    if path.exists() and not force:
        raise HpctlError(
            f"cannot write {path}: the file exists already",
            "give another name, or --force to replace the file",
        )


def write_text_file_atomically(path: Path, text: str) -> None:
    """Put the text in place of what was there, by a rename. Raises HpctlError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise HpctlError(
            f"cannot write {path}: {error.strerror}",
            "name a file in a directory where you may write",
        ) from error
