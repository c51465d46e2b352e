"""InfiniBand and RoCE ports: unchanged, and without errors that matter."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.rdma_errors import (
    compute_rdma_error_rates,
    judge_rdma_error_counters,
    read_rdma_error_counters,
)
from hpctl.detection.checks.rdma_link import (
    collect_rdma_link_sample,
    compute_slowest_rdma_port_rate,
    judge_rdma_port_states,
)

CHECKS = {
    "rdma.link": CheckFunctions(
        collect_rdma_link_sample, judge_rdma_port_states, compute_slowest_rdma_port_rate
    ),
    "rdma.errors": CheckFunctions(
        read_rdma_error_counters, judge_rdma_error_counters, compute_rdma_error_rates
    ),
}
"""What the runner calls, by the check's name."""
