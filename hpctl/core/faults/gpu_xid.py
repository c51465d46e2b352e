"""Xid errors of a GPU, in the kernel's log and in NVML's events.

The order is the order of precedence among rows that are equally urgent and equally strong. Xid
154 is the driver's own recovery action: the phrase counts, not the number in the text.
"""

from functools import partial

from hpctl.core.faults.row import DAY, CheckSpec, FaultRow, rows
from hpctl.core.model import Clears

_xid = partial(FaultRow, "kernel.xid")
_xids = partial(rows, "kernel.xid")
_DO_IT = "do what it says"

XID_CHECKS = (
    CheckSpec(
        "kernel.xid",
        "errors of a GPU (Xid), and a GPU that fell off the bus without a number (79); "
        "the job of the process that the line names",
        "NVIDIA driver",
        clears=Clears.BOOT,
    ),
)
EVENT_CHECKS = (
    CheckSpec(
        "gpu.xid",
        "Xids from NVML's events that act by their number: the second source",
        "NVIDIA NVML API reference (nvml.h): event 0x8; the first source is the kernel's log",
        every_s=5,
        clears=Clears.BOOT,
    ),
)

XID = (
    _xid("79", "B", "GPU fell off the bus", "restart bare metal", own=True),
    _xid(
        "54",
        "X",
        "auxiliary power is not connected",
        "check mechanicals",
        "replace: nobody can reach the power cable of a cloud instance",
    ),
    *_xids(
        (
            "48",
            "R2",
            "uncorrectable (double-bit) ECC error",
            "alone: reset GPU; with 63 or 64: drain and reset",
        ),
        (
            "48-contained",
            "R1",
            "uncorrectable ECC error that Xid 94 says was contained",
            "94: restart app, reset when convenient",
        ),
        settle_s=3,
        own=True,
    ),
    _xid(
        "95",
        "R2",
        "uncontained memory error: every application on the GPU is affected",
        "reset GPU",
        own=True,
    ),
    _xid(
        "64",
        "R2",
        "row remapping or page retirement could not be recorded",
        "reset GPU (then contact support)",
        own=True,
    ),
    _xid("140", "R2", "uncorrected ECC error escaped handling", "reset GPU", own=True),
    _xid(
        "119 120",
        "R2",
        "GSP (GPU system processor) RPC timeout or error",
        "reset GPU; 120 is followed by 154",
        "reboot, then replace within 7 days: a GPU in this state often cannot be reset",
        settle_s=3,
        ladder="REBOOT REPLACE",
    ),
    _xid(
        "143", "R2", "GPU initialisation failed", "reset GPU; followed by 154 from R575", settle_s=3
    ),
    _xid("46", "R2", "GPU stopped processing (timeout)", "reset GPU", settle_s=3),
    _xid("62", "R2", "internal micro-controller (PMU) halt", "reset GPU", settle_s=3),
    _xid("110", "R2", "security fault", "reset GPU"),
    *_xids(
        ("136", "R2", "NVLink training failed", "reset GPU, check link signal integrity"),
        ("158", "R2", "GPU fatal timeout", "reset GPU"),
        (
            "169",
            "R2",
            "SEC2 security processor halt",
            "no bucket given",
            "reset as for the other halted micro-controllers",
        ),
        (
            "173 175",
            "R2",
            "chip-to-chip link fatal error or memory subsystem error",
            "no bucket given (listed in the open kernel modules only)",
            "reset: the text calls the state fatal",
        ),
        settle_s=3,
    ),
    _xid(
        "74",
        "R2",
        "NVLink error (Hopper and older)",
        "decode the seven registers",
        "reset once, replace when it returns within 24 hours; the registers decide only "
        "where they say that nothing was lost",
        settle_s=3,
        window_s=DAY,
        ladder="RESET_GPU REPLACE",
    ),
    _xid(
        "74-repeat",
        "X",
        "NVLink error again on the same link within 24 hours",
        "decode the seven registers",
        "replace: one link that fails again is hardware",
        window_s=DAY,
    ),
    _xid(
        "74-corrected",
        "W",
        "NVLink errors that the link corrected, or that its registers call harmless",
        "continue operation",
    ),
    _xid("151", "B", "key rotation error", "restart VM"),
    _xid(
        "167",
        "B",
        "fatal PCIe timeout",
        "no bucket given",
        "reboot: the device no longer answers on the bus, as in 79",
    ),
    _xid("168", "B", "reduced memory capacity (ECC is off)", "enable ECC, reboot"),
    _xid(
        "94",
        "R1",
        "contained memory error: only one application died",
        "restart app; reset when convenient",
        settle_s=3,
        own=True,
    ),
    _xid(
        "63",
        "R1",
        "row remapping or page retirement recorded, pending until a reset",
        "ignore",
        "reset when the node is idle, so that the remapping takes effect; jobs go on",
        settle_s=3,
    ),
    _xid(
        "109-repeat",
        "R1",
        "context-switch timeout again on the same GPU within a day",
        "reset GPU (followed by 154 from R570)",
        "only the second one closes the node, and not before its jobs end",
        window_s=DAY,
    ),
    _xid(
        "61",
        "R1",
        "PMU breakpoint (unused by today's drivers)",
        "contact support",
        "reset at the next idle, if it is ever seen",
    ),
    _xid("142", "R1", "NVENC3 error", "contact support", "reset at the next idle"),
    *_xids(
        (
            "155",
            "R1",
            "NVLink taken down by software, often by an operator",
            "reset GPU",
            "reset after the jobs: those that needed the link have failed already",
        ),
        (
            "156",
            "R1",
            "resource retirement done",
            "reset GPU",
            "reset after the jobs: nothing running is at risk",
        ),
        (
            "159",
            "R1",
            "chip-to-chip CHI non-data error",
            "reset GPU only if UVM is in use",
            "reset after the jobs",
        ),
        settle_s=3,
    ),
    _xid("8", "J", "GPU stopped processing (channel idle timeout)", "restart app"),
    _xid("11 25 32", "J", "invalid or corrupted push buffer", "restart app (check app)"),
    _xid(
        "13",
        "J",
        "graphics engine exception, mostly an application bug",
        "restart app; the same GPC and TPC again: DCGM EUD",
    ),
    _xid(
        "31",
        "J",
        "GPU memory page fault, mostly an application bug",
        "restart app; the same GPU again: DCGM EUD",
    ),
    _xid("39-41 70-72 75-77 85 126-135", "J", "copy engine error", "restart app"),
    _xid(
        "60 68 69 82-84 86 88 89 96-105 139",
        "J",
        "video, JPEG, optical-flow or graphics class error",
        "restart app",
    ),
    _xid("80", "J", "push buffer CRC mismatch", "restart app"),
    _xid(
        "109",
        "J",
        "context-switch timeout",
        "reset GPU (followed by 154 from R570)",
        "without 154 the job is restarted and the node stays; a second within 24 hours: "
        "xid-109-repeat",
        settle_s=3,
    ),
    _xid("174", "J", "silent kill of an application", "no bucket given", "restart the job"),
    *_xids(
        (
            "13-repeat",
            "J",
            "graphics engine exception again on the same GPU within a day",
            "DCGM EUD",
        ),
        ("31-repeat", "J", "page faults minutes apart on the same GPU within a day", "DCGM EUD"),
        differs="the node is Suspect: test it when idle",
        window_s=DAY,
        watch=True,
    ),
    _xid("14 106 107", "I", "injected or test message", "ignore"),
    _xid("37 66 67", "I", "firmware or driver illegal access", "ignore"),
    _xid("38", "I", "context-switch firmware watchdog", "ignore (support)"),
    _xid(
        "38-repeat",
        "W",
        "context-switch firmware watchdog again on the same GPU",
        "ignore (support)",
        "the node is Suspect",
        window_s=DAY,
    ),
    _xid("43", "I", "channel reset after a user-level fault", "ignore"),
    _xid("44", "I", "fault during a context switch", "ignore"),
    _xid(
        "45",
        "I",
        "channel torn down, as at every job's end or after another error",
        "with other Xids: ignore; alone: restart the fabric manager",
        "never acted on: job churn writes it by the hundred",
    ),
    _xid("78", "I", "vGPU start error", "update software"),
    _xid("92", "W", "high single-bit error rate", "ignore (support)"),
    _xid("93", "I", "InfoROM wear limit", "ignore"),
    _xid(
        "108 137",
        "I",
        "remote NVLink fault caused by an application's access",
        "ignore, follow the NVLink flow",
    ),
    _xid("121", "I", "chip-to-chip corrected error", "ignore"),
    _xid("141", "I", "CUDA fast path error", "ignore"),
    _xid("152 153", "I", "deep-learning accelerator error", "ignore"),
    _xid("157", "W", "resource retirement impossible", "ignore (support)"),
    _xid("160 161", "I", "channel retirement", "ignore"),
    _xid("162", "I", "power smoothing is on", "none"),
    _xid("163", "I", "power smoothing is off", "none"),
    _xid("164", "W", "power smoothing circuit: little life left", "watch"),
    _xid(
        "165",
        "H",
        "power smoothing circuit: no life left",
        "replace if power swings matter",
        "a human decides whether power swings matter",
    ),
    _xid("166 170", "I", "confidential-computing link", "none"),
    _xid("171 172", "W", "DRAM or SRAM detail of an Xid 48", "companion of 48", settle_s=3),
    _xid("176", "W", "PCIe corrected errors", "no bucket given"),
    _xid(
        "1-7 9 10 12 15-24 26-30 33-36 42 47 49-53 55-59 65 73 81 87 90 91 111-118 122-125 138",
        "W",
        "unused by today's drivers",
        "contact support",
        "shown as Suspect, never acted on",
    ),
    _xid(
        "unknown",
        "W",
        "an Xid newer than this table",
        "not listed",
        "shown as Suspect; 154 decides",
        settle_s=3,
    ),
)

DRIVER = (
    _xid("154-node-reboot-required", "B", "the driver asks for a reboot of the node", _DO_IT),
    _xid("154-gpu-reset-required", "R2", "the driver asks for a GPU reset", _DO_IT),
    _xid(
        "154-drain-and-reset-job-lost",
        "R2",
        "the driver asks for drain and reset, and a companion error has cost the job",
        _DO_IT,
        "the jobs are stopped: one of them cannot go on",
    ),
    _xid("154-drain-and-reset", "R1", "the driver asks for drain and reset", _DO_IT),
    _xid("154-drain-p2p", "R1", "the driver asks to drain peer-to-peer traffic", _DO_IT),
    _xid("154-none", "I", "the driver needs no recovery action", _DO_IT),
    _xid(
        "154",
        "W",
        "a recovery action of the driver that this table does not know",
        _DO_IT,
        "shown as Suspect",
    ),
)

# NVML's events name those whose number alone says everything: an event has no text.
EVENTS = (
    FaultRow("gpu.xid", "79", "B", "an Xid of NVML's events", "as in the kernel's log", own=True),
    FaultRow("gpu.xid", "151 167 168", "B", "an Xid of NVML's events", "as in the kernel's log"),
    FaultRow("gpu.xid", "54", "X", "auxiliary power is not connected (NVML event)", "as the log's"),
    *rows(
        "gpu.xid",
        ("119 120", "B", "GSP RPC timeout or error (NVML event)", "as in the kernel's log"),
        (
            "46 62 64 95 110 136 140 143 158",
            "R2",
            "an Xid of NVML's events that asks for a reset",
            "as in the kernel's log",
        ),
        settle_s=3,
    ),
)
