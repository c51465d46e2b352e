"""The body of a request to the intake: read within bounds of size and time, or refused."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from hpctl.core.bounds import natural
from hpctl.daemon.refusal import Refusal


async def read_body(
    announced: str, receive: Receive, *, most: int, within_s: float, too_large: Refusal
) -> bytes:
    """The body, refused as soon as it is over `most` bytes, announced so, or too slow.

    `announced` is its Content-Length. Raises Refusal: `too_large`, slow_body or disconnected.
    """
    if natural(announced) > most:
        raise too_large
    try:
        return await asyncio.wait_for(_read(receive, most, too_large), within_s)
    except asyncio.TimeoutError as error:
        text = f"the body was not here within {within_s:.0f} s"
        raise Refusal(408, "slow_body", text) from error


async def _read(receive: Receive, most: int, too_large: Refusal) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "disconnected", "the client left in mid-body")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise too_large
    return bytes(body)
