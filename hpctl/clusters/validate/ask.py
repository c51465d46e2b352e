"""A read of AWS whose failure is an answer too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from hpctl.clusters.validate.verdict import Unanswered
from hpctl.errors import Absent, Refused, Unavailable
from hpctl.ports import Service

P = ParamSpec("P")
Answer = TypeVar("Answer")


def ask(call: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer | Unanswered | None:
    """The answer; None where what is asked for is not there; Unanswered where nobody can say."""
    try:
        return call(*args, **kwargs)
    except Absent:
        return None
    except (Refused, Unavailable) as error:
        return Unanswered(str(error), error.hint)


def rows(service: Service, operation: str, key: str, **request: Any) -> list[Any] | Unanswered:
    """Every entry of a list; none where what it is about is not there."""
    found = ask(lambda: list(service.pages(operation, key, **request)))
    return [] if found is None else found
