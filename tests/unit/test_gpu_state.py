"""GPU checks of a state that is certain: the driver's word, lost GPUs, counts, fabric, driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.agent.check import CannotTell, DriverHung, NotHere
from hpctl.agent.checks import check_gpu_driver, check_gpu_errors
from hpctl.agent.nvml.snapshot import Event, Fabric, Gpu, NvmlError, Snapshot
from tests.sweeps import bus, but, check, codes, gpus, judged, machine, pci

LOST = NvmlError(15, "nvmlDeviceGetUtilizationRates", "GPU is lost")
MISMATCH = NvmlError(18, "nvmlInit_v2", "Driver/library version mismatch")


# --- recovery action --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (1, "reset"),
        (2, "reboot"),
        (3, "drain-p2p"),
        (4, "drain-and-reset"),
        (5, "recover-imex"),
        (6, "bus-reset"),
        (7, "system-reboot"),
        (42, "unknown"),
    ],
)
def test_the_drivers_word_on_one_gpu(action, code):
    seen = Snapshot(100.0, gpus=but(3, gpus(recovery_action=0), recovery_action=action))
    assert codes("gpu.recovery", seen) == {pci(3): code}


@pytest.mark.parametrize("action", [0, None])
def test_no_action_or_a_driver_that_does_not_say(action):
    assert codes("gpu.recovery", Snapshot(100.0, gpus=gpus(recovery_action=action))) == {}


# --- lost -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(15, "lost"), (16, "reset-required")])
def test_a_gpu_that_nvml_gives_up(number, code):
    seen = Snapshot(100.0, gpus=but(5, gpus(), error=NvmlError(number, "nvmlDeviceGetUUID")))
    assert codes("gpu.lost", seen) == {pci(5): code}


def test_a_lost_gpu_that_would_not_even_say_its_address():
    seen = Snapshot(100.0, gpus=(*gpus(7), Gpu(7, error=LOST)))
    assert codes("gpu.lost", seen) == {"gpu7": "lost"}


def test_another_error_of_one_gpu_is_only_shown():
    seen = Snapshot(100.0, gpus=but(1, gpus(), error=NvmlError(999, "nvmlDeviceGetName")))
    assert codes("gpu.lost", seen) == {pci(1): "error"}


def test_nvml_that_does_not_start_because_a_gpu_is_lost():
    seen = check_gpu_errors.gather_lost(machine(Snapshot(100.0, error=LOST)))
    assert codes("gpu.lost", seen) == {"": "lost"}


@pytest.mark.parametrize(("age", "expected"), [(60.0, {pci(2): "unavailable"}), (61.0, {})])
def test_an_event_that_says_unavailable_counts_for_a_minute(age, expected):
    seen = Snapshot(500.0, gpus=gpus(), events=(Event(500.0 - age, pci(2), 0x4000),))
    assert codes("gpu.lost", seen) == expected


def test_sound_gpus_and_other_events_are_not_lost():
    seen = Snapshot(500.0, gpus=gpus(), events=(Event(499.0, pci(2), 0x8, 43),))
    assert codes("gpu.lost", seen) == {}


# --- hung -------------------------------------------------------------------------------------


def test_a_call_that_does_not_come_back_is_a_finding():
    hung = DriverHung(20.0, "nvmlDeviceGetTemperature")
    seen = check_gpu_driver.gather_hung(machine(hung))
    assert codes("gpu.hung", seen) == {"": "hung"}


@pytest.mark.parametrize("what", [DriverHung(19.9), Snapshot(100.0, gpus=gpus())])
def test_one_missed_deadline_or_an_answer_is_not_hung(what):
    assert codes("gpu.hung", check_gpu_driver.gather_hung(machine(what))) == {}


def test_a_child_that_only_starts_cannot_tell():
    with pytest.raises(CannotTell):
        check_gpu_driver.gather_hung(machine(CannotTell("no sweep yet")))


def test_the_other_checks_are_unknown_while_the_driver_hangs():
    with pytest.raises(CannotTell, match="has not answered nvmlInit for 25 s"):
        check("gpu.recovery").gather(machine(DriverHung(25.0, "nvmlInit")))


# --- Xids from events -------------------------------------------------------------------------


def test_a_certain_xid_is_told_once():
    first = Snapshot(100.0, gpus=gpus(), events=(Event(90.0, pci(0), 0x8, 43),))
    second = Snapshot(105.0, gpus=gpus(), events=(*first.events, Event(103.0, pci(4), 0x8, 79)))
    assert codes("gpu.xid", second, first) == {pci(4): "79"}
    assert codes("gpu.xid", second, second) == {}


@pytest.mark.parametrize("xid", [0, 13, 31, 43, 45, 48, 63, 92, 94, 109, 145, 149, 154])
def test_xids_that_need_their_text_or_never_act_are_left_to_the_kernels_log(xid):
    seen = Snapshot(100.0, gpus=gpus(), events=(Event(99.0, pci(0), 0x8, xid),))
    assert codes("gpu.xid", seen) == {}


# --- count ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_bus", "in_nvml", "expected", "found"),
    [
        (8, 8, 8, {}),
        (8, 8, None, {}),
        (8, 7, 8, {"": "nvml"}),
        (8, 7, None, {"": "nvml"}),
        (7, 7, 8, {"": "pci"}),
        (7, 7, None, {}),
        (8, 8, 4, {"": "more"}),
        (8, 0, 8, {"": "nvml"}),
    ],
)
def test_counts(tmp_path, on_bus, in_nvml, expected, found):
    seen = Snapshot(100.0, gpus=gpus(in_nvml))
    sample = check_gpu_driver.gather_count(machine(seen, bus(tmp_path, on_bus), expected))
    assert codes("gpu.count", sample) == found


def test_the_missing_gpu_is_named(tmp_path):
    seen = Snapshot(100.0, gpus=gpus()[:5] + gpus()[6:])
    (said,) = judged("gpu.count", check_gpu_driver.gather_count(machine(seen, bus(tmp_path, 8))))
    assert pci(5) in said.detail


def test_a_lost_gpu_still_counts(tmp_path):
    seen = Snapshot(100.0, gpus=but(5, gpus(), error=LOST))
    assert (
        codes("gpu.count", check_gpu_driver.gather_count(machine(seen, bus(tmp_path, 8), 8))) == {}
    )


@pytest.mark.parametrize(
    "nvml", [DriverHung(30.0), CannotTell("starting"), Snapshot(1.0, error=MISMATCH)]
)
def test_nvml_that_cannot_tell_proves_nothing(tmp_path, nvml):
    sample = check_gpu_driver.gather_count(machine(nvml, bus(tmp_path, 8), 8))
    assert codes("gpu.count", sample) == {}
    assert codes("gpu.count", check_gpu_driver.gather_count(machine(nvml, tmp_path, 9))) == {
        "": "pci"
    }


@pytest.mark.parametrize(
    "absent",
    [
        NotHere("no driver"),
        Snapshot(1.0, error=NvmlError(9, "nvmlInit_v2")),
        Snapshot(1.0, error=NvmlError(12, "nvmlInit_v2")),
    ],
)
def test_no_driver_where_gpus_are_expected(tmp_path, absent):
    sample = check_gpu_driver.gather_count(machine(absent, bus(tmp_path, 8), 8))
    assert codes("gpu.count", sample) == {"": "nvml"}


def test_no_driver_on_a_laptop_with_a_gpu_is_nobodys_fault(tmp_path):
    sample = check_gpu_driver.gather_count(machine(NotHere("no driver"), bus(tmp_path, 1)))
    assert codes("gpu.count", sample) == {}


@pytest.mark.parametrize("expected", [None, 0])
def test_a_machine_without_gpus_has_no_count(tmp_path, expected):
    with pytest.raises(NotHere):
        check_gpu_driver.gather_count(machine(NotHere("no driver"), bus(tmp_path, 0), expected))


# --- fabric -----------------------------------------------------------------------------------

UP = Fabric(state=3, status=0, clique=0, cluster_uuid="0" * 32, health_mask=0b10_10_10_10)


def test_a_fabric_that_is_up():
    assert codes("gpu.fabric", Snapshot(100.0, gpus=gpus(fabric=UP))) == {}


@pytest.mark.parametrize(
    ("fabric", "code"),
    [
        (Fabric(state=1, status=0), "not-completed"),
        (Fabric(state=2, status=0), "not-completed"),
        (Fabric(state=3, status=23), "status"),
        (Fabric(state=3, status=999), "status"),
    ],
)
def test_a_fabric_that_is_not_up_on_any_gpu(fabric, code):
    seen = Snapshot(100.0, gpus=gpus(fabric=fabric))
    assert codes("gpu.fabric", seen) == {pci(i): code for i in range(8)}


@pytest.mark.parametrize("fabric", [Fabric(state=2, status=0), Fabric(state=3, status=23)])
def test_a_fabric_that_is_up_on_some_gpus_only(fabric):
    seen = Snapshot(100.0, gpus=but(6, gpus(fabric=UP), fabric=fabric))
    assert codes("gpu.fabric", seen) == {pci(6): "mixed"}


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0b01, "degraded bandwidth"),
        (0b01_00, "route recovery"),
        (0b01_10_10, "route unhealthy"),
        (0b01_10_10_10, "access timeout recovery"),
        (3 << 8, "incorrect configuration 3"),
    ],
)
def test_a_plain_yes_in_the_health_mask(mask, words):
    fabric = Fabric(state=3, status=0, health_mask=mask)
    (said,) = judged("gpu.fabric", Snapshot(100.0, gpus=gpus(1, fabric=fabric)))
    assert (said.code, said.detail) == ("health", words)


@pytest.mark.parametrize("mask", [None, 0, 0b10_10_10_10, 0b11_11_11_11, 1 << 8])
def test_the_rest_of_the_health_mask_is_no_fault(mask):
    fabric = Fabric(state=3, status=0, health_mask=mask)
    assert codes("gpu.fabric", Snapshot(100.0, gpus=gpus(fabric=fabric))) == {}


@pytest.mark.parametrize(
    ("name", "uuid", "found"),
    [
        ("NVIDIA GB200", "0" * 32, {pci(0): "no-cluster"}),
        ("NVIDIA GB200", "", {pci(0): "no-cluster"}),
        ("NVIDIA GB200", "7f3a0000000000000000000000000000", {}),
        ("NVIDIA H100 80GB HBM3", "0" * 32, {}),
        ("NVIDIA H100 80GB HBM3", "", {}),
    ],
)
def test_only_a_rack_scale_system_needs_a_cluster(name, uuid, found):
    fabric = Fabric(state=3, status=0, cluster_uuid=uuid)
    seen = Snapshot(100.0, gpus=(Gpu(0, "GPU-0", pci(0), name, fabric=fabric),))
    assert codes("gpu.fabric", seen) == found


def test_a_gpu_in_mig_mode_is_in_no_fabric():
    among = but(6, gpus(mig=False, fabric=UP), mig=True, fabric=Fabric(state=1, status=0))
    assert codes("gpu.fabric", Snapshot(100.0, gpus=among)) == {}
    with pytest.raises(NotHere):
        check("gpu.fabric").gather(machine(Snapshot(100.0, gpus=gpus(mig=True, fabric=UP))))


@pytest.mark.parametrize("fabric", [None, Fabric(state=0, status=0)])
def test_no_fabric_is_not_here(fabric):
    with pytest.raises(NotHere):
        check("gpu.fabric").gather(machine(Snapshot(100.0, gpus=gpus(fabric=fabric))))


# --- driver -----------------------------------------------------------------------------------

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
    sample = check_gpu_driver.gather_driver(machine(Snapshot(100.0, gpus=gpus(2)), root))
    assert codes("gpu.driver", sample) == found


def test_the_mismatch_that_nvml_reports(tmp_path):
    root = installed(tmp_path, MODULE, "570.86.15")
    (said,) = judged(
        "gpu.driver", check_gpu_driver.gather_driver(machine(Snapshot(1.0, error=MISMATCH), root))
    )
    assert said.code == "mismatch"
    assert "535.183.01" in said.detail
    assert "570.86.15" in said.detail


@pytest.mark.parametrize(
    "nvml", [NotHere("no libnvidia-ml.so.1"), Snapshot(1.0, error=NvmlError(9, "nvmlInit_v2"))]
)
def test_gpus_without_a_driver(tmp_path, nvml):
    sample = check_gpu_driver.gather_driver(machine(nvml, bus(tmp_path, 2)))
    assert codes("gpu.driver", sample) == {"": "missing"}


def test_another_error_of_nvml_is_shown_and_a_lost_gpu_is_another_checks(tmp_path):
    root = bus(tmp_path, 2)
    unknown = Snapshot(1.0, error=NvmlError(999, "nvmlInit_v2"))
    assert codes("gpu.driver", check_gpu_driver.gather_driver(machine(unknown, root))) == {
        "": "error"
    }
    lost = Snapshot(1.0, error=LOST)
    assert codes("gpu.driver", check_gpu_driver.gather_driver(machine(lost, root))) == {}


def test_a_machine_without_gpu_and_driver(tmp_path):
    with pytest.raises(NotHere):
        check_gpu_driver.gather_driver(machine(NotHere("no driver"), bus(tmp_path, 0)))


def test_versions_are_known_before_the_child_is_ready(tmp_path):
    root = installed(tmp_path, MODULE, "570.86.15")
    sample = check_gpu_driver.gather_driver(machine(CannotTell("starting"), root))
    assert codes("gpu.driver", sample) == {"": "upgraded"}
