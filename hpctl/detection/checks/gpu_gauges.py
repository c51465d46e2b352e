"""Check `gpu.gauges`: numbers for the head node, which compares the nodes of a job."""

from collections.abc import Mapping
from statistics import mean

from hpctl.detection.check import Judged, Limits
from hpctl.detection.checks import gpu_pcie
from hpctl.detection.checks.gpu_clocks import measure_slowest_busy_gpu_clock
from hpctl.detection.checks.gpu_settings import make_gpu_setting_gauges
from hpctl.detection.checks.gpu_throttle_slowdown import compute_worst_gpu_throttle_share
from hpctl.detection.nvml.snapshot import NvmlSnapshot

# The GPUs' numbers for the head node's comparison of peers, taken often; the check itself has no
# findings.
#
# The checks that these numbers belong to run once a minute. Peers are compared in windows of 20 s,
# and one old number reported three times would count as three.


def return_no_observations(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return nothing: one node's numbers mean nothing without its peers'."""
    return ()


def compute_gpu_peer_gauges(seen: NvmlSnapshot, before: NvmlSnapshot | None) -> Mapping[str, float]:
    """Return throttle share, slowest clock and PCIe replays since the last run, as their checks
    count them, and how the GPUs are set up; `gpu.busy` (0 to 1) and `gpu.power_w`, means over all
    GPUs, which show which node waits."""
    if before is not None and seen.at <= before.at:
        return {}
    gauges = {
        **measure_slowest_busy_gpu_clock(seen, before),
        **compute_worst_gpu_throttle_share(seen, before),
        **gpu_pcie.compute_worst_pcie_replay_rate(seen, before),
        **make_gpu_setting_gauges(seen, before),
    }
    used = [gpu.utilization for gpu in seen.gpus if gpu.utilization is not None]
    if used:
        gauges["gpu.busy"] = mean(used) / 100
    drawn = [gpu.power_mw for gpu in seen.gpus if gpu.power_mw is not None]
    if drawn:
        gauges["gpu.power_w"] = mean(drawn) / 1000
    return gauges
