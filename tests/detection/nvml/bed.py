"""What the NVML tests do again and again: wait, look, and lay out a machine."""

import time
from collections.abc import Callable
from pathlib import Path

from hpctl.detection.check import CheckResultUnknownError, DriverHungError
from hpctl.detection.nvml.client import NvmlClient
from hpctl.detection.nvml.snapshot import NvmlSnapshot
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

Connect = Callable[..., NvmlClient]


def fresh(client: NvmlClient) -> NvmlSnapshot:
    """A sweep that began after this call."""
    now = time.monotonic()

    def newer() -> NvmlSnapshot | None:
        snapshot = newest(client)
        return snapshot if snapshot is not None and snapshot.at > now else None

    return until(newer)


def newest(client: NvmlClient) -> NvmlSnapshot | None:
    try:
        return client.newest()
    except CheckResultUnknownError:
        return None


def hung(client: NvmlClient) -> DriverHungError | None:
    try:
        client.newest()
    except DriverHungError as error:
        return error
    except CheckResultUnknownError:
        pass
    return None


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second: it ends while it is read
        return False
    return state != "Z"


def pci_gpu(root: Path, number: int = 0) -> None:
    device = root / f"sys/bus/pci/devices/0000:1{number}:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
