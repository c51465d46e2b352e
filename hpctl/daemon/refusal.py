"""What the intake answers to a request that it does not believe or cannot take."""

from __future__ import annotations

import json

from hpctl.errors import HpctlError


class Refusal(HpctlError):
    """A request that is not believed or not taken whole, with its HTTP status and code.

    `more` are further keys of the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", **more: object
    ) -> None:
        super().__init__(message, hint)
        self.status, self.code, self.more = status, code, more

    @property
    def said(self) -> dict[str, object]:
        """The answer's JSON."""
        return {"error": self.code, "message": str(self), "hint": self.hint, **self.more}

    @property
    def as_json(self) -> bytes:
        """`said`, as it goes over the wire."""
        return json.dumps(self.said).encode()
