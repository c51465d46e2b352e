"""Kernel lines. Network cards: EFA's driver and others."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

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
