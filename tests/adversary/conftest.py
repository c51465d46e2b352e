"""One besieged cluster for the tests of a file; a failed test tells what its cluster said."""

import pytest

from tests.adversary.bed import besieged
from tests.engine.journal.conftest import mariadb as mariadb
from tests.engine.journal.conftest import postgresql as postgresql


@pytest.fixture(scope="module")
def siege():
    with besieged() as one:
        yield one
