"""A GPU's memory: uncorrectable and corrected errors, remapped rows, retired pages."""

from hpctl.detection.check import Functions, sweep_with_gpus
from hpctl.detection.checks.gpu_ecc import judge_ecc
from hpctl.detection.checks.gpu_ecc_corrected import judge_ecc_corrected
from hpctl.detection.checks.gpu_remap import judge_remap
from hpctl.detection.checks.gpu_retired import judge_retired

CHECKS = {
    "gpu.ecc": Functions(sweep_with_gpus, judge_ecc),
    "gpu.ecc.corrected": Functions(sweep_with_gpus, judge_ecc_corrected),
    "gpu.remap": Functions(sweep_with_gpus, judge_remap),
    "gpu.retired": Functions(sweep_with_gpus, judge_retired),
}
"""What the runner calls, by the check's name."""
