"""The GPUs' numbers for the head node's comparison of peers, taken often; it finds nothing itself.

The checks that these numbers belong to run once a minute. Peers are compared in windows of 20 s,
and one old number told three times would count as three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks import gpu_clocks, gpu_pcie, gpu_settings, gpu_throttle
from hpctl.agent.checks.sweep import sweep
from hpctl.agent.nvml.snapshot import Snapshot


def gather(machine: Machine) -> Snapshot:
    """The newest sweep."""
    return sweep(machine)


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """Nothing: one node's numbers say nothing without its peers'."""
    return ()


def gauges(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """Throttle share, slowest clock and PCIe replays since the last run, as their checks count
    them, and how the GPUs are set up; `gpu.busy` (0 to 1) and `gpu.power_w`, means over all GPUs,
    which tell who waits."""
    if before is not None and seen.at <= before.at:
        return {}
    told = {
        **gpu_clocks.gauges(seen, before),
        **gpu_throttle.gauges(seen, before),
        **gpu_pcie.gauges(seen, before),
        **gpu_settings.gauges(seen, before),
    }
    used = [gpu.utilization for gpu in seen.gpus if gpu.utilization is not None]
    if used:
        told["gpu.busy"] = mean(used) / 100
    drawn = [gpu.power_mw for gpu in seen.gpus if gpu.power_mw is not None]
    if drawn:
        told["gpu.power_w"] = mean(drawn) / 1000
    return told
