"""Kernel lines. Lines of NVIDIA's driver without an Xid number."""

import re

from hpctl.detection.kernel.line import Family, Line, line
from hpctl.detection.kmsg import Record

# What NVIDIA's kernel modules say without a number: neither Xid nor SXid.
#
#     NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!
#     NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!
#     NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0xffff:1482)
#     NVRM: API mismatch: the client has the version 570.86.10, but
#     NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os ...
#         recover.
#     NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] ...
#     NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] ...
#     nvidia: probe of 0000:18:00.0 failed with error -1
#     nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping ...
#
# The first two come again and again (open-gpu-kernel-modules, kernel_nvlink.c) while the driver
# looks for NVLinks: every call into it waits, and only a restart ends that.

NVIDIA_CHECK = "kernel.nvidia"


NVIDIA_HEADS = ("NVRM", "nvid")


_SAYS = re.compile(
    r"NVRM: (?:"
    r"(?P<nvlink>knvlink\w{1,60}: (?:Getting peer\d+(?:'s)? postRxDetLinkMask failed"
    r"|Failed to update Rx Detect Link mask))"
    r"|(?P<reboot>nvGpuOpsReportFatalError: .{0,80}\brequiring os reboot)"
    r"|(?P<lost>\w{1,60}: .{0,160}\[NV_ERR_GPU_IS_LOST\]|_threadNodeCheckTimeout: .{0,80} failed"
    r"|_issueRpcAndWait: rpcSendMessage failed with status 0x0*f\b)"
    r"|(?P<reset>\w{1,60}: .{0,160}\[NV_ERR_RESET_REQUIRED\]"
    r"|(?:GPU\d+ )?_kgspBootGspRm: unexpected WPR2)"
    r"|(?P<init>(?:GPU [0-9a-fA-F:.]{7,16}: )?(?:RmInitAdapter|rm_init_adapter) failed"
    r"|(?:GPU\d+ )?RmInitAdapter: Cannot |The NVIDIA probe routine failed|None of the NVIDIA "
    r"|No NVIDIA (?:GPU|graphics adapter) found|NVIDIA init module failed)"
    r"|(?P<version>API mismatch: ))"
    r"|(?P<init2>nvidia(?:: probe of \S{1,20}| [0-9a-f:.]{7,16}: probe with driver nvidia) failed)"
    r"|(?P<peermem>nvidia[-_]peermem \w{1,60}:\d+ ERROR detected invalid context)"
)


_DEVICE = re.compile(r"NVRM: GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): ")


def gather_nvidia(record: Record) -> Line | None:
    """What does not work, and on which GPU where the line says so."""
    if (match := _SAYS.match(record.text)) is None:
        return None
    device = _DEVICE.match(record.text)
    return line(
        NVIDIA_CHECK, str(match.lastgroup).rstrip("2"), record, device[1].lower() if device else ""
    )


NVIDIA = Family(gather_nvidia, NVIDIA_HEADS)
