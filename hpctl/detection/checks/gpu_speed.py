"""GPUs that are slower than they could be or set up otherwise than others, and their gauges."""

from hpctl.detection.check import CheckFunctions, get_gpu_sweep
from hpctl.detection.checks.gpu_clocks import judge_gpu_clocks, measure_gpu_clocks
from hpctl.detection.checks.gpu_gauges import measure_gpu_gauges, report_no_observations
from hpctl.detection.checks.gpu_settings import judge_gpu_settings, measure_gpu_settings
from hpctl.detection.checks.gpu_temperature import judge_gpu_temperature
from hpctl.detection.checks.gpu_throttle_slowdown import (
    judge_gpu_throttling,
    measure_gpu_throttling,
)

CHECKS = {
    "gpu.clocks": CheckFunctions(get_gpu_sweep, judge_gpu_clocks, measure_gpu_clocks),
    "gpu.throttle": CheckFunctions(get_gpu_sweep, judge_gpu_throttling, measure_gpu_throttling),
    "gpu.slowdown": CheckFunctions(get_gpu_sweep, judge_gpu_throttling, measure_gpu_throttling),
    "gpu.temperature": CheckFunctions(get_gpu_sweep, judge_gpu_temperature),
    "gpu.settings": CheckFunctions(get_gpu_sweep, judge_gpu_settings, measure_gpu_settings),
    "gpu.gauges": CheckFunctions(get_gpu_sweep, report_no_observations, measure_gpu_gauges),
}
"""What the runner calls, by the check's name."""
