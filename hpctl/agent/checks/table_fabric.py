"""The fabric's checks with their times and limits: EFA, InfiniBand and RoCE, Neuron."""

from __future__ import annotations

from hpctl.agent.check import Limit, Spec
from hpctl.core.model import Clears

EFA_EVERY_S = 12.0
"""With the runner's jitter still more than the 10 s for which one sweep is shared."""
EFA_KERNEL = "amzn-drivers kernel/linux/efa/src/efa_verbs.c; facts/detection 5.1"
NODE_AGENT = "aws/eks-node-monitoring-agent, monitors/networking/efa; facts/detection 1.3"
SENTINEL = "NVIDIA/NVSentinel, NIC monitor; facts/detection 1.2"
OURS = "hpctl's own"
LINE_RATE = f"{OURS}: 1e-4 of 100 Gb/s in packets of 8 KiB"

EFA = (
    Spec(
        "efa.devices",
        "efa_devices",
        "as many EFA devices as there should be, each with a driver",
        "EC2 instance types; facts/detection 5.1 rule 1; facts/hyperpod 1.4 (wait after boot)",
        every_s=20.0,
        seen=(3, 3),
        grace_s=180.0,
    ),
    Spec(
        "efa.link",
        "efa_link",
        "every EFA port is active",
        "kernel ABI sysfs-class-infiniband",
        every_s=30.0,
        seen=(3, 3),
        grace_s=180.0,
        shed=2,
    ),
    Spec(
        "efa.keepalive",
        "efa_keepalive",
        "every EFA device sends its keep-alives",
        EFA_KERNEL,
        every_s=EFA_EVERY_S,
        seen=(5, 5),
        gone_s=300.0,
        grace_s=180.0,
        limits={"still_s": Limit(5.0, "s", "two looks closer than this prove nothing")},
    ),
    Spec(
        "efa.commands",
        "efa_commands",
        "EFA devices answer the driver's admin commands",
        EFA_KERNEL,
        every_s=EFA_EVERY_S,
        clears=Clears.BOOT,
        grace_s=60.0,
        limits={
            "window_s": Limit(600.0, "s", OURS),
            "no_completion": Limit(1.0, "commands", "the driver gives its admin queue up then"),
            "failed": Limit(5.0, "commands in the window", "NVSentinel's efa_cmds_err"),
            "failed_intervals": Limit(3.0, "looks in the window that saw new ones", OURS),
        },
    ),
    Spec(
        "efa.errors",
        "efa_errors",
        "EFA error counters creep, but do not burst",
        NODE_AGENT,
        every_s=EFA_EVERY_S,
        gone_s=120.0,
        shed=1,
        limits={
            "refused": Limit(5.0, "calls in ten minutes", OURS),
            "burst_events": Limit(100.0, "events", NODE_AGENT),
            "refill_events": Limit(1.0, "events/s", NODE_AGENT),
            "burst_retrans_pkts": Limit(1_000.0, "packets", NODE_AGENT),
            "burst_retrans_bytes": Limit(1_000_000.0, "bytes", NODE_AGENT),
            "refill_retrans_pkts": Limit(150.0, "packets/s", LINE_RATE),
            "refill_retrans_bytes": Limit(1_250_000.0, "bytes/s", LINE_RATE),
        },
    ),
    Spec(
        "efa.retrans",
        "efa_retrans",
        "little of what is sent over EFA is sent again",
        "facts/detection 5.1 rule 5 (on the head node, from 1e-4)",
        every_s=EFA_EVERY_S,
        seen=(3, 3),
        gone_s=120.0,
        shed=1,
        limits={"ratio": Limit(1e-3, "packets per packet sent", f"{OURS}: ten times that floor")},
    ),
)

RDMA = (
    Spec(
        "rdma.link",
        "rdma_link",
        "InfiniBand and RoCE ports that were active still are",
        "kernel ABI sysfs-class-infiniband; gpud's infiniband check",
        every_s=15.0,
        seen=(2, 2),
        grace_s=180.0,
    ),
    Spec(
        "rdma.errors",
        "rdma_errors",
        "InfiniBand and RoCE ports count no errors that matter",
        SENTINEL,
        every_s=30.0,
        gone_s=600.0,
        grace_s=180.0,
        shed=1,
        limits={
            "link_downed_per_hour": Limit(0.0, "more than, 1/h", SENTINEL),
            "buffer_overruns_per_hour": Limit(0.0, "more than, 1/h", SENTINEL),
            "integrity_errors_per_hour": Limit(0.0, "more than, 1/h", SENTINEL),
            "rnr_nak_retries_per_hour": Limit(0.0, "more than, 1/h", SENTINEL),
            "symbol_errors_per_hour": Limit(120.0, "more than, 1/h", SENTINEL),
            "symbol_errors_per_s": Limit(10.0, "more than, 1/s", SENTINEL),
            "link_recoveries_per_min": Limit(5.0, "more than, 1/min", SENTINEL),
            "receive_errors_per_s": Limit(10.0, "more than, 1/s", SENTINEL),
            "ack_timeouts_per_s": Limit(1.0, "more than, 1/s", SENTINEL),
            "discards_per_s": Limit(100.0, "more than, 1/s", SENTINEL),
            "carrier_changes_per_hour": Limit(2.0, "more than, 1/h", f"{SENTINEL}; the hour ours"),
        },
    ),
)

NEURON = (
    Spec(
        "neuron.devices",
        "neuron_devices",
        "as many Neuron devices as there should be",
        "facts/detection 5.2; facts/hyperpod 1.4 (wait after boot)",
        every_s=20.0,
        seen=(3, 3),
        grace_s=180.0,
    ),
    Spec(
        "neuron.errors",
        "neuron_errors",
        "Neuron devices count no uncorrected memory errors",
        "AWS Neuron Runtime troubleshooting and Sysfs User Guide; facts/detection 5.2",
        every_s=30.0,
        clears=Clears.BOOT,
        limits={"errors": Limit(1.0, "errors since the driver was loaded", "AWS: any one")},
    ),
)

FABRIC: tuple[Spec, ...] = (*EFA, *RDMA, *NEURON)
