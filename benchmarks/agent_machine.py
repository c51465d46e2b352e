"""A healthy, busy node of eight GPUs that is not there: sysfs and /proc as files, NVML as a stub.

The sizes are a p5.48xlarge's: 32 EFA devices, of whose counters the agent reads 22 each, and as
many tasks as 192 virtual CPUs and a training job with its data loaders have.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.stubs.nvml import Stub
from tests.sysfs_tree import EmulatedSysfsTree

GPUS = 8
EFA_DEVICES = 32
INSTANCE_TYPE = "p5.48xlarge"
KERNEL_THREADS = 2000
PROCESSES = 240
FIRST_RANK = 40_000
"""The pid of the first of the job's eight ranks, which hold the GPUs' memory."""
FILE_SYSTEMS = (
    ("/", "259:1", "ext4", "/dev/root"),
    ("/opt/dlami/nvme", "9:0", "xfs", "/dev/md0"),
    ("/dev/shm", "0:24", "tmpfs", "tmpfs"),
    ("/fsx", "0:60", "lustre", "10.1.2.3@tcp:/abcdefgh"),
    ("/home", "0:61", "nfs4", "10.1.2.4:/"),
)
INFINIBAND = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets",
    "port_rcv_constraint_errors", "port_rcv_data", "port_rcv_errors", "port_rcv_packets",
    "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards", "port_xmit_packets",
    "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets",
    "port_rcv_discards",
)  # fmt: skip
"""Twenty-two counters of an InfiniBand port by the kernel's names."""


def build(root: Path) -> None:
    """All that the agent's checks look at below `root`."""
    tree = EmulatedSysfsTree(root)
    tree.add_p5_efa_devices(EFA_DEVICES)
    for number in range(GPUS):
        slot = f"sys/bus/pci/devices/0000:{0x10 + number:02x}:00.1"
        _write(root / slot, {"vendor": "0x10de", "class": "0x030200"})
        nvme = {"state": "live", "model": "Amazon EC2 NVMe Instance Storage", "transport": "pcie"}
        _write(root / f"sys/class/nvme/nvme{number}", nvme)
    _write(root / "sys/devices/virtual/dmi/id", {"product_name": INSTANCE_TYPE})
    folders = ("var/lib/hpctl/agent", "var/tmp", "tmp", "run/systemd/system")
    for folder in (*folders, *(point.lstrip("/") for point, *_ in FILE_SYSTEMS)):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _proc(root / "proc")


def keep_alive(root: Path, seq: int) -> None:
    """Let every EFA device count its keep-alives on."""
    for file in root.glob("sys/class/infiniband/*/hw_counters/keep_alive_rcvd"):
        file.write_text(f"{1000 + seq}\n")


def gpus(directory: Path) -> Stub:
    """Eight H100 at work, each with the memory of one rank."""
    stub = Stub(directory).gpus(GPUS)
    for number in range(GPUS):
        held = f"{FIRST_RANK + number}:{70 << 30}"
        stub.set(number, nvmlDeviceGetComputeRunningProcesses_v3=held)
    return stub


def infiniband(root: Path) -> None:
    """As many counter files as `build` has, under names that any exporter knows."""
    for number in range(EFA_DEVICES):
        device = root / f"sys/class/infiniband/mlx5_{number}"
        about = {"board_id": "MT_0000000838", "fw_ver": "28.39.1002", "hca_type": "MT4129"}
        _write(device, about)
        state = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
        _write(device / "ports/1", state)
        _write(device / "ports/1/counters", dict.fromkeys(INFINIBAND, "123456789"))


def counter_files(root: Path, names: Sequence[str]) -> int:
    """How many of the files below a root have one of these names."""
    wanted = frozenset(names)
    return sum(path.name in wanted for path in root.rglob("*") if path.is_file())


def _proc(proc: Path) -> None:
    whole = {
        "uptime": "86400.00 16000000.00",
        "loadavg": "96.00 96.00 96.00 97/3400 41000",
        "meminfo": f"MemTotal: {2063 << 20} kB\nMemFree: {1500 << 20} kB\n"
        f"MemAvailable: {1800 << 20} kB",
    }
    _write(proc, whole)
    _write(proc / "sys/kernel", {"pid_max": "4194304", "threads-max": "16000000"})
    _write(proc / "sys/fs", {"file-nr": "30000\t0\t9223372036854775807"})
    lines = [
        f"{30 + n} 1 {device} / {point} rw,relatime shared:{n} - {kind} {source} rw"
        for n, (point, device, kind, source) in enumerate(FILE_SYSTEMS)
    ]
    _write(proc / "self", {"mountinfo": "\n".join(lines)})
    for pid in range(2, 2 + KERNEL_THREADS):
        _task(proc / str(pid), f"kworker/{pid}", 0x00200000)
    for pid in range(FIRST_RANK, FIRST_RANK + PROCESSES):
        _task(proc / str(pid), "python3", 0x00400000)
    for pid in range(FIRST_RANK, FIRST_RANK + GPUS):
        group = f"0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_{pid - FIRST_RANK}"
        _write(proc / str(pid), {"cgroup": group, "comm": "python3"})


def _task(folder: Path, name: str, flags: int) -> None:
    behind = "0 " * 9 + "20 0 12 0 4711 " + "0 " * 30
    stat = f"{folder.name} ({name}) S 1 1 1 0 -1 {flags} {behind}"
    _write(folder, {"stat": stat.rstrip()})


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
