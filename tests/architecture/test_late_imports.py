"""Imports of hpctl's own modules inside functions: only where a start must not pay for them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, python_files, tree

LATE = {
    "hpctl/cli/*.py": "a command imports what it needs when it is called",
    "hpctl/clusters/commands/*.py": "a command imports what it needs when it is called",
    "hpctl/*/command.py": "a command imports what it needs when it is called",
    "hpctl/*/*/command.py": "a command imports what it needs when it is called",
    "hpctl/*/*_command.py": "a command imports what it needs when it is called",
    "hpctl/nodes/acceptance/*_command.py": "a command imports what it needs when it is called",
    "hpctl/detection/triage.py": "a command imports what it needs when it is called",
    "hpctl/checkpoints/advise.py": "a command imports what it needs when it is called",
    "hpctl/sandbox/training/__main__.py": "a command imports what it needs when it is called",
    "hpctl/jobs/run/script_end.py": "a job that Slurm ends is not kept waiting",
    "hpctl/toolkit/*.py": "every command starts with it; rich and YAML are slow to import",
    "hpctl/clusters/arguments.py": "options of commands, which `--help` imports",
    "hpctl/jobs/arguments.py": "options of commands, which `--help` imports",
    "hpctl/engine/completion.py": "shell completion answers while somebody types",
    "hpctl/engine/adapters.py": "imports the one adapter that the configuration names",
    "hpctl/engine/aws_account.py": "boto3 is slow to import",
    "hpctl/clusters/service_model.py": "boto3 is slow to import",
    "hpctl/checkpoints/remote.py": "boto3 is slow to import",
    "hpctl/nodes/evidence/bucket.py": "boto3 is slow to import, and a node may lack it",
    "hpctl/engine/config_loading.py": "YAML is slow to import",
    "hpctl/engine/journal/creation.py": "SQLAlchemy is slow to import; `install` creates one file",
    "hpctl/engine/journal/opening.py": "SQLAlchemy is slow to import, and SQLite needs none",
    "hpctl/faults/slurm_reasons.py": "read commands start in 0.2 s; the fault table is long",
    "hpctl/engine/request_client.py": "read commands start in 0.2 s",
    "hpctl/engine/world.py": "read commands start in 0.2 s",
    "hpctl/engine/world_reader.py": "read commands start in 0.2 s; offline reading is rare",
    "hpctl/engine/world_offline.py": "read commands start in 0.2 s",
    "hpctl/checkpoints/explain.py": "read commands start in 0.2 s",
    "hpctl/detection/config.py": "the agent has no YAML in memory where it has no file",
    "hpctl/vocabulary/policy_file.py": "presets are read only for a policy that names one",
    "hpctl/jobs/spank.py": "starts once for each srun",
    "hpctl/jobs/sbatch/context.py": "starts once for each sbatch",
    "hpctl/slurm/node_address.py": "a launcher that needs no look-up starts with half the imports",
    "hpctl/jobs/elastic/*.py": "starts once on each node of a job; a restart waits for it",
    "hpctl/checkpoints/resume.py": "starts once for each run of a job",
    "hpctl/sandbox/supervisor.py": "a sandbox without an emulator starts without moto",
}
"""Which files import late, and why."""

PACKAGE = python_files("hpctl")


def name_module(path: Path) -> str:
    """Return the dotted name of a file's module."""
    name = ".".join(path.with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {name_module(path) for path in PACKAGE}


def list_imported(node: ast.AST) -> list[str]:
    """Return hpctl's modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in MODULES]
    if not isinstance(node, ast.ImportFrom) or node.module not in MODULES:
        return []
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in MODULES else node.module for name in names]


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def find_late(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the modules of each import inside a function."""
    for outer in ast.walk(tree(path)):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(outer):
                if found := list_imported(node):
                    yield node.lineno, found


def find_early(path: Path) -> set[str]:
    """Return the modules that are imported with a file."""
    found: set[str] = set()
    todo: list[ast.AST] = [tree(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types(node):
            continue
        found.update(list_imported(node))
        todo.extend(ast.iter_child_nodes(node))
    return found


EARLY = {name_module(path): find_early(path) for path in PACKAGE}


def list_loaded(module: str) -> set[str]:
    """Return all of hpctl's modules that importing one loads."""
    loaded: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name not in loaded:
            loaded.add(name)
            todo.extend(EARLY.get(name, ()))
            todo.append(name.rpartition(".")[0])
    return loaded


def test_an_import_inside_a_function_defers_something():
    useless = []
    for path in PACKAGE:
        loaded = list_loaded(name_module(path))
        useless += [
            f"{path}:{line} {names}" for line, names in find_late(path) if loaded.issuperset(names)
        ]
    assert useless == [], "these modules are loaded already: import them at the top"


def test_only_listed_files_import_late():
    late = [path for path in PACKAGE if any(find_late(path))]
    unlisted = [path for path in late if not any(path.match(pattern) for pattern in LATE)]
    assert unlisted == [], "import at the top, or give the reason in LATE"


@pytest.mark.parametrize("pattern", LATE)
def test_no_reason_outlives_its_imports(pattern: str):
    files = [path.relative_to(ROOT) for path in ROOT.glob(pattern)]
    assert any(any(find_late(path)) for path in files)
