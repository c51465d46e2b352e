"""Inputs near the seeds, without coverage: what `make test` runs, and where atheris is missing."""

import random
from collections.abc import Sequence

EVIL = (
    b"0", b"-1", b"1e400", b"NaN", b"9" * 400, b"0001-01-01T00:00:00Z", b"\0",
    b"9999-12-31T23:59:59-14:00", b"\n", b"\r", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J",
    b"\xe2\x80\xae", b"[" * 2000, b"{" * 2000,
    b'"', b"'", b"\\u0000", b"\\ud800", b"[1-99999]", b"n[0-9],", b" JobState=RUNNING NodeList=n1 ",
    b" UserId=root(0) ", b"=", b":", b"null", b"true", b"[]", b"{}", b"..", b"/", b"%s", b"*",
)  # fmt: skip
"""Pieces at the ends of their types."""


def mutated(seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """One input: a seed with a few pieces cut, doubled, swapped or replaced."""
    raw = bytearray(dice.choice(seeds)) if seeds else bytearray()
    for _ in range(dice.randint(1, 6)):
        at = dice.randint(0, len(raw))
        length = min(dice.choice((1, 1, 2, 4, 8, 32)), len(raw) - at)
        piece: bytes | bytearray
        match dice.randrange(6):
            case 0:
                piece = b""
            case 1:
                piece = dice.choice(EVIL)
            case 2:
                piece = dice.randbytes(max(1, length))
            case 3:
                piece = raw[at : at + length] * 2
            case 4:
                other = dice.choice(seeds) if seeds else b""
                start = dice.randint(0, len(other))
                piece = other[start : start + 64]
            case _:
                piece = bytes(b ^ (1 << dice.randrange(8)) for b in raw[at : at + length])
        raw[at : at + length] = piece
    return bytes(raw)
