"""The NVML child: `python -m hpctl.detection.nvml.child SECONDS DESCRIPTOR LIBRARY`.

SECONDS lie between two sweeps, DESCRIPTOR is the shared page's, and LIBRARY (a path, or empty) is
loaded where the loader finds no libnvidia-ml.so.1.

The only process that loads NVIDIA's library. It sweeps all GPUs at a fixed interval and writes each
sweep, and each event immediately, to the socket that is its standard input. The agent, not the
child, decides that a call takes too long, from the shared page (`DriverCallsInFlight`). It ends
when the agent's end of the socket is closed, but never inside a call into the driver, because a
process killed there can wedge the GPU. Therefore it ignores SIGTERM and its like, and so an agent
that is killed by any signal, SIGKILL included, leaves no child behind.

A sweep has the shape of `hpctl.detection.nvml.snapshot`, in plain dicts: a unit test compares the
two. The child imports little, and no dataclasses, msgspec, typing or pathlib: Python and
nvidia-ml-py take 16 MB of memory (`benchmarks/agent.py`). NVIDIA's library comes on top: on an H200
with driver 580.159.04 the child had 51 MB in all.
"""

from __future__ import annotations

import gc
import json
import select
import signal
import socket
import struct
import sys
import threading
import time
from itertools import product

from hpctl.detection.nvml.driver import (
    EVENTS,
    LIBRARY_NOT_FOUND,
    OF_THE_LIBRARY,
    SWEEP,
    TIMEOUT,
    WHOLE,
    DriverCallsInFlight,
    NvmlCallError,
    NvmlDevice,
    NvmlDriver,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module costs 1 MB
    from typing import Any

SLOW_EVERY_S = 30.0
"""How often the most expensive values are read: links, banks, processes, thresholds."""

RECOVERY_ACTION, MEMORY_TEMPERATURE, NVLINKS = 230, 82, 91
THROTTLE = {"sw_thermal_ns": 269, "hw_thermal_ns": 270, "power_brake_ns": 271}
REMAP = {"correctable": 142, "uncorrectable": 143, "pending": 144, "failed": 145}
REPLAY = {"replays": 94}
RETIRED = {"retired_sbe": 29, "retired_dbe": 30, "retired_pending": 31}
FLAGS = frozenset({"pending", "failed", "retired_pending"})
OFTEN = (RECOVERY_ACTION, MEMORY_TEMPERATURE, *THROTTLE.values(), *REMAP.values(), *REPLAY.values())

LINK_RECOVERIES, LINK_RECOVERIES_5 = 162, 215
LINK_BER = {"effective_ber": 220, "symbol_ber": 222}
LINK = {"replays": 161, "recoveries_failed": 214}
A_LINK = (LINK_RECOVERIES, LINK_RECOVERIES_5, *LINK_BER.values(), *LINK.values())

VOLATILE, CORRECTED, UNCORRECTED = 0, 0, 1
SM_CLOCK, CORE_TEMPERATURE, THRESHOLD_SLOWDOWN, THRESHOLD_MEM_MAX = 1, 0, 1, 2

if TYPE_CHECKING:
    Fields = dict[str, Any]


CORRUPTED_INFOROM = 14


class GpuCountChangedError(Exception):
    """The error of a changed number of GPUs since the session began: its handles are invalid."""


class AllGpusReader:
    """A reader of all GPUs, with the handles and identities of one NVML session.

    `slow_every_s` is in seconds. Made after nvmlInit; raises NvmlCallError if NVML cannot count.
    """

    def __init__(self, driver: NvmlDriver, slow_every_s: float = SLOW_EVERY_S) -> None:
        self._driver, self._slow_every_s = driver, slow_every_s
        self._count: int = driver.call("nvmlDeviceGetCount")
        self._slow_at: float | None = None
        self.gpus = [GpuReader(driver, index) for index in range(self._count)]

    def read(self) -> Fields:
        """Read all GPUs and return a `snapshot.Snapshot`. Raises NvmlCallError when the driver is
        gone, and GpuCountChangedError."""
        at = time.monotonic()
        if self._driver.call("nvmlDeviceGetCount") != self._count:
            raise GpuCountChangedError
        slow = self._slow_at is None or at - self._slow_at >= self._slow_every_s
        gpus = [gpu.read(slow=slow) for gpu in self.gpus]
        if slow:
            self._slow_at = at
        return {"at": at, "gpus": gpus, "slow_at": self._slow_at}


class GpuReader:
    """One GPU: its identity, and the last values that are read seldom."""

    def __init__(self, driver: NvmlDriver, index: int) -> None:
        self._driver, self._index = driver, index
        self.handle: Any = None
        self._device: NvmlDevice | None = None
        self.identity: Fields = {"index": index}
        self._seldom: Fields = {}

    def open(self) -> None:
        """Get the handle and the identity. Raises NvmlCallError."""
        if self._device is not None:
            return
        handle = self._driver.call("nvmlDeviceGetHandleByIndex", self._index, gpu=self._index)
        pci = self._driver.call("nvmlDeviceGetPciInfo", handle, gpu=self._index)
        self.identity["pci"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        device = NvmlDevice(self._driver, self._index, handle)
        self.identity["uuid"] = device.ask("nvmlDeviceGetUUID") or ""
        self.identity["name"] = device.ask("nvmlDeviceGetName") or ""
        self.identity["vbios"] = device.ask("nvmlDeviceGetVbiosVersion") or ""
        self.identity["inforom_corrupt"] = self._is_inforom_corrupt(handle)
        self.handle, self._device = handle, device

    def _is_inforom_corrupt(self, handle: Any) -> bool | None:
        """Return whether the InfoROM is corrupt. Called once a session, because it reads the
        flash."""
        try:
            self._driver.call("nvmlDeviceValidateInforom", handle, gpu=self._index)
        except NvmlCallError as failed:
            return True if failed.code == CORRUPTED_INFOROM else None
        return False

    def read(self, *, slow: bool) -> Fields:
        """Read the GPU and return a `snapshot.GpuState`. Raises NvmlCallError when the driver is
        gone."""
        found: Fields = {}
        try:
            self.open()
            assert self._device is not None
            _read_frequent_gpu_values(self._device, found)
            if slow or not self._seldom:
                self._seldom = _read_infrequent_gpu_values(self._device)
        except NvmlCallError as failed:
            if failed.code in OF_THE_LIBRARY:
                raise
            # Earlier links and processes do not describe a GPU that is lost now.
            self._seldom = {}
            found["error"] = failed.to_error_fields()
        often_ecc, seldom_ecc = found.pop("ecc", {}), self._seldom.get("ecc", {})
        often_remap, banks = found.pop("remap", {}), self._seldom.get("remap", {})
        return {
            **self.identity,
            **self._seldom,
            **found,
            "ecc": {**often_ecc, **seldom_ecc},
            "remap": {**often_remap, **banks},
        }


def _read_frequent_gpu_values(device: NvmlDevice, found: Fields) -> None:
    """Read frequent values into `found`, so that those read before a GPU was lost are kept."""
    values = dict(zip(OFTEN, device.fields(OFTEN), strict=True))
    found["recovery_action"] = values[RECOVERY_ACTION]
    found["memory_temperature_c"] = values[MEMORY_TEMPERATURE]
    found["throttle"] = _map_field_names_to_values(THROTTLE, values)
    found["remap"] = _map_field_names_to_values(REMAP, values)
    found["pcie"] = {
        **_map_field_names_to_values(REPLAY, values),
        "generation": device.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "generation_max": device.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "width": device.ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "width_max": device.ask("nvmlDeviceGetMaxPcieLinkWidth"),
    }
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    found["utilization"] = None if rates is None else rates.gpu
    found["sm_clock_mhz"] = device.ask("nvmlDeviceGetClockInfo", SM_CLOCK)
    found["power_mw"] = device.ask("nvmlDeviceGetPowerUsage")
    found["temperature_c"] = device.ask("nvmlDeviceGetTemperature", CORE_TEMPERATURE)
    found["temperature_margin_c"] = device.ask("nvmlDeviceGetMarginTemperature")
    total = "nvmlDeviceGetTotalEccErrors"
    found["ecc"] = {
        "volatile_uncorrected": device.ask(total, UNCORRECTED, VOLATILE),
        "volatile_corrected": device.ask(total, CORRECTED, VOLATILE),
    }


def _read_infrequent_gpu_values(device: NvmlDevice) -> Fields:
    count, *pages = device.fields((NVLINKS, *RETIRED.values()))
    banks = device.ask("nvmlDeviceGetRowRemapperHistogram")
    sram = device.fill("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    threshold = "nvmlDeviceGetTemperatureThreshold"
    mig = device.ask("nvmlDeviceGetMigMode")
    processes = device.ask("nvmlDeviceGetComputeRunningProcesses")
    persistence = device.ask("nvmlDeviceGetPersistenceMode")
    return {
        "persistence": None if persistence is None else bool(persistence),
        "sm_clock_application_mhz": device.ask("nvmlDeviceGetApplicationsClock", SM_CLOCK),
        "sm_clock_default_mhz": device.ask("nvmlDeviceGetDefaultApplicationsClock", SM_CLOCK),
        "temperature_slowdown_c": device.ask(threshold, THRESHOLD_SLOWDOWN),
        "memory_temperature_max_c": device.ask(threshold, THRESHOLD_MEM_MAX),
        "remap": {} if banks is None else {"banks_low": banks.low, "banks_none": banks.none},
        "ecc": {
            "sram_threshold_exceeded": None if sram is None else bool(sram.bThresholdExceeded),
            **_map_field_names_to_values(RETIRED, dict(zip(RETIRED.values(), pages, strict=True))),
        },
        "mig": None if mig is None else bool(mig[0]),
        "nvlinks": _read_gpu_nvlinks(device, count),
        "fabric": _read_nvlink_fabric(device),
        "processes": None
        if processes is None
        else [{"pid": one.pid, "used_bytes": one.usedGpuMemory} for one in processes],
    }


def _read_gpu_nvlinks(device: NvmlDevice, count: int | None) -> list[Fields]:
    """Return the links of the device: as many as it counts, else until one is missing."""
    links: list[Fields] = []
    for link in range(MOST_LINKS if count is None else count):
        active = device.ask("nvmlDeviceGetNvLinkState", link)
        if active is None and count is None:
            break
        links.append({"link": link, "active": None if active is None else bool(active)})
    asked = [(field, one["link"]) for one, field in product(links, A_LINK)]
    answers = device.fields(asked)
    for number, one in enumerate(links):
        first = number * len(A_LINK)
        values = dict(zip(A_LINK, answers[first : first + len(A_LINK)], strict=True))
        recoveries = values[LINK_RECOVERIES_5]
        one["recoveries"] = values[LINK_RECOVERIES] if recoveries is None else recoveries
        one.update(_map_field_names_to_values(LINK, values))
        one.update(
            {name: _decode_bit_error_rate(values[field]) for name, field in LINK_BER.items()}
        )
    return links


MOST_LINKS = 18
"""NVML_NVLINK_MAX_LINKS of Hopper and Blackwell, where the device does not count its own."""


def _read_nvlink_fabric(device: NvmlDevice) -> Fields | None:
    fabric = device.fill("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t")
    if fabric is None:
        return None
    uuid = bytes(fabric.clusterUuid)
    return {
        "state": fabric.state,
        "status": fabric.status,
        "clique": fabric.cliqueId,
        "cluster_uuid": uuid.hex() if any(uuid) else "",
        "health_mask": fabric.healthMask,
    }


def _map_field_names_to_values(names: dict[str, int], values: dict[int, Any]) -> Fields:
    found = {}
    for name, number in names.items():
        value = values[number]
        found[name] = bool(value) if name in FLAGS and value is not None else value
    return found


def _decode_bit_error_rate(raw: int | None) -> float | None:
    """Return the bit error rate of a field: mantissa in the bits 8 to 11, negative exponent of ten
    in 0 to 7."""
    return None if raw is None else (raw >> 8 & 0xF) * 10.0 ** -(raw & 0xFF)


LENGTH = struct.Struct(">I")
WAIT_MS = 500
"""How long one wait for an event lasts; the child may take as long to end."""
SAME_EVENT_S = 1.0
"""Events of the same GPU, kind and number within so many seconds are reported once."""
PAUSE_S = 1.0
"""The pause after a wait that failed, so that a lost GPU does not make the thread spin."""

WANTED_EVENTS = 0x2 | 0x8 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""Double-bit errors, Xid, DRAM retirement and its failure, poison, GPU unavailable, recovery
action. Not single-bit errors, clocks and power states: they are counters or noise."""


class AgentDisconnectedError(Exception):
    """The error of an agent that has closed its end."""


class AgentPipe:
    """The agent's end of the socket. `send` may be called by both threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, kind: str, **content: Any) -> None:
        """Send one message: four bytes of length, then JSON. Raises Gone."""
        frame = json.dumps({"kind": kind, **content}, separators=(",", ":")).encode()
        try:
            with self._lock:
                self._connection.sendall(LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise AgentDisconnectedError from error

    def wait(self, seconds: float) -> None:
        """Wait so long. The agent never writes: any input means that it has ended. Raises Gone."""
        if self._poll.poll(max(0.0, seconds) * 1000):
            raise AgentDisconnectedError


class NvmlEventThread(threading.Thread):
    """A thread that waits for NVML's events and sends each on. Ends within WAIT_MS after `stop`."""

    def __init__(self, driver: NvmlDriver, agent: AgentPipe, sweep: AllGpusReader) -> None:
        """Register for the events of all GPUs. Does not raise: the child also works without
        events."""
        super().__init__(name="events", daemon=True)
        self._driver, self._agent = driver, agent
        self._stopping = threading.Event()
        self._places: dict[int, str] = {}
        self._last_reported: dict[tuple[str, int, int], float] = {}
        self._ended = False
        self._set = self._register_nvml_events(sweep)

    def _register_nvml_events(self, sweep: AllGpusReader) -> Any:
        try:
            chosen = self._driver.call("nvmlEventSetCreate")
        except NvmlCallError:
            return None
        for gpu in sweep.gpus:
            try:
                gpu.open()
                kinds = self._driver.call("nvmlDeviceGetSupportedEventTypes", gpu.handle)
                register = "nvmlDeviceRegisterEvents"
                self._driver.call(register, gpu.handle, kinds & WANTED_EVENTS, chosen)
            except NvmlCallError:
                continue  # the sweep shows what is wrong with this GPU; the others have events
            self._places[_get_nvml_handle_address(gpu.handle)] = gpu.identity["pci"]
        return chosen if self._places else None

    @property
    def has_died(self) -> bool:
        """Return whether the thread ended by an error, so that no event would be reported."""
        return self._set is not None and not self._ended and not self.is_alive()

    def stop(self) -> None:
        """Stop, once the wait that is under way is over."""
        self._stopping.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Wait and send, until stopped or the agent is gone."""
        while self._set is not None and not self._stopping.is_set():
            try:
                wait = "nvmlEventSetWait"
                lasts_s = WAIT_MS / 1000
                self._send_nvml_event(self._driver.call(wait, self._set, WAIT_MS, lasts_s=lasts_s))
            except NvmlCallError as failed:
                if failed.code != TIMEOUT:
                    self._stopping.wait(PAUSE_S)
            except AgentDisconnectedError:
                break
        self._ended = True

    def _send_nvml_event(self, data: Any) -> None:
        now = time.monotonic()
        pci = self._places.get(_get_nvml_handle_address(data.device), "")
        event = (pci, data.eventType, data.eventData)
        if now - self._last_reported.get(event, float("-inf")) < SAME_EVENT_S:
            return
        self._last_reported = {
            k: at for k, at in self._last_reported.items() if now - at < SAME_EVENT_S
        }
        self._last_reported[event] = now
        happened = {"at": now, "pci": pci, "kind": data.eventType, "data": data.eventData}
        self._agent.send("event", event=happened)


def _get_nvml_handle_address(handle: Any) -> int:
    """Return the address of a handle. Handles are opaque pointers, and pynvml makes a new object
    around each."""
    # No cast of pynvml's: its star import is the only ctypes that this process has loaded.
    return int.from_bytes(bytes(handle), sys.byteorder)


def start_nvml_session(driver: NvmlDriver, library: str) -> None:
    """Start NVML, with the library at that path where the loader finds none. Raises
    NvmlCallError."""
    try:
        driver.call("nvmlInit")
    except NvmlCallError as failed:
        if failed.code != LIBRARY_NOT_FOUND or not library:
            raise
        try:
            # The loader has it under its soname from now on, so that pynvml finds it.
            driver.nvml.CDLL(library)
        except OSError:
            raise failed from None
        driver.call("nvmlInit")


def run_nvml_session(
    nvml: Any, agent: AgentPipe, inflight: DriverCallsInFlight, every_s: float, library: str = ""
) -> None:
    """Run one NVML session: sweep until the agent is gone (Gone) or the session is over."""
    driver = NvmlDriver(nvml, inflight, SWEEP)
    try:
        start_nvml_session(driver, library)
        sweep = AllGpusReader(driver)
    except NvmlCallError as failed:
        _send_failure_message(agent, failed)
        return
    events = NvmlEventThread(NvmlDriver(nvml, inflight, EVENTS), agent, sweep)
    events.start()
    try:
        due, given_back = time.monotonic(), False
        while True:
            inflight.begin(WHOLE, "a sweep")
            snapshot = sweep.read()
            inflight.end(WHOLE)
            if not given_back:
                trim_process_heap(nvml)
                given_back = True
            agent.send("sweep", snapshot=snapshot, done=time.monotonic())
            due = max(due + every_s, time.monotonic())
            agent.wait(due - time.monotonic())
            if events.has_died:
                raise RuntimeError("the thread that waits for events died")
    except NvmlCallError as failed:
        _send_failure_message(agent, failed)
    except GpuCountChangedError:
        return
    finally:
        inflight.end(WHOLE)
        events.stop()


def _send_failure_message(agent: AgentPipe, failed: NvmlCallError) -> None:
    now = time.monotonic()
    agent.send("sweep", snapshot={"at": now, "error": failed.to_error_fields()}, done=now)


def trim_process_heap(nvml: Any) -> None:
    """Give what is free in the heap back to the kernel.

    Compiling nvidia-ml-py, where its bytecode is not kept, takes 15 MB that stay in the heap, and
    NVIDIA's library frees part of what its start takes.
    """
    gc.collect()
    # Of pynvml's star import too. Only glibc has the function, and no other C library needs it.
    trim = getattr(nvml.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def main() -> int:
    """Run the child and return the exit status: 0 after a session, however it ended; 1 when none
    could start."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    every_s, page, library = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    agent = AgentPipe(socket.socket(fileno=0))
    try:
        try:
            import pynvml
        except ImportError as error:
            agent.send("failed", text=f"nvidia-ml-py does not import: {error}")
            return 1
        trim_process_heap(pynvml)
        run_nvml_session(pynvml, agent, DriverCallsInFlight(page), every_s, library)
    except AgentDisconnectedError:
        pass
    except Exception as error:
        agent.send("failed", text=f"{type(error).__name__}: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
