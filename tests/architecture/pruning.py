"""Deletes from a module what names a removed room, and what rests on that, as a person would.

Deleted is the smallest of these that holds the name: an element of a list, an entry of a table, a
keyword argument, a keyword-only parameter, a field of a class, a statement, a function whose other
parameters or result it types. What a deleted statement would have named is deleted as well, and so
is a class without fields and a block without statements.
"""

import ast
from collections.abc import Iterator

from msgspec import Struct, field

from tests.architecture.rooms import is_in

Body = list[ast.stmt]


class Gone(Struct):
    """What is deleted: modules, by prefix; names; fields, by class and name."""

    modules: tuple[str, ...]
    names: set[str] = field(default_factory=set)
    fields: set[tuple[str, str]] = field(default_factory=set)

    def holds(self, module: str) -> bool:
        """Whether a module, or a name in one, is gone."""
        return any(is_in(module, gone) for gone in self.modules)

    def names_place(self, text: str) -> bool:
        """Whether a text is the name of a module that is gone, or begins with its path."""
        first = text.partition(" ")[0]
        path = first.removesuffix(".py").replace("/", ".")
        return self.holds(first) or ("/" in first and self.holds(path))


def prune(text: str, modules: tuple[str, ...]) -> str:
    """Return the module without what names one of the modules.

    A statement of the module in which something is deleted loses its comments.
    """
    tree, gone = ast.parse(text), Gone(modules)
    texts = dict(_list_texts(text, tree))
    before = {statement: ast.dump(statement) for statement in texts}
    while _Pass(gone).run(tree):
        pass
    parts = []
    for statement in tree.body:
        is_same = ast.dump(statement) == before[statement]
        parts.append(texts[statement] if is_same else ast.unparse(statement))
    return "\n".join(parts) + "\n"


def _list_texts(text: str, tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement of a module with its text, the lines before it included."""
    lines, end = text.splitlines(), 0
    for statement in tree.body:
        begin, end = end, statement.end_lineno or 0
        yield statement, "\n".join(lines[begin:end])


class _Pass(ast.NodeTransformer):
    """One walk over a module; `run` says whether it has deleted anything."""

    def __init__(self, gone: Gone) -> None:
        self._gone = gone
        self._deleted = False
        self._types: list[dict[str, str]] = [{}]

    def run(self, tree: ast.Module) -> bool:
        tree.body = list(self._statements(tree.body))
        return self._deleted

    def _statements(self, body: Body) -> Iterator[ast.stmt]:
        for statement in body:
            kept = self._statement(statement)
            if kept is not None:
                yield kept
            else:
                self._deleted = True
                self._gone.names.update(_names_made_by(statement))

    def _statement(self, statement: ast.stmt) -> ast.stmt | None:
        """The statement as it is kept; None where it is deleted."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return self._imports(statement)
        if isinstance(statement, ast.ClassDef):
            return self._class(statement)
        if isinstance(statement, ast.FunctionDef):
            return self._function(statement)
        blocks = [name for name in ("body", "orelse", "finalbody") if getattr(statement, name, [])]
        for name in blocks:
            setattr(statement, name, list(self._statements(getattr(statement, name))))
        if "body" in blocks and not getattr(statement, "body", None):
            return None
        self._expressions(statement)
        return None if self._names_gone(statement) else statement

    def _imports(self, statement: ast.Import | ast.ImportFrom) -> ast.stmt | None:
        module = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
        lost = [alias for alias in statement.names if self._gone.holds(module + alias.name)]
        self._gone.names.update(alias.asname or alias.name for alias in lost)
        if lost:
            self._deleted = True
            statement.names = [alias for alias in statement.names if alias not in lost]
        return statement if statement.names else None

    def _class(self, statement: ast.ClassDef) -> ast.stmt | None:
        fields = [one for one in statement.body if isinstance(one, ast.AnnAssign)]
        for one in fields:
            if isinstance(one.target, ast.Name) and self._names_gone(one.annotation):
                self._gone.fields.add((statement.name, one.target.id))
                statement.body.remove(one)
                self._deleted = True
        if fields and not any(isinstance(one, ast.AnnAssign) for one in statement.body):
            return None
        functions = [one for one in statement.body if isinstance(one, ast.FunctionDef)]
        for one in functions:
            if self._function(one) is None:
                statement.body.remove(one)
                self._deleted = True
        return statement

    def _function(self, function: ast.FunctionDef) -> ast.stmt | None:
        if function.returns is not None and self._names_gone(function.returns):
            return None
        arguments = function.args
        if any(one.annotation and self._names_gone(one.annotation) for one in arguments.args):
            return None
        by_keyword = arguments.kwonlyargs
        for one in [a for a in by_keyword if a.annotation and self._names_gone(a.annotation)]:
            del arguments.kw_defaults[by_keyword.index(one)]
            by_keyword.remove(one)
            self._gone.names.add(one.arg)
            self._deleted = True
        kinds = {
            one.arg: one.annotation.id
            for one in (*arguments.args, *arguments.kwonlyargs)
            if isinstance(one.annotation, ast.Name)
        }
        self._types.append(kinds)
        before, returned = len(function.body), _has_return(function)
        function.body = list(self._statements(function.body))
        self._types.pop()
        emptied = all(isinstance(one, ast.Expr) for one in function.body)
        if len(function.body) < before and (emptied or (returned and not _has_return(function))):
            return None
        return function

    def _expressions(self, statement: ast.stmt) -> None:
        """Delete elements, entries and keyword arguments in a statement."""
        for node in ast.walk(statement):
            if isinstance(node, ast.List | ast.Tuple | ast.Set) and not _is_type(node, statement):
                node.elts = self._kept(node.elts)
            elif isinstance(node, ast.Call):
                node.keywords = self._kept(node.keywords)
            elif isinstance(node, ast.Dict):
                self._entries(node)

    def _kept(self, nodes: list[ast.expr]) -> list[ast.expr]:
        kept = [node for node in nodes if not self._is_lost(node)]
        self._deleted |= len(kept) < len(nodes)
        return kept

    def _is_lost(self, node: ast.AST) -> bool:
        """Whether it is to be deleted itself, and nothing smaller in it."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._gone.names_place(node.value)
        return self._names_gone(node, droppable=False)

    def _entries(self, node: ast.Dict) -> None:
        pairs = [
            (key, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if not (self._is_lost(value) or (key is not None and self._is_lost(key)))
            and not self._is_row_of(value)
            and not (isinstance(value, ast.Dict) and not value.values)
        ]
        self._deleted |= len(pairs) < len(node.values)
        node.keys = [key for key, _ in pairs]
        node.values = [value for _, value in pairs]

    def _is_row_of(self, value: ast.expr) -> bool:
        """Whether a row of a table names a module that is gone, as `module:function`."""
        return isinstance(value, ast.Tuple) and any(
            isinstance(one, ast.Constant)
            and isinstance(one.value, str)
            and self._gone.holds(one.value.partition(":")[0])
            for one in value.elts
        )

    def _names_gone(self, node: ast.AST, *, droppable: bool = True) -> bool:
        """Whether a node rests on what is gone; with `droppable` False, not by a part that can be
        deleted by itself."""
        if isinstance(node, ast.Name):
            return isinstance(node.ctx, ast.Load) and node.id in self._gone.names
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            kind = self._types[-1].get(node.value.id, "")
            if (kind, node.attr) in self._gone.fields:
                return True
        parts = list(ast.iter_child_nodes(node))
        if not droppable:
            parts = [part for part in parts if not _is_droppable(part, node)]
        return any(self._names_gone(part, droppable=droppable) for part in parts)


def _is_droppable(part: ast.AST, of: ast.AST) -> bool:
    if isinstance(of, ast.List | ast.Tuple | ast.Set):
        return True
    return isinstance(of, ast.Dict) or isinstance(part, ast.keyword)


def _is_type(node: ast.AST, statement: ast.stmt) -> bool:
    """Whether a tuple is in a subscript, as the parameters of a type are."""
    return any(
        isinstance(one, ast.Subscript) and any(inner is node for inner in ast.walk(one.slice))
        for one in ast.walk(statement)
    )


def _has_return(function: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Return | ast.Yield) for one in ast.walk(function))


def _names_made_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))
