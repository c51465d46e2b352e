"""From a driver's answer to a check's observation: every GPU check over the real child."""

from collections.abc import Callable

import pytest

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    ExpectedHardware,
)
from hpctl.detection.runner import load_check
from hpctl.faults.table import CHECKS
from tests.detection.nvml.bed import PATIENCE_S, pci_gpu, until
from tests.stubs.nvml import GPU_UNAVAILABLE, Stub

pytestmark = pytest.mark.integration

Fault = Callable[[Stub], object]

FAULTS: dict[str, tuple[Fault, str]] = {
    "reboot": (lambda stub: stub.set(3, field230=2), "0000:13:00.0"),
    "lost": (lambda stub: stub.fail(2, 15), "0000:12:00.0"),
    "reset-required": (lambda stub: stub.fail(2, 16), "0000:12:00.0"),
    "unavailable": (lambda stub: stub.event(1, kind=GPU_UNAVAILABLE), "0000:11:00.0"),
    "79": (lambda stub: stub.event(1, xid=79), "0000:11:00.0"),
    "nvml": (lambda stub: stub.gpus(7), ""),
    "mismatch": (lambda stub: stub.fail_init(18).fail(None, 18), ""),
    "failure": (lambda stub: stub.set(4, field145=1), "0000:14:00.0"),
}


def observe(client, root):
    """What all GPU checks say of two sweeps, as (code, device)."""
    machine = CheckedMachine(root, ExpectedHardware(gpus=8), nvml=client.newest)
    output: set[tuple[str, str]] = set()
    for check in (load_check(spec) for spec in CHECKS if spec.name.startswith("gpu.")):
        before = None
        for _ in range(2):
            try:
                seen = check.gather(machine)
            except (DeviceAbsentError, CheckResultUnknownError):
                continue
            output |= {(o.code, o.device) for o in check.judge(seen, before, check.limits)}
            before = seen
    return output


@pytest.fixture
def root(tmp_path):
    """A machine with eight GPUs on its PCI bus, and no jobs."""
    for number in range(8):
        pci_gpu(tmp_path, number)
    (tmp_path / "proc").mkdir()
    return tmp_path


def test_a_healthy_machine_gives_no_cause(stub, connect, root):
    stub.gpus(8)
    client = connect(deadline_s=5.0)
    client.wait(PATIENCE_S)
    assert observe(client, root) == set()


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_in_the_driver_becomes_an_observation(stub, connect, root, code):
    fault, device = FAULTS[code]
    stub.gpus(8)
    client = connect(deadline_s=5.0)
    client.wait(PATIENCE_S)
    fault(stub)
    until(lambda: (code, device) in observe(client, root))
