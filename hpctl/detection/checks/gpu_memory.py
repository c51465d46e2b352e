"""A GPU's memory: uncorrectable and corrected errors, remapped rows, retired pages."""

from hpctl.detection.check import CheckFunctions, get_nvml_snapshot_with_gpus
from hpctl.detection.checks.gpu_ecc import judge_uncorrected_ecc_errors
from hpctl.detection.checks.gpu_ecc_corrected import judge_corrected_ecc_errors
from hpctl.detection.checks.gpu_remap import judge_gpu_row_remapper
from hpctl.detection.checks.gpu_retired import judge_retired_pages

CHECKS = {
    "gpu.ecc": CheckFunctions(get_nvml_snapshot_with_gpus, judge_uncorrected_ecc_errors),
    "gpu.ecc.corrected": CheckFunctions(get_nvml_snapshot_with_gpus, judge_corrected_ecc_errors),
    "gpu.remap": CheckFunctions(get_nvml_snapshot_with_gpus, judge_gpu_row_remapper),
    "gpu.retired": CheckFunctions(get_nvml_snapshot_with_gpus, judge_retired_pages),
}
"""What the runner calls, by the check's name."""
