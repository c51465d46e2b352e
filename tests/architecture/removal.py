"""Removes a feature room from a copy of the tree, and checks what is left.

`python -m tests.architecture.removal hpctl.insight [--tests]` prints what was deleted, then runs
the formatter, the linter, the type checker, the import contracts and an import of every module;
with `--tests` the quick tests as well. Exit code 1 where one of them fails.

A test that imports the room tests the room, and goes with it, as does the room's folder in tests/.
The pages of docs/ and the tests that hold them against the code are not touched: who removes a
feature edits its pages by hand.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.architecture.pruning import prune
from tests.architecture.rooms import COMMANDS, ROOMS, find_importers, folder, is_in
from tests.architecture.source import ROOT, imports, python_files, tracked

QUICK = "not slurm and not nightly and not slow and not integration"
DOCUMENTS = ("tests/docs", "tests/architecture/test_commands.py")
"""Tests that hold the pages against the code."""
LISTS_OF_THE_WHOLE = (
    "tests/architecture/test_coverage_gate.py",
    "tests/architecture/test_private_names.py",
    "tests/architecture/test_root_file_calls.py",
)
"""Tests that compare a list with all that the tree has, and refuse an entry that nothing needs."""
LISTS = (
    "docgen/generate.py",
    "tests/architecture/rooms.py",
    "tests/architecture/test_bounds.py",
    "tests/architecture/test_broad_excepts.py",
    "tests/architecture/test_declared_views.py",
    "tests/architecture/test_late_imports.py",
    "tests/architecture/test_purity.py",
    "tests/architecture/test_terminal.py",
    "tests/conftest.py",
    "tests/fuzz/targets.py",
)
"""Files that are pruned for every room: tables of all pages, allowances, fixtures and decoders."""
IMPORT_ALL = """
import importlib, pkgutil, docgen.generate, hpctl
for module in pkgutil.walk_packages(hpctl.__path__, "hpctl."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def find_removed(package: str) -> tuple[str, ...]:
    """Return the packages and modules that go, those that cannot do without the room included."""
    room = ROOMS[package]
    paths = [*room.whole, *room.bound]
    for bound in room.bound:
        paths += ROOMS[name].whole if (name := bound.replace("/", ".")) in ROOMS else ()
    return (package, *(name_module(Path(path)) for path in paths))


def name_module(path: Path) -> str:
    """Return the dotted name of a module or of a package's folder."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def find_tests(removed: tuple[str, ...]) -> Iterator[Path]:
    """Yield the tests and benchmarks that import what goes, or each other because of it."""
    left = [p for under in ("tests", "benchmarks") for p in python_files(under)]
    left = [p for p in left if str(p) not in LISTS]
    gone = list(removed)
    found = True
    while found:
        found = False
        for path in list(left):
            if any(is_in(name, one) for _, name in imports(path) for one in gone):
                left.remove(path)
                gone.append(name_module(path))
                found = True
                yield path


def copy_tree(to: Path) -> None:
    """Copy the files that git tracks, into a repository of their own: tests ask git for them."""
    for path in tracked():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, to / path)
    for command in (("init", "--quiet"), ("add", "--all")):
        subprocess.run(["git", *command], cwd=to, check=True)


def remove_room(package: str, copy: Path) -> list[str]:
    """Delete a room from a copy of the tree; return what was deleted."""
    removed = find_removed(package)
    tests = list(find_tests(removed))
    deleted = [*(folder(name) for name in removed), *map(str, tests)]
    own = [folder(name).replace("hpctl", "tests", 1) for name in removed if name in ROOMS]
    for path in (*deleted, *own):
        shutil.rmtree(copy / path, ignore_errors=True)
        (copy / path).unlink(missing_ok=True)
        (copy / path).with_suffix(".py").unlink(missing_ok=True)
    modules = (*removed, *map(name_module, tests))
    for path in list_pruned(removed):
        if (copy / path).is_file():
            (copy / path).write_text(prune((copy / path).read_text(), modules))
    contracts = copy / "pyproject.toml"
    lines = [
        line
        for line in contracts.read_text().splitlines(keepends=True)
        if line.strip() not in {f'"{name}",' for name in removed}
    ]
    text = "".join(lines)
    for name in removed:
        module = rf'"{re.escape(name)}(\.\w+)*"'
        text = re.sub(rf"{module}, |(, )?{module}", "", text)
    contracts.write_text(text)
    return deleted


def list_pruned(removed: tuple[str, ...]) -> list[str]:
    """Return the files whose lines go: the lists of features, and those of every removal."""
    naming = [
        str(path)
        for package in removed
        for under in ("hpctl", "docgen")
        for path in find_importers(package, under)
    ]
    return list(dict.fromkeys([COMMANDS, *naming, *LISTS]))


def check(copy: Path, *, with_tests: bool) -> Iterator[tuple[str, int]]:
    """Yield each check by name with its exit code."""
    bin_dir = Path(sys.executable).parent
    commands: dict[str, Sequence[str]] = {
        "unused imports": (
            f"{bin_dir}/ruff",
            "check",
            "--quiet",
            "--fix-only",
            "--select=F401,I,UP034",
            ".",
        ),
        "format": (f"{bin_dir}/ruff", "format", "--quiet", "."),
        "lint": (f"{bin_dir}/ruff", "check", "--quiet", "."),
        "types": (f"{bin_dir}/mypy",),
        "contracts": (f"{bin_dir}/lint-imports",),
        "imports": (sys.executable, "-c", IMPORT_ALL),
    }
    if with_tests:
        ignored = [f"--ignore={path}" for path in (*DOCUMENTS, *LISTS_OF_THE_WHOLE)]
        tests = (f"{bin_dir}/pytest", "-q", "-n", "2", "-m", QUICK, *ignored, "tests")
        commands["quick tests"] = tests
    environment = os.environ | {"PYTHONPATH": str(copy)}
    for name, command in commands.items():
        ran = subprocess.run(command, cwd=copy, env=environment, check=False)
        yield name, ran.returncode


def main(words: Sequence[str]) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--to", type=Path, help="keep the copy in this folder")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        copy = asked.to or Path(scratch)
        copy_tree(copy)
        for path in remove_room(asked.room, copy):
            print("deleted", path)
        results = list(check(copy, with_tests=asked.tests))
    for name, code in results:
        print(f"{asked.room}: {name}: {'ok' if code == 0 else f'FAILED ({code})'}")
    return int(any(code for _, code in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
