"""A machine with GPUs that are not there, and clients of its NVML."""

import os

import pytest

from hpctl.detection.nvml import client as client_module
from hpctl.detection.nvml.client import NvmlClient
from tests.stubs.nvml import Stub


@pytest.fixture
def stub(tmp_path):
    stub = Stub(tmp_path)
    yield stub
    stub.fix()  # so that no child of a failed test hangs on


@pytest.fixture
def connect(stub: Stub, tmp_path, monkeypatch):
    """Makes clients that sweep and give up fast, on a machine with no PCI device."""
    monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(client_module, "ERROR_PAUSE_S", 0.1)
    made: list[NvmlClient] = []

    def make(every_s: float = 0.1, deadline_s: float = 0.5, **settings) -> NvmlClient:
        settings.setdefault("env", {**os.environ, **stub.env()})
        settings.setdefault("root", tmp_path)
        made.append(NvmlClient(every_s, deadline_s, **settings))
        return made[-1]

    yield make
    stub.fix()
    for client in made:
        client.close()
