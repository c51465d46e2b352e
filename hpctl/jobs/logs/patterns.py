r"""Regular expressions that are safe to run over untrusted lines.

Rules come from a user, lines from any program, and the reader must keep up with both: RE2 matches
in time linear in the text, where Python's `re` can take exponential time (ADR 0018). What RE2
lacks (backreferences, look-around) is an error when the rule is read, not a surprise later.

Patterns work on bytes and inside one line: a log holds whatever bytes a crash left in it, and one
pass over a whole block of lines is many times faster than one call for each line. So a pattern
can never match a newline, `^` and `$` mean the ends of a line, and the few escapes that would
distinguish a block from a line (`\A`, `\z`, `\C`, switching `m` off) are refused.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import re2

LONGEST = 2_000
"""Characters a pattern may have."""
LARGEST = 1_000
"""Instructions its program may have: what a byte of a hostile line costs is in proportion.

At 1 000 the worst found is 0.3 MB/s, on lines made to overflow the automaton's cache.
"""
MEMORY = 8 << 20
"""Bytes that one pattern's automaton may use for its cache."""

_ANYWHERE = re2._Anchor.UNANCHORED
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_SINGLE_LINE = re.compile(r"\(\?[a-zA-Z]*-[a-zA-Z]*m")
_WIDE = re.compile(r"[^\x00-\x7f]")
_WIDE_IN_CLASS = re.compile(r"(?:^|[^\\])\[[^\]]*[^\x00-\x7f]")
_TO_ONE_LINE = {
    "A": "write ^ for the start of a line",
    "z": "write $ for the end of a line",
    "Z": "write $ for the end of a line",
    "C": "write . for one byte",
}


class LogPatternMatch(NamedTuple):
    """Where a pattern matched in a block."""

    at: int
    """Where the match begins, somewhere in its line."""
    end: int
    """Where its line ends."""
    captured: bytes | None


class LogLinePattern:
    """One compiled pattern with at most one capturing group."""

    __slots__ = ("_match", "captures", "text")

    def __init__(self, text: str) -> None:
        """Compile. Raises ValueError saying what is wrong and what to write."""
        self.text = text
        _reject_unsafe_regex(text)
        options = re2.Options()
        options.never_nl = True
        options.log_errors = False
        options.max_mem = MEMORY
        # Latin-1 is RE2's word for "one byte is one character", so that bytes which are no
        # UTF-8 cannot hide the rest of a line from `.`.
        options.encoding = re2.Options.Encoding.LATIN1
        grouped = _WIDE.sub(lambda found: f"(?:{found[0]})", text)
        try:
            compiled: Any = re2.compile(b"(?m)" + grouped.encode(), options)
        except re2.error as error:
            raise ValueError(_describe_regex_error(error)) from error
        if compiled.programsize > LARGEST:
            raise ValueError(
                f"too costly: {compiled.programsize} steps where {LARGEST} are allowed;"
                " shorten its {n,m} repeats"
            )
        groups = compiled.groups
        if groups > 1:
            raise ValueError(f"has {groups} groups, and one may capture: write (?:...) for others")
        self.captures = groups == 1
        # The binding itself: the wrapper's generator and match object take longer than RE2 does.
        self._match: Any = compiled._regexp.Match

    def matches(self, block: bytes) -> Iterator[LogPatternMatch]:
        """Yield the first match of every line that has one. `block` is whole lines, each ended."""
        match, captures, position, size = self._match, self.captures, 0, len(block)
        while position < size:
            spans = match(_ANYWHERE, block, position, size)
            at, end = spans[0]
            if at < 0:
                return
            end = block.find(b"\n", end)
            end = size if end < 0 else end
            captured = None
            if captures and spans[1][0] >= 0:
                captured = block[spans[1][0] : spans[1][1]]
            yield LogPatternMatch(at, end, captured)
            position = end + 1


def _reject_unsafe_regex(text: str) -> None:
    if not text:
        raise ValueError("is empty, and would match every line")
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text)} characters where {LONGEST} are allowed")
    for escape in _ESCAPE.finditer(text):
        fix = _TO_ONE_LINE.get(escape[1])
        if fix:
            raise ValueError(f"\\{escape[1]} is not known here: {fix}")
    if _SINGLE_LINE.search(text):
        raise ValueError("may not switch the flag m off: ^ and $ are the ends of a line")
    if _WIDE_IN_CLASS.search(text):
        raise ValueError("has a non-ASCII character in [...]: write (?:x|y) instead")


def _describe_regex_error(error: Exception) -> str:
    message = error.args[0] if error.args else error
    reason = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    if "invalid perl operator" in reason or re.search(r"invalid escape sequence: \\\d", reason):
        return f"{reason} (look-around and backreferences cannot be matched in linear time)"
    return reason
