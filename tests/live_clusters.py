"""A failed live test tells what its cluster said: `left_behind`."""

import pytest

from hpctl.sandbox.api import Sandbox
from tests.left_behind import left_behind
from tests.live import Live


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add what Slurm, the journal and the logs say to the report of a failed live test."""
    report = yield
    if report.failed:
        cluster = _cluster(item, call)
        if cluster is not None and _sandbox(cluster).state_dir.exists():
            report.sections.extend(left_behind(cluster).items())
    return report


def _cluster(item, call):
    """The cluster under the test: a fixture, or what one of its functions had at hand."""
    fixtures = list(getattr(item, "funcargs", {}).values())
    entries = call.excinfo.traceback if call.excinfo else ()
    at_hand = [value for entry in entries for value in entry.frame.f_locals.values()]
    found = [one for value in (*fixtures, *at_hand) if (one := _of(value)) is not None]
    return next((one for one in found if isinstance(one, Live)), found[0] if found else None)


def _of(value) -> Live | Sandbox | None:
    """The cluster that a value is, or has."""
    if not isinstance(value, Live | Sandbox):
        value = getattr(value, "sandbox", None)
    return value if isinstance(value, Live | Sandbox) else None


def _sandbox(cluster: Live | Sandbox) -> Sandbox:
    return cluster.sandbox if isinstance(cluster, Live) else cluster


@pytest.fixture
def live(shared):
    """A file's cluster, `shared`, for one test."""
    yield shared
    shared.settle()
