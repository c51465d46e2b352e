"""Where the driver's library and nvidia-smi are looked for, and which files are believed.

On the machine of the recordings the driver lies in /usr/local/nvidia (tests/gpu/recordings).
"""

import os
from pathlib import Path

import pytest

from hpctl.detection import driver_files
from hpctl.detection.driver_files import (
    DRIVER_ROOT,
    LIBRARY,
    find_nvidia_smi,
    find_nvml_library,
    read_nvml_library_version,
)
from hpctl.nodes.gpu_reset import GpuReset
from tests.fakes import nvidia_smi

FOLDERS = {
    "system": ("usr/bin", "usr/lib/x86_64-linux-gnu"),
    "red hat": ("usr/bin", "usr/lib64"),
    "container, 64 bit": ("usr/local/nvidia/bin", "usr/local/nvidia/lib64"),
    "container": ("usr/local/nvidia/bin", "usr/local/nvidia/lib"),
    "operator": ("run/nvidia/driver/usr/bin", "run/nvidia/driver/usr/lib/x86_64-linux-gnu"),
    "named": ("opt/driver/usr/bin", "opt/driver/usr/lib/x86_64-linux-gnu"),
}
ENV = {DRIVER_ROOT: "/opt/driver"}


@pytest.fixture(autouse=True)
def _nothing_refused(monkeypatch):
    monkeypatch.setattr(driver_files, "REFUSED", set())


def install(root: Path, name: str, version: str = "580.159.04") -> tuple[Path, Path]:
    programs, libraries = (root / folder for folder in FOLDERS[name])
    for folder in (programs, libraries):
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    (programs / "nvidia-smi").write_text("#!/bin/sh\n")
    (libraries / f"libnvidia-ml.so.{version}").write_text("a library")
    (libraries / LIBRARY).symlink_to(f"libnvidia-ml.so.{version}")
    return programs / "nvidia-smi", libraries / LIBRARY


@pytest.mark.parametrize("name", FOLDERS)
def test_each_place_is_found(tmp_path, name):
    program, library = install(tmp_path, name)
    assert find_nvml_library(tmp_path, ENV) == library
    assert read_nvml_library_version(tmp_path, ENV) == "580.159.04"
    found = find_nvidia_smi(tmp_path, ENV)
    assert found.path == program
    # The system's loader finds the system's library; elsewhere the program must be told.
    elsewhere = {} if FOLDERS[name][0] == "usr/bin" else {"LD_LIBRARY_PATH": str(library.parent)}
    assert found.environment == elsewhere


def test_the_environments_root_comes_first_and_then_the_system(tmp_path):
    for number, name in enumerate(FOLDERS):
        install(tmp_path, name, f"580.{number}")
    assert find_nvml_library(tmp_path, ENV).parent == tmp_path / FOLDERS["named"][1]
    assert find_nvml_library(tmp_path, {}).parent == tmp_path / FOLDERS["system"][1]
    assert (read_nvml_library_version(tmp_path, ENV), read_nvml_library_version(tmp_path, {})) == (
        "580.5",
        "580.0",
    )


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert find_nvml_library(tmp_path, ENV) is None
    assert find_nvidia_smi(tmp_path, ENV) is None
    assert read_nvml_library_version(tmp_path, ENV) == ""


def writable(folder: Path, file: Path) -> Path:
    folder.chmod(0o777)
    return folder


def writable_file(folder: Path, file: Path) -> Path:
    target = file.resolve()
    target.chmod(0o666)
    return target


def others(folder: Path, file: Path) -> Path:
    os.chown(file.resolve(), 4711, -1)
    return file.resolve()


def led_away(folder: Path, file: Path) -> Path:
    """A link into a folder that everybody can write."""
    away = folder.parent / f"away-{folder.name}"
    away.mkdir()
    away.chmod(0o777)
    (away / "file").write_text("")
    file.unlink()
    file.symlink_to(away / "file")
    return away


WAYS = [writable, writable_file, led_away, *([others] if os.geteuid() == 0 else [])]


@pytest.mark.parametrize("way", WAYS)
def test_what_others_can_change_is_not_believed_and_said_once(tmp_path, caplog, way):
    program, library = install(tmp_path, "container")
    for file, find in ((program, find_nvidia_smi), (library, find_nvml_library)):
        bad = way(file.parent, file)
        assert find(tmp_path, {}) is None
        assert find(tmp_path, {}) is None
        assert caplog.text.count(f"{file} is not used: ") == 1
        assert str(bad) in caplog.text


def test_an_untrusted_place_does_not_hide_the_next(tmp_path):
    writable(*(file.parent for file in install(tmp_path, "container")))
    (tmp_path / "usr/local/nvidia/lib").chmod(0o777)
    _, library = install(tmp_path, "operator")
    assert find_nvml_library(tmp_path, {}) == library
    assert find_nvidia_smi(tmp_path, {}).path == tmp_path / FOLDERS["operator"][0] / "nvidia-smi"


def test_a_reset_runs_nvidia_smi_of_the_drivers_own_folder(tmp_path):
    nvidia_smi.install(tmp_path)
    _, library = install(tmp_path, "container, 64 bit")
    (tmp_path / "usr/bin/nvidia-smi").rename(tmp_path / "usr/local/nvidia/bin/nvidia-smi")
    reset = GpuReset(tmp_path, None)
    assert [gpu.pci for gpu in reset.list_gpus()] == list(nvidia_smi.GPUS)
    assert nvidia_smi.environments(tmp_path)[-1]["LD_LIBRARY_PATH"] == str(library.parent)
