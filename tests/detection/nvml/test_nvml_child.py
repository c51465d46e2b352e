"""What the NVML child reads, over the real nvidia-ml-py and a compiled stand-in for the library."""

import os
import select
import shutil
import time
from pathlib import Path

import pytest

from hpctl.detection.check import DeviceAbsentError
from hpctl.detection.nvml.snapshot import GpuProcess, NvlinkFabric, NvlinkState, NvmlEvent
from tests.detection.nvml.bed import PATIENCE_S, fresh, pci_gpu, until
from tests.stubs.nvml import GPU_UNAVAILABLE, LIBRARY, RECOVERY_ACTION, XID, uuid

pytestmark = pytest.mark.integration

GPU_IS_LOST, RESET_REQUIRED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, MISMATCH = 15, 16, 9, 12, 18


def test_every_value_lands_in_its_place(stub, connect):
    stub.gpus(2)
    stub.set(1, field230=4, field82=77, field269=2, field270=3)
    stub.set(1, field271=5, field142=6, field143=7, field144=1, field145=1, field94=8)
    stub.set(1, field29=10, field30=11, field31=1, nvmlDeviceGetUtilizationRates="12 0")
    stub.set(1, nvmlDeviceGetRowRemapperHistogram=(13, 14, 15, 16, 17))
    stub.set(1, nvmlDeviceGetSramEccErrorStatus=(1, 0), nvmlDeviceGetMarginTemperature=-3)
    stub.set(1, at="1,0", nvmlDeviceGetTotalEccErrors=18)
    stub.set(1, at="0,0", nvmlDeviceGetTotalEccErrors=19)
    stub.set(1, nvmlDeviceGetCurrPcieLinkWidth=8, nvmlDeviceGetCurrPcieLinkGeneration=1)
    stub.set(1, nvmlDeviceGetPowerUsage=20)
    stub.set(1, at=1, nvmlDeviceGetClockInfo=345)
    stub.set(1, nvmlDeviceGetGpuFabricInfoV=(2, 23, 4, 0b01, 0, 0xAB))
    stub.set(1, nvmlDeviceGetComputeRunningProcesses_v3="4711:1048576 4712:5")
    healthy, gpu = connect().wait(PATIENCE_S).gpus
    assert (healthy.error, [link.active for link in healthy.nvlinks]) == (None, [True] * 18)
    assert (healthy.uuid, gpu.uuid, gpu.index, gpu.pci) == (uuid(0), uuid(1), 1, "0000:11:00.0")
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert (gpu.recovery_action, gpu.memory_temperature_c, gpu.utilization) == (4, 77, 12)
    throttle, remap, ecc, pcie = gpu.throttle, gpu.remap, gpu.ecc, gpu.pcie
    assert (throttle.sw_thermal_ns, throttle.hw_thermal_ns, throttle.power_brake_ns) == (2, 3, 5)
    assert (remap.correctable, remap.uncorrectable, remap.pending, remap.failed) == (
        (6, 7, True, True)
    )  # fmt: skip
    assert (remap.banks_low, remap.banks_none) == (16, 17)
    assert (ecc.volatile_uncorrected, ecc.volatile_corrected) == (18, 19)
    assert (ecc.retired_sbe, ecc.retired_dbe, ecc.retired_pending) == (10, 11, True)
    assert ecc.sram_threshold_exceeded is True
    assert (pcie.width, pcie.width_max, pcie.generation, pcie.generation_max) == (8, 16, 1, 5)
    assert pcie.replays == 8
    assert gpu.sm_clock_mhz == 345
    assert (gpu.power_mw, gpu.temperature_c, gpu.temperature_margin_c) == (20, 45, -3)
    assert (gpu.temperature_slowdown_c, gpu.memory_temperature_max_c) == (89, 95)
    assert gpu.fabric == NvlinkFabric(2, 23, 4, "ab" * 16, 1)
    assert gpu.processes == (GpuProcess(4711, 1 << 20), GpuProcess(4712, 5))


def test_each_link_has_its_own_state_and_counters(stub, connect):
    stub.gpus(1)
    stub.set(0, at=5, nvmlDeviceGetNvLinkState=0, field161=1, field162=2)
    stub.set(0, at=6, field215=4, field214=5, field220=0x0C08, field222=0x010F)
    links = connect().wait(PATIENCE_S).gpus[0].nvlinks
    assert links[5] == NvlinkState(5, active=False, replays=1, recoveries=2)
    assert (links[6].recoveries, links[6].recoveries_failed) == (4, 5)
    assert links[6].effective_ber == pytest.approx(12e-8)
    assert links[6].symbol_ber == pytest.approx(1e-15)
    assert [link.link for link in links if not link.active] == [5]


def test_what_is_not_supported_is_unknown_and_never_zero(stub, connect):
    stub.gpus(1, answers={})
    gpu = connect().wait(PATIENCE_S).gpus[0]
    assert gpu.error is None
    assert (gpu.recovery_action, gpu.utilization, gpu.power_mw, gpu.fabric) == (None,) * 4
    assert (gpu.remap.pending, gpu.ecc.volatile_uncorrected, gpu.pcie.width) == (None,) * 3
    assert (gpu.throttle.power_brake_ns, gpu.remap.banks_none, gpu.processes) == (None,) * 3
    assert gpu.nvlinks == ()


@pytest.mark.parametrize("error", [GPU_IS_LOST, RESET_REQUIRED])
def test_a_lost_gpu_is_data_and_the_others_are_read(stub, connect, error):
    stub.gpus(4)
    client = connect()
    before = client.wait(PATIENCE_S).gpus[2]
    stub.fail(2, error)
    gpus = until(lambda: (g := fresh(client).gpus) and g[2].error and g)
    assert (gpus[2].error.code, gpus[2].error.call) == (error, "nvmlDeviceGetFieldValues")
    assert (gpus[2].pci, gpus[2].uuid) == (before.pci, before.uuid)
    assert (gpus[2].recovery_action, gpus[2].nvlinks, gpus[2].processes) == (None, (), None)
    assert [gpu.error for gpu in gpus if gpu.index != 2] == [None] * 3
    assert gpus[3].recovery_action == 0
    stub.fix()
    assert until(lambda: fresh(client).gpus[2].error is None)


def test_a_gpu_lost_from_the_start_is_there_with_its_error(stub, connect):
    stub.gpus(2).fail(1, 999, "nvmlDeviceGetHandleByIndex_v2")
    client = connect()
    gpus = client.wait(PATIENCE_S).gpus
    assert (gpus[1].error.code, gpus[1].pci, gpus[1].device) == (999, "", "gpu1")
    assert (gpus[0].error, gpus[0].recovery_action) == (None, 0)
    stub.event(0, xid=48)
    assert until(client.events)[0].data == 48


@pytest.mark.parametrize("gpus", [False, True])
def test_without_the_library(connect, tmp_path, gpus):
    (tmp_path / LIBRARY).write_bytes(b"no library, so that a real one is not found either")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    if gpus:
        pci_gpu(tmp_path)
        assert connect(env=env).wait(PATIENCE_S).error.code == LIBRARY_NOT_FOUND
    else:
        with pytest.raises(DeviceAbsentError):
            connect(env=env).wait(PATIENCE_S)


@pytest.mark.parametrize("folder", ["usr/local/nvidia/lib64", "run/nvidia/driver/usr/lib64"])
def test_the_library_in_the_drivers_own_folder_is_found(stub, connect, tmp_path, folder):
    # As on the machine of the recordings, whose loader does not know /usr/local/nvidia.
    stub.gpus(2)
    env = {**os.environ, **stub.env()}
    library = Path(env.pop("LD_LIBRARY_PATH")) / LIBRARY
    (tmp_path / folder).mkdir(parents=True)
    shutil.copy(library, tmp_path / folder / "libnvidia-ml.so.580.159.04")
    (tmp_path / folder / LIBRARY).symlink_to("libnvidia-ml.so.580.159.04")
    assert len(connect(env=env).wait(PATIENCE_S).gpus) == 2


def test_a_driver_that_goes_away_is_data_and_a_new_one_is_found(stub, connect, tmp_path):
    pci_gpu(tmp_path)
    stub.gpus(2)
    client = connect()
    first = client.wait(PATIENCE_S) and client.child_pid()
    stub.fail(None, DRIVER_NOT_LOADED)
    assert until(lambda: fresh(client).error).code == DRIVER_NOT_LOADED
    stub.fix()
    assert len(until(lambda: fresh(client).gpus)) == 2
    assert client.child_pid() != first


def test_events_are_reported_long_before_the_next_round(stub, connect):
    stub.gpus(8)
    client = connect(every_s=600.0)
    client.wait(PATIENCE_S)
    for gpu, kind, data in ((3, XID, 79), (0, RECOVERY_ACTION, 2), (7, GPU_UNAVAILABLE, 0)):
        began = time.monotonic()
        stub.event(gpu, kind=kind, data=data)
        assert select.select([client], [], [], PATIENCE_S)[0], "the descriptor did not wake us"
        (event,) = until(client.events, PATIENCE_S)
        assert (event.pci, event.kind, event.data) == (f"0000:1{gpu}:00.0", kind, data)
        assert began <= event.at <= time.monotonic()
    assert [event.data for event in client.newest().events] == [79, 2, 0]
    assert client.events() == ()


def test_only_events_that_the_gpu_knows_are_asked_for(stub, connect):
    stub.gpus(2).set(0, nvmlDeviceGetSupportedEventTypes="0x8")
    client = connect()
    client.wait(PATIENCE_S)
    stub.event(0, kind=RECOVERY_ACTION, data=1).event(0, kind=0x1, data=5)
    stub.event(1, kind=RECOVERY_ACTION, data=2)
    assert [event.data for event in until(client.events)] == [2]


def test_a_burst_of_one_event_is_reported_once(stub, connect):
    stub.gpus(2)
    client = connect()
    client.wait(PATIENCE_S)
    for _ in range(200):
        stub.event(0, xid=45)
    stub.event(1, xid=45).event(0, xid=94)
    reported: list[NvmlEvent] = []
    until(lambda: reported.extend(client.events()) or any(event.data == 94 for event in reported))
    numbers = [(event.pci[-4:-2], event.data) for event in reported]
    assert numbers.count(("00", 94)) == 1
    assert len(numbers) < 12, "200 like events came through"
    assert {(event.pci, event.data) for event in reported} == {
        ("0000:10:00.0", 45),
        ("0000:11:00.0", 45),
        ("0000:10:00.0", 94),
    }
