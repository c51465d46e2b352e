"""Check `gpu.nvlink.errors`: NVLinks that recover repeatedly, or have a high bit error rate."""

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    count_growth,
    get_gpu_sweep,
    make_warning,
    pair_gpu_states,
)
from hpctl.detection.nvml.snapshot import GpuState, NvLink, NvmlSnapshot

# NVLinks that are up but faulty: recoveries since the last run, and bit error rates.


def gather_nvlink_errors(machine: CheckedMachine) -> NvmlSnapshot:
    """Return the newest sweep. Raises DeviceAbsentError where no GPU has an NVLink."""
    seen = get_gpu_sweep(machine)
    if not any(gpu.nvlinks for gpu in seen.gpus):
        raise DeviceAbsentError("no GPU with NVLink")
    return seen


def judge_nvlink_errors(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Return one observation of each kind for each GPU, its links in the detail."""
    for gpu, was in pair_gpu_states(seen, before):
        earlier = {link.link: link for link in was.nvlinks}
        both = [(link, earlier[link.link]) for link in gpu.nvlinks if link.link in earlier]
        again = {now.link: count_growth(now.recoveries, then.recoveries) for now, then in both}
        failed = {
            now.link: count_growth(now.recoveries_failed, then.recoveries_failed)
            for now, then in both
        }
        yield from _judge_counts("recovery", gpu, again, limits["recoveries"])
        yield from _judge_counts("recovery-failed", gpu, failed, limits["recoveries"])
    for gpu in seen.gpus:
        yield from _bit_errors(gpu, limits)


def _judge_counts(code: str, gpu: GpuState, counts: dict[int, int], limit: float) -> Judged:
    bad = {link: count for link, count in counts.items() if count > limit}
    if bad:
        shown = ", ".join(f"link {link}: {count}" for link, count in sorted(bad.items()))
        yield make_warning(code, gpu.device, shown)


def _bit_errors(gpu: GpuState, limits: Limits) -> Judged:
    """Return only the worse code: `ber-high` beyond the high limit, else `ber` beyond the low
    one."""
    rates = {link.link: _error_rate(link) for link in gpu.nvlinks}
    for code, limit in (("ber-high", limits["ber_high"]), ("ber", limits["ber"])):
        bad = {link: rate for link, rate in rates.items() if rate > limit}
        if bad:
            shown = ", ".join(f"link {link}: {rate:.0e}" for link, rate in sorted(bad.items()))
            yield make_warning(code, gpu.device, shown)
            return


def _error_rate(link: NvLink) -> float:
    return max(link.effective_ber or 0.0, link.symbol_ber or 0.0)
