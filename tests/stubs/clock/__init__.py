"""A wall clock that a test sets for some processes alone."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def build(directory: Path) -> Path:
    """Compile the library that is to be preloaded, and return its path."""
    library = directory / "clock.so"
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    return library
