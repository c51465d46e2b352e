"""The log of every API call, which tests and the demo count from.

It is the emulator's CloudTrail: what the customer called stands in it, what the service did by
itself does not.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hpctl.sandbox.emulator.shapes import Body


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `error` is the code it was refused with, `replied` false if the reply was lost.

    A call whose reply was lost has a `response`: the operation was accepted.
    """

    number: int
    at: datetime
    operation: str
    request_id: str
    request: Body
    response: Body | None = None
    error: str = ""
    replied: bool = True

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The instance ids that the call named, of whichever operation."""
        named = self.request.get("NodeIds", ())
        return tuple(named) if isinstance(named, list) else ()

    def as_json(self) -> dict[str, Any]:
        """For the admin route; datetimes in ISO 8601."""
        return {
            "number": self.number,
            "at": self.at.isoformat(),
            "operation": self.operation,
            "request_id": self.request_id,
            "request": self.request,
            "response": self.response,
            "error": self.error,
            "replied": self.replied,
        }


class CallLog:
    """Every call in the order of arrival; safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Call] = []

    def begin(self, at: datetime, operation: str, request_id: str, request: Body) -> int:
        """Note a call that arrived; the number to finish it under."""
        with self._lock:
            number = len(self._calls)
            self._calls.append(Call(number, at, operation, request_id, request))
            return number

    def finish(
        self, number: int, response: Body | None, error: str = "", *, replied: bool = True
    ) -> None:
        """Note how a call ended."""
        with self._lock:
            self._calls[number] = replace(
                self._calls[number], response=response, error=error, replied=replied
            )

    def all(self, operation: str = "") -> tuple[Call, ...]:
        """The calls so far, of one operation where it is named."""
        with self._lock:
            return tuple(c for c in self._calls if operation in ("", c.operation))

    def count(self, operation: str) -> int:
        """How often an operation was called, refusals included."""
        return len(self.all(operation))
