"""NVLink and NVSwitch: Xid 144-150, SXid, the links and the fabric by NVML.

Xid 144-150 are Blackwell's NVLink5: the number alone says nothing, see `decode.nvlink5_rule`.
SXid are NVSwitch errors up to Hopper: the text's own Fatal or Non-fatal goes before the number.
"""

from functools import partial

from hpctl.core.faults.gpu_health import SLOWLY_S
from hpctl.core.faults.row import CheckSpec, FaultRow, Limit, rows
from hpctl.core.model import Clears

_xid = partial(FaultRow, "kernel.xid")
_xids = partial(rows, "kernel.xid")
_sxid = partial(FaultRow, "kernel.sxid")
_sxids = partial(rows, "kernel.sxid")

SXID_CHECKS = (
    CheckSpec(
        "kernel.sxid",
        "errors of an NVSwitch (SXid), up to Hopper",
        "NVIDIA driver",
        clears=Clears.BOOT,
    ),
)
FABRIC_CHECKS = (
    CheckSpec(
        "gpu.fabric",
        "registration of each GPU with the NVSwitch fabric: state and status",
        "NVIDIA/NVSentinel#889: a dead fabric manager, unseen for 20 days",
        every_s=SLOWLY_S,
        seen=(2, 2),
        gone_s=90,
        grace_s=300,
    ),
)
LINK_CHECKS = (
    CheckSpec(
        "gpu.nvlink",
        "NVLinks that are down where the node's other GPUs have theirs up",
        "NVIDIA NVML API reference (nvml.h): nvmlDeviceGetNvLinkState",
        every_s=SLOWLY_S,
        seen=(2, 2),
        gone_s=90,
        grace_s=300,
    ),
    CheckSpec(
        "gpu.nvlink.errors",
        "NVLinks that recover again and again, or whose bit error rate is high",
        "NVIDIA NVML API reference (nvml.h): fields 162, 213-215, 220, 222; "
        "Azure/cyclecloud-healthagent",
        every_s=60,
        seen=(3, 5),
        gone_s=300,
        grace_s=300,
        shed=3,
        limits={
            "recoveries": Limit(0, "recoveries/run", "one is chance; in three runs of five, not"),
            "ber": Limit(1e-12, "errors/bit", "beyond what a sound link shows: watched"),
            "ber_high": Limit(1e-06, "errors/bit", "Azure's warning limit"),
        },
    ),
)

NVLINK5 = (
    _xid("144-fatal", "R2", "NVLink5 SAW error, called fatal", "reset GPU", settle_s=3),
    _xid("145-fatal", "R2", "NVLink5 RLW error, called fatal", "reset GPU", settle_s=3),
    _xid("146-fatal", "R2", "NVLink5 TLW error, called fatal", "reset GPU", settle_s=3),
    _xid("147-fatal", "R2", "NVLink5 TREX error, called fatal", "reset GPU", settle_s=3),
    _xid("149-link-down", "R2", "NVLink5 link down", "reset GPU", settle_s=3),
    *_xids(
        (
            "149-peer",
            "R2",
            "NVLink5 link down, caused by the device at its other end",
            "reset GPU, investigate the peer device",
        ),
        ("149-fatal", "R2", "NVLink5 network interface error, called fatal", "reset GPU"),
        ("150", "R2", "NVLink5 management engine watchdog or degraded", "reset GPU"),
        (
            "145-rxpipe",
            "R2",
            "NVLink5 RLW receive pipe, the pattern that needs a reset",
            "reset GPU",
        ),
        (
            "145-app",
            "J",
            "NVLink5 RLW remap or source tracking: an application died",
            "154 decides; without it restart app",
        ),
        ("144-147", "I", "NVLink5 error, not called fatal", "decode table: ignore"),
        ("148", "I", "NVLink5 NVLPW error", "ignore"),
        ("149-ber", "W", "NVLink5 bit error rate", "ignore, inspect the cables"),
        ("149-commanded", "I", "NVLink5 link taken down by a user or the host", "ignore"),
        (
            "149",
            "W",
            "NVLink5 network interface event that could not be decoded",
            "decode table",
            "shown as Suspect; 154 decides",
        ),
        settle_s=3,
    ),
)

SXID = (
    _sxid(
        "12020 22003 22011 23001-23017",
        "B",
        "always fatal NVSwitch error",
        "restart the host to reset the fabric",
    ),
    _sxid(
        "11001 11009 11013 11018-11020 12001 12002 12022 12024-12027 12030-12032 14017 "
        "15001 15006 15009 15010 15012 15013 19047 19048 19054 19056 19058 19060 19061 "
        "19063 19064 19066 19067 19069 19070 24004-24007",
        "B",
        "fatal NVSwitch error",
        "restart the VM",
    ),
    *_sxids(
        ("20034", "B", "NVSwitch link training (LTSSM) fault; pairs with Xid 74", "restart the VM"),
        (
            "11004 12028 19084",
            "B",
            "NVSwitch error that stalls NVLink traffic",
            "reset all GPUs and switches, or restart",
        ),
        ("fatal", "B", "an NVSwitch error that the driver calls fatal", "restart the VM"),
        (
            "11012 11021-11023 12021 12023 15008 15011 19049 19055 19057 19059 19062 19065 "
            "19068 19071 24001-24003",
            "I",
            "NVSwitch single-bit error, corrected",
            "none",
        ),
        ("20001 20009 20012 22012 22013", "W", "NVSwitch link quality event", "none"),
        ("10001-10005", "W", "NVSwitch host interface or thermal event", "none"),
        (
            "disputed",
            "W",
            "an NVSwitch error that the driver calls non-fatal and NVIDIA's guide does not",
            "restart the VM",
            "shown as Suspect: captures show such lines on switches that go on",
        ),
        ("nonfatal", "I", "an NVSwitch error that the driver calls non-fatal", "none"),
        ("unknown", "W", "an SXid that this table does not know", "not listed", "shown as Suspect"),
    ),
)

LINKS = (
    *rows(
        "gpu.fabric",
        (
            "not-completed",
            "B",
            "no GPU of the node has completed its registration with the NVSwitch fabric",
        ),
        ("status", "B", "the registration of the GPUs with the NVSwitch fabric has failed"),
        differs="reboot: CUDA does not start on it",
    ),
    FaultRow(
        "gpu.fabric",
        "mixed",
        "B",
        "some GPUs of the node are registered with the NVSwitch fabric and some are not",
        differs="reboot: jobs on all GPUs fail or hang",
    ),
    FaultRow(
        "gpu.fabric",
        "health",
        "W",
        "the fabric calls the GPU's connection degraded",
        differs="shown as Suspect: its bits have been misread before",
    ),
    FaultRow(
        "gpu.fabric",
        "no-cluster",
        "W",
        "a GPU of a rack-scale system belongs to no NVLink domain",
        differs="shown as Suspect",
    ),
    FaultRow(
        "gpu.nvlink",
        "down",
        "R2",
        "a GPU has fewer NVLinks up than its neighbours or its model",
        "reset GPU, as NVLink's Xids",
    ),
    *rows(
        "gpu.nvlink.errors",
        ("recovery", "W", "NVLinks that recover again and again", "", "shown as Suspect"),
        (
            "recovery-failed",
            "W",
            "NVLinks that failed to recover",
            "",
            "shown as Suspect: a link that stays down is gpu-nvlink-down",
        ),
        ("ber", "I", "a raised bit error rate of an NVLink", "", "counted: error correction copes"),
        ("ber-high", "W", "a high bit error rate of an NVLink", "", "shown as Suspect"),
    ),
)
