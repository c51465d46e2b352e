"""Pages of a list: at most 100 entries, and a token that says where the next begins."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

from hpctl.sandbox.emulator.errors import validation
from hpctl.sandbox.emulator.shapes import Body

PAGE = 100

Item = TypeVar("Item")


def page(items: Sequence[Item], request: Body) -> tuple[Sequence[Item], str]:
    """One page of `items` and the token of the next, "" on the last.

    Raises ApiError ValidationException for a token that this API did not give.
    """
    size = min(request.get("MaxResults") or PAGE, PAGE)
    start = _start(request.get("NextToken"))
    rest = start + size < len(items)
    token = base64.urlsafe_b64encode(f"at:{start + size}".encode()).decode() if rest else ""
    return items[start : start + size], token


def _start(token: str | None) -> int:
    if not token:
        return 0
    try:
        word, _, number = base64.urlsafe_b64decode(token).decode().partition(":")
        if word == "at":
            return int(number)
    except (binascii.Error, UnicodeDecodeError, ValueError):
        pass
    raise validation("Invalid NextToken.")
