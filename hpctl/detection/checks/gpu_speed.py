"""GPUs that are slower than they could be or set up otherwise than others, and their gauges."""

from hpctl.detection.check import CheckFunctions, get_nvml_snapshot_with_gpus
from hpctl.detection.checks.gpu_clocks import (
    judge_gpu_clock_slowdown,
    measure_slowest_busy_gpu_clock,
)
from hpctl.detection.checks.gpu_gauges import compute_gpu_peer_gauges, return_no_observations
from hpctl.detection.checks.gpu_settings import judge_gpu_settings, make_gpu_setting_gauges
from hpctl.detection.checks.gpu_temperature import judge_gpu_temperature_margins
from hpctl.detection.checks.gpu_throttle_slowdown import (
    compute_worst_gpu_throttle_share,
    judge_gpu_throttling,
)

CHECKS = {
    "gpu.clocks": CheckFunctions(
        get_nvml_snapshot_with_gpus, judge_gpu_clock_slowdown, measure_slowest_busy_gpu_clock
    ),
    "gpu.throttle": CheckFunctions(
        get_nvml_snapshot_with_gpus, judge_gpu_throttling, compute_worst_gpu_throttle_share
    ),
    "gpu.slowdown": CheckFunctions(
        get_nvml_snapshot_with_gpus, judge_gpu_throttling, compute_worst_gpu_throttle_share
    ),
    "gpu.temperature": CheckFunctions(get_nvml_snapshot_with_gpus, judge_gpu_temperature_margins),
    "gpu.settings": CheckFunctions(
        get_nvml_snapshot_with_gpus, judge_gpu_settings, make_gpu_setting_gauges
    ),
    "gpu.gauges": CheckFunctions(
        get_nvml_snapshot_with_gpus, return_no_observations, compute_gpu_peer_gauges
    ),
}
"""What the runner calls, by the check's name."""
