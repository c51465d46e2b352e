"""The rooms of features, each of which can be removed, and what outside of a room may name it."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from tests.architecture.source import imports, python_files, text, tracked, tree

COMMANDS = "hpctl/cli/main.py"
SHOWN = "hpctl/cli/features.py"
KINDS = "hpctl/daemon/kinds.py"
DAEMON = "hpctl/daemon/composition.py"


class Room(Struct, frozen=True, kw_only=True):
    """A room that can be removed.

    `listed`: the files whose lines go with it. `handed`: by the room of another feature, the file
    that names this one only to hand something of it to that feature. `whole`: the modules elsewhere
    that serve it alone and go with it. `bound`: the rooms and files that cannot do without it, and
    why; they go as well. `by_name`: the files that hold a module's name as text, to run it, and why
    that is no import.
    """

    listed: tuple[str, ...]
    handed: Mapping[str, str] = {}
    whole: tuple[str, ...] = ()
    bound: Mapping[str, str] = {}
    by_name: Mapping[str, str] = {}


SAVES = "its training saves in hpctl's own format, which the demo shows"
DEMO = "the demo kills a node under that training"
RESUMES = "a job resumes from its checkpoints: which is the newest whole one decides each start"

ROOMS: Mapping[str, Room] = {
    "hpctl.service": Room(
        listed=(COMMANDS, SHOWN, DAEMON, "hpctl/daemon/configuration_checks.py"),
        whole=(
            "hpctl/daemon/intake.py",
            "hpctl/daemon/page_command.py",
            "docgen/metrics.py",
            "docgen/alerts.py",
            "docgen/dashboards.py",
        ),
    ),
    "hpctl.insight": Room(listed=(COMMANDS, DAEMON), handed={"hpctl.capacity": KINDS}),
    "hpctl.capacity": Room(listed=(COMMANDS, KINDS)),
    "hpctl.nodes.acceptance": Room(
        listed=(COMMANDS, SHOWN, KINDS),
        whole=("docgen/cards.py",),
        by_name={
            "hpctl/vocabulary/policy.py": "the default of acceptance.command, a setting",
            "hpctl/jobs/sbatch/preamble.sh": "a job goes ahead where its preflight does not answer",
        },
    ),
    "hpctl.nodes.evidence": Room(listed=(COMMANDS, SHOWN, KINDS, DAEMON)),
    "hpctl.jobs": Room(
        listed=(COMMANDS, SHOWN, KINDS, DAEMON, "hpctl/daemon/intake.py", "docgen/recoveries.py"),
        by_name={"hpctl/detection/outside/sources.py": "run where a daemon asks: jobs' own does"},
    ),
    "hpctl.checkpoints": Room(
        listed=(COMMANDS, SHOWN),
        bound={
            "hpctl/jobs": RESUMES,
            "hpctl/sandbox/training": SAVES,
            "hpctl/sandbox/demo.py": DEMO,
        },
    ),
}
"""By package, from the top room down."""


def folder(package: str) -> str:
    """Return the folder of a package."""
    return package.replace(".", "/")


def is_in(module: str, package: str) -> bool:
    """Whether a module, or a name in one, is of a package."""
    return module == package or module.startswith(f"{package}.")


def find_importers(package: str, under: str) -> Iterator[Path]:
    """Yield the files outside of a package that import from it."""
    for path in python_files(under):
        if path.is_relative_to(folder(package)):
            continue
        if any(is_in(name, package) for name in list_imported(path)):
            yield path


def find_names(package: str, under: str) -> Iterator[Path]:
    """Yield the files outside of a package that hold the name of a module of it as text."""
    for path in tracked():
        if not path.is_relative_to(under) or path.is_relative_to(folder(package)):
            continue
        if any(is_in(name, package) for name in list_named(path)):
            yield path


@functools.cache
def list_imported(path: Path) -> frozenset[str]:
    """Return what of hpctl a module imports, at any depth."""
    return frozenset(name for _, name in imports(path) if name.startswith("hpctl."))


@functools.cache
def list_named(path: Path) -> frozenset[str]:
    """Return the modules of hpctl that a script names, or a text of one line in a module."""
    if path.suffix == ".sh":
        texts = [text(path)]
    elif path.suffix == ".py" and "hpctl." in text(path):
        constants = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Constant))
        texts = [node.value for node in constants if isinstance(node.value, str)]
        texts = [value for value in texts if "\n" not in value]
    else:
        texts = []
    words = (word.partition(":")[0] for value in texts for word in value.split())
    return frozenset(word for word in words if word.startswith("hpctl."))
