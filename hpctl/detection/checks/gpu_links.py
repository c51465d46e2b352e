"""NVLink, the NVSwitch fabric and PCIe: links that are down, in trouble, narrow or slow."""

from hpctl.detection.check import CheckFunctions, get_gpu_sweep
from hpctl.detection.checks.gpu_fabric import judge_gpu_fabric, read_gpu_fabric
from hpctl.detection.checks.gpu_nvlink import gather_nvlink, judge_nvlink
from hpctl.detection.checks.gpu_nvlink_errors import gather_nvlink_errors, judge_nvlink_errors
from hpctl.detection.checks.gpu_pcie import gauges_pcie, judge_pcie

CHECKS = {
    "gpu.fabric": CheckFunctions(read_gpu_fabric, judge_gpu_fabric),
    "gpu.nvlink": CheckFunctions(gather_nvlink, judge_nvlink),
    "gpu.nvlink.errors": CheckFunctions(gather_nvlink_errors, judge_nvlink_errors),
    "gpu.pcie": CheckFunctions(get_gpu_sweep, judge_pcie, gauges_pcie),
}
"""What the runner calls, by the check's name."""
