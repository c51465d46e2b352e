"""A comprehension of hpctl has one `for` clause and holds no other comprehension.

With more a reader has to hold several loops in mind at once. A loop, `itertools`, a function with a
name or two statements say the same one thought at a time.
"""

import ast

import pytest

from tests.architecture.source import python_files, tree

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def find_packed(parsed: ast.AST) -> list[int]:
    """Return the lines of the comprehensions with several clauses, or with another in them."""
    found = []
    for node in ast.walk(parsed):
        if not isinstance(node, COMPREHENSIONS):
            continue
        inner = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
        if len(node.generators) > 1 or len(inner) > 1:
            found.append(node.lineno)
    return found


def test_no_comprehension_has_several_clauses_or_another_in_it() -> None:
    packed = []
    for path in python_files("hpctl"):
        packed += [f"{path}:{line}" for line in find_packed(tree(path))]
    assert packed == []


@pytest.mark.parametrize(
    "text",
    [
        "[b for a in x for b in a]",
        "{b: a for a in x for b in a}",
        "[[b for b in a] for a in x]",
        "{f(b for b in a) for a in x}",
        "[a for a in (b for b in x)]",
        "[a for a in x if any(b == a for b in y)]",
    ],
)
def test_a_packed_comprehension_is_found(text: str) -> None:
    assert find_packed(ast.parse(text)) == [1]


@pytest.mark.parametrize("text", ["[a for a in x if a]", "sum(a for a in x)", "f([a for a in x])"])
def test_a_plain_comprehension_is_not_found(text: str) -> None:
    assert find_packed(ast.parse(text)) == []
