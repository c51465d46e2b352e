"""Check `gpu.nvlink.errors`: NVLinks that recover repeatedly, or have a high bit error rate."""

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    compute_counter_growth,
    get_nvml_snapshot_with_gpus,
    make_warn_observation,
    pair_gpu_states_across_snapshots,
)
from hpctl.detection.nvml.snapshot import GpuState, NvlinkState, NvmlSnapshot

# NVLinks that are up but faulty: recoveries since the last run, and bit error rates.


def get_nvlink_error_snapshot(machine: CheckedMachine) -> NvmlSnapshot:
    """Return the newest sweep. Raises DeviceAbsentError where no GPU has an NVLink."""
    seen = get_nvml_snapshot_with_gpus(machine)
    if not any(gpu.nvlinks for gpu in seen.gpus):
        raise DeviceAbsentError("no GPU with NVLink")
    return seen


def judge_nvlink_errors(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Return one observation of each kind for each GPU, its links in the detail."""
    for gpu, was in pair_gpu_states_across_snapshots(seen, before):
        earlier = {link.link: link for link in was.nvlinks}
        both = [(link, earlier[link.link]) for link in gpu.nvlinks if link.link in earlier]
        again = {
            now.link: compute_counter_growth(now.recoveries, then.recoveries) for now, then in both
        }
        failed = {
            now.link: compute_counter_growth(now.recoveries_failed, then.recoveries_failed)
            for now, then in both
        }
        yield from _judge_nvlink_recovery_counts("recovery", gpu, again, limits["recoveries"])
        yield from _judge_nvlink_recovery_counts(
            "recovery-failed", gpu, failed, limits["recoveries"]
        )
    for gpu in seen.gpus:
        yield from _judge_nvlink_bit_error_rates(gpu, limits)


def _judge_nvlink_recovery_counts(
    code: str, gpu: GpuState, counts: dict[int, int], limit: float
) -> Judged:
    bad = {link: count for link, count in counts.items() if count > limit}
    if bad:
        shown = ", ".join(f"link {link}: {count}" for link, count in sorted(bad.items()))
        yield make_warn_observation(code, gpu.device, shown)


def _judge_nvlink_bit_error_rates(gpu: GpuState, limits: Limits) -> Judged:
    """Return only the worse code: `ber-high` beyond the high limit, else `ber` beyond the low
    one."""
    rates = {link.link: _get_nvlink_bit_error_rate(link) for link in gpu.nvlinks}
    for code, limit in (("ber-high", limits["ber_high"]), ("ber", limits["ber"])):
        bad = {link: rate for link, rate in rates.items() if rate > limit}
        if bad:
            shown = ", ".join(f"link {link}: {rate:.0e}" for link, rate in sorted(bad.items()))
            yield make_warn_observation(code, gpu.device, shown)
            return


def _get_nvlink_bit_error_rate(link: NvlinkState) -> float:
    return max(link.effective_ber or 0.0, link.symbol_ber or 0.0)
