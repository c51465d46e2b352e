"""Fault rows of the GPU checks: `<check with dashes>-<code>` of what the agent's sweeps find.

What is proven acts: the driver's recovery action, a lost GPU, a count that is short, a hung
driver, a fabric that is not up, memory that cannot be repaired. What is relative to peers, a rate,
or a limit without a long record is shown and watched, or put before a human; one slow signal
never takes a node away. `gpu-remap-failure`, `gpu-remap-pending` and `gpu-ecc-sram-threshold` are
in `hpctl.core.catalogue_data`.
"""

from __future__ import annotations

from hpctl.core.catalogue_row import Row

_OURS = "not NVIDIA's"


def _suspect(rule: str, meaning: str, why: str = "shown as Suspect") -> Row:
    """A row that is shown and never acts."""
    return Row(rule, "", "I", meaning, _OURS, why, watch=True)


_SETTINGS = (
    _suspect("gpu-settings-inforom", "a GPU's InfoROM is corrupt"),
    _suspect("gpu-settings-vbios", "a GPU has another VBIOS than the node's others"),
    Row(
        "gpu-settings-persistence",
        "",
        "I",
        "persistence mode is off",
        _OURS,
        "told: jobs run, but each begins by loading the driver's state",
    ),
    Row(
        "gpu-settings-clocks",
        "",
        "I",
        "a GPU's application clocks are set below the default",
        _OURS,
        "told: somebody set them",
    ),
)

# The same remedies as for Xid 154, which says the same in the kernel's log.
_RECOVERY = (
    Row("gpu-recovery-reboot", "", "B", "the driver asks for a node reboot", "do what it says"),
    Row("gpu-recovery-system-reboot", "", "B", "the driver asks for a system reboot", "do it"),
    Row("gpu-recovery-reset", "", "R2", "the driver asks for a GPU reset", "do what it says"),
    Row(
        "gpu-recovery-bus-reset",
        "",
        "R2",
        "the driver asks for a bus reset of a GPU",
        "do what it says",
        "reboot: nothing on an instance resets the bus of one GPU safely",
        ladder="REBOOT REPLACE",
    ),
    Row(
        "gpu-recovery-drain-and-reset",
        "",
        "R1",
        "the driver asks for drain and reset",
        "do what it says",
    ),
    Row(
        "gpu-recovery-drain-p2p",
        "",
        "R1",
        "the driver asks to drain peer-to-peer traffic",
        "do what it says",
    ),
    Row(
        "gpu-recovery-recover-imex",
        "",
        "H",
        "the driver asks to recover the IMEX domain",
        "do what it says",
        "a human decides: the domain is shared by the nodes of a rack",
        watch=True,
    ),
    Row(
        "gpu-recovery-unknown",
        "",
        "I",
        "a recovery action of the driver that this table does not know",
        "do what it says",
        "shown as Suspect",
        watch=True,
    ),
)

_LOST = (
    Row("gpu-lost-lost", "", "B", "NVML calls the GPU lost", "restart bare metal, as Xid 79"),
    Row("gpu-lost-reset-required", "", "R2", "NVML says that the GPU needs a reset", "reset GPU"),
    Row(
        "gpu-lost-unavailable",
        "",
        "R2",
        "an NVML event says that the GPU has become unavailable",
        "the GPU cannot be used",
        "the remedies of a reset",
    ),
    Row(
        "gpu-lost-error",
        "",
        "I",
        "NVML cannot read the GPU, for another reason",
        "no bucket given",
        "shown as Suspect",
        watch=True,
    ),
    Row(
        "gpu-hung-hung",
        "",
        "B",
        "a call into the NVIDIA driver does not come back",
        _OURS,
        "no process of the node can rely on the driver; only a restart ends such a call",
    ),
    Row("gpu-xid", "79 151 167 168", "B", "an Xid of NVML's events", "as in the kernel's log"),
    Row("gpu-xid", "54", "X", "auxiliary power is not connected (NVML event)", "as the log's"),
    Row(
        "gpu-xid",
        "119 120",
        "R2",
        "GSP RPC timeout or error (NVML event)",
        "as in the kernel's log",
        settle_s=3,
        ladder="REBOOT REPLACE",
    ),
    Row(
        "gpu-xid",
        "46 62 64 95 110 136 140 143 158",
        "R2",
        "an Xid of NVML's events that asks for a reset",
        "as in the kernel's log",
        settle_s=3,
    ),
)

_MACHINE = (
    Row(
        "gpu-count-pci",
        "",
        "B",
        "the PCI bus has fewer GPUs than this instance type",
        _OURS,
        "reboot, as AWS's own agent does",
    ),
    Row(
        "gpu-count-nvml",
        "",
        "B",
        "the driver lists fewer GPUs than the machine has",
        _OURS,
        "reboot, as AWS's own agent does",
    ),
    Row(
        "gpu-count-more",
        "",
        "I",
        "more GPUs than expected: the expectation is wrong",
        _OURS,
        "shown only",
        watch=True,
    ),
    Row(
        "gpu-driver-mismatch",
        "",
        "R1",
        "the driver's kernel module and its library differ in version",
        "reload the driver",
        "reboot after the jobs, which go on with what they have loaded",
        ladder="REBOOT REPLACE",
    ),
    _suspect(
        "gpu-driver-upgraded",
        "a newer driver library is installed than the module that runs",
        "shown as Suspect: an upgrade may be under way",
    ),
    _suspect(
        "gpu-driver-missing",
        "GPUs on the PCI bus, and no driver",
        "shown as Suspect: where GPUs are expected, gpu-count-nvml acts",
    ),
    Row("gpu-driver-error", "", "I", "NVML does not start", _OURS, "shown as Suspect", watch=True),
    Row(
        "gpu-processes-stray",
        "",
        "H",
        "a process holds GPU memory on a node without a Slurm job",
        _OURS,
        "a human ends it: it may be somebody's work",
        watch=True,
    ),
)

_FABRIC = (
    Row(
        "gpu-fabric-not-completed",
        "",
        "B",
        "no GPU of the node has completed its registration with the NVSwitch fabric",
        _OURS,
        "reboot: CUDA does not start on it",
    ),
    Row(
        "gpu-fabric-status",
        "",
        "B",
        "the registration of the GPUs with the NVSwitch fabric has failed",
        _OURS,
        "reboot: CUDA does not start on it",
    ),
    Row(
        "gpu-fabric-mixed",
        "",
        "B",
        "some GPUs of the node are registered with the NVSwitch fabric and some are not",
        _OURS,
        "reboot: jobs on all GPUs fail or hang",
    ),
    _suspect(
        "gpu-fabric-health",
        "the fabric calls the GPU's connection degraded",
        "shown as Suspect: its bits have been misread before",
    ),
    _suspect("gpu-fabric-no-cluster", "a GPU of a rack-scale system belongs to no NVLink domain"),
    Row(
        "gpu-nvlink-down",
        "",
        "R2",
        "a GPU has fewer NVLinks up than its neighbours or its model",
        "reset GPU, as NVLink's Xids",
    ),
    _suspect("gpu-nvlink-errors-recovery", "NVLinks that recover again and again"),
    _suspect(
        "gpu-nvlink-errors-recovery-failed",
        "NVLinks that failed to recover",
        "shown as Suspect: a link that stays down is gpu-nvlink-down",
    ),
    Row(
        "gpu-nvlink-errors-ber",
        "",
        "I",
        "a raised bit error rate of an NVLink",
        _OURS,
        "counted: error correction copes",
    ),
    _suspect("gpu-nvlink-errors-ber-high", "a high bit error rate of an NVLink"),
)

_MEMORY = (
    Row(
        "gpu-ecc-uncorrectable",
        "",
        "R2",
        "an uncorrectable memory error that nothing calls contained",
        "reset GPU, as Xid 48",
        settle_s=3,
    ),
    Row(
        "gpu-ecc-contained",
        "",
        "R1",
        "an uncorrectable memory error that was contained",
        "restart app, reset when convenient, as Xid 94",
        settle_s=3,
    ),
    Row(
        "gpu-ecc-corrected-storm",
        "",
        "I",
        "more than 1000 corrected memory errors a second, and on",
        "ignore",
        "shown as Suspect: calls into the driver may stall",
        watch=True,
    ),
    Row(
        "gpu-remap-uncorrectable",
        "",
        "X",
        "512 rows or more were remapped for uncorrectable errors",
        "DCGM's limit",
    ),
    Row(
        "gpu-remap-bank-none",
        "",
        "H",
        "a memory bank has no spare row left",
        "no bucket given",
        "a human decides: the next error there is a failure",
        watch=True,
    ),
    Row("gpu-remap-bank-low", "", "I", "a memory bank has few spare rows left", "no bucket given"),
    Row("gpu-retired-pending", "", "R1", "a page retirement waits for a reset", "reset GPU"),
    Row("gpu-retired-pages", "", "X", "63 memory pages or more are retired", "DCGM's limit"),
)

_SLOW = (
    Row(
        "gpu-slowdown-hw-thermal",
        "",
        "H",
        "heat held a busy GPU's clocks down for a fifth of ten minutes",
        _OURS,
        "a human decides; compare with the nodes beside it",
        watch=True,
    ),
    Row(
        "gpu-slowdown-power-brake",
        "",
        "H",
        "a power brake held a busy GPU's clocks down for a fifth of ten minutes",
        _OURS,
        "a human decides; compare with the nodes beside it",
        watch=True,
    ),
    _suspect("gpu-throttle-hw-thermal", "heat holds a busy GPU's clocks down"),
    _suspect("gpu-throttle-power-brake", "a power brake holds a busy GPU's clocks down"),
    _suspect(
        "gpu-throttle-sw-thermal", "the driver holds a busy GPU's clocks down because of heat"
    ),
    _suspect("gpu-clocks-slow", "a busy GPU runs below nine tenths of its neighbours' clock"),
    _suspect("gpu-temperature-core", "a GPU has no margin left to its slowdown temperature"),
    _suspect(
        "gpu-temperature-memory", "a GPU's memory has no margin left to its highest temperature"
    ),
)

_PCIE = (
    Row(
        "gpu-pcie-width",
        "",
        "R1",
        "a GPU's PCIe link is narrower than it can be, and others of the node are not",
        _OURS,
        "after the jobs: they are slow, not lost",
    ),
    Row(
        "gpu-pcie-generation",
        "",
        "R1",
        "a busy GPU's PCIe link is slower than it can be, and others of the node are not",
        _OURS,
        "after the jobs: they are slow, not lost",
    ),
    Row(
        "gpu-pcie-width-all",
        "",
        "I",
        "every GPU of the node has a narrow PCIe link: the instance type is wired so",
        _OURS,
        "counted only",
    ),
    Row(
        "gpu-pcie-generation-all",
        "",
        "I",
        "every busy GPU of the node has a slow PCIe link",
        _OURS,
        "counted only",
    ),
    _suspect("gpu-pcie-replays", "a GPU's PCIe link repeats more packets than its speed allows"),
    _suspect(
        "gpu-pcie-replays-peers",
        "a GPU's PCIe link repeats ten times as many packets as its neighbours'",
    ),
)

GPU_ROWS: tuple[Row, ...] = (
    *_RECOVERY,
    *_LOST,
    *_MACHINE,
    *_FABRIC,
    *_MEMORY,
    *_SLOW,
    *_PCIE,
    *_SETTINGS,
)
