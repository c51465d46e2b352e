"""NVLinks that are up but trouble: recoveries since the last look, and bit error rates."""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, NotHere, Observation
from hpctl.agent.checks.sweep import grown, pairs, sweep
from hpctl.agent.nvml.snapshot import Gpu, NvLink, Snapshot
from hpctl.core.model import Verdict


def gather(machine: Machine) -> Snapshot:
    """The newest sweep. NotHere where no GPU has an NVLink."""
    seen = sweep(machine)
    if not any(gpu.nvlinks for gpu in seen.gpus):
        raise NotHere("no GPU with NVLink")
    return seen


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
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


def _counted(code: str, gpu: Gpu, counts: dict[int, int], limit: float) -> Iterable[Observation]:
    bad = {link: count for link, count in counts.items() if count > limit}
    if bad:
        shown = ", ".join(f"link {link}: {count}" for link, count in sorted(bad.items()))
        yield Observation(code, gpu.device, Verdict.WARN, shown)


def _bit_errors(gpu: Gpu, limits: Limits) -> Iterable[Observation]:
    """The worse word only: `ber-high` beyond the high limit, else `ber` beyond the low one."""
    rates = {link.link: _rate(link) for link in gpu.nvlinks}
    for code, limit in (("ber-high", limits["ber_high"]), ("ber", limits["ber"])):
        bad = {link: rate for link, rate in rates.items() if rate > limit}
        if bad:
            shown = ", ".join(f"link {link}: {rate:.0e}" for link, rate in sorted(bad.items()))
            yield Observation(code, gpu.device, Verdict.WARN, shown)
            return


def _rate(link: NvLink) -> float:
    return max(link.effective_ber or 0.0, link.symbol_ber or 0.0)
