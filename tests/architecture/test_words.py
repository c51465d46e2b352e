"""Code, messages and new decisions are written in plain technical English.

Each word of the list has a plain replacement. The list holds for the code, the pages that are
written by hand, the changelog, newer decisions, and the names of the tests' functions and classes.
"""

import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, text, tracked

WORDS = {
    "nobody": "no user, no one, or the passive",
    "somebody": "a user, another user, an administrator",
    "whoever": "the user who, the process that",
    "anew": "again, from the beginning",
    "told": "reported, sent, notified",
    "untold": "not reported",
    "unasked": "without a request",
    "by itself": "automatically, or leave it out",
    "of its own": "separate, its own",
    "no more": "no longer",
    "any more": "any longer",
    "aside": "moved, quarantined, renamed",
    "doctors?": "checks (a command's name excepted)",
    "mend(?:s|ed)?": "fix, repair",
    "played": "simulated, run",
    "waved": "waived",
    "stands still": "makes no progress",
    "goes? on": "continues",
    "of late": "recently",
    "lest": "so that ... not",
    "wherein": "in which",
    "thereof": "of it",
    "for ever": "forever, without a limit",
}
"""A regular expression, and what to write instead."""

FIRST_ADR = 106
"""Decisions from here on are held to the list; earlier ones stay as they were taken."""

_PATTERN = re.compile(r"\b(" + "|".join(WORDS) + r")\b", re.IGNORECASE)
# A name of a command, a file or a field, and what a program prints, is not prose.
_NAMES = re.compile(
    r"hpctl doctor|`doctor`|doctor\.py|\.doctor\b|doctor\(|[\"']doctor[\"':]|cli[./]doctor"
    r"|:doctor\b|\baside\(|[\"']aside[\"']|\bASIDE\b|\.hpctl-aside|[\"'`]waved[\"'`]"
    r"|(?<==)nobody\b|[\"']nobody[\"']"
)


def list_files() -> list[Path]:
    """Return the files that are held to the list, relative to the root, in order."""
    found = []
    for path in tracked():
        is_code = path.suffix == ".py" and path.parts[0] in ("hpctl", "docgen", "tools")
        is_decision = path.is_relative_to("docs/adr") and path.name[:4].isdigit()
        is_new_decision = is_decision and int(path.name[:4]) >= FIRST_ADR
        if is_code or is_new_decision or path == Path("CHANGELOG.md"):
            found.append(path)
    return found


def find_words(prose: str) -> list[str]:
    """Return the words of the list in a text, each with its line and its replacement."""
    found = []
    for number, line in enumerate(prose.splitlines(), start=1):
        for match in _PATTERN.finditer(_NAMES.sub("", line)):
            found.append(f"{number}: {match[0]}")
    return found


def read_unreviewed() -> set[str]:
    """Return the files that may still have such words."""
    return set(LIST.read_text().split())


def test_reviewed_files_have_no_words_of_the_list():
    unreviewed = read_unreviewed()
    found = []
    for path in list_files():
        if str(path) not in unreviewed:
            found += [f"{path}:{each}" for each in find_words(text(path))]
    replacements = "; ".join(f"{word}: {plain}" for word, plain in WORDS.items())
    assert not found, f"write it plainly ({replacements})"


def test_a_file_without_such_words_leaves_the_list():
    clean = []
    for name in sorted(read_unreviewed()):
        path = ROOT / name
        if path.exists() and not find_words(path.read_text()):
            clean.append(name)
    assert not clean, "remove these from tests/architecture/unreviewed_words.txt"


@pytest.mark.parametrize(
    ("prose", "count"),
    [
        ("Somebody told it.", 2),
        ("# ends by itself, for ever", 2),
        ("Run `hpctl doctor`.", 0),
        ("the doctors of this node", 1),
        ("a recommended size, amended", 0),
    ],
)
def test_words_are_found_in_prose_only(prose, count):
    assert len(find_words(prose)) == count


def main() -> None:
    """Write the list again, without the files that have none of the words."""
    names = [path for path in list_files() if find_words(text(path))]
    LIST.write_text("".join(f"{path}\n" for path in names))


if __name__ == "__main__":
    main()
