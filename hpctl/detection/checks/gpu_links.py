"""NVLink, the NVSwitch fabric and PCIe: links that are down, in trouble, narrow or slow."""

from hpctl.detection.check import CheckFunctions, get_nvml_snapshot_with_gpus
from hpctl.detection.checks.gpu_fabric import get_fabric_gpu_snapshot, judge_gpu_fabric_registration
from hpctl.detection.checks.gpu_nvlink import get_nvlink_gpu_snapshot, judge_active_nvlink_counts
from hpctl.detection.checks.gpu_nvlink_errors import get_nvlink_error_snapshot, judge_nvlink_errors
from hpctl.detection.checks.gpu_pcie import compute_worst_pcie_replay_rate, judge_gpu_pcie_links

CHECKS = {
    "gpu.fabric": CheckFunctions(get_fabric_gpu_snapshot, judge_gpu_fabric_registration),
    "gpu.nvlink": CheckFunctions(get_nvlink_gpu_snapshot, judge_active_nvlink_counts),
    "gpu.nvlink.errors": CheckFunctions(get_nvlink_error_snapshot, judge_nvlink_errors),
    "gpu.pcie": CheckFunctions(
        get_nvml_snapshot_with_gpus, judge_gpu_pcie_links, compute_worst_pcie_replay_rate
    ),
}
"""What the runner calls, by the check's name."""
