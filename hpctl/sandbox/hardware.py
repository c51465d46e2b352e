"""Simulated hardware: EFA, mlx5 and Neuron devices as files below any root, as drivers show them.

The links are those of the real thing: /sys/class/infiniband/NAME points below the PCI function,
and NAME/device back to it. A counter is written in place, so that a descriptor kept open reads the
new number, as with the kernel's files.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from hpctl.toolkit.errors import HpctlError

COUNTERS: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("counters.yaml").read_text()
)
KINDS = ("efa", "neuron")
"""What `have` can make."""
MOST_DEVICES = 32
UPTIME_S = 86400
"""A simulated node has been up for a day: no check waits for its drivers to load."""

_PCI = "sys/bus/pci/devices"
_RDMA = "sys/class/infiniband"
_NEURON = "sys/devices/virtual/neuron_device"
_AMAZON, _EFA_ID, _NEURON_ID = "0x1d0f", "0xefa2", "0x7364"


class EmulatedSysfsTree:
    """Builds and changes the tree below `root`, or continues with the one that is there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._places: dict[tuple[str, str, int], Path] = {}
        for folder in (_PCI, "sys/devices/pci0000:00"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        slots = [path.name for path in (root / _PCI).iterdir()]
        self._next = 1 + max((_parse_pci_slot_number(slot) for slot in slots), default=-1)

    def add_efa_device(
        self, name: str, values: Mapping[str, int] | None = None, *, old: bool = False,
        bound: bool = True,
    ) -> None:  # fmt: skip
        """An EFA device. `old`: a driver without the newer counters, all of them in the port.

        `bound` false: on the bus, without a driver.
        """
        pci = self._make_pci_device_directory(_AMAZON, _EFA_ID)
        if not bound:
            return
        device = self._make_rdma_device_directory(pci, name)
        port = device / "ports/1"
        self._write_port_state_files(port)
        names = [n for n in COUNTERS["efa_port"] if not (old and n in COUNTERS["efa_new"])]
        start = {"keep_alive_rcvd": 1000, "submitted_cmds": 40, "completed_cmds": 40}
        self._write_counter_files(port / "hw_counters", names, {**start, **(values or {})})
        own = port if old else device
        self._write_counter_files(
            own / "hw_counters", COUNTERS["efa_device"], {**start, **(values or {})}
        )
        (port / "hw_counters/lifespan").write_text("10\n")

    def add_p5_efa_devices(self, count: int) -> list[str]:
        """`count` EFA devices as a p5 names them. Returns the names."""
        names = [format_efa_name(number) for number in range(count)]
        for name in names:
            self.add_efa_device(name)
        return names

    def add_mlx5_device(
        self, name: str, *, ports: int = 1, state: str = "4: ACTIVE", interface: str = ""
    ) -> None:
        """A ConnectX device; with `interface`, one that runs Ethernet."""
        pci = self._make_pci_device_directory("0x15b3", "0x101e")
        device = self._make_rdma_device_directory(pci, name)
        for number in range(1, ports + 1):
            port = device / f"ports/{number}"
            self._write_port_state_files(port, state)
            self._write_counter_files(port / "counters", COUNTERS["mlx5_port"], {})
            self._write_counter_files(port / "hw_counters", COUNTERS["mlx5_hardware"], {})
        if interface:
            self._write_counter_files(
                pci / "net" / interface, ("carrier_changes",), {"carrier_changes": 2}
            )

    def add_neuron_device(
        self, number: int, folder: str = "stats/hardware", total: bool = False
    ) -> None:
        """Add a Neuron device with its counters in `folder`; `total`: each as a separate folder."""
        pci = self._make_pci_device_directory(_AMAZON, _NEURON_ID)
        device = self.root / f"{_NEURON}/neuron{number}"
        for core in range(2):
            status = device / f"neuron_core{core}/stats/status/hw_error"
            self._write_counter_files(status, ("total", "present"), {})
        (device / "info/architecture").mkdir(parents=True)
        (device / "info/architecture/device_name").write_text("Trainium2\n")
        (device / "device").symlink_to(os.path.relpath(pci, device))
        for name in COUNTERS["neuron"]:
            place = device / folder / name if total else device / folder
            self._write_counter_files(place, ("total" if total else name,), {})

    def find_neuron_counter_file(self, number: int, name: str) -> Path:
        """Return where a counter of a Neuron device is."""
        device = self.root / f"{_NEURON}/neuron{number}"
        found = next(device.rglob(name))
        return found / "total" if found.is_dir() else found

    def unplug_neuron_device(self, number: int) -> None:
        """Take a Neuron device off the bus."""
        device = self.root / f"{_NEURON}/neuron{number}"
        pci = (device / "device").resolve()
        shutil.rmtree(device)
        self._remove_pci_device(pci)

    def file(self, device: str, name: str, port: int = 1) -> Path:
        """Return a counter of an RDMA device: the port's, else the device's own, else its
        interface's."""
        base = self.root / _RDMA / device
        places = (f"ports/{port}/hw_counters", f"ports/{port}/counters", "hw_counters")
        found = [base / place / name for place in places if (base / place / name).exists()]
        return found[0] if found else next((base / "device/net").glob(f"*/{name}"))

    def set(self, device: str, name: str, value: int, port: int = 1) -> None:
        """Write a counter in place, cut only where it became shorter: cutting is what costs."""
        key = (device, name, port)
        if key not in self._places:
            self._places[key] = self.file(device, name, port).resolve()
        written = f"{value}\n".encode()
        descriptor = os.open(self._places[key], os.O_WRONLY)
        try:
            os.pwrite(descriptor, written, 0)
            if os.fstat(descriptor).st_size > len(written):
                os.ftruncate(descriptor, len(written))
        finally:
            os.close(descriptor)

    def state(self, device: str, state: str, phys: str, port: int = 1) -> None:
        """Write a port's state, as `1: DOWN` and `3: Disabled`."""
        folder = self.root / f"{_RDMA}/{device}/ports/{port}"
        (folder / "state").write_text(f"{state}\n")
        (folder / "phys_state").write_text(f"{phys}\n")

    def unplug(self, device: str) -> None:
        """Take an RDMA device off the bus."""
        self._places.clear()
        link = self.root / _RDMA / device
        pci = (link / "device").resolve()
        link.unlink()
        self._remove_pci_device(pci)

    def unbind_rdma_driver(self, device: str) -> None:
        """Take the driver off an RDMA device; the function stays on the bus."""
        self._places.clear()
        link = self.root / _RDMA / device
        shutil.rmtree(link.resolve())
        link.unlink()

    def _make_pci_device_directory(self, vendor: str, device: str) -> Path:
        slot = f"0000:{self._next // 32:02x}:{self._next % 32:02x}.0"
        self._next += 1
        pci = self.root / "sys/devices/pci0000:00" / slot
        pci.mkdir()
        (pci / "vendor").write_text(f"{vendor}\n")
        (pci / "device").write_text(f"{device}\n")
        link = self.root / _PCI / slot
        link.symlink_to(os.path.relpath(pci, link.parent))
        return pci

    def _remove_pci_device(self, pci: Path) -> None:
        (self.root / _PCI / pci.name).unlink()
        shutil.rmtree(pci)

    def _make_rdma_device_directory(self, pci: Path, name: str) -> Path:
        device = pci / "infiniband" / name
        device.mkdir(parents=True)
        (device / "device").symlink_to("../..")
        link = self.root / _RDMA / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(device, link.parent))
        return device

    def _write_port_state_files(self, port: Path, state: str = "4: ACTIVE") -> None:
        port.mkdir(parents=True)
        up = state == "4: ACTIVE"
        (port / "state").write_text(f"{state}\n")
        (port / "phys_state").write_text("5: LinkUp\n" if up else "3: Disabled\n")
        (port / "link_layer").write_text("Unspecified\n")

    def _write_counter_files(
        self, folder: Path, names: Sequence[str], values: Mapping[str, int]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_text(f"{values.get(name, 0)}\n")


def format_efa_name(number: int) -> str:
    """Return what a p5 calls its EFA device `number`, from 0."""
    return f"rdmap{79 + 17 * (number // 4)}s{number % 4}"


def set_sysfs_device_count(root: Path, kind: str, count: int) -> None:
    """Let the machine at `root` have so many devices of a kind, in service: plug in or unplug.

    Those that stay are left as they are. No process sends their keep-alives, so they are devices
    without that count. Raises HpctlError.
    """
    if kind not in KINDS:
        raise HpctlError(
            f"the sandbox has no hardware of the kind {kind!r}",
            f"Choose one of: {', '.join(KINDS)}.",
        )
    if not 0 <= count <= MOST_DEVICES:
        raise HpctlError(
            f"a node of the sandbox can have 0 to {MOST_DEVICES} {kind} devices, not {count}"
        )
    tree = EmulatedSysfsTree(root)
    for number in range(MOST_DEVICES):
        device = root / _RDMA / format_efa_name(number)
        if kind == "neuron":
            device = root / _NEURON / f"neuron{number}"
        there = device.is_dir()
        if there == (number < count):
            continue
        if kind == "neuron":
            (tree.unplug_neuron_device if there else tree.add_neuron_device)(number)
        elif there:
            tree.unplug(device.name)
        else:
            tree.add_efa_device(device.name)
            tree.file(device.name, "keep_alive_rcvd").unlink()


def make_sysfs_tree(root: Path, devices: Mapping[str, int]) -> None:
    """Make the whole tree again, as a machine that boots finds it. Raises HpctlError."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "proc").mkdir(parents=True)
    (root / "proc/uptime").write_text(f"{UPTIME_S}.00 {UPTIME_S}.00\n")
    for kind, count in devices.items():
        set_sysfs_device_count(root, kind, count)


def write_or_remove_sysfs_file(root: Path, path: str, text: str | None) -> None:
    """Write a file below `root`, or with None remove a file, a link or a folder.

    A file that is there is written in place, as its readers may hold it open. Raises HpctlError.
    """
    file = root / path.lstrip("/")
    if not file.parent.resolve().is_relative_to(root.resolve()) or file.name in ("", ".", ".."):
        raise HpctlError(
            f"the sandbox does not change {path}: it is outside the node's emulated hardware"
        )
    try:
        if text is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        elif file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()
    except OSError as error:
        raise HpctlError(f"{path}: {error.strerror}", f"Below {root}: ls shows what is.") from error


def _parse_pci_slot_number(slot: str) -> int:
    _, bus, device = slot.split(":")
    return int(bus, 16) * 32 + int(device.partition(".")[0], 16)
