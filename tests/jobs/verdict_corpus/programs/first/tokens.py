"""Match a line by a regular expression that backtracks without end: re keeps the GIL."""

import re

WORDS = re.compile(r"^(\w+\s?)*$")


def run(step: int, value: object, config: dict[str, object]) -> bool:
    return WORDS.match("word " * 40 + "!") is not None
