"""One besieged cluster for the tests of a file; a failed test tells what its cluster said."""

from collections.abc import Iterator

import pytest

from tests.adversary.bed import Siege, besieged
from tests.contract.journal.conftest import mariadb as mariadb
from tests.contract.journal.conftest import postgresql as postgresql


@pytest.fixture(scope="module")
def siege() -> Iterator[Siege]:
    with besieged() as one:
        yield one
