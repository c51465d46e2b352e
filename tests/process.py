"""Commands as the tests run them: to their end, bounded in time, with their output as text."""

import subprocess
from collections.abc import Sequence
from os import PathLike
from typing import Any


def run_text(
    args: Sequence[str | PathLike[str]], timeout: float = 60, check: bool = False, **more: Any
) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run` with the output captured as text."""
    return subprocess.run(
        args, timeout=timeout, check=check, capture_output=True, text=True, **more
    )
