"""Isolation of each thing: what raises about one node, job or word stops at that one.

At every fan-out (parse, assess, plan, advance, execute, fold) each thing is handled on its own;
whatever it raises becomes an ItemProcessingFailure, a value that names the thing, and all others
continue. The next decision holds what is inconsistent (`internal_error`) and acts on the rest.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from hpctl.toolkit.bounds import make_printable

T = TypeVar("T")
R = TypeVar("R")

ERROR_CHARS = 200


class ItemProcessingFailure(Struct, frozen=True):
    """One thing that could not be handled. `target`: the node or job id that it is about.

    `where` is the fan-out (`parse`, `plan`, ...), `digest` the first 12 hex digits of the SHA-256
    of the input's repr: the same input has the same one, and the input need not be printed.
    """

    target: str
    where: str
    error: str
    digest: str


def call_and_capture_failure(
    where: str, target: object, handle: Callable[[T], R], given: T, shown: object = None
) -> R | ItemProcessingFailure:
    """Return what `handle` makes of one thing, or the ItemProcessingFailure that it is. `shown`:
    what the digest is of, where that is less than what is given."""
    try:
        return handle(given)
    # The one isolation: a bug or an input that was not foreseen only costs this thing its turn.
    except Exception as error:  # noqa: BLE001 -- isolation catches everything
        import hashlib  # a reader of flaws does not pay for it

        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
        digest = hashlib.sha256(_encode_value_repr(given if shown is None else shown)).hexdigest()[
            :12
        ]
        return ItemProcessingFailure(str(target), where, make_printable(text), digest)


def process_items_capturing_failures(
    where: str, things: Iterable[T], name: Callable[[T], object], handle: Callable[[T], R]
) -> tuple[list[R], list[ItemProcessingFailure]]:
    """Return what `handle` makes of each thing, in order, and the flaws of those that it raised
    about."""
    made: list[R] = []
    flaws: list[ItemProcessingFailure] = []
    for thing in things:
        one = call_and_capture_failure(where, name(thing), handle, thing)
        if isinstance(one, ItemProcessingFailure):
            flaws.append(one)
        else:
            made.append(one)
    return made, flaws


def _encode_value_repr(value: object) -> bytes:
    try:
        return repr(value).encode("utf-8", "replace")
    except Exception:  # noqa: BLE001 -- a value that cannot even be shown is known by its type
        return type(value).__name__.encode()
