"""Check `gpu.gauges`: numbers for the head node, which compares the nodes of a job."""

from collections.abc import Mapping
from statistics import mean

from hpctl.detection.check import Judged, Limits
from hpctl.detection.checks import gpu_pcie
from hpctl.detection.checks.gpu_clocks import measure_gpu_clocks
from hpctl.detection.checks.gpu_settings import measure_gpu_settings
from hpctl.detection.checks.gpu_throttle_slowdown import measure_gpu_throttling
from hpctl.detection.nvml.snapshot import NvmlSnapshot

# The GPUs' numbers for the head node's comparison of peers, taken often; the check itself has no
# findings.
#
# The checks that these numbers belong to run once a minute. Peers are compared in windows of 20 s,
# and one old number reported three times would count as three.


def report_no_observations(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return nothing: one node's numbers mean nothing without its peers'."""
    return ()


def measure_gpu_gauges(seen: NvmlSnapshot, before: NvmlSnapshot | None) -> Mapping[str, float]:
    """Return throttle share, slowest clock and PCIe replays since the last run, as their checks
    count them, and how the GPUs are set up; `gpu.busy` (0 to 1) and `gpu.power_w`, means over all
    GPUs, which show which node waits."""
    if before is not None and seen.at <= before.at:
        return {}
    gauges = {
        **measure_gpu_clocks(seen, before),
        **measure_gpu_throttling(seen, before),
        **gpu_pcie.measure_pcie_replays(seen, before),
        **measure_gpu_settings(seen, before),
    }
    used = [gpu.utilization for gpu in seen.gpus if gpu.utilization is not None]
    if used:
        gauges["gpu.busy"] = mean(used) / 100
    drawn = [gpu.power_mw for gpu in seen.gpus if gpu.power_mw is not None]
    if drawn:
        gauges["gpu.power_w"] = mean(drawn) / 1000
    return gauges
