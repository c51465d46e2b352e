"""Counters that the checks of this family share."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from hpctl.detection.check import CheckedMachine
from hpctl.detection.counter_rules import list_check_counter_rules
from hpctl.detection.rdma import list_efa_devices
from hpctl.detection.rdma_counters import (
    CounterFileReader,
    CounterSweepHistory,
    CounterSweepTrace,
    DeviceCounterReading,
    DeviceCounterSweep,
    compute_device_counter_increase,
)

# One sweep over the counters of all EFA devices, shared by every check that looks at them.
#
# A read outside the RDMA core's cache costs the NIC one admin command a port, so all counters of a
# device are read one after the other, at most once every HOLD_S seconds, however many checks ask.
# `lifespan`, the cache's own setting, is not a counter.

HOLD_S = 10.0
"""A sweep younger than this is returned again (facts/detection 5.1: poll at 5-10 s or more)."""


SWEEP_S = 2.0
"""A sweep that has lasted so long leaves the other devices to the next one."""


SPANS_S = (60.0, 600.0)
"""The longest time over which counters are compared."""


PORT = (
    *("tx_bytes", "tx_pkts", "rx_bytes"),
    *(rule.name for rule in list_check_counter_rules("efa.errors")),
)
"""Counters of a port: of the traffic, and those that rows of `efa.errors` compare."""


ASKED = (
    *("alloc_pd_err", "create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err"),
    "create_ah_err",
)
"""Failures of calls that applications make. Each may have been a command that the NIC refused."""


DEVICE = (
    *("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd"),
    *ASKED,
)
"""Names of the EFA driver (amzn-drivers, efa_verbs.c). Older drivers lack some: then there is no
number."""


FILES: Mapping[str, tuple[str, ...]] = {
    # Before device-wide counters had a separate folder, they were among the port's.
    **{name: (f"hw_counters/{name}", f"ports/1/hw_counters/{name}") for name in DEVICE},
    **{name: (f"ports/1/hw_counters/{name}",) for name in PORT},
}


def count_failed_efa_admin_commands(
    now: DeviceCounterReading, then: DeviceCounterReading | None
) -> tuple[int, int]:
    """Return the admin commands that failed in between: unexplained ones, and refused ones.

    `cmds_err` also counts what a device correctly refuses to an application (too many memory
    regions, a queue pair with wrong attributes); the driver counts those a second time by kind. It
    also counts reading the port's counters where the device does not know a group of them (the
    driver asks for all, whatever the device supports), by the agent or any exporter: where a
    reading failed, the result is unknown.
    """
    errors = compute_device_counter_increase(now, then, "cmds_err")
    if errors is None or then is None or now.failed or now.troubles != then.troubles:
        return 0, 0
    asked = sum(compute_device_counter_increase(now, then, name) or 0 for name in ASKED)
    return max(0, errors - asked), min(errors, asked)


class EfaCounterReader:
    """The EFA devices below one root. Not for several threads at once."""

    def __init__(self) -> None:
        self._files = CounterFileReader(FILES)
        self._history: CounterSweepHistory = CounterSweepHistory(SPANS_S)
        self._held: CounterSweepTrace | None = None
        self._first = ""

    def trace(self, machine: CheckedMachine) -> CounterSweepTrace:
        """Return the newest sweep, made now if the last is old enough. Raises DeviceAbsentError,
        CheckResultUnknownError."""
        now = machine.monotonic()
        if self._held is not None and 0 <= now - self._held.now.at < HOLD_S:
            return self._held
        sweep = self._read_efa_counter_sweep(machine, now)
        past = self._history.past(now)
        self._history.add(sweep)
        self._held = CounterSweepTrace(sweep, past)
        return self._held

    def _read_efa_counter_sweep(self, machine: CheckedMachine, now: float) -> DeviceCounterSweep:
        found = list_efa_devices(machine)
        self._files.close_folders_except([device.folder for device in found])
        # A NIC whose admin queue is dead answers late: the next sweep reads the others.
        start = next((i for i, d in enumerate(found) if d.name == self._first), 0)
        self._first = ""
        devices: dict[str, DeviceCounterReading] = {}
        for device in found[start:] + found[:start]:
            if machine.monotonic() - now > SWEEP_S:
                self._first = device.name
                break
            reading = self._files.read(device.folder)
            if reading is not None:
                devices[device.name] = reading
        return DeviceCounterSweep(now, devices)


@lru_cache(maxsize=4)
def _get_efa_counter_reader(root: Path) -> EfaCounterReader:
    return EfaCounterReader()


def read_efa_counter_trace(machine: CheckedMachine) -> CounterSweepTrace:
    """Return the counters of this machine's EFA devices. Raises DeviceAbsentError,
    CheckResultUnknownError."""
    return _get_efa_counter_reader(machine.root).trace(machine)
