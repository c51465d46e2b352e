"""A machine with GPUs that are not there: a libnvidia-ml.so.1 that answers from a script.

The library is real C behind the real nvidia-ml-py. A process that is started with `env()` finds it;
what a test sets later holds from the next call of NVML on, also in a call that hangs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.stubs.nvml.recorded import answers as recorded_answers

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"

XID, DOUBLE_BIT, GPU_UNAVAILABLE, RECOVERY_ACTION = 0x8, 0x2, 0x4000, 0x8000
EVENT_TYPES = XID | DOUBLE_BIT | GPU_UNAVAILABLE | RECOVERY_ACTION

NVLINKS = 18
FAMILY = "gpu*"

H100: dict[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetVbiosVersion": "96.00.74.00.01",
    "nvmlDeviceValidateInforom": 0,
    "nvmlDeviceGetApplicationsClock@1": 1980,
    "nvmlDeviceGetDefaultApplicationsClock@1": 1980,
    "nvmlDeviceGetSupportedEventTypes": hex(EVENT_TYPES),
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetPowerUsage": 310_000,
    "nvmlDeviceGetTemperature@0": 45,
    "nvmlDeviceGetMarginTemperature": 42,
    "nvmlDeviceGetTemperatureThreshold@1": 89,
    "nvmlDeviceGetTemperatureThreshold@2": 95,
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetClockInfo@1": 1980,
    "nvmlDeviceGetMigMode": "0 0",
    "nvmlDeviceGetUtilizationRates": "97 40",
    "nvmlDeviceGetRowRemapperHistogram": "640 0 0 0 0",
    "nvmlDeviceGetTotalEccErrors@0,0": 0,
    "nvmlDeviceGetTotalEccErrors@1,0": 0,
    "nvmlDeviceGetSramEccErrorStatus": "0 0 0 0 0 0 0 0 0 0 0 0",
    "nvmlDeviceGetGpuFabricInfoV": "3 0 0 0 1 0",
    "nvmlDeviceGetComputeRunningProcesses_v3": "",
    # Of the fields that are asked for those that an H100 answers: not the retired pages (29-31) and
    # NVLink 5's counters (214-222).
    **{f"field{number}": 0 for number in (94, 142, 143, 144, 145, 161, 162)},
    **{f"field{number}": 0 for number in (230, 269, 270, 271)},
    "field82": 51,
    "field91": NVLINKS,
}
"""What a healthy, busy H100 in a DGX-like machine answers to what the NVML child asks."""


class CompilerMissing(RuntimeError):
    """The stub is C, and nobody is here to compile it."""


class Stub:
    """One machine's NVML. Every change is seen by processes that already run.

    The script that it writes has one `key=value` a line. A key is the name of a call or
    `field<id>`, with `@<selector>` where one call answers for many (a link of a field, a clock,
    an ECC counter `type,counter`), after `gpu<n>.` or `gpu*.`. The value is one or more words, or
    `!<error>`; of a field, `<number>ull` is an unsigned long long. `error`, `hang`, `block`,
    `spin`, `crash` (names of calls) and `delay_ms` stand alone, for the node, or after a GPU.
    """

    def __init__(self, directory: Path) -> None:
        self._library = compiled()
        self.script = directory / "nvml.script"
        self._values: dict[str, str] = {"count": "0"}
        self._events: list[str] = []
        self._write()

    def env(self) -> dict[str, str]:
        """What a process needs in its environment to meet this machine."""
        return {"LD_LIBRARY_PATH": str(self._library.parent), "HPCTL_NVML_STUB": str(self.script)}

    def gpus(self, count: int, answers: dict[str, Any] = H100) -> Stub:
        """So many healthy GPUs."""
        self._values["count"] = str(count)
        self._values |= {f"{FAMILY}.{key}": str(value) for key, value in answers.items()}
        for gpu in range(count):
            self._values |= {
                f"gpu{gpu}.nvmlDeviceGetUUID": uuid(gpu),
                f"gpu{gpu}.nvmlDeviceGetSerial": f"165000000000{gpu}",
                f"gpu{gpu}.nvmlDeviceGetPciInfo_v3": bus_id(gpu),
            }
        return self._write()

    def recorded(self, state: str) -> Stub:
        """One H200 as it was recorded, `state` "idle" or "load": values and return codes."""
        self._values["count"] = "1"
        self._values |= {f"gpu0.{key}": value for key, value in recorded_answers(state).items()}
        return self._write()

    def set(self, gpu: int | None, /, *, at=None, **answers) -> Stub:
        """Change what one GPU (None: every one that has no answer of its own) answers.

        `set(0, field230=2)`, `set(0, nvmlDeviceGetPcieReplayCounter=7)`; `at` is the selector:
        `set(3, at=5, field165=0)` takes link 5 down. A tuple is several words.
        """
        place = FAMILY if gpu is None else f"gpu{gpu}"
        for name, answer in answers.items():
            key = f"{place}.{name}" + ("" if at is None else f"@{at}")
            args = answer if isinstance(answer, tuple) else (answer,)
            self._values[key] = " ".join(str(word) for word in args)
        return self._write()

    def fail(self, gpu: int | None, error: int, /, *calls: str) -> Stub:
        """Answer an NVML error: to these calls or fields, or to all that ask (the node, for None).

        `fail(2, 15)`: GPU_IS_LOST, whatever is asked. `fail(0, 999, "field230")`.
        """
        place = "" if gpu is None else f"gpu{gpu}."
        if calls:
            self._values |= {f"{place or FAMILY + '.'}{call}": f"!{error}" for call in calls}
        else:
            self._values[f"{place}error"] = str(error)
        return self._write()

    def fail_init(self, error: int) -> Stub:
        """Answer an error to nvmlInit: 9 DRIVER_NOT_LOADED, 18 LIB_RM_VERSION_MISMATCH."""
        self._values["init"] = str(error)
        return self._write()

    def hang(self, *calls: str, gpu: int | None = None) -> Stub:
        """Let these calls not come back, until `fix`. Calls that wait already go on waiting."""
        return self._switch("hang", calls, gpu)

    def block(self, *calls: str, gpu: int | None = None) -> Stub:
        """Let these calls wait in state D, which no signal ends, until `fix`."""
        return self._switch("block", calls, gpu)

    def spin(self, *calls: str, gpu: int | None = None) -> Stub:
        """Let these calls use a processor and not come back, until `fix`."""
        return self._switch("spin", calls, gpu)

    def crash(self, *calls: str, gpu: int | None = None) -> Stub:
        """Let these calls kill the process that makes them (SIGABRT)."""
        return self._switch("crash", calls, gpu)

    def slow(self, milliseconds: int) -> Stub:
        """Let every call that is not about one GPU take so long."""
        self._values["delay_ms"] = str(milliseconds)
        return self._write()

    def fix(self) -> Stub:
        """Take back every hang, crash, delay, lost GPU and failed init."""
        ends = ("hang", "block", "spin", "crash", "delay_ms", "error", "init")
        self._values = {
            key: value for key, value in self._values.items() if key.rpartition(".")[2] not in ends
        }
        return self._write()

    def event(self, gpu: int, *, xid: int | None = None, kind: int = XID, data: int = 0) -> Stub:
        """Let something happen now: an Xid, or an event of another kind with its data."""
        self._events.append(f"event gpu{gpu} {kind:#x} {data if xid is None else xid}")
        return self._write()

    def _switch(self, what: str, calls: tuple[str, ...], gpu: int | None) -> Stub:
        self._values[what if gpu is None else f"gpu{gpu}.{what}"] = " ".join(calls)
        return self._write()

    def _write(self) -> Stub:
        # A file of its own each time: the stub knows a new script by its inode.
        lines = [f"{key}={value}" for key, value in self._values.items()] + self._events
        with tempfile.NamedTemporaryFile("w", dir=self.script.parent, delete=False) as file:
            file.write("\n".join(lines) + "\n")
        os.replace(file.name, self.script)
        return self


def uuid(gpu: int) -> str:
    """What `Stub.gpus` calls a GPU."""
    return f"GPU-00000000-0000-0000-0000-00000000000{gpu}"


def bus_id(gpu: int) -> str:
    """Where `Stub.gpus` puts a GPU."""
    return f"00000000:{0x10 + gpu:02X}:00.0"


def compiled() -> Path:
    """The library, built once for each state of its source. Raises CompilerMissing."""
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    # As NVIDIA's: once it is loaded from any path, the loader knows it by this name.
    options.append(f"-Wl,-soname,{LIBRARY}")
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(options).encode()).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"hpctl-nvml-stub-{os.getuid()}-{digest}"
    library = directory / LIBRARY
    if library.exists():
        return library
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise CompilerMissing(
            "No C compiler: the NVML tests compile a stand-in for NVIDIA's library. "
            "On Debian: apt-get install gcc libc6-dev"
        )
    directory.mkdir(mode=0o700, exist_ok=True)
    # Under another name first: several test processes may build at once.
    fresh = directory / f"{LIBRARY}.{os.getpid()}"
    command = [compiler, *options, "-o", str(fresh), str(SOURCE)]
    subprocess.run(command, check=True, timeout=120)
    os.replace(fresh, library)
    return library
