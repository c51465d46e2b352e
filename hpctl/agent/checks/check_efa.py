"""EFA devices: there, linked, alive, answering, without bursts of errors or retransmissions."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl.agent.check import Functions, Judged, Limits, Machine, NotHere, fail, warn
from hpctl.agent.machine import shape_of
from hpctl.agent.rdma import (
    CounterFiles,
    History,
    Port,
    Reading,
    Sweep,
    Trace,
    devices,
    efa_devices,
    efa_functions,
    ports,
    rise,
)

# --- what the checks below share ----------
# One sweep over the counters of all EFA devices, shared by every check that looks at them.
#
# A read outside the RDMA core's cache costs the NIC one admin command a port, so all counters of a
# device are read one after the other, and never more often than every HOLD_S seconds, however many
# checks ask. `lifespan`, the cache's own setting, is no counter.

HOLD_S = 10.0
"""A sweep younger than this is given again (facts/detection 5.1: poll at 5-10 s or more)."""
SWEEP_S = 2.0
"""A sweep that has lasted so long leaves the other devices to the next one."""
SPANS_S = (60.0, 600.0)
"""How far back counters can be compared."""

PORT = (
    *("tx_bytes", "tx_pkts", "rx_bytes", "rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events"),
    *("unresponsive_remote_events", "impaired_remote_conn_events"),
)
ASKED = (
    *("alloc_pd_err", "create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err"),
    "create_ah_err",
)
"""Failures of calls that applications make. Each may have been a command that the NIC refused."""
DEVICE = (
    *("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd"),
    *ASKED,
)
"""Names of the EFA driver (amzn-drivers, efa_verbs.c). Older drivers lack some: then no number."""
FILES: Mapping[str, tuple[str, ...]] = {
    # Before device-wide counters had a folder of their own, they were among the port's.
    **{name: (f"hw_counters/{name}", f"ports/1/hw_counters/{name}") for name in DEVICE},
    **{name: (f"ports/1/hw_counters/{name}",) for name in PORT},
}


def failures(now: Reading, then: Reading | None) -> tuple[int, int]:
    """Admin commands that failed in between: those that nothing explains, those refused.

    `cmds_err` also counts what a device rightly refuses to an application (too many memory
    regions, a queue pair with wrong attributes); the driver counts those a second time by kind.
    It also counts reading the port's counters where the device does not know a group of them (the
    driver asks for all, whatever the device can), by us or any exporter: where a reading failed,
    nothing is known.
    """
    errors = rise(now, then, "cmds_err")
    if errors is None or then is None or now.failed or now.troubles != then.troubles:
        return 0, 0
    asked = sum(rise(now, then, name) or 0 for name in ASKED)
    return max(0, errors - asked), min(errors, asked)


class EfaCounters:
    """The EFA devices below one root. Not for several threads at once."""

    def __init__(self) -> None:
        self._files = CounterFiles(FILES)
        self._history: History = History(SPANS_S)
        self._held: Trace | None = None
        self._first = ""

    def trace(self, machine: Machine) -> Trace:
        """The newest sweep, made now if the last is old enough. Raises NotHere, CannotTell."""
        now = machine.monotonic()
        if self._held is not None and 0 <= now - self._held.now.at < HOLD_S:
            return self._held
        sweep = self._sweep(machine, now)
        past = self._history.past(now)
        self._history.add(sweep)
        self._held = Trace(sweep, past)
        return self._held

    def _sweep(self, machine: Machine, now: float) -> Sweep:
        found = efa_devices(machine)
        self._files.keep_only([device.folder for device in found])
        # A NIC whose admin queue is dead answers late: the others' turn comes in the next sweep.
        start = next((i for i, d in enumerate(found) if d.name == self._first), 0)
        self._first = ""
        devices: dict[str, Reading] = {}
        for device in found[start:] + found[:start]:
            if machine.monotonic() - now > SWEEP_S:
                self._first = device.name
                break
            reading = self._files.read(device.folder)
            if reading is not None:
                devices[device.name] = reading
        return Sweep(now, devices)


@lru_cache(maxsize=4)
def _counters(root: Path) -> EfaCounters:
    return EfaCounters()


def trace(machine: Machine) -> Trace:
    """The counters of this machine's EFA devices. Raises NotHere, CannotTell."""
    return _counters(machine.root).trace(machine)


# --- efa.devices ----------
# Whether all EFA devices are there: on the bus, with a driver, as many as there should be.
#
# What there should be is what the agent is configured to expect, else what the instance type
# has, else the most that this run of the agent saw. An instance may be launched with fewer EFA
# interfaces than its type has, or with none: with neither, the check says nothing.

MOST_NAMES = 8
"""Names listed in one finding."""


class Sample(Struct, frozen=True):
    """The EFA devices by name, the bus's own count, and what there should be by whose word."""

    names: tuple[str, ...]
    on_bus: int | None
    wanted: int | None
    by: str
    gone: tuple[str, ...] = ()


class _Seen(Struct):
    """The names that this run of the agent has seen below one root."""

    names: frozenset[str] = frozenset()


@lru_cache(maxsize=4)
def _seen(root: Path) -> _Seen:
    return _Seen()


def gather_devices(machine: Machine) -> Sample:
    """Count. Raises NotHere where there is no EFA and none is expected, CannotTell."""
    try:
        names = tuple(device.name for device in devices(machine) if device.efa)
    except NotHere:
        names = ()
    seen = _seen(machine.root)
    on_bus = efa_functions(machine)
    sample = _wanted(machine, Sample(names, on_bus, None, ""), len(seen.names))
    if not names and not on_bus and not sample.wanted:
        raise NotHere("no EFA device")
    gone = tuple(sorted(seen.names - set(names)))
    # A device may come back under another name: only as many as the most seen at once are kept.
    if len(names) >= len(seen.names):
        seen.names = frozenset(names)
    return replace(sample, gone=gone)


def _wanted(machine: Machine, sample: Sample, most: int) -> Sample:
    configured = machine.expected.efa_devices
    if configured is not None:
        return replace(sample, wanted=configured, by="the agent's settings")
    usual = shape_of(machine.expected.instance_type).efa_devices
    if usual is not None and (sample.names or sample.on_bus or most):
        return replace(sample, wanted=usual, by=machine.expected.instance_type)
    return replace(sample, wanted=most or None, by="earlier in this run of the agent")


def judge_devices(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """Fewer than there should be, more, or on the bus and without a driver."""
    found, bus = len(seen.names), seen.on_bus
    on_bus = "" if bus is None else f", {bus} on the PCI bus"
    if seen.wanted is not None and found < seen.wanted:
        gone = f"; gone: {', '.join(seen.gone[:MOST_NAMES])}" if seen.gone else ""
        yield fail("fewer", "", f"{found} of {seen.wanted} EFA devices ({seen.by}){on_bus}{gone}")
    elif seen.wanted is not None and found > seen.wanted:
        yield warn("more", "", f"{found} EFA devices, {seen.wanted} expected ({seen.by})")
    elif bus is not None and bus > found:
        yield warn("unbound", "", f"{bus - found} of {bus} EFA devices have no driver")


# --- efa.link ----------
# Whether every EFA port is active.
#
# The EFA driver answers ACTIVE and LinkUp for any port (amzn-drivers, efa_query_port): what this
# check would find is a device on its way out, and it is only watched.


def gather_link(machine: Machine) -> tuple[Port, ...]:
    """Read the states. Raises NotHere where there is no EFA device, CannotTell."""
    return ports(efa_devices(machine))


def judge_link(seen: tuple[Port, ...], before: tuple[Port, ...] | None, limits: Limits) -> Judged:
    """Each port that is not active."""
    for port in seen:
        if not port.active:
            yield fail("down", port.name, f"port is {port.state}, link {port.phys_state or '?'}")


# --- efa.keepalive ----------
# Whether the EFA devices still send their keep-alives: one that stopped has a dead device behind.
#
# A counter that never moved is one that the device does not send (facts/detection 5.1 names only
# its standing still). Where all devices of a node stop at once the driver or the count is rather to
# blame than every NIC, so that is only watched.

COUNTER = "keep_alive_rcvd"


def judge_keepalive(seen: Trace, before: Trace | None, limits: Limits) -> Judged:
    """Each device whose count stood still since the last trace."""
    if before is None or seen.now.at - before.now.at < limits["still_s"]:
        return
    grown = dict(seen.rises(before.now, COUNTER))
    still = [
        device
        for device, rise in grown.items()
        if rise == 0 and seen.now.devices[device].values[COUNTER] > 0
    ]
    if len(still) > 1 and len(still) == len(grown):
        yield warn("stalled_all", "", f"no keep-alive from any of {len(still)} devices")
        return
    for device in still:
        count = seen.now.devices[device].values[COUNTER]
        yield fail("stalled", device, f"no keep-alive after number {count}")


# --- efa.commands ----------
# Whether the EFA devices answer the driver's admin commands.
#
# After a command without an answer the driver gives the device's admin queue up: nothing but a
# reset of the device brings it back. Commands that fail speak against the NIC only where neither an
# application nor the reading of counters explains them (`failures`), and where it goes on: what a
# process that goes down was refused (modify, destroy) is counted nowhere else.


def judge_commands(seen: Trace, before: Trace | None, limits: Limits) -> Judged:
    """Devices with commands that were not answered, or that failed, in the window."""
    past = [s for s in seen.past if seen.now.at - s.at <= limits["window_s"]]
    for device, reading in seen.now.devices.items():
        earlier = [s.devices[device] for s in past if device in s.devices]
        lost = max((rise(reading, then, "no_completion_cmds") or 0 for then in earlier), default=0)
        if lost >= limits["no_completion"]:
            yield fail(
                "no_completion",
                device,
                f"{lost} admin commands never completed",
                _counter_text(reading),
            )
        failed = max((failures(reading, then)[0] for then in earlier), default=0)
        goes_on = sum(failures(b, a)[0] > 0 for a, b in pairwise([*earlier, reading]))
        if failed >= limits["failed"] and goes_on >= limits["failed_intervals"]:
            yield fail(
                "failed",
                device,
                f"{failed} admin commands failed that no application's call explains",
                _counter_text(reading),
            )


def _counter_text(reading: Reading) -> str:
    names = ("submitted_cmds", "completed_cmds", "no_completion_cmds", "cmds_err", *ASKED)
    return " ".join(f"{n}={reading.values[n]}" for n in names if reading.values.get(n))


# --- efa.errors ----------
# Errors that EFA devices count: only ever a warning, for a job or a remote node can cause them.
#
# Each counter has a bucket: it may burst, and it may creep by the refill; more in any of the
# windows that are kept is reported. The bursts are those of AWS's eks-node-monitoring-agent. It
# refills by one a second whatever is counted, which for retransmitted bytes is a warning for any
# load; here packets and bytes may creep by what is 1e-4 of the line rate. What a node says of its
# remote side points away from it: the head node compares the peers of a job, by the gauges.

CODES: Mapping[str, tuple[str, str]] = {
    "rx_drops": ("rx_drops", "events"),
    "rdma_read_wr_err": ("rdma_read_wr_err", "events"),
    "rdma_write_wr_err": ("rdma_write_wr_err", "events"),
    "unresponsive_remote_events": ("remote_unresponsive", "events"),
    "impaired_remote_conn_events": ("remote_impaired", "events"),
    "retrans_timeout_events": ("retrans_timeout_events", "events"),
    "retrans_pkts": ("retrans_pkts", "retrans_pkts"),
    "retrans_bytes": ("retrans_bytes", "retrans_bytes"),
}
"""For each counter its code, and what its limits are called: `burst_` and `refill_` with that."""


def judge_errors(seen: Trace, before: Trace | None, limits: Limits) -> Judged:
    """One observation a counter, naming its worst device; refusals and dead counters a device."""
    yield from _devices(seen, limits)
    for counter, (code, kind) in CODES.items():
        over: dict[str, tuple[int, float]] = {}
        for then in seen.past:
            age = seen.now.at - then.at
            allowed = limits[f"burst_{kind}"] + limits[f"refill_{kind}"] * age
            for device, grown in seen.rises(then, counter):
                if grown > allowed and grown > over.get(device, (0, 0.0))[0]:
                    over[device] = grown, age
        if over:
            worst = max(over, key=lambda device: over[device][0])
            grown, age = over[worst]
            others = f", and {len(over) - 1} more devices" if len(over) > 1 else ""
            yield warn(code, "", f"{counter} +{grown} in {age:.0f} s on {worst}{others}")


def _devices(seen: Trace, limits: Limits) -> Judged:
    for device, reading in seen.now.devices.items():
        if reading.failed:
            name, why = next(iter(reading.failed.items()))
            yield warn(
                "unreadable",
                device,
                f"{len(reading.failed)} counters cannot be read: {name}: {why}",
            )
        earlier = (then.devices.get(device) for then in seen.past)
        refused = max((failures(reading, then)[1] for then in earlier), default=0)
        if refused >= limits["refused"]:
            yield warn("refused", device, f"refused {refused} calls of applications")


def gauges_errors(seen: Trace, before: Trace | None) -> Mapping[str, float]:
    """What the node says of its remote side, and what it drops, a second."""
    remote = ("unresponsive_remote_events", "impaired_remote_conn_events")
    return seen.rates(
        before, {"efa.remote_events_per_s": remote, "efa.rx_drops_per_s": ("rx_drops",)}
    )


# --- efa.retrans ----------
# How much of what a node sends over EFA it has to send again.
#
# SRD recovers a lost packet, so this costs speed and no job. The measure is the peers of the same
# job, on the head node, by the gauges; the check warns of its own only when it is far beyond the
# ratio from which that comparison looks at all.

LEAST_PACKETS = 10_000
"""Packets that must have been sent between two gathers before a ratio means anything."""


def ratios(seen: Trace, before: Trace | None) -> dict[str, tuple[int, int]]:
    """For each device that can tell: packets sent again, packets sent, since the last trace."""
    if before is None:
        return {}
    sent = dict(seen.rises(before.now, "tx_pkts"))
    again = dict(seen.rises(before.now, "retrans_pkts"))
    return {device: (again[device], sent[device]) for device in sent.keys() & again.keys()}


def judge_retrans(seen: Trace, before: Trace | None, limits: Limits) -> Judged:
    """The devices that send too much again."""
    for device, (again, sent) in sorted(ratios(seen, before).items()):
        if sent >= LEAST_PACKETS and again > limits["ratio"] * sent:
            yield warn("ratio", device, f"{again} of {sent} packets sent again")


def gauges_retrans(seen: Trace, before: Trace | None) -> Mapping[str, float]:
    """Ratios of the node and of its worst device, timeouts and traffic a second."""
    if before is None or (seconds := seen.now.at - before.now.at) <= 0:
        return {}
    rates = {}
    for name, counter in (
        ("efa.retrans_timeouts_per_s", "retrans_timeout_events"),
        ("efa.tx_bytes_per_s", "tx_bytes"),
        ("efa.rx_bytes_per_s", "rx_bytes"),
    ):
        grown = [rise for _, rise in seen.rises(before.now, counter)]
        if grown:
            rates[name] = sum(grown) / seconds
    by_device = ratios(seen, before).values()
    again, sent = sum(a for a, _ in by_device), sum(s for _, s in by_device)
    if sent >= LEAST_PACKETS:
        rates["efa.retrans_ratio"] = again / sent
        worst = [a / s for a, s in by_device if s >= LEAST_PACKETS]
        if worst:
            rates["efa.retrans_ratio_worst"] = max(worst)
    return rates


CHECKS = {
    "efa.devices": Functions(gather_devices, judge_devices),
    "efa.link": Functions(gather_link, judge_link),
    "efa.keepalive": Functions(trace, judge_keepalive),
    "efa.commands": Functions(trace, judge_commands),
    "efa.errors": Functions(trace, judge_errors, gauges_errors),
    "efa.retrans": Functions(trace, judge_retrans, gauges_retrans),
}
"""What the runner calls, by the check's name."""
