"""NVLink, the NVSwitch fabric and PCIe: links that are down, in trouble, narrow or slow."""

from hpctl.detection.check import Functions, sweep_with_gpus
from hpctl.detection.checks.gpu_fabric import gather_fabric, judge_fabric
from hpctl.detection.checks.gpu_nvlink import gather_nvlink, judge_nvlink
from hpctl.detection.checks.gpu_nvlink_errors import gather_nvlink_errors, judge_nvlink_errors
from hpctl.detection.checks.gpu_pcie import gauges_pcie, judge_pcie

CHECKS = {
    "gpu.fabric": Functions(gather_fabric, judge_fabric),
    "gpu.nvlink": Functions(gather_nvlink, judge_nvlink),
    "gpu.nvlink.errors": Functions(gather_nvlink_errors, judge_nvlink_errors),
    "gpu.pcie": Functions(sweep_with_gpus, judge_pcie, gauges_pcie),
}
"""What the runner calls, by the check's name."""
