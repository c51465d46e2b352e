#!/usr/bin/env python3
"""Move the project's modules to other paths, split them, and rewrite every reference to them.

    python3 tools/move/move_modules.py MAP        run in the repository's root, on a clean tree

The map is the reviewed part; this script applies it mechanically and changes no statement but
imports. Each line of the map is one of

    OLD -> NEW                  a file moves (any kind of file)
    OLD#SECTION -> NEW          the statements below the banner `# --- SECTION ---` move to a file
                                separate; `top` is what precedes the first banner
    OLD:NAME,NAME -> NEW        the statements that bind these names move (wins over a section)
    doc NEW TEXT                the docstring of a file that is made by a split
    text OLD => NEW             a literal replacement in every tracked text file
    skip PATH                   a file that is not Python and is left to a person

It rewrites `import` statements at any depth, attributes of imported modules, and dotted names and
paths in strings, comments and documents. What it cannot decide it prints, and exits with 1 before
it writes anything: two files of one split that need each other, a statement without a home, a
`global` statement across a split.
"""

from __future__ import annotations

import ast
import re
import subprocess
import symtable
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

BANNER = re.compile(r"^# -{3,} (?P<title>.+?) -{3,}\s*$")
PACKAGES = ("hpctl", "tests", "docgen", "benchmarks")
TEXT_SUFFIXES = {
    *(".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".in", ".service", ".socket", ".txt"),
    *(".json", ".cfg", ".c", "", ".html", ".slice", ".path"),
}


def dotted(path: str) -> str:
    """Return the module name of a Python file's path."""
    name = path.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


@dataclass
class Module:
    """One Python file before the move, and where its statements go."""

    path: str
    text: str
    tree: ast.Module
    whole: str | None = None
    sections: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the module's dotted name."""
        return dotted(self.path)

    @property
    def is_split(self) -> bool:
        """Return whether its statements go to several files."""
        return bool(self.sections or self.names)


@dataclass
class Edit:
    """A replacement of the characters from `start` to `end` of a text."""

    start: int
    end: int
    text: str


class Problems(list):
    """What a person must decide; printed together."""

    def add(self, text: str) -> None:
        """Add a problem once."""
        if text not in self:
            self.append(text)


PROBLEMS = Problems()


# The map


@dataclass
class Plan:
    """The parsed map."""

    files: dict[str, str] = field(default_factory=dict)
    sections: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    names: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    docs: dict[str, str] = field(default_factory=dict)
    texts: list[tuple[str, str]] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)


def read_plan(path: Path) -> Plan:
    """Read the map. Raises SystemExit for a line that is none of its forms."""
    plan = Plan()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("//"):
            continue
        if line.startswith("doc "):
            _, target, text = line.split(" ", 2)
            plan.docs[target] = text.replace("\\n", "\n")
        elif line.startswith("skip "):
            plan.skipped.add(line.removeprefix("skip "))
        elif line.startswith("text "):
            old, new = line.removeprefix("text ").split(" => ")
            plan.texts.append((old, new))
        elif " -> " in line:
            old, new = (part.strip() for part in line.split(" -> "))
            if "#" in old:
                file, section = old.split("#")
                plan.sections[file][section] = new
            elif ":" in old:
                file, names = old.split(":")
                for name in names.split(","):
                    plan.names[file][name.strip()] = new
            else:
                plan.files[old] = new
        else:
            raise SystemExit(f"{path}:{number}: not a line of a map: {line}")
    return plan


NO_MODULES = {"hpctl.yaml"}
"""Names of modules that mean something else in a text: here the daemon's configuration file."""
PARENTS = re.compile(r"__file__\)(?:\.resolve\(\))?\.parents\[(\d)\]")

# Reading


def tracked_files() -> list[str]:
    """Return the files that git tracks and that are there."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, check=True
    ).stdout.decode()
    return [name for name in listing.split("\0") if name and Path(name).is_file()]


def line_starts(text: str) -> list[int]:
    """Return the offset at which each line begins, and the end."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


class Positions:
    """Character offsets of a syntax tree's nodes (their columns count UTF-8 bytes)."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = line_starts(text)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line and a column in bytes."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def start(self, node: ast.AST) -> int:
        """Return the offset at which a node begins."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.AST) -> int:
        """Return the offset at which a node ends."""
        return self.offset(node.end_lineno, node.end_col_offset)


def bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds in its module."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    found: set[str] = set()
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(
            node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        ):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        todo.extend(ast.iter_child_nodes(node))
    return found


def used_names(node: ast.AST) -> set[str]:
    """Return the names that a piece of code looks up in its module; quoted annotations too."""
    table = symtable.symtable(ast.unparse(node), "piece", "exec")
    found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    todo = list(table.get_children())
    while todo:
        scope = todo.pop()
        found |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        todo += scope.get_children()
    for part in ast.walk(node):
        notes = []
        if isinstance(part, ast.arg) and part.annotation is not None:
            notes.append(part.annotation)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.returns is not None:
            notes.append(part.returns)
        if isinstance(part, ast.AnnAssign):
            notes.append(part.annotation)
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Name)
            and part.func.id == "cast"
        ):
            notes += part.args[:1]
        for note in notes:
            for constant in ast.walk(note):
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    found |= set(re.findall(r"[A-Za-z_]\w*", constant.value))
    return found


def is_logger(statement: ast.stmt) -> bool:
    """Return whether a statement makes the module's logger, which each module has for itself."""
    return (
        isinstance(statement, ast.Assign)
        and ast.unparse(statement.value) == "logging.getLogger(__name__)"
    )


@dataclass
class Block:
    """A top-level statement with the comments above it and the docstring below it."""

    statements: list[ast.stmt]
    start: int
    end: int
    section: str

    @property
    def names(self) -> set[str]:
        """Return the names that the block binds."""
        return set().union(*(bound_names(s) for s in self.statements))


def is_import(statement: ast.stmt) -> bool:
    """Return whether a statement only imports, or guards imports for type checkers."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    guard = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    return guard and all(isinstance(s, ast.Import | ast.ImportFrom) for s in statement.body)


def blocks_of(module: Module) -> list[Block]:
    """Cut a module into blocks; banners and the module's docstring belong to none."""
    text, positions = module.text, Positions(module.text)
    lines = text.splitlines(keepends=True)
    starts = line_starts(text)
    banners = {
        n: m["title"] for n, line in enumerate(lines, 1) if (m := BANNER.match(line.rstrip("\n")))
    }
    body = list(module.tree.body)
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    blocks: list[Block] = []
    section, before = "top", 0
    if len(body) != len(module.tree.body):
        before = module.tree.body[0].end_lineno
    for statement in body:
        first = min(
            [statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))]
        )
        for number in range(before + 1, first):
            if number in banners:
                section = banners[number]
                before = number
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if docstring and isinstance(statement.value.value, str) and blocks:
            blocks[-1].statements.append(statement)
            blocks[-1].end = positions.end(statement)
        else:
            lead = starts[before]
            while lead < starts[first - 1] and text[lead] == "\n":
                lead += 1
            blocks.append(Block([statement], lead, positions.end(statement), section))
            # A comment behind the statement on its last line.
            rest = text[blocks[-1].end :].split("\n", 1)[0]
            if rest.strip().startswith("#"):
                blocks[-1].end += len(rest)
        before = statement.end_lineno
    return blocks


def import_line(module: str, local: str) -> str:
    """Return the statement that imports a module under a local name."""
    package, _, last = module.rpartition(".")
    return f"from {package} import {last}" + (f" as {local}" if local != last else "")


# Where everything goes


class Homes:
    """The new home of every module and of every name in a split module."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self.modules = modules
        self.name_home: dict[tuple[str, str], str] = {}
        self.pieces: dict[str, dict[str, list[Block]]] = {}
        for module in modules.values():
            if module.is_split:
                self._place(module)

    def _place(self, module: Module) -> None:
        pieces: dict[str, list[Block]] = defaultdict(list)
        for block in blocks_of(module):
            if all(is_import(s) for s in block.statements):
                continue
            if is_logger(block.statements[0]):
                pieces["*logger"].append(block)
                continue
            named = {module.names[name] for name in block.names if name in module.names}
            if len(named) > 1:
                PROBLEMS.add(f"{module.path}: one statement for two files: {sorted(block.names)}")
            target = next(iter(named), None) or module.sections.get(block.section)
            target = target or module.whole
            if target is None:
                PROBLEMS.add(
                    f"{module.path}: no home for {sorted(block.names)} in section {block.section!r}"
                )
                continue
            pieces[target].append(block)
            for name in block.names:
                self.name_home[module.name, name] = dotted(target)
        unknown = set(module.names) - set().union(
            *(b.names for bs in pieces.values() for b in bs), set()
        )
        if unknown:
            PROBLEMS.add(f"{module.path}: the map names what it does not bind: {sorted(unknown)}")
        self.pieces[module.path] = pieces

    def of_module(self, name: str) -> str | None:
        """Return the new name of an old module; None where it was split into several."""
        module = self.modules.get(name)
        if module is None:
            return name
        if module.is_split:
            return None
        return dotted(module.whole or module.path)

    def of_value(self, module: str) -> str:
        """Return the file that stands for a split module where the module itself is a value."""
        old = self.modules[module]
        main = old.whole if old.whole in self.pieces[old.path] else None
        return dotted(main or old.sections.get("top") or next(iter(self.pieces[old.path])))

    def of_user(self, module: str, name: str) -> str:
        """Return the first file of a split module that uses a name which the module imports."""
        for target, blocks in self.pieces[self.modules[module].path].items():
            if any(name in used_names(s) for block in blocks for s in block.statements):
                return dotted(target)
        return self.of_value(module)

    def of_name(self, module: str, name: str) -> str:
        """Return the new module that binds a name of an old module."""
        old = self.modules.get(module)
        if old is None or not old.is_split:
            return self.of_module(module) or module
        home = self.name_home.get((module, name))
        if home is not None:
            return home
        for statement in old.tree.body:  # What it imports itself and hands on.
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self.of_user(module, name)
            if isinstance(statement, ast.ImportFrom) and statement.module:
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self.of_name(statement.module, alias.name)
        PROBLEMS.add(f"{module}: nothing binds {name!r}")
        return module


# Scopes

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def binds(function: ast.AST, name: str) -> bool:
    """Whether a function has a local variable of that name."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    if any(argument.arg == name for argument in every):
        return True
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if (
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Store | ast.Del)
        ):
            return True
        imported = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        if any((alias.asname or alias.name.split(".")[0]) == name for alias in imported):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                return True
            continue
        if not isinstance(node, ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return False


def scope_of(tree: ast.Module, wanted: ast.AST) -> ast.AST:
    """Return the innermost function that holds a node, or the module."""
    found: ast.AST = tree
    for function in ast.walk(tree):
        if isinstance(function, FUNCTIONS) and any(node is wanted for node in ast.walk(function)):
            found = function  # ast.walk comes to outer functions first
    return found


def nodes_in_scope(scope: ast.AST, name: str) -> list[ast.AST]:
    """Return the nodes of a scope in which a name means what that scope binds to it."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, FUNCTIONS) and binds(node, name):
            todo += [
                *getattr(node, "decorator_list", []),
                *node.args.defaults,
                *node.args.kw_defaults,
            ]
            todo = [one for one in todo if one is not None]
            continue
        found.append(node)
        todo += ast.iter_child_nodes(node)
    return found


# Rewriting one file


def banner_edits(text: str) -> list[Edit]:
    """Return the edits that drop the banners of a file that is not split."""
    edits, start = [], 0
    for line in text.splitlines(keepends=True):
        if BANNER.match(line.rstrip("\n")):
            edits.append(Edit(start, start + len(line), ""))
        start += len(line)
    return edits


class Rewriter:
    """Makes the edits of one file's imports, module attributes and strings."""

    def __init__(self, module: Module, homes: Homes, replace_text: object) -> None:
        self.module, self.homes = module, homes
        self.positions = Positions(module.text)
        self.edits: list[Edit] = []
        self.replace_text = replace_text
        self.locals: dict[str, str] = {}
        self.stored = self._stored_names()

    def _stored_names(self) -> set[str]:
        found = set()
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
        return found

    def import_lines(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        """Return the statements that replace one import."""
        if isinstance(node, ast.Import):
            lines = []
            for alias in node.names:
                new = self.homes.of_module(alias.name)
                if alias.name in self.homes.modules and new is None:
                    PROBLEMS.add(f"{self.module.path}:{node.lineno}: import of split {alias.name}")
                    new = alias.name
                if alias.name in self.homes.modules and new != alias.name and alias.asname is None:
                    self._rename_dotted(alias.name, new)
                lines.append(f"import {new}" + (f" as {alias.asname}" if alias.asname else ""))
            return lines
        if node.level or not node.module or node.module.split(".")[0] not in PACKAGES:
            return [ast.unparse(node)]
        groups: dict[str, list[str]] = defaultdict(list)
        lines = []
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if full in self.homes.modules:
                lines += self._module_import(full, alias, node)
                continue
            home = self.homes.of_name(node.module, alias.name)
            groups[home].append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
        lines += [
            f"from {home} import {', '.join(sorted(names))}"
            for home, names in sorted(groups.items())
        ]
        return lines

    def _module_import(self, full: str, alias: ast.alias, node: ast.ImportFrom) -> list[str]:
        local = alias.asname or alias.name
        original = getattr(node, "original", node)
        nodes = nodes_in_scope(scope_of(self.module.tree, original), local)
        new = self.homes.of_module(full)
        if new is None:
            return [
                import_line(home, self._local_of(home))
                for home in sorted(self._split_uses(full, local, nodes))
            ]
        last = new.rpartition(".")[2]
        if local == last or alias.asname:
            return [import_line(new, alias.asname or last)]
        chosen = self._local_of(new)
        self._rename_name(local, chosen, nodes)
        return [import_line(new, chosen)]

    def _local_of(self, home: str) -> str:
        """Return the local name of a module in this file: its own, unless that is taken."""
        if home not in self.locals:
            parent, last = home.split(".")[-2:]
            taken = self.stored | self._imported() | set(self.locals.values())
            free = [
                name for name in (last, f"{parent}_{last}", f"{last}_module") if name not in taken
            ]
            self.locals[home] = free[0]
        return self.locals[home]

    def _imported(self) -> set[str]:
        """Return the names that stay bound by imports of something else than a module of ours."""
        found = set()
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Import):
                found |= {a.asname or a.name.split(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    new = self.homes.of_module(f"{node.module}.{alias.name}")
                    ours = f"{node.module}.{alias.name}" in self.homes.modules
                    keeps = new is not None and new.rpartition(".")[2] == alias.name
                    if alias.asname or not ours or keeps:
                        found.add(alias.asname or alias.name)
        return found

    def _rename_name(self, old: str, new: str, nodes: list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.Name) and node.id == old:
                self._edit(self.positions.start(node), self.positions.end(node), new)

    def _rename_dotted(self, old: str, new: str) -> None:
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == old:
                self._edit(self.positions.start(node), self.positions.end(node), new)

    def _split_uses(self, full: str, local: str, nodes: list[ast.AST]) -> set[str]:
        """Point each `local.NAME` at the home of NAME; return the homes."""
        homes: set[str] = set()
        done: set[int] = set()

        def point(name: ast.Name, home: str) -> None:
            if home.split(".")[0] not in PACKAGES:
                home = self.homes.of_value(full)
            homes.add(home)
            done.add(id(name))
            new = self._local_of(home)
            self._edit(self.positions.start(name), self.positions.end(name), new)

        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == local:
                    point(node.value, self.homes.of_name(full, node.attr))
            elif isinstance(node, ast.Call):
                names = [a for a in node.args if isinstance(a, ast.Name) and a.id == local]
                texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
                if names and texts and isinstance(texts[0], str):
                    known = (full, texts[0]) in self.homes.name_home
                    home = self.homes.of_name if known else self.homes.of_user
                    point(names[0], home(full, texts[0]))
        for node in nodes:
            if isinstance(node, ast.Name) and node.id == local and id(node) not in done:
                point(node, self.homes.of_value(full))
        return homes

    def _edit(self, start: int, end: int, text: str) -> None:
        if not any(e.start == start and e.end == end for e in self.edits):
            self.edits.append(Edit(start, end, text))

    def rewrite_imports(self, node: ast.AST, *, inner_only: bool) -> None:
        """Edit the imports in place; of a split module, only those inside functions."""
        for part in ast.walk(node):
            if not isinstance(part, ast.Import | ast.ImportFrom):
                continue
            lines = self.import_lines(part)
            if inner_only and part in self._outer():
                continue
            if lines == [ast.unparse(part)]:
                continue
            indent = " " * part.col_offset
            self._edit(
                self.positions.start(part), self.positions.end(part), f"\n{indent}".join(lines)
            )

    def _outer(self) -> list[ast.stmt]:
        outer: list[ast.stmt] = []
        for statement in self.module.tree.body:
            if is_import(statement):
                outer += [statement, *getattr(statement, "body", [])]
        return outer

    def rewrite_texts(self) -> None:
        """Replace dotted names and paths wherever no other edit stands."""
        taken = sorted((e.start, e.end) for e in self.edits)
        imports = [
            (self.positions.start(n), self.positions.end(n))
            for n in ast.walk(self.module.tree)
            if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        for edit in self.replace_text(self.module.text):
            if not any(s < edit.end and edit.start < e for s, e in [*taken, *imports]):
                self.edits.append(edit)

    def rewrite_depths(self, target: str) -> None:
        """Keep `Path(__file__).parents[N]` at the same folder when the file's depth changes."""
        deeper = target.count("/") - self.module.path.count("/")
        if not deeper:
            return
        for match in PARENTS.finditer(self.module.text):
            number = int(match[1]) + deeper
            self._edit(match.start(1), match.end(1), str(number))

    def apply(self, start: int, end: int) -> str:
        """Return a part of the text with the edits that lie in it."""
        text = self.module.text[start:end]
        for edit in sorted(self.edits, key=lambda e: e.start, reverse=True):
            if start <= edit.start and edit.end <= end:
                text = text[: edit.start - start] + edit.text + text[edit.end - start :]
        return text


def render_split(
    module: Module, homes: Homes, rewriter: Rewriter, docs: dict[str, str]
) -> dict[str, str]:
    """Return the texts of the files that a split module becomes."""
    pieces = dict(homes.pieces[module.path])
    loggers = pieces.pop("*logger", [])
    rendered = {}
    imports = [s for b in blocks_of(module) for s in b.statements if is_import(s)]
    needs: dict[str, set[str]] = {}
    for target, blocks in pieces.items():
        used = set().union(*(used_names(s) for b in blocks for s in b.statements))
        for block in loggers:
            if block.names & used:
                used |= set().union(*(used_names(s) for s in block.statements))
        own = set().union(*(b.names for b in blocks))
        head: list[str] = []
        guarded: list[str] = []
        for statement in imports:
            inner = statement.body if isinstance(statement, ast.If) else [statement]
            for one in inner:
                chosen = [
                    a
                    for a in one.names
                    if (a.asname or a.name.split(".")[0]) in used
                    or (isinstance(one, ast.ImportFrom) and one.module == "__future__")
                ]
                if not chosen:
                    continue
                part = (
                    ast.copy_location(ast.ImportFrom(one.module, chosen, one.level), one)
                    if isinstance(one, ast.ImportFrom)
                    else ast.copy_location(ast.Import(chosen), one)
                )
                lines = split_import_lines(rewriter, part, blocks)
                (guarded if isinstance(statement, ast.If) else head).extend(lines)
        if guarded:
            head.append("from typing import TYPE_CHECKING")
        wanted: dict[str, list[str]] = defaultdict(list)
        for name in sorted(used - own):
            home = homes.name_home.get((module.name, name))
            if home and home != dotted(target):
                wanted[home].append(name)
        needs[target] = set(wanted)
        head += [f"from {home} import {', '.join(names)}" for home, names in sorted(wanted.items())]
        old_doc = ast.get_docstring(module.tree, clean=False)
        is_main = module.whole == target or module.sections.get("top") == target
        doc = docs.get(target) or (old_doc if is_main else None)
        if doc is None:
            PROBLEMS.add(f"{target}: a `doc` line is missing")
            doc = "?"
        parts = [f'"""{doc}"""', "\n".join(head)]
        if guarded:
            parts.append("if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in guarded))
        for block in loggers:
            if block.names & used:
                parts.append(rewriter.apply(block.start, block.end))
        parts += [rewriter.apply(b.start, b.end) for b in sorted(blocks, key=lambda b: b.start)]
        rendered[target] = "\n\n\n".join(part for part in parts if part.strip()) + "\n"
        for block in blocks:
            for node in ast.walk(ast.Module(block.statements, [])):
                if isinstance(node, ast.Global) and set(node.names) - own:
                    PROBLEMS.add(f"{module.path}: global {node.names} across the split to {target}")
    for one, homes_needed in needs.items():
        for other in homes_needed:
            back = {dotted(t): n for t, n in needs.items()}.get(other, set())
            if dotted(one) in back:
                PROBLEMS.add(f"{module.path}: {one} and {other} need each other")
    return rendered


def split_import_lines(
    rewriter: Rewriter, node: ast.Import | ast.ImportFrom, blocks: list[Block]
) -> list[str]:
    """Return the statements that import for one piece of a split file."""
    lines = rewriter.import_lines(node)
    if not isinstance(node, ast.ImportFrom):
        return lines
    kept = []
    for line in lines:
        match = re.match(r"from (\S+) import (\w+)(?: as (\w+))?$", line)
        if match and f"{match[1]}.{match[2]}" in set(rewriter.homes.name_home.values()):
            text = "".join(rewriter.apply(b.start, b.end) for b in blocks)
            if not re.search(rf"\b{match[3] or match[2]}\b", text):
                continue
        kept.append(line)
    return kept


def text_replacer(modules: dict[str, Module], plan: Plan, homes: Homes):
    """Return a function from a text to the edits of old dotted names and paths in it."""
    paths = dict(plan.files)
    for module in modules.values():
        if module.is_split:
            paths.setdefault(module.path, module.sections.get("top") or module.whole or module.path)
    name_pattern = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+(?![-/\w]|\.\w)")
    path_pattern = re.compile(
        rf"(?<![\w/])(?:{'|'.join(PACKAGES)}|lifecycle_scripts|slurm_plugins)(?:/[\w.-]+)+"
    )

    def find(text: str) -> list[Edit]:
        edits = []
        for old, new in plan.texts:
            at = text.find(old)
            while at >= 0:
                edits.append(Edit(at, at + len(old), new))
                at = text.find(old, at + len(old))
        for match in path_pattern.finditer(text):
            found = match[0].rstrip(".")
            if found in paths and paths[found] != found:
                edits.append(Edit(match.start(), match.start() + len(found), paths[found]))
            elif f"{found}.py" in paths and paths[f"{found}.py"] != f"{found}.py":
                edits.append(
                    Edit(
                        match.start(),
                        match.start() + len(found),
                        paths[f"{found}.py"].removesuffix(".py"),
                    )
                )
        for match in name_pattern.finditer(text):
            parts = match[0].split(".")
            for length in range(len(parts), 1, -1):
                old = ".".join(parts[:length])
                if old not in modules or old in NO_MODULES:
                    continue
                module, rest = modules[old], parts[length:]
                entry = re.match(r":(\w+)", text[match.end() :])
                if entry and not rest and (old, entry[1]) in homes.name_home:
                    rest = [entry[1]]
                if module.is_split and rest and (old, rest[0]) in homes.name_home:
                    new = homes.name_home[old, rest[0]]
                else:
                    new = dotted(paths.get(module.path, module.path))
                if new != old:
                    edits.append(Edit(match.start(), match.start() + len(old), new))
                break
        chosen: list[Edit] = []
        for edit in edits:
            if not any(e.start < edit.end and edit.start < e.end for e in chosen):
                chosen.append(edit)
        return chosen

    return find


def apply_edits(text: str, edits: list[Edit]) -> str:
    """Return a text with edits that do not overlap."""
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def make_packages(written: dict[str, str | None]) -> None:
    """Make every folder with modules a package, and delete packages that are empty now."""
    for target in [*written]:
        folder = Path(target).parent
        while target.endswith(".py") and len(folder.parts) and folder.parts[0] in PACKAGES:
            if not (folder / "__init__.py").exists():
                (folder / "__init__.py").touch()
            folder = folder.parent
    for package in PACKAGES:
        for init in sorted(Path(package).rglob("__init__.py"), reverse=True):
            others = [
                p for p in init.parent.iterdir() if p.name not in ("__init__.py", "__pycache__")
            ]
            if not others and not init.read_text().strip():
                subprocess.run(["git", "rm", "-qf", "--ignore-unmatch", str(init)], check=True)
                init.unlink(missing_ok=True)


def main() -> int:
    """Apply the map. Returns the exit code."""
    plan = read_plan(Path(sys.argv[1]))
    files = tracked_files()
    skipped = plan.skipped
    modules: dict[str, Module] = {}
    for path in files:
        if path.endswith(".py") and path.split("/")[0] in PACKAGES:
            text = Path(path).read_text()
            modules[dotted(path)] = Module(
                path,
                text,
                ast.parse(text),
                plan.files.get(path, path),
                plan.sections.get(path, {}),
                plan.names.get(path, {}),
            )
    known = set(files)
    for old in [*plan.files, *plan.sections, *plan.names]:
        if old not in known:
            PROBLEMS.add(f"the map names a file that is not there: {old}")
    homes = Homes(modules)
    replace_text = text_replacer(modules, plan, homes)
    written: dict[str, str] = {}
    for module in modules.values():
        rewriter = Rewriter(module, homes, replace_text)
        rewriter.rewrite_imports(module.tree, inner_only=module.is_split)
        rewriter.rewrite_texts()
        rewriter.rewrite_depths(module.whole or module.path)
        if module.is_split:
            texts = render_split(module, homes, rewriter, plan.docs)
        else:
            rewriter.edits += banner_edits(module.text)
            texts = {module.whole or module.path: rewriter.apply(0, len(module.text))}
        for target, text in texts.items():
            if target in written:
                PROBLEMS.add(f"two files become {target}")
            written[target] = text
    for path in files:
        if path.endswith(".py") and path.split("/")[0] in PACKAGES:
            continue
        target = plan.files.get(path, path)
        if Path(path).suffix not in TEXT_SUFFIXES or path in skipped or Path(path).is_symlink():
            if target != path:
                written[target] = None  # moved by git below
            continue
        try:
            text = Path(path).read_text()
        except UnicodeDecodeError:
            continue
        new = apply_edits(text, replace_text(text))
        if new != text or target != path:
            written[target] = new
    if PROBLEMS:
        print("\n".join(PROBLEMS))
        return 1
    modes = {path: Path(path).stat().st_mode for path in files}
    for old, new in plan.files.items():
        if old != new and new in written:
            Path(new).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", old, new], check=True)
    for module in modules.values():
        if not module.is_split or module.path in homes.pieces[module.path]:
            continue
        main_piece = module.whole if module.whole in written else module.sections.get("top")
        if main_piece in written and not Path(main_piece).exists():
            Path(main_piece).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", module.path, main_piece], check=True)
        elif Path(module.path).exists() and module.path not in written:
            subprocess.run(["git", "rm", "-qf", module.path], check=True)
    for target, text in written.items():
        if text is not None:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).write_text(text)
    make_packages(written)
    for old, new in plan.files.items():
        if Path(new).exists() and old in modes:
            Path(new).chmod(modes[old] & 0o777)
    subprocess.run(["git", "add", "-A"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
