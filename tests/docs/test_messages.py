"""The page of messages has what the code raises, with values as words in capitals."""

import ast

import pytest

from docgen import messages

ERRORS = {"HpctlError", "Absent"}


def list_messages(body: str) -> list[tuple[str, str]]:
    """Return the messages of a function with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    tree = ast.parse(f"def raise_error(node, nodes, path):\n{lines}")
    return [(each.text, each.action) for each in messages.find_messages(tree, ERRORS)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('raise HpctlError("no node")', [("no node", "")]),
        ('raise HpctlError(f"no node {node}", "Name one.")', [("no node NODE", "Name one.")]),
        ('raise HpctlError("no", hint=f"see {path.parent}")', [("no", "see DIRECTORY")]),
        (
            """raise HpctlError(f"no {', '.join(nodes)} of {len(nodes)}")""",
            [("no LIST of COUNT", "")],
        ),
        (
            'raise HpctlError("one" if nodes else "none", "Look.")',
            [("one", "Look."), ("none", "Look.")],
        ),
        ('why = "no node"\nraise HpctlError(why)', [("no node", "")]),
        ('why = "a"\nwhy = "b"\nraise HpctlError(why)', []),
        ('raise HpctlError("a\\n  b|c")', [("a b\\|c", "")]),
        ('raise ValueError("not printed")', []),
    ],
)
def test_messages_are_read_from_raised_errors(body, expected):
    assert list_messages(body) == expected


def test_subclasses_are_found_through_others():
    tree = ast.parse(
        "class Refused(HpctlError): ...\n"
        "class Absent(errors.Refused): ...\n"
        "class Other(Exception): ...\n"
    )
    assert messages.find_subclasses([tree], ["HpctlError"]) == {"HpctlError", "Refused", "Absent"}


def test_rooms_of_the_page_exist():
    for room in messages.ROOMS:
        assert (messages.ROOT / "hpctl" / room / "__init__.py").exists(), room


def test_a_room_has_each_message_once_and_no_bare_values():
    found = messages.collect_messages("checkpoints", messages.find_subclasses([], messages.BASES))
    assert len({(each.text, each.action) for each in found}) == len(found) > 20
    assert all(each.text.upper() != each.text for each in found)
