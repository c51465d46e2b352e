"""InfiniBand and RoCE ports: unchanged, and without errors that matter."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.rdma_errors import (
    judge_rdma_errors,
    measure_rdma_errors,
    read_rdma_errors,
)
from hpctl.detection.checks.rdma_link import judge_rdma_links, measure_rdma_links, read_rdma_links

CHECKS = {
    "rdma.link": CheckFunctions(read_rdma_links, judge_rdma_links, measure_rdma_links),
    "rdma.errors": CheckFunctions(read_rdma_errors, judge_rdma_errors, measure_rdma_errors),
}
"""What the runner calls, by the check's name."""
