"""A read of AWS whose failure is an answer too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from hpctl.clusters.validate.facts import Listed
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


def find_security_groups(ec2: Service, ids: Iterable[str]) -> Listed:
    """The security groups of these ids that there are."""
    return listed(
        ec2, "describe_security_groups", "SecurityGroups", "GroupId", "group-id", list(ids)
    )


def listed(
    ec2: Service, operation: str, key: str, id_key: str, filter_name: str, values: list[str]
) -> Listed:
    """Entries by a filter. EC2 refuses a list of ids that has one unknown; a filter it does not."""
    if not values:
        return {}
    filters = [{"Name": filter_name, "Values": values}]
    found = rows(ec2, operation, key, Filters=filters)
    if isinstance(found, Unanswered):
        return found
    return {str(entry[id_key]): entry for entry in found}
