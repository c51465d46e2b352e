"""What the GPU checks gather: lost and missing GPUs, a driver that hangs or does not match."""

from pathlib import Path

import pytest

from hpctl.detection.check import CheckResultUnknownError, DeviceAbsentError, DriverHungError
from hpctl.detection.checks import gpu_count, gpu_driver, gpu_hung
from hpctl.detection.nvml.snapshot import GpuState, NvmlError, NvmlEvent, NvmlSnapshot
from hpctl.faults.table import CHECKS
from tests.detection.corpus import healthy
from tests.sweeps import bus, check, codes, gpus, machine, pci

LOST = NvmlError(15, "nvmlDeviceGetUtilizationRates", "GPU is lost")
MISMATCH = NvmlError(18, "nvmlInit_v2", "Driver/library version mismatch")


def test_a_lost_gpu_that_would_not_even_say_its_address():
    seen = NvmlSnapshot(100.0, gpus=(*gpus(7), GpuState(7, error=LOST)))
    assert codes("gpu.lost", seen) == {"gpu7": "lost"}


@pytest.mark.parametrize(("age", "expected"), [(60.0, {pci(2): "unavailable"}), (61.0, {})])
def test_an_event_that_says_unavailable_counts_for_a_minute(age, expected):
    seen = NvmlSnapshot(500.0, gpus=gpus(), events=(NvmlEvent(500.0 - age, pci(2), 0x4000),))
    assert codes("gpu.lost", seen) == expected


def test_a_child_that_only_starts_cannot_tell():
    with pytest.raises(CheckResultUnknownError):
        gpu_hung.measure_nvml_response_delay(machine(CheckResultUnknownError("no sweep yet")))


def test_a_certain_xid_is_reported_once():
    first = NvmlSnapshot(100.0, gpus=gpus(), events=(NvmlEvent(90.0, pci(0), 0x8, 43),))
    second = NvmlSnapshot(
        105.0, gpus=gpus(), events=(*first.events, NvmlEvent(103.0, pci(4), 0x8, 79))
    )
    assert codes("gpu.xid", second, first) == {pci(4): "79"}
    assert codes("gpu.xid", second, second) == {}


@pytest.mark.parametrize("xid", [0, 13, 31, 43, 45, 48, 63, 92, 94, 109, 145, 149, 154])
def test_xids_that_need_their_text_or_never_act_are_left_to_the_kernels_log(xid):
    seen = NvmlSnapshot(100.0, gpus=gpus(), events=(NvmlEvent(99.0, pci(0), 0x8, xid),))
    assert codes("gpu.xid", seen) == {}


@pytest.mark.parametrize(
    ("on_bus", "in_nvml", "expected", "found"),
    [
        (8, 8, 8, {}), (8, 8, None, {}), (8, 7, 8, {"": "nvml"}), (8, 7, None, {"": "nvml"}),
        (7, 7, 8, {"": "pci"}), (7, 7, None, {}), (8, 8, 4, {"": "more"}), (8, 0, 8, {"": "nvml"}),
    ],
)  # fmt: skip
def test_counts(tmp_path, on_bus, in_nvml, expected, found):
    seen = NvmlSnapshot(100.0, gpus=gpus(in_nvml))
    sample = gpu_count.collect_gpu_counts(machine(seen, bus(tmp_path, on_bus), expected))
    assert codes("gpu.count", sample) == found


@pytest.mark.parametrize(
    "nvml",
    [DriverHungError(30.0), CheckResultUnknownError("starting"), NvmlSnapshot(1.0, error=MISMATCH)],
)
def test_nvml_that_cannot_tell_proves_nothing(tmp_path, nvml):
    sample = gpu_count.collect_gpu_counts(machine(nvml, bus(tmp_path, 8), 8))
    assert codes("gpu.count", sample) == {}
    assert codes("gpu.count", gpu_count.collect_gpu_counts(machine(nvml, tmp_path, 9))) == {
        "": "pci"
    }


@pytest.mark.parametrize(
    "absent",
    [
        DeviceAbsentError("no driver"),
        NvmlSnapshot(1.0, error=NvmlError(9, "nvmlInit_v2")),
        NvmlSnapshot(1.0, error=NvmlError(12, "nvmlInit_v2")),
    ],
)
def test_no_driver_where_gpus_are_expected(tmp_path, absent):
    sample = gpu_count.collect_gpu_counts(machine(absent, bus(tmp_path, 8), 8))
    assert codes("gpu.count", sample) == {"": "nvml"}


@pytest.mark.parametrize("expected", [None, 0])
def test_a_machine_without_gpus_has_no_count(tmp_path, expected):
    with pytest.raises(DeviceAbsentError):
        gpu_count.collect_gpu_counts(
            machine(DeviceAbsentError("no driver"), bus(tmp_path, 0), expected)
        )


MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)"
)


def installed(root: Path, module: str, library: str) -> Path:
    folder = root / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(module + "\n")
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{library}")
    return bus(root, 2)


@pytest.mark.parametrize(
    ("module", "library", "found"),
    [
        (MODULE, "535.183.01", {}),
        (OPEN_MODULE, "570.86.15", {}),
        (MODULE, "570.86.15", {"": "upgraded"}),
        (OPEN_MODULE, "570.124.06", {"": "upgraded"}),
        ("something else", "570.86.15", {}),
    ],
)
def test_versions_of_module_and_library(tmp_path, module, library, found):
    root = installed(tmp_path, module, library)
    sample = gpu_driver.read_gpu_driver_versions(machine(NvmlSnapshot(100.0, gpus=gpus(2)), root))
    assert codes("gpu.driver", sample) == found


@pytest.mark.parametrize(
    "nvml",
    [
        DeviceAbsentError("no libnvidia-ml.so.1"),
        NvmlSnapshot(1.0, error=NvmlError(9, "nvmlInit_v2")),
    ],
)
def test_gpus_without_a_driver(tmp_path, nvml):
    sample = gpu_driver.read_gpu_driver_versions(machine(nvml, bus(tmp_path, 2)))
    assert codes("gpu.driver", sample) == {"": "missing"}


def test_another_error_of_nvml_is_shown_and_a_lost_gpu_is_another_checks(tmp_path):
    root = bus(tmp_path, 2)
    unknown = NvmlSnapshot(1.0, error=NvmlError(999, "nvmlInit_v2"))
    assert codes("gpu.driver", gpu_driver.read_gpu_driver_versions(machine(unknown, root))) == {
        "": "error"
    }
    lost = NvmlSnapshot(1.0, error=LOST)
    assert codes("gpu.driver", gpu_driver.read_gpu_driver_versions(machine(lost, root))) == {}


def test_versions_are_known_before_the_child_is_ready(tmp_path):
    root = installed(tmp_path, MODULE, "570.86.15")
    sample = gpu_driver.read_gpu_driver_versions(machine(CheckResultUnknownError("starting"), root))
    assert codes("gpu.driver", sample) == {"": "upgraded"}


NAMES = [spec.name for spec in CHECKS if spec.name.startswith("gpu.")]


def output(name, seen, before=None, root=Path("/nowhere")):
    """What a check says of its gathers; nothing where it is not for such a machine."""
    one = check(name)
    try:
        earlier = one.gather(machine(before or seen, root, 8))
        return list(one.judge(one.gather(machine(seen, root, 8)), earlier, one.limits))
    except DeviceAbsentError:
        return []


@pytest.mark.parametrize("name", NAMES)
def test_healthy_gpus_under_load_and_those_that_say_nothing_are_silent(name, tmp_path):
    bus(tmp_path, 8)
    before, seen = (
        NvmlSnapshot(at, gpus=tuple(healthy.gpu(i, at) for i in range(8)))
        for at in (1000.0, 1060.0)
    )
    assert output(name, seen, before, tmp_path) == []
    assert output(name, NvmlSnapshot(1060.0, gpus=gpus()), root=tmp_path) == []


@pytest.mark.parametrize("name", [n for n in NAMES if n != "gpu.hung"])
@pytest.mark.parametrize(
    "nvml",
    [None, DeviceAbsentError("no driver"), NvmlSnapshot(1.0, error=NvmlError(9, "nvmlInit_v2"))],
)
def test_without_nvml_a_check_is_not_here(name, nvml, tmp_path):
    with pytest.raises(DeviceAbsentError):
        check(name).gather(machine(nvml, tmp_path))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("gpu.hung", "gpu.count")])
def test_a_hung_driver_makes_the_others_unknown(name, tmp_path):
    with pytest.raises(CheckResultUnknownError, match="has not answered nvmlInit for 25 s"):
        check(name).gather(machine(DriverHungError(25.0, "nvmlInit"), tmp_path))
