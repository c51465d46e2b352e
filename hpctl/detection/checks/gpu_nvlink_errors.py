"""Check `gpu.nvlink.errors`: NVLinks that recover repeatedly, or have a high bit error rate."""

from hpctl.detection.check import Judged, Limits, Machine, NotHere, grown, pairs, sweep, warn
from hpctl.detection.nvml.snapshot import Gpu, NvLink, Snapshot

# NVLinks that are up but trouble: recoveries since the last look, and bit error rates.


def gather_nvlink_errors(machine: Machine) -> Snapshot:
    """The newest sweep. NotHere where no GPU has an NVLink."""
    seen = sweep(machine)
    if not any(gpu.nvlinks for gpu in seen.gpus):
        raise NotHere("no GPU with NVLink")
    return seen


def judge_nvlink_errors(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """One observation of each kind for each GPU, its links in the detail."""
    for gpu, was in pairs(seen, before):
        earlier = {link.link: link for link in was.nvlinks}
        both = [(link, earlier[link.link]) for link in gpu.nvlinks if link.link in earlier]
        again = {now.link: grown(now.recoveries, then.recoveries) for now, then in both}
        failed = {
            now.link: grown(now.recoveries_failed, then.recoveries_failed) for now, then in both
        }
        yield from _counted("recovery", gpu, again, limits["recoveries"])
        yield from _counted("recovery-failed", gpu, failed, limits["recoveries"])
    for gpu in seen.gpus:
        yield from _bit_errors(gpu, limits)


def _counted(code: str, gpu: Gpu, counts: dict[int, int], limit: float) -> Judged:
    bad = {link: count for link, count in counts.items() if count > limit}
    if bad:
        shown = ", ".join(f"link {link}: {count}" for link, count in sorted(bad.items()))
        yield warn(code, gpu.device, shown)


def _bit_errors(gpu: Gpu, limits: Limits) -> Judged:
    """The worse word only: `ber-high` beyond the high limit, else `ber` beyond the low one."""
    rates = {link.link: _rate(link) for link in gpu.nvlinks}
    for code, limit in (("ber-high", limits["ber_high"]), ("ber", limits["ber"])):
        bad = {link: rate for link, rate in rates.items() if rate > limit}
        if bad:
            shown = ", ".join(f"link {link}: {rate:.0e}" for link, rate in sorted(bad.items()))
            yield warn(code, gpu.device, shown)
            return


def _rate(link: NvLink) -> float:
    return max(link.effective_ber or 0.0, link.symbol_ber or 0.0)
