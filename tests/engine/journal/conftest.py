import pytest

from tests.engine.journal.beds import AnyJournal, DatabaseBed, FakeBed
from tests.engine.journal.servers import MariaDB, PostgreSQL, Server

DATABASES = ["sqlite", "postgresql", "mariadb"]


@pytest.fixture(scope="session")
def postgresql():
    server = PostgreSQL()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mariadb():
    server = MariaDB()
    yield server
    server.stop()


def _bed(request, tmp_path):
    bed: FakeBed | DatabaseBed
    if request.param == "fake":
        bed = FakeBed()
    elif request.param == "sqlite":
        bed = DatabaseBed(f"sqlite:///{tmp_path}/journal.db")
    else:
        server: Server = request.getfixturevalue(request.param)
        bed = DatabaseBed(server.fresh(), server)
    yield bed
    bed.close()


@pytest.fixture(params=["fake", *DATABASES])
def bed(request, tmp_path):
    """Each journal in turn, empty."""
    yield from _bed(request, tmp_path)


@pytest.fixture(params=DATABASES)
def database(request, tmp_path):
    """Each real one: for what takes several processes, or a broken row."""
    yield from _bed(request, tmp_path)


@pytest.fixture(params=["sqlite"])
def sqlite(request, tmp_path):
    """What only a file can suffer."""
    yield from _bed(request, tmp_path)


@pytest.fixture(params=["postgresql", "mariadb"])
def served(request, tmp_path):
    """What only a server can suffer."""
    yield from _bed(request, tmp_path)


@pytest.fixture
def journal(bed: FakeBed | DatabaseBed) -> AnyJournal:
    return bed.open()
