"""Check `gpu.retired`: retired memory pages (GPUs before Ampere)."""

from hpctl.detection.check import Judged, Limits, make_fail_observation, make_warn_observation
from hpctl.detection.nvml.snapshot import NvmlSnapshot

# Retired memory pages: what GPUs before Ampere have in place of row remapping.


def judge_retired_pages(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Return pages that wait for a reset, and GPUs that have none left to retire."""
    for gpu in seen.gpus:
        ecc = gpu.ecc
        pages = (ecc.retired_sbe or 0) + (ecc.retired_dbe or 0)
        if ecc.retired_pending:
            yield make_warn_observation(
                "pending", gpu.device, f"a page waits for a reset; {pages} retired"
            )
        if pages >= limits["pages"]:
            yield make_fail_observation("pages", gpu.device, f"{pages} pages retired")
