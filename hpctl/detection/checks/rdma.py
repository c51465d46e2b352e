"""InfiniBand and RoCE ports: unchanged, and without errors that matter."""

from hpctl.detection.check import Functions
from hpctl.detection.checks.rdma_errors import gather_errors, gauges_errors, judge_errors
from hpctl.detection.checks.rdma_link import gather_link, gauges_link, judge_link

CHECKS = {
    "rdma.link": Functions(gather_link, judge_link, gauges_link),
    "rdma.errors": Functions(gather_errors, judge_errors, gauges_errors),
}
"""What the runner calls, by the check's name."""
