"""GPUs that are slower than they could be or set up otherwise than others, and their gauges."""

from hpctl.detection.check import Functions, sweep_with_gpus
from hpctl.detection.checks.gpu_clocks import gauges_clocks, judge_clocks
from hpctl.detection.checks.gpu_gauges import gauges_gauges, judge_gauges
from hpctl.detection.checks.gpu_settings import gauges_settings, judge_settings
from hpctl.detection.checks.gpu_temperature import judge_temperature
from hpctl.detection.checks.gpu_throttle_slowdown import gauges_throttle, judge_throttle

CHECKS = {
    "gpu.clocks": Functions(sweep_with_gpus, judge_clocks, gauges_clocks),
    "gpu.throttle": Functions(sweep_with_gpus, judge_throttle, gauges_throttle),
    "gpu.slowdown": Functions(sweep_with_gpus, judge_throttle, gauges_throttle),
    "gpu.temperature": Functions(sweep_with_gpus, judge_temperature),
    "gpu.settings": Functions(sweep_with_gpus, judge_settings, gauges_settings),
    "gpu.gauges": Functions(sweep_with_gpus, judge_gauges, gauges_gauges),
}
"""What the runner calls, by the check's name."""
