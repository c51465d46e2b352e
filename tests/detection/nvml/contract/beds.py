"""Cards that the contract is held against: the recorded ones, and the machine's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpctl.detection.driver_files import NvidiaDriverProgram, find_nvidia_smi, find_nvml_library
from hpctl.detection.machine import list_gpu_pci_addresses
from hpctl.detection.nvml.client import NvmlClient
from hpctl.detection.nvml.snapshot import NvmlSnapshot
from tests.fakes import nvidia_smi
from tests.stubs.nvml import Stub
from tests.waiting import until

REAL = "real"
RECORDED = {"recorded-idle": "idle", "recorded-load": "load"}
PATIENCE_S = 60.0


class Bed(Struct, frozen=True):
    """A machine with cards: its root, the environment that leads to its driver, nvidia-smi.

    `recorded` is the state of a recorded card, empty for a real one.
    """

    root: Path
    env: Mapping[str, str]
    smi: NvidiaDriverProgram
    recorded: str = ""

    @contextmanager
    def client(self, **settings: float) -> Iterator[NvmlClient]:
        """A client of this machine's NVML, after its first sweep."""
        client = NvmlClient(**{"every_s": 0.5, **settings}, env=self.env, root=self.root)
        try:
            client.wait(PATIENCE_S)
            yield client
        finally:
            client.close()

    def run_smi(self, *arguments: str) -> str:
        """What nvidia-smi prints."""
        command = [str(self.smi.path), *arguments]
        env = {**self.env, **self.smi.environment}
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def trace(self) -> dict[str, Any]:
        """One sweep call by call, in a process of its own: see trace.py."""
        library = find_nvml_library(self.root, self.env)
        found = "" if library is None else str(library)
        command = [sys.executable, "-m", "tests.detection.nvml.contract.trace", found]
        root = Path(__file__).parents[4]
        paths = os.pathsep.join([str(root), *sys.path])
        env = {**self.env, "PYTHONPATH": paths}
        ran = subprocess.run(
            command, env=env, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)


class Looks(Struct, frozen=True):
    """Two sweeps, and nvidia-smi's `-q -x` between them."""

    before: NvmlSnapshot
    xml: str
    after: NvmlSnapshot


def has_real_card() -> bool:
    """Whether this machine has a GPU of NVIDIA's, or is said to have one."""
    return os.environ.get("HPCTL_TEST_GPU") == "1" or bool(list_gpu_pci_addresses(Path("/")))


def make_bed(name: str, directory: Path) -> Bed:
    """The recorded card of that name, or the real one."""
    if name == REAL:
        smi = find_nvidia_smi(Path("/"))
        assert smi is not None, "this machine is said to have a GPU, and has no nvidia-smi"
        return Bed(Path("/"), dict(os.environ), smi)
    state = RECORDED[name]
    stub = Stub(directory).recorded(state)
    smi = NvidiaDriverProgram(nvidia_smi.install_recorded(directory, state))
    return Bed(directory, {**os.environ, **stub.env()}, smi, state)


def look(bed: Bed) -> Looks:
    """Sweep, ask nvidia-smi, and sweep again. The second sweep reads all that is read seldom."""
    with bed.client() as client:
        before = client.newest()
    xml = bed.run_smi("-q", "-x")
    with bed.client() as client:
        began = time.monotonic()
        after = until(lambda: _newer(client, began), PATIENCE_S)
    return Looks(before, xml, after)


def _newer(client: NvmlClient, than: float) -> NvmlSnapshot | None:
    snapshot = client.newest()
    return snapshot if snapshot.at > than else None
