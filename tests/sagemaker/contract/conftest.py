import pytest

from tests.sagemaker.contract.beds import SANDBOX_KEYS, Bed, EmulatorBed, FakeBed, GroupBed


@pytest.fixture(autouse=True, scope="session")
def _aws():
    """Credentials that no real account knows, and no configuration of the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SANDBOX_KEYS.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        yield


@pytest.fixture(scope="session")
def _real(_aws: None):
    real = EmulatorBed()
    yield real
    real.close()


@pytest.fixture
def emulated(_real: EmulatorBed) -> EmulatorBed:
    _real.reset()
    return _real


@pytest.fixture(scope="session")
def _grouped(_aws: None):
    real = GroupBed()
    yield real
    real.close()


@pytest.fixture
def grouped(_grouped: GroupBed) -> GroupBed:
    _grouped.reset()
    return _grouped


@pytest.fixture(params=["fake", "emulated", "grouped"])
def bed(request) -> Bed:
    """The fake, and the adapter on the emulator with either kind of node names."""
    if request.param == "fake":
        return FakeBed()
    real: EmulatorBed = request.getfixturevalue(request.param)
    return real
