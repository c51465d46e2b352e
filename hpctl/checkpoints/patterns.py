"""Patterns of the names of checkpoint files: `ckpt_{step}.pt`, `step_{step}/rank*.bin`.

A pattern is a glob below the checkpoint directory; `{step}` is the number of the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from hpctl.toolkit.errors import HpctlError

STEP = "{step}"
_TOKENS = re.compile(r"(\{step\}|\*+|\?|\[[^\]/]+\])")
_LONGEST = 200
_MOST_STARS = 3
"""The most wildcards in one name. The time of a match grows with the power of their number, and
both pattern and names are a user's."""
_STEP_DIGITS = re.compile(r"((?:step|iter|iteration|checkpoint|ckpt|epoch)[-_=]?)\d{1,18}(?!\d)")
_TRAILING_DIGITS = re.compile(r"(?<!\d)\d{1,18}(?=(\.\w+)*$)")
_RANK_DIGITS = re.compile(r"(?<![a-z])(rank[-_=]?)\d+", re.IGNORECASE)


class FilePattern(Struct, frozen=True):
    """One declared pattern; `parts` match the components of a path, and `before` is the text in
    front of each wildcard."""

    text: str
    parts: tuple[re.Pattern[str], ...]
    before: tuple[str, ...]

    @property
    def has_step(self) -> bool:
        """Return whether the names contain the step."""
        return STEP in self.text

    @property
    def is_single_file_pattern(self) -> bool:
        """Return whether the pattern can match one file of a step only."""
        return not re.search(r"[*?\[]", self.text)


def parse_checkpoint_file_patterns(texts: Iterable[str]) -> tuple[FilePattern, ...]:
    """Return the patterns. Raises HpctlError, with a hint, for a text that is not a pattern."""
    return tuple(_parse_checkpoint_file_pattern(text) for text in dict.fromkeys(texts))


def _parse_checkpoint_file_pattern(text: str) -> FilePattern:
    components = text.split("/")
    if not text.isprintable() or len(text) > _LONGEST:
        raise HpctlError(
            f"{text[:80]!r} is not a pattern of checkpoint files",
            "Write a pattern such as ckpt_{step}.pt.",
        )
    if any(part in ("", ".", "..") for part in components):
        raise HpctlError(
            f"the pattern {text!r} names files outside the checkpoint directory",
            "Write the pattern relative to --checkpoint-dir: ckpt_{step}.pt.",
        )
    unknown = [name for name in re.findall(r"\{[^}]*\}", text) if name != STEP]
    stars = max(component.count("*") for component in components)
    if unknown or text.count(STEP) > 1 or stars > _MOST_STARS:
        raise HpctlError(
            f"unknown placeholder {unknown[0]} in the pattern {text!r}"
            if unknown
            else f"the pattern {text!r} must contain {{step}} exactly once",
            "Write {step} once, at the place of the step's number, and * for anything else that "
            "varies.",
        )
    before: list[str] = []
    for component in components:
        tokens = _TOKENS.split(component)
        before += [
            left for left, each in zip(tokens[::2], tokens[1::2], strict=False) if each != STEP
        ]
    return FilePattern(text, tuple(_compile_component(part) for part in components), tuple(before))


def _compile_component(component: str) -> re.Pattern[str]:
    made = []
    for word in _TOKENS.split(component):
        if word == STEP:
            # The whole number: an adjacent `*` matches none of its digits.
            made.append(r"(?<!\d)(?P<step>\d{1,18})(?!\d)")
        elif word.startswith("*"):
            made.append("(.*)")
        elif word == "?":
            made.append("(.)")
        elif word.startswith("[") and word.endswith("]"):
            inside = re.escape(word[1:-1]).replace(r"\-", "-")
            made.append(f"([{inside.replace('!', '^', 1)}])")
        else:
            made.append(re.escape(word))
    try:
        return re.compile("".join(made), re.DOTALL)
    except re.error:
        raise HpctlError(
            f"cannot use {component!r} as a pattern of checkpoint files",
            "Use only * and {step} as wildcards.",
        ) from None


def suggest_checkpoint_file_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of names, at most three, the most frequent first."""
    counts: dict[str, int] = {}
    for name in names:
        text = make_pattern_from_name(name)
        counts[text] = counts.get(text, 0) + 1
    best = sorted(counts, key=lambda text: (-counts[text], text))
    return tuple(text for text in best if _is_valid_checkpoint_file_pattern(text))[:3]


def _is_valid_checkpoint_file_pattern(text: str) -> bool:
    try:
        _parse_checkpoint_file_pattern(text)
    except HpctlError:
        return False
    return "'" not in text


def make_pattern_from_name(name: str) -> str:
    """Return a name as a pattern: `ckpt_12_rank3.pt` is `ckpt_{step}_rank*.pt`."""
    escaped = re.sub(r"[*?\[]", "?", name)
    text = _RANK_DIGITS.sub(r"\1*", escaped)
    for digits in (_STEP_DIGITS, _TRAILING_DIGITS):
        found = list(digits.finditer(text))
        if found:
            last = found[-1]
            before = last[1] if digits is _STEP_DIGITS else ""
            return text[: last.start()] + before + STEP + text[last.end() :]
    return text
