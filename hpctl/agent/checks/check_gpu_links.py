"""NVLink, the NVSwitch fabric and PCIe: links that are down, in trouble, narrow or slow."""

from collections.abc import Iterator, Mapping
from statistics import median

from hpctl.agent.check import (
    Functions,
    Judged,
    Limits,
    Machine,
    NotHere,
    Observation,
    busy,
    fail,
    grown,
    pairs,
    sweep,
    warn,
)
from hpctl.agent.nvml.snapshot import Fabric, Gpu, NvLink, Snapshot
from hpctl.core.model import Verdict

# --- gpu.fabric ----------
# Whether each GPU is registered with the NVSwitch fabric: state *and* status.
#
# Until it is, CUDA does not start on it, and every other surface looks healthy: all links may be up
# and no Xid is ever written. A GPU without a fabric (state 0, or the call not supported) says
# nothing, nor does one in MIG mode: the driver suspends its registration.

_NOT_SUPPORTED = 0
_COMPLETED = 3
_SUCCESS = 0
_STATES = {1: "not started", 2: "in progress", 3: "completed"}
# Two bits each: 0 not supported, 1 yes, 2 no. Only a plain yes is a fault.
_HEALTH = {
    0: "degraded bandwidth",
    2: "route recovery",
    4: "route unhealthy",
    6: "access timeout recovery",
}
_TRUE = 1
# Four bits: 0 not supported, 1 none, and from 2 on what is wrong.
_CONFIGURATION_SHIFT = 8
_CONFIGURATION_NONE = 1
_RACK_SCALE = ("NVIDIA GB200", "NVIDIA GB300")


def gather_fabric(machine: Machine) -> Snapshot:
    """The newest sweep. NotHere where no GPU belongs to a fabric."""
    seen = sweep(machine)
    if all(_of(gpu) is None for gpu in seen.gpus):
        raise NotHere("no GPU belongs to an NVSwitch fabric")
    return seen


def judge_fabric(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """What is wrong with each GPU's registration; `mixed` where only some of them have it."""
    members = [(gpu, fabric) for gpu in seen.gpus if (fabric := _of(gpu)) is not None]
    registered = [_good(fabric) for _, fabric in members]
    mixed = any(registered) and not all(registered)
    for gpu, fabric in members:
        if fabric.state != _COMPLETED:
            state = _STATES.get(fabric.state, str(fabric.state))
            code = "mixed" if mixed else "not-completed"
            yield fail(code, gpu.device, f"fabric registration {state}")
        elif fabric.status != _SUCCESS:
            code = "mixed" if mixed else "status"
            detail = f"fabric registration ended with NVML error {fabric.status}"
            yield fail(code, gpu.device, detail)
        else:
            yield from _health(gpu, fabric)


def _of(gpu: Gpu) -> Fabric | None:
    fabric = gpu.fabric
    return None if fabric is None or gpu.mig or fabric.state == _NOT_SUPPORTED else fabric


def _good(fabric: Fabric) -> bool:
    return fabric.state == _COMPLETED and fabric.status == _SUCCESS


def _health(gpu: Gpu, fabric: Fabric) -> Judged:
    if not fabric.cluster_uuid.strip("0-") and _rack_scale(gpu):
        yield warn("no-cluster", gpu.device, "the fabric's cluster id is 0")
    mask = fabric.health_mask
    if mask is None:
        return
    wrong = [text for shift, text in _HEALTH.items() if mask >> shift & 0b11 == _TRUE]
    configuration = mask >> _CONFIGURATION_SHIFT & 0b1111
    if configuration > _CONFIGURATION_NONE:
        wrong.append(f"incorrect configuration {configuration}")
    if wrong:
        yield warn("health", gpu.device, ", ".join(wrong), f"mask {mask:#x}")


def _rack_scale(gpu: Gpu) -> bool:
    return gpu.name.startswith(_RACK_SCALE)


# --- gpu.nvlink ----------
# NVLinks that are down where they should be up.
#
# How many should be up is taken from the node's other GPUs of the same model and, once any link of
# the node is up at all, from the number that the model has. A node without NVLink, or a share of a
# board whose links are all off, has nothing to be compared with. A GPU in MIG mode has no NVLink:
# the driver takes its links down (open-gpu-kernel-modules, kmigmgrIsMIGNvlinkP2PSupported).

# By the beginning of NVML's name. Boards for a PCIe slot carry other names and other numbers.
_LINKS = {
    "NVIDIA A100-SXM": 12,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H200 NVL": 0,
    "NVIDIA H200": 18,
    "NVIDIA B200": 18,
    "NVIDIA B300": 18,
    "NVIDIA GB200": 18,
    "NVIDIA GB300": 18,
}


def gather_nvlink(machine: Machine) -> Snapshot:
    """The newest sweep. NotHere where no GPU has an NVLink."""
    seen = sweep(machine)
    if not any(gpu.nvlinks for gpu in seen.gpus):
        raise NotHere("no GPU with NVLink")
    return seen


def judge_nvlink(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """The GPUs with fewer links up than they should have."""
    most: dict[str, int] = {}
    for gpu in seen.gpus:
        most[gpu.name] = max(most.get(gpu.name, 0), len(_up(gpu)))
    in_use = any(most.values())
    for gpu in seen.gpus:
        if gpu.error is not None or gpu.mig or all(link.active is None for link in gpu.nvlinks):
            continue
        up = _up(gpu)
        expected = max(most[gpu.name], _of_model(gpu.name) if in_use else 0)
        if len(up) < expected:
            down = sorted({link.link for link in gpu.nvlinks} - up)
            yield fail(
                "down",
                gpu.device,
                f"{len(up)} of {expected} NVLinks up; down: {', '.join(map(str, down))}",
            )


def _up(gpu: Gpu) -> set[int]:
    return {link.link for link in gpu.nvlinks if link.active}


def _of_model(name: str) -> int:
    return next((count for start, count in _LINKS.items() if name.startswith(start)), 0)


# --- gpu.nvlink.errors ----------
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


# --- gpu.pcie ----------
# The GPUs' PCIe links: narrower or slower than they can be, or repeating packets too often.
#
# Links are compared with those of the node's other GPUs first: some instance types wire every GPU
# with fewer lanes than it has, which is no fault. An idle GPU lowers its generation to save power,
# and from PCIe 6 on also its width (L0p), so these count only while it works.

_DYNAMIC_WIDTH = 6
# Gbit/s of one lane, by generation.
_LANE_GBPS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_GAUGE = "gpu.pcie_replays_per_minute"


def judge_pcie(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """Width, generation and replays of each GPU."""
    narrow = [gpu for gpu in seen.gpus if _narrow(gpu, limits)]
    slow = [gpu for gpu in seen.gpus if _slow(gpu, limits)]
    others_wide = any(_full_width(gpu) for gpu in seen.gpus)
    others_fast = any(_full_speed(gpu) for gpu in seen.gpus)
    for gpu in narrow:
        yield Observation(
            "width" if others_wide else "width-all",
            gpu.device,
            Verdict.FAIL if others_wide else Verdict.WARN,
            f"PCIe x{gpu.pcie.width}, can do x{gpu.pcie.width_max}",
        )
    for gpu in slow:
        yield Observation(
            "generation" if others_fast else "generation-all",
            gpu.device,
            Verdict.FAIL if others_fast else Verdict.WARN,
            f"PCIe {gpu.pcie.generation} under load, can do {gpu.pcie.generation_max}",
        )
    yield from _replaying(seen, before, limits)


def gauges_pcie(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """`gpu.pcie_replays_per_minute`: of the GPU with the most."""
    rates = [rate for _, rate in _rates(seen, before)]
    return {_GAUGE: max(rates)} if rates else {}


def _narrow(gpu: Gpu, limits: Limits) -> bool:
    pcie = gpu.pcie
    if not pcie.width or not pcie.width_max or pcie.width >= pcie.width_max:
        return False
    return (pcie.generation_max or 0) < _DYNAMIC_WIDTH or busy(gpu, limits["busy_percent"])


def _slow(gpu: Gpu, limits: Limits) -> bool:
    pcie = gpu.pcie
    if not pcie.generation or not pcie.generation_max:
        return False
    return pcie.generation < pcie.generation_max and busy(gpu, limits["busy_percent"])


def _full_width(gpu: Gpu) -> bool:
    return bool(gpu.pcie.width) and gpu.pcie.width == gpu.pcie.width_max


def _full_speed(gpu: Gpu) -> bool:
    return bool(gpu.pcie.generation) and gpu.pcie.generation == gpu.pcie.generation_max


def _replaying(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterator[Observation]:
    rates = list(_rates(seen, before))
    for gpu, rate in rates:
        allowed = _allowed(gpu, limits)
        if allowed is not None and rate > allowed:
            detail = f"{rate:.1f} replays a minute; the link's speed allows {allowed:.1f}"
            yield warn("replays", gpu.device, detail)
        peers = [other for peer, other in rates if peer is not gpu]
        if len(peers) < limits["peers"] or rate < limits["replays_floor"]:
            continue
        usual = median(peers)
        if rate > usual * limits["times_median"]:
            detail = f"{rate:.1f} replays a minute; the other GPUs {usual:.1f}"
            yield warn("replays-peers", gpu.device, detail)


def _rates(seen: Snapshot, before: Snapshot | None) -> Iterator[tuple[Gpu, float]]:
    """Replays a minute of each GPU that counts them."""
    elapsed = seen.at - before.at if before is not None else 0.0
    if elapsed <= 0:
        return
    for gpu, was in pairs(seen, before):
        if gpu.pcie.replays is not None and was.pcie.replays is not None:
            yield gpu, 60.0 * grown(gpu.pcie.replays, was.pcie.replays) / elapsed


def _allowed(gpu: Gpu, limits: Limits) -> float | None:
    """Replays a minute that a link within the bit error rate of the standard may show."""
    speed = _LANE_GBPS.get(gpu.pcie.generation or 0)
    if speed is None or not gpu.pcie.width:
        return None
    return speed * 1e9 * gpu.pcie.width * 60.0 * limits["bit_error_rate"]


CHECKS = {
    "gpu.fabric": Functions(gather_fabric, judge_fabric),
    "gpu.nvlink": Functions(gather_nvlink, judge_nvlink),
    "gpu.nvlink.errors": Functions(gather_nvlink_errors, judge_nvlink_errors),
    "gpu.pcie": Functions(sweep, judge_pcie, gauges_pcie),
}
"""What the runner calls, by the check's name."""
