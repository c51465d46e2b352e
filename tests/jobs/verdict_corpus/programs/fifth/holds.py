"""Call something in C that takes very long on this input and keeps the interpreter's lock."""

import re
import sys


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "regex":
        return re.fullmatch(r"(?:\w+\s?)+;", "token " * 30) is not None
    if config["how"] == "digits":
        sys.set_int_max_str_digits(0)
        return len(str(3**40_000_000)) > 0
    prime = 2**61 - 1
    return len(set(range(0, 3_000_000 * prime, prime))) > 0
