"""The repertoire: one row for each kind of job and each act of an administrator that is tested.

A test declares its row with `story`, and docs/jobs-and-admins.md is generated from the rows, so
the page states only what a test has shown on a real slurmctld.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

FOLDER: Final = Path(__file__).parent
_Test = TypeVar("_Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Story:
    """What is submitted, what happens to it, and what is true afterwards.

    Each text is one sentence or phrase of Markdown without a line break. `explain` and `owner` are
    empty where the story is not about them.
    """

    job: str
    """The kind of job or node: "Array task"."""
    act: str
    """What the administrator, the user or the fault does."""
    slurm: str
    """What is then true in Slurm."""
    explain: str
    """What `hpctl explain` and `hpctl status` state."""
    owner: str
    """What the owner of the job sees or has to do."""


@dataclass(frozen=True)
class Chapter:
    """The stories of one module of tests, below its docstring's first line."""

    module: str
    title: str
    stories: Sequence[Story]


def story(
    *, job: str, act: str, slurm: str, explain: str = "", owner: str = ""
) -> Callable[[_Test], _Test]:
    """Declare the row of a test."""

    def declare(test: _Test) -> _Test:
        vars(test)["story"] = Story(job, act, slurm, explain, owner)
        return test

    return declare


def read_chapters() -> list[Chapter]:
    """Return the chapters, by the names of their modules.

    Raises ValueError: a test has no row, or a row has a line break or a column separator.
    """
    names = sorted(path.stem for path in FOLDER.glob("test_*.py"))
    return [_read_chapter(import_module(f"{__package__}.{name}")) for name in names]


def _read_chapter(module: ModuleType) -> Chapter:
    title = (module.__doc__ or "").partition("\n")[0]
    tests = [(name, each) for name, each in vars(module).items() if name.startswith("test_")]
    stories = [_read_story(module.__name__, name, test) for name, test in tests]
    return Chapter(module.__name__.rpartition(".")[2], title, stories)


def _read_story(module: str, name: str, test: object) -> Story:
    declared = vars(test).get("story")
    if not isinstance(declared, Story):
        raise ValueError(f"{module}.{name} has no row: add @story(job=..., act=..., slurm=...)")
    for field, text in vars(declared).items():
        if "\n" in text or "|" in text:
            raise ValueError(f"{module}.{name}: {field} has a line break or a '|'")
    return declared
