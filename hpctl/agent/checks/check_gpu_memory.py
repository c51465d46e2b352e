"""A GPU's memory: uncorrectable and corrected errors, remapped rows, retired pages."""

from hpctl.agent.check import Functions, Judged, Limits, fail, grown, pairs, sweep, warn
from hpctl.agent.nvml.snapshot import Gpu, Snapshot

# --- gpu.ecc ----------
# Uncorrectable memory errors since the last sweep, and the SRAM threshold flag.
#
# Whether an uncorrectable error was contained (one process died, the GPU is sound) is asked of the
# driver, in this order: its recovery action where it has one, then its events: Xid 94, or poison
# that was not fatal. Counts of corrected errors lead to no action at all: healthy fleets show
# millions of them.

_XID = 0x8
_NON_FATAL_POISON = 0x1000
_CONTAINED = 94
# The event may be read a sweep before the counter.
_LOOKBACK_S = 10.0


def judge_ecc(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """The SRAM flags, and the GPUs whose volatile uncorrectable count grew since `before`."""
    for gpu in seen.gpus:
        if gpu.ecc.sram_threshold_exceeded:
            yield fail("sram-threshold", gpu.device, "the SRAM error count passed its threshold")
    for gpu, was in pairs(seen, before):
        more = grown(gpu.ecc.volatile_uncorrected, was.ecc.volatile_uncorrected)
        if more < limits["uncorrectable"]:
            continue
        detail = f"{more} more uncorrectable errors"
        if before is not None and _contained(gpu, seen, before.at):
            yield warn("contained", gpu.device, f"{detail}, contained")
        else:
            yield fail("uncorrectable", gpu.device, detail)


def _contained(gpu: Gpu, seen: Snapshot, since: float) -> bool:
    if gpu.recovery_action is not None:
        return gpu.recovery_action == 0
    return any(
        event.pci == gpu.pci
        and event.at >= since - _LOOKBACK_S
        and ((event.kind, event.data) == (_XID, _CONTAINED) or event.kind == _NON_FATAL_POISON)
        for event in seen.events
    )


# --- gpu.ecc.corrected ----------
# A storm of corrected memory errors: while it lasts, calls into the driver may stall.
#
# The count says nothing about a GPU's health; only a rate that goes on and on is worth a look.


def judge_ecc_corrected(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """The GPUs whose corrected errors came faster than the limit since `before`."""
    elapsed = seen.at - before.at if before is not None else 0.0
    if elapsed <= 0:
        return
    for gpu, was in pairs(seen, before):
        rate = grown(gpu.ecc.volatile_corrected, was.ecc.volatile_corrected) / elapsed
        if rate > limits["per_second"]:
            yield warn("storm", gpu.device, f"{rate:.0f} corrected errors a second")


# --- gpu.remap ----------
# Row remapping (Ampere and later): failed, pending, and how many spare rows are left.


def judge_remap(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """What the row remapper says now; what a GPU or driver does not say is left out."""
    for gpu in seen.gpus:
        yield from _one(gpu, limits)


def _one(gpu: Gpu, limits: Limits) -> Judged:
    remap = gpu.remap
    rows = f"{_shown(remap.uncorrectable)} rows remapped for uncorrectable errors"
    if remap.failed:
        yield fail("failure", gpu.device, f"row remapping failed; {rows}")
    if remap.pending:
        yield warn("pending", gpu.device, f"a remapping waits for a reset; {rows}")
    if remap.uncorrectable is not None and remap.uncorrectable >= limits["uncorrectable_rows"]:
        yield fail("uncorrectable", gpu.device, rows)
    if remap.banks_none:
        yield warn("bank-none", gpu.device, f"{remap.banks_none} banks without a spare row")
    if remap.banks_low:
        yield warn("bank-low", gpu.device, f"{remap.banks_low} banks with few spare rows")


def _shown(count: int | None) -> str:
    return "unknown" if count is None else str(count)


# --- gpu.retired ----------
# Retired memory pages: what GPUs before Ampere have in place of row remapping.


def judge_retired(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """Pages that wait for a reset, and GPUs that have none left to retire."""
    for gpu in seen.gpus:
        ecc = gpu.ecc
        pages = (ecc.retired_sbe or 0) + (ecc.retired_dbe or 0)
        if ecc.retired_pending:
            yield warn("pending", gpu.device, f"a page waits for a reset; {pages} retired")
        if pages >= limits["pages"]:
            yield fail("pages", gpu.device, f"{pages} pages retired")


CHECKS = {
    "gpu.ecc": Functions(sweep, judge_ecc),
    "gpu.ecc.corrected": Functions(sweep, judge_ecc_corrected),
    "gpu.remap": Functions(sweep, judge_remap),
    "gpu.retired": Functions(sweep, judge_retired),
}
"""What the runner calls, by the check's name."""
