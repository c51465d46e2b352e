"""NVLink, the NVSwitch fabric and PCIe: links that are down, in trouble, narrow or slow."""

from hpctl.detection.check import CheckFunctions, get_gpu_sweep
from hpctl.detection.checks.gpu_fabric import judge_gpu_fabric, read_gpu_fabric
from hpctl.detection.checks.gpu_nvlink import judge_nvlink_states, read_nvlink_sweep
from hpctl.detection.checks.gpu_nvlink_errors import judge_nvlink_errors, read_nvlink_error_sweep
from hpctl.detection.checks.gpu_pcie import judge_pcie_links, measure_pcie_replays

CHECKS = {
    "gpu.fabric": CheckFunctions(read_gpu_fabric, judge_gpu_fabric),
    "gpu.nvlink": CheckFunctions(read_nvlink_sweep, judge_nvlink_states),
    "gpu.nvlink.errors": CheckFunctions(read_nvlink_error_sweep, judge_nvlink_errors),
    "gpu.pcie": CheckFunctions(get_gpu_sweep, judge_pcie_links, measure_pcie_replays),
}
"""What the runner calls, by the check's name."""
