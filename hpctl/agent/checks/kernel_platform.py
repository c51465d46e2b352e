"""PCIe, cards, accelerators and limits in the kernel's log, and what no other family knows."""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from hpctl.agent.checks.kernel_line import HEAD_CHARS, Family, Line, line
from hpctl.agent.kmsg import Record
from hpctl.core.faults import BENIGN_LINES

# --- pcie ----------
# PCIe errors, as the kernel's AER driver prints them (drivers/pci/pcie/aer.c).
#
# The wording changed with Linux 6.12: `Corrected` became `Correctable`, `Uncorrected` became
# `Uncorrectable`, and `error received:` became `error message received from`:
#
#     pcieport 0000:80:01.1: AER: Corrected error received: 0000:81:00.0
#     pcieport 0000:80:01.1: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:81:00.0
#     pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0
#     nvme 0000:81:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
#     nvidia 0000:c1:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer
#     pcieport 0000:80:01.1: AER: device recovery failed
#     nvidia 0000:c1:00.0: AER: can't recover (no error_detected callback)
#     pcieport 0000:80:01.1: DPC: containment event, status:0x1f01 source:0x0000        (pcie/dpc.c)
#     pcieport 0000:80:01.1: pciehp: Slot(17): Link Down                        (hotplug/pciehp_*.c)
#     nvidia 0000:c1:00.0: not ready 65535ms after FLR; giving up                            (pci.c)
#     nvidia 0000:c1:00.0: Unable to change power state from D3cold to D0, device inaccessible
#
# A slot without a link or a card is also what detaching a volume looks like.
#
# Only a fatal error is one for the node: after it the link is down. A device whose driver has no
# say in recovery (NVIDIA's has none) reports a failed recovery after errors that it survived.

PCIE_CHECK = "kernel.pcie"
# The driver's name stands first, and any driver can: these lines are known by a later word.
PCIE_WORDS = (" AER: ", "PCIe Bus Error: ")
PCIE_HEADS = ("pcie", "pci ", "nvid", "nvme", "mlx5", "efa ", "ena ")
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_SEVERITY = r"(?P<severity>Correct|Uncorrect)(?:ed|able)(?: \((?P<grade>Non-Fatal|Fatal)\))?"
_DRIVER = rf"[\w.-]+ (?P<own>{_ADDRESS}): "
_RECEIVED = re.compile(
    rf"{_DRIVER}AER: (?:Multiple )?{_SEVERITY} error (?:received:|message received from) "
    rf"(?P<device>{_ADDRESS})"
)
_DETAILED = re.compile(rf"{_DRIVER}(?:AER: )?PCIe Bus Error: severity={_SEVERITY}")
_NOT_RECOVERED = re.compile(
    rf"{_DRIVER}AER: (?:device recovery failed|can't recover \(|subordinate device reset failed)"
)
_GONE = re.compile(
    rf"{_DRIVER}(?:DPC: (?P<contained>containment event|unmasked uncorrectable error"
    r"|ERR_(?:NON)?FATAL |RP PIO severity|Data Link Layer)"
    r"|pciehp: Slot\([\w-]{1,32}\): (?P<slot>Link Down$|Card not present|No link|No device found"
    r"|Cannot train|Power fault)"
    r"|(?P<inaccessible>not ready \d+ms after .{1,40}; giving up"
    r"|(?:Unable to|[Cc]an't|Refused to) change power state))"
)


def gather_pcie(record: Record) -> Line | None:
    """The device that the error came from, and how grave it is."""
    text = record.text
    if (match := _RECEIVED.match(text)) is not None:
        return line(PCIE_CHECK, _code(match), record, match["device"])
    if (match := _DETAILED.match(text)) is not None:
        return line(PCIE_CHECK, _code(match), record, match["own"])
    if (match := _NOT_RECOVERED.match(text)) is not None:
        return line(PCIE_CHECK, "recovery-failed", record, match["own"])
    if (match := _GONE.match(text)) is not None:
        return line(PCIE_CHECK, str(match.lastgroup), record, match["own"])
    return None


def _code(match: re.Match[str]) -> str:
    if match["severity"] == "Correct":
        return "corrected"
    return "fatal" if match["grade"] == "Fatal" else "nonfatal"


# --- platform ----------
# The platform under the devices: interrupts nobody knows, clocks, heat, address translation.
#
#     Uhhuh. NMI received for unknown reason 2d on CPU 3.                  (arch/x86/kernel/nmi.c)
#     NMI: PCI system error (SERR) for reason b1 on CPU 0.
#     clocksource: timekeeping watchdog on CPU5: Marking clocksource 'tsc' as unstable because ...
#     thermal thermal_zone0: acpitz: critical temperature reached, shutting down  (drivers/thermal)
#     DMAR: [DMA Read NO_PASID] Request device [4e:00.0] fault addr 0xf0c00000 [fault reason ...
#     nvidia 0000:4e:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x7f1200 ...]
#     nvme 0000:3a:00.0: swiotlb buffer is full (sz: 65536 bytes), ...            (kernel/dma)
#
# A device that reads or writes where it may not (IOMMU) is often one that is about to fail, and as
# often its driver's mistake: all of this is worth watching.

PLATFORM_CHECK = "kernel.platform"
_DEVICES = ("nvid", "nvme", "mlx5", "efa ", "ena ", "pci ", "pcie")
_WORDS = ("Uhhu", "NMI:", "cloc", "tsc:", "TSC:", "ther", "ACPI", "rebo", "DMAR", "AMD-", "arm-")
PLATFORM_HEADS = (*_WORDS, *_DEVICES)
_SAYS = re.compile(
    r"(?P<nmi>Uhhuh\. NMI received for unknown reason|NMI: (?:PCI system error|IOCK error))"
    r"|(?P<clock>(?:clocksource|tsc|TSC): .{0,80}\b[Mm]arking (?:clocksource|TSC) "
    r".{0,40}\bunstable)"
    r"|(?P<thermal>(?:thermal [\w.-]{1,40}|ACPI): .{0,80}[Cc]ritical temperature"
    r"|reboot: HARDWARE PROTECTION shutdown)"
    r"|(?:[\w-]{1,32} (?P<device>[0-9a-f:.]{7,16}): )?(?:"
    r"(?P<iommu>(?:DMAR|AMD-Vi): (?:\[?(?:DMA|INTR|QI)|VT-d detected|Event logged|Completion-Wait"
    r"|DRHD: handling fault)|arm-smmu-v3 \S{1,40}: .{0,40}(?:event 0x|GERROR|CMD_SYNC timeout))"
    r"|(?P<dma>swiotlb buffer is full))"
)


def gather_platform(record: Record) -> Line | None:
    """What of the platform is in trouble, and at which device where the line says so."""
    if (match := _SAYS.match(record.text)) is None:
        return None
    return line(PLATFORM_CHECK, str(match.lastgroup), record, match["device"] or "")


# --- neuron ----------
# Hardware errors of AWS Neuron devices, as the Neuron driver logs them.
#
#     NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 ...
#         nd-id=0 nc-id=0 serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE
#
# A time stamp or the driver's name may stand before it (AWS Neuron's troubleshooting guide). What
# the line recommends is left where it is, in the evidence.

NEURON_CHECK = "kernel.neuron"
NEURON_WORDS = ("NEURON_HW_ERR=",)
_ERROR = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ][\d:.,+Z-]{1,30} )?(?:kernel: )?(?:neuron\w{0,8}: ?)?"
    r"NEURON_HW_ERR=(?P<code>[A-Z][A-Z0-9_]{1,63})\b"
    r"(?:.*?\bnd-id=(?P<device>\d{1,4})\b)?"
)
_CODES = {
    "SRAM_UNCORRECTABLE_ERROR": "sram",
    "NC_UNCORRECTABLE_ERROR": "nc",
    "HBM_UNCORRECTABLE_ERROR": "hbm",
    "DMA_ERROR": "dma",
}


def gather_neuron(record: Record) -> Line | None:
    """Which device (`nd-id`), and which part of it."""
    if (match := _ERROR.match(record.text)) is None:
        return None
    code = _CODES.get(match["code"], "unknown")
    device = f"neuron{match['device']}" if match["device"] else ""
    return line(NEURON_CHECK, code, record, device)


# --- driver ----------
# What drivers and file systems report in phrases that no other family knows.
#
#     mlx5_core 0000:ab:00.0: mlx5_crdump_collect:50:(pid 99): failed to collect crdump err -16
#     bond0: (slave ens1f0np0): link status definitely down, disabling slave
#     LNetError: 2210:0:(o2iblnd_cb.c:3454:kiblnd_check_txs_locked()) Timed out tx: ...
#
# Kernels and drivers find new phrases with each release, and print some of them on healthy nodes.
# So such a line is a NOTE: counted by driver, shown, and nothing against the node. It becomes a
# warning only beside another sign against the same hardware (`hpctl.core.assess`). Lines are looked
# at that begin with the name of what a node lives by, and hold a word of failure; of NVIDIA's
# driver every line. Left out is what a healthy node prints (`BENIGN_LINES`), what other lines
# explain (registers of an AER error), and what an application requested in vain (a queue pair that
# EFA refuses).

DRIVER_CHECK = "kernel.driver"
_DISKS = ("EXT4", "XFS ", "BTRF", "JBD2", "md: ", "md/r", "devi", "bloc", "nvme")
_NUMBERED = tuple(f"{name}{n}" for name in ("sd ", "ata") for n in range(10))
DRIVERS: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("NVRM", "nvid"),
    "neuron": ("neur",),
    "mlx5": ("mlx5",),
    "efa": ("efa ",),
    "infiniband": ("infi",),
    "ethernet": ("ena ", "bond"),
    "pcie": ("pcie", "pci ", "pci_", "DMAR", "AMD-"),
    "disk": (*_DISKS, *_NUMBERED),
    "nfs": ("NFS:", "NFSv", "nfs:", "lock", "RPC:"),
    "lustre": ("Lust", "LNet"),
    "network-storage": ("ceph", "libc", "CIFS"),
    "memory": ("EDAC", "mce:"),
    "clock": ("cloc",),
}
"""A driver, as a finding's `detail` names it, by the first four characters of its lines."""
_DRIVER_OF = {head: driver for driver, heads in DRIVERS.items() for head in heads}
DRIVER_HEADS = tuple(_DRIVER_OF)
_ALWAYS = ("NVRM: ", "XFS (", "LustreError: ", "LNetError: ", "EXT4-fs warning ")
"""These call a line an error themselves, or print little else."""
_WORD = re.compile(r"[a-z][\w'-]+")
_DRIVER_WORDS = (
    "fail failed failure failures failing fails err error errors fatal timeout timedout lost "
    "corrupt corrupted corruption stuck hung dead down broken faulty cannot can't couldn't didn't "
    "doesn't isn't wasn't won't non-responsive insufficient aborted aborting unrecoverable "
    "unrecovered uncorrectable uncorrected overflow offline degraded bad invalid exceeds exceeded "
    "refused reject rejected rejecting denied unexpected mismatch missing conflict conflicts"
)
_FAILS = frozenset(_DRIVER_WORDS.split())
_PHRASES = (
    *("timed out", "time out", "unable to", "could not", "not respond", "not found", "not ready"),
    *("not set", "not cleared", "not complete", "read-back delay", "giving up", "no usable"),
    *("no space", "no memory", "zero bytes"),
)
_ORDINARY = re.compile(
    # Registers and statements of the line before, what a driver says of itself when it starts.
    r"[\w-]+ [0-9a-f:.]{7,16}: {2,}|NVRM: {2,}|mce: \[Hardware Error\]"
    r"|NVRM: (?:A GPU crash dump|nvidia-bug-report\.sh as root|the NVIDIA kernel module is )"
    r"|\{\d+\}\[Hardware Error\]: +\w|audit: |traps: |---\[ end "
    r"|XFS \([\w.!-]{1,40}\): (?:(?:Unm|M)ounting|Ending|Starting|Deprecated|EXPERIMENTAL|Quota"
    r"|Using |DAX|User initiated|Torn write|Delaying|[Rr]esetting|Please )"
    r"|.{0,40}\b(?:loop|ram|zram|nbd|rbd|fd|sr)\d"
    r"|.{0,200}(?:xfs_fs_goingdown|Request sent has |error containment|found no error details"
    r"|missing or invalid SUBNQN|failed to set APST|Possible bad register read"
    r"|Shutdown timeout set to|recovered by DPC)"
    r"|(?:efa|infiniband) .{0,60}(?:Failed to (?:process command|register mr|create|submit)"
    r"|Couldn't open port)"
    r"|EXT4-fs \(\S{1,40}\): (?:couldn't mount|VFS: Can't find|error: )"
)


_GPU_NUMBER = re.compile(r"NVRM: GPU\d{1,3} ")
_GPU_ADDRESS = re.compile(rf"(?:NVRM: GPU|nvidia) ({_ADDRESS}): ", re.IGNORECASE)
_BENIGN = tuple(row.begins for row in BENIGN_LINES)


def gather_driver(record: Record) -> Line | None:
    """Read a line that no other family knows: which driver prints it, and of which GPU."""
    text = record.text
    if not (text.startswith(_ALWAYS) or _complains(text.lower())):
        return None
    if _ORDINARY.match(text) is not None or _GPU_NUMBER.sub("NVRM: ", text, 1).startswith(_BENIGN):
        return None
    address = _GPU_ADDRESS.match(text)
    found = line(DRIVER_CHECK, "unknown", record, address[1].lower() if address else "")
    return replace(found, detail=_DRIVER_OF.get(text[:HEAD_CHARS], ""))


def _complains(text: str) -> bool:
    tokens = _WORD.findall(text)
    return not _FAILS.isdisjoint(tokens) or any(phrase in text for phrase in _PHRASES)


# --- process ----------
# Two things that the kernel says of a process by its name, and that say nothing of the node.
#
#     python invoked oom-killer: gfp_mask=0x140dca(...), order=0, oom_score_adj=0
#     pt_main_thread[4711]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in ...
#
# Other detectors act on them. The out-of-memory killer says afterwards whose memory ran out
# (`kernel_oom`), and a crash inside of NCCL is its job's: whoever asks why it ended may like to see
# it. Any user can have either line printed.

PROCESS_CHECK = "kernel.process"
PROCESS_WORDS = (" invoked oom-killer: ", " in libnccl.so")
_PROCESS_SAYS = re.compile(
    r"(?:\\x[0-9a-fA-F]{2}|.){1,15}(?: invoked (?P<oom>oom-killer): gfp_mask=0x"
    r"|\[(?P<pid>\d{1,10})\]: segfault at [^\[]{1,200} in libnccl\.so)"
)


def gather_process(record: Record) -> Line | None:
    """Whether the line is one of the two."""
    if (match := _PROCESS_SAYS.match(record.text)) is None:
        return None
    return line(PROCESS_CHECK, "oom-killer" if match["oom"] else "nccl", record, pid=match["pid"])


PCIE = Family(gather_pcie, PCIE_HEADS, PCIE_WORDS)
PLATFORM = Family(gather_platform, PLATFORM_HEADS)
NEURON = Family(gather_neuron, (), NEURON_WORDS)
DRIVER = Family(gather_driver, DRIVER_HEADS)
PROCESS = Family(gather_process, (), PROCESS_WORDS)


# --- cards ----------
# What the drivers of network cards say of cards that stopped: EFA and Mellanox's.
#
# EFA's driver (drivers/infiniband/hw/efa/efa_com.c) prints behind its bus and device name:
#
#     efa 0000:00:06.0 rdmap0s6: The device didn't send any completion for admin cmd ...
#     efa 0000:00:06.0 rdmap0s6: The device sent a completion but the driver didn't receive any
#         MSI-X interrupt for admin cmd REG_MR(7) ...
#     infiniband rdmap0s6: Wait for completion (polling) timeout
#     efa 0000:00:06.0 rdmap0s6: Admin queue is closed
#     efa 0000:00:06.0 rdmap0s6: Reading register timed out. expected: req id[3] offset[0x8] ...
#     efa 0000:00:06.0 rdmap0s6: Reset indication didn't turn on
#     mlx5_core 0000:5e:00.0: poll_health:805:(pid 0): Fatal error 1 detected
#     mlx5_core 0000:5e:00.0: print_health_info:430:(pid 0): synd 0x8: unrecoverable hardware error
#     mlx5_core 0000:5e:00.0: wait_func:1134:(pid 77): 2ERR_QP(0x507) timeout. Will cause a leak ...
#         command resource
#     mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid 77): ACCESS_REG(0x805) op_mod(0x1) ...
#     mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged
#     mlx5_core 0000:5e:00.1 enp94s0f1: TX timeout detected
#     mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature
#     mlx5_core 0000:5e:00.0: wait_fw_init:199:(pid 7): Firmware over 120000 MS in pre-init...
#     mlx5_core: probe of 0000:5e:00.0 failed with error -110
#     mlx5_core 0000:5e:00.0 mlx5_5: Port: 1 Link DOWN
#     infiniband mlx5_3: dump_cqe:272:(pid 7): dump error cqe
#     mlx5_core 0000:5e:00.0: mlx5_pcie_event:304:(pid 0): Detected insufficient power on the PCIe
#         slot (27W).
#
# After a command without an answer EFA's driver closes the queue of that card for good: no job can
# open it until the driver starts anew. A command that the card refuses is the application's affair.

EFA = "kernel.efa"
MLX5 = "kernel.mlx5"
CARD_HEADS = ("efa ", "infi", "mlx5")
_EFA = re.compile(
    r"(?:efa [0-9a-f:.]+ |infiniband (?=rdma|efa))(?P<device>[\w-]+): (?:"
    r"(?P<unanswered>The device didn't send any completion for admin cmd "
    r"|Wait for completion \(polling\) timeout|Admin queue is closed)"
    r"|(?P<interrupt>The device sent a completion but the driver didn't receive any MSI-X)"
    r"|(?P<register>Reading register (?:timed out|failed: wrong offset))"
    r"|(?P<reset>Reset indication didn't turn o"
    r"|Device isn't ready, (?:can't reset|abort com init)))"
)
_ISSUE = "(?:synd 0x[0-9a-f]+: |Health issue observed, )"
_MLX5 = re.compile(
    r"(?:mlx5_core (?P<device>[0-9a-f:.]{7,16})(?: [\w.-]{1,15})?: (?:\w+:\d+:\(pid \d+\): )?"
    r"|mlx5_core: (?:\w+: )?|(?:infiniband )?mlx5_\w+:(?:\d+:| \w+:\d+:)\(pid \d+\): )(?:"
    r"(?P<fatal>Fatal error \d+ detected|device's health compromised"
    r"|(?:cmd\[\d+\]: )?[\w ]{1,60}\(0x[0-9a-f]+\).{0,80}? timeout\. +Will cause a leak of a"
    r"|.{0,40}health recovery (?:flow aborted|failed))"
    rf"|(?P<unrecoverable>{_ISSUE}(?:unrecoverable hardware error|HW fatal error))"
    rf"|(?P<health>{_ISSUE}(?:firmware internal error|irisc not responding|firmware CRC"
    r"|ICM fetch PCI|EQ error|FFSER error|async EQ buffer overrun|High temperature)"
    r"|High temperature on sensors)"
    r"|(?P<module>Port module event(?:\[\w+\]: module|: module \d+, Cable (?:unplugged|error)))"
    r"|(?P<init>Firmware over \d+ MS in |probe (?:of \S{1,20}|with driver \w+) failed with error"
    r"|mlx5_(?:init_on\w{1,3}|load_one|pci_init|function_\w{1,10}) failed with error code"
    r"|(?:enable|init|query) hca failed|handle_hca_cap\w* failed"
    r"|reset reload flow aborted)"
    r"|(?P<link>(?:Port: \d+ )?Link (?:down|DOWN)\b)|(?P<cqe>dump error cqe)"
    r"|(?P<timeout>[TR]X timeout (?:detected|on ))"
    r"|(?P<power>Detected insufficient power on the PCIe slot)"
    r"|(?P<command>[\w ]{1,60}\(0x[0-9a-f]+\) op_mod\(0x[0-9a-f]+\) failed))"
)


def gather_cards(record: Record) -> Line | None:
    """Which card, and what it no longer does."""
    for check, shape in ((EFA, _EFA), (MLX5, _MLX5)):
        if (match := shape.match(record.text)) is not None:
            return line(check, str(match.lastgroup), record, match["device"] or "")
    return None


# --- limits ----------
# Limits of the kernel and its network that were reached, and transmit queues that stopped.
#
#     VFS: file-max limit 1048576 reached                                     (fs/file_table.c)
#     nf_conntrack: nf_conntrack: table full, dropping packet                 (net/netfilter)
#     neighbour: arp_cache: neighbor table overflow!                          (net/core/neighbour.c)
#     TCP: out of memory -- consider tuning tcp_mem                           (net/ipv4/tcp.c)
#     unregister_netdevice: waiting for veth1 to become free. Usage count = 2
#     ena 0000:00:05.0 eth0: Keep alive watchdog timeout.                     (amzn-drivers)
#     NETDEV WATCHDOG: eth0 (ena): transmit queue 3 timed out                 (net/sched, to 6.6)
#     ena 0000:00:05.0 eth0: NETDEV WATCHDOG: CPU: 3: transmit queue 3 timed out 5412 ms   (since)
#
# A job can fill each of these, and the driver resets the queue: all are worth watching.

LIMITS_CHECK = "kernel.limits"
LIMITS_HEADS = (
    *("VFS:", "nf_c", "ip_c", "neig", "TCP:", "NETD", "ena ", "unre"),
    *(f"ib{n}:" for n in range(10)),
)
LIMITS_WORDS = ("NETDEV WATCHDOG: ",)
_REACHED = re.compile(
    r"(?P<files>VFS: file-max limit \d+ reached)"
    r"|(?P<conntrack>(?:(?:nf|ip)_conntrack: ){1,2}table full(?: in netns \w+)?, dropping packet)"
    r"|(?P<neighbors>(?:neighbour: )?\w+: neighbou?r table overflow)"
    r"|(?P<sockets>TCP: (?:out of memory|too many orphaned sockets))"
    r"|(?P<netdevice>unregister_netdevice: waiting for \S{1,15} to become free)"
    r"|(?P<reset>ena [0-9a-f:.]+(?: [\w.@-]{1,15})?: (?:Keep alive watchdog timeout"
    r"|Trigger reset is on|Transmit time ?out|Device reset failed|Reset attempt failed"
    r"|ENA admin queue is not|ENA device init failed|.{0,100}Reset the device))"
    r"|(?P<queue>(?P<ipoib>ib\d): transmit timeout"
    r"|(?:[\w.-]+ [0-9a-f:.]+ (?P<device>[\w.@-]{1,15}): )?NETDEV WATCHDOG: (?:CPU: \d+: "
    r"|(?P<older>[\w.@-]{1,15}) \([\w-]*\): )transmit queue \d+ timed out)"
)


def gather_limits(record: Record) -> Line | None:
    """Which limit, and of which network device."""
    if (match := _REACHED.match(record.text)) is None:
        return None
    code = next(name for name in _LIMITS if match[name] is not None)
    return line(
        LIMITS_CHECK, code, record, match["device"] or match["older"] or match["ipoib"] or ""
    )


_LIMITS = ("files", "conntrack", "neighbors", "sockets", "netdevice", "reset", "queue")


CARDS = Family(gather_cards, CARD_HEADS)
LIMITS = Family(gather_limits, LIMITS_HEADS, LIMITS_WORDS)
