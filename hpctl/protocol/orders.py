"""Orders to a node's agent: a MUNGE credential of the daemon's in the answer to a report.

The credential's payload is the order itself. It proves whose it is, is used up by the one munged
that decodes it, and is good for a minute; the order names the boot of the instance that it is for.
"""

import time
from collections.abc import Container
from pathlib import Path
from typing import Final

import msgspec

from hpctl.core.model import Generation
from hpctl.core.reset import ORDER_S, ResetOrder
from hpctl.errors import HpctlError
from hpctl.protocol import munge

_PREFIX: Final = b"hpctl1-order:"
_decoder = msgspec.json.Decoder(ResetOrder)


class OrderRefused(HpctlError):
    """An order that this agent does not carry out."""


def seal(order: ResetOrder, socket: Path | None = None) -> str:
    """The credential of an order. Raises MungeUnavailable."""
    payload = _PREFIX + msgspec.json.encode(order)
    return munge.encode(payload, socket, ttl_s=int(ORDER_S))


def opened(
    credential: str, mine: Generation, believed: Container[int], socket: Path | None = None
) -> ResetOrder:
    """The order of a credential, which is used up by that. `believed`: the uids of daemons.

    Raises OrderRefused, CredentialError (a replay among others), MungeUnavailable.
    """
    found = munge.decode(credential, socket)
    if found.uid not in believed:
        raise OrderRefused(f"uid {found.uid} gives no orders", "Only the daemon's user may.")
    if not found.payload.startswith(_PREFIX):
        raise OrderRefused("the credential was made for something else")
    try:
        order = _decoder.decode(found.payload[len(_PREFIX) :])
    except msgspec.MsgspecError as error:
        raise OrderRefused(f"no order: {error}", "Is the daemon of this release?") from error
    if order.generation != mine:
        raise OrderRefused(f"the order is for {order.generation}, this is {mine}")
    if time.time() > order.until:
        raise OrderRefused("the order has run out", "Compare the clocks of both hosts.")
    return order
