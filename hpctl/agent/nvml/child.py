"""The NVML child: `python -m hpctl.agent.nvml.child <seconds between sweeps> <page's descriptor>`.

The only process that loads NVIDIA's library. It sweeps all GPUs at its own pace and writes each
sweep, and each event at once, to the socket that is its standard input. It never decides that a
call takes too long: the agent does, from the shared page (`inflight`). It ends when the agent's
end of the socket is closed, but never inside a call into the driver, because a process killed there
can wedge the GPU. Therefore it ignores SIGTERM and its like, and so an agent that dies by any
signal, SIGKILL included, leaves no child behind.

It imports little, and no dataclasses, msgspec or pathlib: it has 20 MB to live in.
"""

import json
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

from hpctl.agent.nvml.driver import EVENTS, SWEEP, TIMEOUT, WHOLE, Driver, InFlight, NvmlFailed
from hpctl.agent.nvml.sweep import OtherGpus, Sweep

LENGTH = struct.Struct(">I")
WAIT_MS = 500
"""How long one wait for an event lasts; so long may it take the child to end."""
SAME_EVENT_S = 1.0
"""Events of the same GPU, kind and number within so many seconds are reported once."""
PAUSE_S = 1.0
"""After a wait that failed, lest a lost GPU makes the thread spin."""

WANTED_EVENTS = 0x2 | 0x8 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""Double-bit errors, Xid, DRAM retirement and its failure, poison, GPU unavailable, recovery
action. Not single-bit errors, clocks and power states: they are counters or noise."""


class Gone(Exception):
    """The agent has closed its end."""


class Agent:
    """The agent's end of the socket. `send` may be called by both threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, kind: str, **content: Any) -> None:
        """One message: four bytes of length, then JSON. Raises Gone."""
        frame = json.dumps({"kind": kind, **content}, separators=(",", ":")).encode()
        try:
            with self._lock:
                self._connection.sendall(LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise Gone from error

    def wait(self, seconds: float) -> None:
        """Wait so long. The agent never writes: whatever comes is its end. Raises Gone."""
        if self._poll.poll(max(0.0, seconds) * 1000):
            raise Gone


class Events(threading.Thread):
    """Waits for NVML's events and sends each on. Ends within WAIT_MS after `stop`."""

    def __init__(self, driver: Driver, agent: Agent, sweep: Sweep) -> None:
        """Register for the events of all GPUs. Raises nothing: no events is a way to be."""
        super().__init__(name="events", daemon=True)
        self._driver, self._agent = driver, agent
        self._stopping = threading.Event()
        self._places: dict[int, str] = {}
        self._told: dict[tuple[str, int, int], float] = {}
        self._ended = False
        self._set = self._register(sweep)

    def _register(self, sweep: Sweep) -> Any:
        try:
            chosen = self._driver.call("nvmlEventSetCreate")
        except NvmlFailed:
            return None
        for gpu in sweep.gpus:
            try:
                gpu.open()
                kinds = self._driver.call("nvmlDeviceGetSupportedEventTypes", gpu.handle)
                register = "nvmlDeviceRegisterEvents"
                self._driver.call(register, gpu.handle, kinds & WANTED_EVENTS, chosen)
            except NvmlFailed:
                continue  # the sweep says what is wrong with this GPU; the others have events
            self._places[_address(gpu.handle)] = gpu.identity["pci"]
        return chosen if self._places else None

    @property
    def died(self) -> bool:
        """True when the thread ended by an error of its own: nobody would hear of events."""
        return self._set is not None and not self._ended and not self.is_alive()

    def stop(self) -> None:
        """End, once the wait that is under way is over."""
        self._stopping.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Wait and send, until stopped or the agent is gone."""
        while self._set is not None and not self._stopping.is_set():
            try:
                wait = "nvmlEventSetWait"
                lasts_s = WAIT_MS / 1000
                self._pass_on(self._driver.call(wait, self._set, WAIT_MS, lasts_s=lasts_s))
            except NvmlFailed as failed:
                if failed.code != TIMEOUT:
                    self._stopping.wait(PAUSE_S)
            except Gone:
                break
        self._ended = True

    def _pass_on(self, data: Any) -> None:
        now = time.monotonic()
        pci = self._places.get(_address(data.device), "")
        event = (pci, data.eventType, data.eventData)
        if now - self._told.get(event, float("-inf")) < SAME_EVENT_S:
            return
        self._told = {k: at for k, at in self._told.items() if now - at < SAME_EVENT_S}
        self._told[event] = now
        happened = {"at": now, "pci": pci, "kind": data.eventType, "data": data.eventData}
        self._agent.send("event", event=happened)


def _address(handle: Any) -> int:
    """Handles are opaque pointers, and pynvml makes a new object around each."""
    # No cast of pynvml's: its star import is the only ctypes that this process has loaded.
    return int.from_bytes(bytes(handle), sys.byteorder)


def serve(nvml: Any, agent: Agent, inflight: InFlight, every_s: float) -> None:
    """One NVML session: sweeps until the agent is gone (Gone) or the session is over."""
    driver = Driver(nvml, inflight, SWEEP)
    try:
        driver.call("nvmlInit")
        sweep = Sweep(driver)
    except NvmlFailed as failed:
        _report(agent, failed)
        return
    events = Events(Driver(nvml, inflight, EVENTS), agent, sweep)
    events.start()
    try:
        due = time.monotonic()
        while True:
            inflight.begin(WHOLE, "a sweep")
            snapshot = sweep.read()
            inflight.end(WHOLE)
            agent.send("sweep", snapshot=snapshot, done=time.monotonic())
            due = max(due + every_s, time.monotonic())
            agent.wait(due - time.monotonic())
            if events.died:
                raise RuntimeError("the thread that waits for events died")
    except NvmlFailed as failed:
        _report(agent, failed)
    except OtherGpus:
        return
    finally:
        inflight.end(WHOLE)
        events.stop()


def _report(agent: Agent, failed: NvmlFailed) -> None:
    now = time.monotonic()
    agent.send("sweep", snapshot={"at": now, "error": failed.as_error()}, done=now)


def main() -> int:
    """The exit status: 0 after a session, however it ended; 1 when there could be none."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    every_s, page = float(sys.argv[1]), int(sys.argv[2])
    agent = Agent(socket.socket(fileno=0))
    try:
        try:
            import pynvml
        except ImportError as error:
            agent.send("failed", text=f"nvidia-ml-py does not import: {error}")
            return 1
        serve(pynvml, agent, InFlight(page), every_s)
    except Gone:
        pass
    except Exception as error:
        agent.send("failed", text=f"{type(error).__name__}: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
