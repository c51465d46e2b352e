"""Whatever the file and however little AWS says: verdicts, never a traceback."""

import pytest
from hypothesis import given, settings

from hpctl.clusters.validate import FAMILIES, validate_spec
from hpctl.clusters.validate.wanted import CheckLevel
from hpctl.toolkit.errors import ResourceNotFound, ServiceUnavailable
from tests.clusters.any_spec import specs

pytestmark = pytest.mark.integration


class SilentAccount:
    """An account of which nobody answers, or in which nothing is there."""

    region = "us-east-1"

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def service(self, name: str):
        return self

    def read(self, operation: str, **request):
        raise self.error(f"{operation}: no")

    def pages(self, operation, key, **request):
        if self.error is ResourceNotFound:
            return
        yield self.read(operation)


OFFLINE = {family.name for family in FAMILIES if family.offline}


@settings(max_examples=40, deadline=None)
@given(specs())
def test_where_no_service_answers_nothing_is_blamed(spec):
    found = validate_spec(SilentAccount(ServiceUnavailable), spec)
    levels = {v.level for v in found if v.family not in OFFLINE}
    assert levels <= {CheckLevel.UNKNOWN}
    assert CheckLevel.UNKNOWN in levels


@settings(max_examples=40, deadline=None)
@given(specs())
def test_where_nothing_is_there_it_is_said(spec):
    found = validate_spec(SilentAccount(ResourceNotFound), spec)
    failed = {f"{v.family}.{v.check}" for v in found if v.level is CheckLevel.FAIL}
    assert "iam.role" in failed
    assert ("network.subnets-exist" in failed) is bool(
        spec.vpc or any(group.subnets for group in spec.groups)
    )
    assert all(v.fix for v in found if v.level is not CheckLevel.OK)
