"""nvidia-smi and systemctl as stand-ins below a root, with the words of the real ones.

Sources: NVIDIA/gpu-operator issue 118, NVIDIA/NVSentinel issue 1690, nvidia-smi(1). What was run is
in `calls`; the answers to --gpu-reset are taken from `answers` in turn, each an exit code and text.

`install_recorded` answers what a real H200 answered: `-q -x` is smi-idle.xml or smi-load.xml of
tests/gpu/recordings, and without arguments it is smi-plain-load.txt. The suite
tests/detection/nvml/contract holds these answers and the real program's to the same reading.
"""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.gpu.recordings import read_text

GPUS = ("0000:53:00.0", "0000:64:00.0")
DONE = (0, "GPU 00000000:53:00.0 was successfully reset.")
IN_USE = (
    255,
    "The following GPUs could not be reset:\n  GPU 00000000:53:00.0: In use by another client\n\n"
    "1 device is currently being used by one or more other processes (e.g. Fabric Manager, CUDA"
    " application, graphics application such as an X server, or a monitoring application such as"
    " another instance of nvidia-smi). Please first kill all processes using this device and all"
    " compute applications running in the system.",
)
UNSUPPORTED = (3, "Resetting GPU 00000000:53:00.0 is not supported.")
PEERS = (255, "GPUs with NVLink connections must be reset in the same command: 00000000:64:00.0")
_COLUMNS = {
    "uuid": "uuid",
    "name": "product_name",
    "pci.bus_id": "pci/pci_bus_id",
    "persistence_mode": "persistence_mode",
    "mig.mode.current": "mig_mode/current_mig",
    "vbios_version": "vbios_version",
    "memory.total": "fb_memory_usage/total",
}
"""Columns of --query-gpu, by the place of the same in `-q -x`."""
_SCRIPT = """#!{python}
import json, os, pathlib, sys
root = pathlib.Path({root!r})
for name, what in (("calls", sys.argv[1:]), ("environments", dict(os.environ))):
    with open(root / name, "a") as file:
        file.write(json.dumps(what) + "\\n")
words = " ".join(sys.argv[1:])
if words == "-q -x":
    print((root / "smi.xml").read_text(), end="")
elif not words:
    print((root / "smi.txt").read_text(), end="")
elif "--query-gpu" in words:
    columns = root / "columns.json"
    if columns.exists():
        known = json.loads(columns.read_text())
        query = next(word for word in sys.argv[1:] if word.startswith("--query-gpu="))
        names = query.partition("=")[2].split(",")
        print(", ".join(known[name] for name in names))
    else:
        print((root / "gpus.csv").read_text(), end="")
elif "--gpu-reset" in words:
    answers = json.loads((root / "answers").read_text())
    (root / "answers").write_text(json.dumps(answers[1:] or answers))
    code, text = answers[0]
    print(text)
    sys.exit(code)
elif "is-active" in words:
    running = (root / "units").read_text().split()
    print("\\n".join("active" if u in running else "inactive" for u in sys.argv[2:]))
"""


def install(root: Path, *answers, mig: str = "Disabled", capability: str = "9.0", units: str = ""):
    """Two GPUs in the machine below `root`, both with persistence mode."""
    rows = (
        f"GPU-{n}, {'0000' + pci.upper()}, {capability}, Enabled, {mig}\n"
        for n, pci in enumerate(GPUS)
    )
    (root / "gpus.csv").write_text("".join(rows))
    (root / "answers").write_text(json.dumps(answers or [DONE]))
    (root / "units").write_text(units)
    _install_programs(root)


def install_recorded(root: Path, state: str) -> Path:
    """The H200 of the recordings, `state` "idle" or "load"; returns the path of nvidia-smi."""
    xml = read_text(f"smi-{state}.xml")
    (root / "smi.xml").write_text(xml)
    (root / "smi.txt").write_text(read_text("smi-plain-load.txt"))
    gpu = ElementTree.fromstring(xml).find("gpu")
    columns = {name: gpu.findtext(place) for name, place in _COLUMNS.items()}
    columns["driver_version"] = ElementTree.fromstring(xml).findtext("driver_version")
    (root / "columns.json").write_text(json.dumps({**columns, "compute_cap": "9.0"}))
    (root / "answers").write_text(json.dumps([DONE]))
    (root / "units").write_text("")
    _install_programs(root)
    return root / "usr/bin/nvidia-smi"


def _install_programs(root: Path) -> None:
    for name in ("nvidia-smi", "systemctl"):
        program = root / "usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(_SCRIPT.format(python=sys.executable + " -S", root=str(root)))
        program.chmod(0o755)


def calls(root: Path) -> list[str]:
    """What was run, a line each."""
    return [" ".join(json.loads(line)) for line in (root / "calls").read_text().splitlines()]


def environments(root: Path) -> list[dict[str, str]]:
    """In what environment, a value for each call."""
    return [json.loads(line) for line in (root / "environments").read_text().splitlines()]
