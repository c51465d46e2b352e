"""What the pages tell readers to type: the commands are there, and so are their options."""

import re

import click
import pytest

from docgen.generate import PAGES
from hpctl.cli.main import cli

WRITTEN = [PAGES.parent / "README.md", *sorted(PAGES.glob("*.md"))]
CALL = re.compile(r"(?:^\s*|[$;&|(]\s*|exec )hpctl ([a-z][^`\n#|)]*)")
WORD = re.compile(r"[a-z][a-z-]*")
PASSED_ON = {"run", "sbatch"}
"""They hand options on to Slurm."""


def code(text):
    """Code blocks and code spans, a line each, without what the demo prints."""
    text = re.sub(r"<!-- demo -->.*?<!-- /demo -->", "", text, flags=re.S)
    for block in re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, flags=re.M | re.S):
        yield from re.sub(r"\\\n *", " ", block).splitlines()
    plain = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    yield from re.findall(r"`([^`]+)`", plain)


def unknown(call: str) -> list[str]:
    """The words of a call that no command, and no option, is called."""
    args, command, path = call.split(), cli, []
    while args and isinstance(command, click.Group) and WORD.fullmatch(args[0]):
        found = command.get_command(click.Context(command), args[0])
        if found is None:
            return [] if path else [args[0]]
        command, path = found, [*path, args.pop(0)]
    taken = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    given = " ".join(args).partition(" -- ")[0]
    options = re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", given)
    return [] if path and path[0] in PASSED_ON else [o for o in options if o not in taken]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: path.name)
def test_what_a_page_says_to_type_is_there(page):
    lines = code(page.read_text(encoding="utf-8"))
    calls = [c for line in lines for c in CALL.findall(line.partition("#")[0])]
    wrong = {call: bad for call in calls if (bad := unknown(call))}
    assert wrong == {}
