"""What the ranks run: the words after `--`, as a command."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hpctl.errors import HpctlError

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?\Z")


@dataclass(frozen=True, slots=True)
class Program:
    """`argv` starts a rank. `script` is the Python file that it runs, empty for anything else."""

    argv: tuple[str, ...]
    script: str = ""

    def check(self) -> None:
        """Raises FileNotFoundError where the script is not there, which Python itself would tell
        by exit code 2 alone."""
        if self.script:
            Path(self.script).stat()


def program(words: Sequence[str], python: str = "") -> Program:
    """Read the words as torchrun does (`script.py ...`, `-m module ...`), or as a whole command.

    Raises HpctlError where there are none.
    """
    if not words:
        raise HpctlError("nothing to run", "Give the training script after `--`.")
    if words[0].endswith(".py") or words[0] == "-m":
        interpreter = python or default_python()
        return _python(interpreter, tuple(words))
    if _PYTHON.match(words[0]):
        rest = tuple(words[1:])
        if rest[:1] == ("-u",):
            rest = rest[1:]
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return _python(words[0], rest)
    return Program(tuple(words))


def _python(interpreter: str, rest: tuple[str, ...]) -> Program:
    if rest == ("-m",):
        raise HpctlError("-m without a module", "Give the module's name after -m.")
    return Program((interpreter, "-u", *rest), "" if rest[0] == "-m" else rest[0])


def default_python() -> str:
    """The interpreter that has torch: our own if it does, else the first `python` on PATH.

    hpctl may live in an environment of its own; the user's is the activated one.
    """
    if find_spec("torch") is not None:
        return sys.executable
    return shutil.which("python") or shutil.which("python3") or sys.executable
