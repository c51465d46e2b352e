"""A GPU's memory: uncorrectable and corrected errors, remapped rows, retired pages."""

from hpctl.detection.check import CheckFunctions, get_gpu_sweep
from hpctl.detection.checks.gpu_ecc import judge_gpu_ecc
from hpctl.detection.checks.gpu_ecc_corrected import judge_corrected_ecc_errors
from hpctl.detection.checks.gpu_remap import judge_row_remapper
from hpctl.detection.checks.gpu_retired import judge_retired_pages

CHECKS = {
    "gpu.ecc": CheckFunctions(get_gpu_sweep, judge_gpu_ecc),
    "gpu.ecc.corrected": CheckFunctions(get_gpu_sweep, judge_corrected_ecc_errors),
    "gpu.remap": CheckFunctions(get_gpu_sweep, judge_row_remapper),
    "gpu.retired": CheckFunctions(get_gpu_sweep, judge_retired_pages),
}
"""What the runner calls, by the check's name."""
