"""What the findings of the fabric's checks mean: EFA, InfiniBand and RoCE, Neuron.

A rule that nobody has proven on real faults yet is shipped to watch: it makes a node Suspect and
acts on nothing (facts/detection 2). None of these is NVIDIA's; the last column says whose it is.
"""

from __future__ import annotations

from hpctl.core.catalogue_row import Row

_OURS = "not NVIDIA's"
_REMOTE = "a remote node or the job can cause it: a warning, never an action"
_SETTINGS = "what is expected is wrong, not the node"
_WATCHED = "watched: AWS has no such device, and no record of its precision is at hand"

_EFA = (
    Row("efa-devices-fewer", "", "B", "EFA devices are missing", _OURS, "HyperPod reboots for it"),
    Row(
        "efa-keepalive-stalled",
        "",
        "B",
        "an EFA device sends no keep-alives while others do",
        _OURS,
        "the device behind the driver is dead",
    ),
    Row(
        "efa-commands-no_completion",
        "",
        "B",
        "an EFA device did not answer an admin command",
        _OURS,
        "the driver stops the device's admin queue: only a reset of the device mends it",
    ),
    Row(
        "efa-commands-failed",
        "",
        "B",
        "admin commands of an EFA device fail, and no application's call explains it",
        _OURS,
        "what applications were refused is taken off",
    ),
    Row(
        "efa-keepalive-stalled_all",
        "",
        "I",
        "no EFA device of the node sends keep-alives",
        _OURS,
        "watched: the driver or its count is rather to blame than every NIC at once",
        watch=True,
    ),
    Row(
        "efa-devices-unbound",
        "",
        "I",
        "EFA devices on the bus have no driver, and nobody expects them",
        _OURS,
        "watched: EFA may not be set up on purpose",
        watch=True,
    ),
    Row(
        "efa-errors-unreadable",
        "",
        "I",
        "counters of an EFA device cannot be read",
        _OURS,
        "watched: an older device may not know them; a dead one shows in efa-commands",
        watch=True,
    ),
    Row(
        "efa-link-down",
        "",
        "I",
        "an EFA port is not active",
        _OURS,
        "watched: the EFA driver reports every port active",
        watch=True,
    ),
    Row("efa-devices-more", "", "I", "more EFA devices than expected", _OURS, _SETTINGS),
    Row(
        "efa-errors-refused",
        "",
        "I",
        "an EFA device refused applications' calls",
        _OURS,
        "the applications asked for what the device does not give",
    ),
    *(
        Row(f"efa-errors-{code}", "", "I", meaning, _OURS, _REMOTE)
        for code, meaning in (
            ("rx_drops", "an EFA device drops received packets"),
            ("rdma_read_wr_err", "RDMA reads over EFA fail"),
            ("rdma_write_wr_err", "RDMA writes over EFA fail"),
            ("retrans_timeout_events", "EFA traffic times out and takes other paths"),
            ("retrans_pkts", "EFA sends many packets again"),
            ("retrans_bytes", "EFA sends many bytes again"),
            ("remote_unresponsive", "peers of this node do not respond over EFA"),
            ("remote_impaired", "connections from this node to its peers are impaired"),
        )
    ),
    Row("efa-retrans-ratio", "", "I", "a high share of EFA packets is sent again", _OURS, _REMOTE),
)

_RDMA = (
    *(
        Row(f"rdma-{code}", "", "I", meaning, _OURS, _WATCHED, watch=True)
        for code, meaning in (
            ("link-down", "an InfiniBand or RoCE port that was active is down"),
            ("link-gone", "an InfiniBand or RoCE device is gone"),
            ("link-slow", "an InfiniBand or RoCE port is slower than it was"),
            ("errors-link_downed", "a port lost its link"),
            ("errors-excessive_buffer_overrun_errors", "a port's buffers overran"),
            ("errors-local_link_integrity_errors", "a link lost its integrity"),
            ("errors-rnr_nak_retry_err", "a queue pair gave up on receivers that are not ready"),
            ("errors-symbol_error", "more symbol errors in an hour than a good link makes"),
            ("errors-link_error_recovery", "a link recovers again and again"),
            ("errors-port_rcv_errors", "a port receives many broken packets"),
            ("errors-carrier_changes", "a network interface's carrier comes and goes"),
        )
    ),
    *(
        Row(f"rdma-errors-{code}", "", "I", meaning, _OURS, _REMOTE)
        for code, meaning in (
            ("symbol_error_rate", "a burst of symbol errors"),
            ("local_ack_timeout_err", "acknowledgements time out"),
            ("port_xmit_discards", "a port discards packets to send"),
        )
    ),
)

_NEURON = (
    Row(
        "neuron-errors-mem_uncorrected",
        "",
        "X",
        "uncorrectable error in a Neuron device's memory",
        _OURS,
        "AWS Neuron documentation: terminate the instance",
    ),
    Row(
        "neuron-errors-sram_uncorrected",
        "",
        "X",
        "uncorrectable error in a Neuron device's SRAM",
        _OURS,
        "AWS Neuron documentation: terminate the instance",
    ),
    Row(
        "neuron-errors-mem_repairable",
        "",
        "R1",
        "an error in a Neuron device's memory that a reboot repairs",
        _OURS,
        "AWS Neuron documentation: reload the driver or reboot",
        ladder="REBOOT REPLACE",
    ),
    Row(
        "neuron-devices-fewer",
        "",
        "B",
        "Neuron devices are missing",
        _OURS,
        "HyperPod reboots for it",
    ),
    Row(
        "neuron-devices-unbound",
        "",
        "I",
        "Neuron devices on the bus have no driver, and nobody expects them",
        _OURS,
        "watched: the driver may not be set up on purpose",
        watch=True,
    ),
    Row("neuron-devices-more", "", "I", "more Neuron devices than expected", _OURS, _SETTINGS),
)

FABRIC_ROWS = (*_EFA, *_RDMA, *_NEURON)
