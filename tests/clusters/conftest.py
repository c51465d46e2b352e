import pytest

from tests.clusters.bed import AwsBed
from tests.clusters.desk import Desk
from tests.clusters.shell import Shell


@pytest.fixture(scope="session")
def _bed():
    bed = AwsBed(workers=4)
    yield bed
    bed.close()


@pytest.fixture
def bed(_bed: AwsBed) -> AwsBed:
    """Five nodes, fresh for each test."""
    _bed.reset()
    return _bed


@pytest.fixture
def desk(bed: AwsBed) -> Desk:
    return Desk(bed)


@pytest.fixture
def shell(bed: AwsBed, tmp_path, monkeypatch):
    made = Shell(bed, tmp_path, monkeypatch)
    # Making boto3's clients takes longer than all the rest of a test.
    monkeypatch.setattr("hpctl.engine.adapters.make_aws_account_client", lambda *_: bed.aws)
    made.write()
    yield made
    bed.emulator.capacity.types.clear()
    bed.machines.fail_boot.clear()
