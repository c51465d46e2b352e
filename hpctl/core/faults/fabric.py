"""The fabric between nodes, and accelerators beside GPUs: EFA, InfiniBand and RoCE, Neuron.

A rule that nobody has proven on real faults yet is shipped to watch: it makes a node Suspect and
acts on nothing (facts/detection 2).
"""

from hpctl.core.faults.row import CheckSpec, FaultRow, Limit, rows
from hpctl.core.model import Clears

# With the runner's jitter an EFA check's interval is still more than the 10 s for which one sweep
# of the counters is shared.
_EFA_KERNEL = "amzn-drivers kernel/linux/efa/src/efa_verbs.c; facts/detection 5.1"
_NODE_AGENT = "aws/eks-node-monitoring-agent, monitors/networking/efa; facts/detection 1.3"
_SENTINEL = "NVIDIA/NVSentinel, NIC monitor; facts/detection 1.2"
_OURS = "hpctl's own"
_LINE_RATE = "hpctl's own: 1e-4 of 100 Gb/s in packets of 8 KiB"
_REMOTE = "a remote node or the job can cause it: a warning, never an action"
_EXPECTED = "what is expected is wrong, not the node"
_WATCHED = "watched: AWS has no such device, and no record of its precision is at hand"
_TERMINATE = "AWS Neuron documentation: terminate the instance"

CHECKS = (
    CheckSpec(
        "efa.devices",
        "as many EFA devices as there should be, each with a driver",
        "EC2 instance types; facts/detection 5.1 rule 1; facts/hyperpod 1.4 (wait after boot)",
        every_s=20,
        seen=(3, 3),
        grace_s=180,
    ),
    CheckSpec(
        "efa.link",
        "every EFA port is active",
        "kernel ABI sysfs-class-infiniband",
        every_s=30,
        seen=(3, 3),
        grace_s=180,
        shed=2,
    ),
    CheckSpec(
        "efa.keepalive",
        "every EFA device sends its keep-alives",
        _EFA_KERNEL,
        every_s=12,
        seen=(5, 5),
        gone_s=300,
        grace_s=180,
        limits={"still_s": Limit(5, "s", "two looks closer than this prove nothing")},
    ),
    CheckSpec(
        "efa.commands",
        "EFA devices answer the driver's admin commands",
        _EFA_KERNEL,
        every_s=12,
        clears=Clears.BOOT,
        grace_s=60,
        limits={
            "window_s": Limit(600, "s", _OURS),
            "no_completion": Limit(1, "commands", "the driver gives its admin queue up then"),
            "failed": Limit(5, "commands in the window", "NVSentinel's efa_cmds_err"),
            "failed_intervals": Limit(3, "looks in the window that saw new ones", _OURS),
        },
    ),
    CheckSpec(
        "efa.errors",
        "EFA error counters creep, but do not burst",
        _NODE_AGENT,
        every_s=12,
        gone_s=120,
        shed=1,
        limits={
            "refused": Limit(5, "calls in ten minutes", _OURS),
            "burst_events": Limit(100, "events", _NODE_AGENT),
            "refill_events": Limit(1, "events/s", _NODE_AGENT),
            "burst_retrans_pkts": Limit(1000, "packets", _NODE_AGENT),
            "burst_retrans_bytes": Limit(1000000.0, "bytes", _NODE_AGENT),
            "refill_retrans_pkts": Limit(150, "packets/s", _LINE_RATE),
            "refill_retrans_bytes": Limit(1250000.0, "bytes/s", _LINE_RATE),
        },
    ),
    CheckSpec(
        "efa.retrans",
        "little of what is sent over EFA is sent again",
        "facts/detection 5.1 rule 5 (on the head node, from 1e-4)",
        every_s=12,
        seen=(3, 3),
        gone_s=120,
        shed=1,
        limits={
            "ratio": Limit(0.001, "packets per packet sent", "hpctl's own: ten times that floor")
        },
    ),
    CheckSpec(
        "rdma.link",
        "InfiniBand and RoCE ports that were active still are",
        "kernel ABI sysfs-class-infiniband; gpud's infiniband check",
        every_s=15,
        seen=(2, 2),
        grace_s=180,
    ),
    CheckSpec(
        "rdma.errors",
        "InfiniBand and RoCE ports count no errors that matter",
        _SENTINEL,
        every_s=30,
        gone_s=600,
        grace_s=180,
        shed=1,
        limits={
            "link_downed_per_hour": Limit(0, "more than, 1/h", _SENTINEL),
            "buffer_overruns_per_hour": Limit(0, "more than, 1/h", _SENTINEL),
            "integrity_errors_per_hour": Limit(0, "more than, 1/h", _SENTINEL),
            "rnr_nak_retries_per_hour": Limit(0, "more than, 1/h", _SENTINEL),
            "symbol_errors_per_hour": Limit(120, "more than, 1/h", _SENTINEL),
            "symbol_errors_per_s": Limit(10, "more than, 1/s", _SENTINEL),
            "link_recoveries_per_min": Limit(5, "more than, 1/min", _SENTINEL),
            "receive_errors_per_s": Limit(10, "more than, 1/s", _SENTINEL),
            "ack_timeouts_per_s": Limit(1, "more than, 1/s", _SENTINEL),
            "discards_per_s": Limit(100, "more than, 1/s", _SENTINEL),
            "carrier_changes_per_hour": Limit(
                2,
                "more than, 1/h",
                "NVIDIA/NVSentinel, NIC monitor; facts/detection 1.2; the hour ours",
            ),
        },
    ),
    CheckSpec(
        "neuron.devices",
        "as many Neuron devices as there should be",
        "facts/detection 5.2; facts/hyperpod 1.4 (wait after boot)",
        every_s=20,
        seen=(3, 3),
        grace_s=180,
    ),
    CheckSpec(
        "neuron.errors",
        "Neuron devices count no uncorrected memory errors",
        "AWS Neuron Runtime troubleshooting and Sysfs User Guide; facts/detection 5.2",
        every_s=30,
        clears=Clears.BOOT,
        limits={"errors": Limit(1, "errors since the driver was loaded", "AWS: any one")},
    ),
)
CARD_CHECKS = (
    CheckSpec(
        "kernel.efa",
        "an EFA card whose driver closed its queue or cannot reach it",
        "drivers/infiniband/hw/efa",
        clears=Clears.BOOT,
        codes=("unanswered", "interrupt", "register", "reset"),
    ),
    CheckSpec(
        "kernel.mlx5",
        "a Mellanox card that failed, its firmware, queues, cable, power",
        "drivers/net/ethernet/mellanox/mlx5",
        clears=Clears.BOOT,
    ),
)
NEURON_CHECKS = (
    CheckSpec(
        "kernel.neuron",
        "hardware errors of an AWS Neuron device: SRAM, core, HBM, DMA",
        "Neuron driver (NEURON_HW_ERR=)",
        clears=Clears.BOOT,
        codes=("sram", "nc", "hbm", "dma"),
    ),
)

FABRIC = (
    FaultRow(
        "efa.devices", "fewer", "B", "EFA devices are missing", differs="HyperPod reboots for it"
    ),
    FaultRow(
        "efa.keepalive",
        "stalled",
        "B",
        "an EFA device sends no keep-alives while others do",
        differs="the device behind the driver is dead",
    ),
    FaultRow(
        "efa.commands",
        "no_completion",
        "B",
        "an EFA device did not answer an admin command",
        differs="the driver stops the device's admin queue: only a reset of the device mends it",
    ),
    FaultRow(
        "efa.commands",
        "failed",
        "B",
        "admin commands of an EFA device fail, and no application's call explains it",
        differs="what applications were refused is taken off",
    ),
    FaultRow(
        "efa.keepalive",
        "stalled_all",
        "W",
        "no EFA device of the node sends keep-alives",
        differs="watched: the driver or its count is rather to blame than every NIC at once",
    ),
    FaultRow(
        "efa.devices",
        "unbound",
        "W",
        "EFA devices on the bus have no driver, and nobody expects them",
        differs="watched: EFA may not be set up on purpose",
    ),
    FaultRow(
        "efa.errors",
        "unreadable",
        "W",
        "counters of an EFA device cannot be read",
        differs="watched: an older device may not know them; a dead one shows in efa-commands",
    ),
    FaultRow(
        "efa.link",
        "down",
        "W",
        "an EFA port is not active",
        differs="watched: the EFA driver reports every port active",
    ),
    FaultRow("efa.devices", "more", "I", "more EFA devices than expected", differs=_EXPECTED),
    FaultRow(
        "efa.errors",
        "refused",
        "I",
        "an EFA device refused applications' calls",
        differs="the applications asked for what the device does not give",
    ),
    *rows(
        "efa.errors",
        ("rx_drops", "I", "an EFA device drops received packets"),
        ("rdma_read_wr_err", "I", "RDMA reads over EFA fail"),
        ("rdma_write_wr_err", "I", "RDMA writes over EFA fail"),
        ("retrans_timeout_events", "I", "EFA traffic times out and takes other paths"),
        ("retrans_pkts", "I", "EFA sends many packets again"),
        ("retrans_bytes", "I", "EFA sends many bytes again"),
        ("remote_unresponsive", "I", "peers of this node do not respond over EFA"),
        ("remote_impaired", "I", "connections from this node to its peers are impaired"),
        differs=_REMOTE,
    ),
    FaultRow(
        "efa.retrans", "ratio", "I", "a high share of EFA packets is sent again", differs=_REMOTE
    ),
    *rows(
        "rdma.link",
        ("down", "W", "an InfiniBand or RoCE port that was active is down", "", _WATCHED),
        ("gone", "W", "an InfiniBand or RoCE device is gone", "", _WATCHED),
        ("slow", "W", "an InfiniBand or RoCE port is slower than it was", "", _WATCHED),
    ),
    FaultRow("rdma.errors", "link_downed", "W", "a port lost its link", differs=_WATCHED),
    *rows(
        "rdma.errors",
        ("excessive_buffer_overrun_errors", "W", "a port's buffers overran"),
        ("local_link_integrity_errors", "W", "a link lost its integrity"),
        ("rnr_nak_retry_err", "W", "a queue pair gave up on receivers that are not ready"),
        ("symbol_error", "W", "more symbol errors in an hour than a good link makes"),
        ("link_error_recovery", "W", "a link recovers again and again"),
        ("port_rcv_errors", "W", "a port receives many broken packets"),
        ("carrier_changes", "W", "a network interface's carrier comes and goes"),
        differs=_WATCHED,
    ),
    FaultRow("rdma.errors", "symbol_error_rate", "I", "a burst of symbol errors", differs=_REMOTE),
    *rows(
        "rdma.errors",
        ("local_ack_timeout_err", "I", "acknowledgements time out", "", _REMOTE),
        ("port_xmit_discards", "I", "a port discards packets to send", "", _REMOTE),
    ),
    *rows(
        "neuron.errors",
        ("mem_uncorrected", "X", "uncorrectable error in a Neuron device's memory", "", _TERMINATE),
        ("sram_uncorrected", "X", "uncorrectable error in a Neuron device's SRAM", "", _TERMINATE),
        (
            "mem_repairable",
            "A",
            "an error in a Neuron device's memory that a reboot repairs",
            "",
            "AWS Neuron documentation: reload the driver or reboot",
        ),
    ),
    *rows(
        "neuron.devices",
        ("fewer", "B", "Neuron devices are missing", "", "HyperPod reboots for it"),
        (
            "unbound",
            "W",
            "Neuron devices on the bus have no driver, and nobody expects them",
            "",
            "watched: the driver may not be set up on purpose",
        ),
        ("more", "I", "more Neuron devices than expected", "", _EXPECTED),
    ),
)

CARDS = (
    FaultRow(
        "kernel.efa", "", "B", "an EFA card or its driver stopped answering: no job can open it"
    ),
    FaultRow("kernel.mlx5", "fatal", "B", "a network card reports that it has failed"),
    *rows(
        "kernel.mlx5",
        ("unrecoverable", "X", "a network card reports an unrecoverable hardware error"),
        ("health", "W", "a network card's firmware is in trouble"),
        ("timeout", "W", "a queue of a network card stood still and was set up anew"),
        (
            "command",
            "I",
            "a network card refused a command: mostly a question that its function may not ask",
        ),
        ("init", "W", "a network card or its firmware did not start"),
        ("link", "I", "a network port lost its link"),
        ("cqe", "I", "a network request ended in an error: mostly its job's own, or its peer's"),
        ("module", "W", "trouble with a network port's cable"),
        ("power", "W", "a network card gets too little power from its slot"),
    ),
)

NEURON = (
    *rows(
        "kernel.neuron",
        ("unknown", "W", "a hardware error of a Neuron device that this table does not know"),
        ("", "X", "an uncorrected hardware error of a Neuron device"),
    ),
)
