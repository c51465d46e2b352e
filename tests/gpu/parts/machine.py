"""What the machine is: the facts that every figure of the page depends on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.context import Context

TITLE = "The machine"
LIMIT_S = 20
DRY_LIMIT_S = 60
SIDE_BY_SIDE = True
NEEDS: frozenset[str] = frozenset()

VERSIONS = """
import importlib.metadata, json
names = ("jax", "orbax-checkpoint", "transformers", "accelerate", "lightning", "deepspeed",
         "nvidia-resiliency-ext", "nvidia-ml-py", "hpctl")
found = {}
for name in names:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
try:
    import torch
except ImportError:
    pass
else:
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
        found["capability"] = list(torch.cuda.get_device_capability(0))
        found["nccl"] = list(torch.cuda.nccl.version())
print(json.dumps(found))
"""


def run(context: Context) -> None:
    """Record kernel, distribution, Python, driver, CUDA, torch, NCCL, Slurm, cgroups, cores."""
    import json

    context.record("kernel", platform.release())
    context.record("distribution", _read_os_release())
    context.record("python", platform.python_version())
    context.record("cores", os.cpu_count())
    context.record("memory_gib", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30)
    context.record("cgroup", context.run(["stat", "-fc", "%T", "/sys/fs/cgroup"], 5).out.strip())
    query = "--query-gpu=name,driver_version,vbios_version,memory.total,compute_cap"
    smi = context.run(["nvidia-smi", query, "--format=csv,noheader"], 20)
    context.record("nvidia_smi", smi.out.strip() or smi.err.strip())
    context.record("slurm", context.run(["slurmctld", "-V"], 5).out.strip())
    done = context.run([sys.executable, "-c", VERSIONS], 25)
    versions = json.loads(done.out) if done.code == 0 else {"error": done.err[-500:]}
    context.record("versions", versions)
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    context.say(f"{smi.out.strip()}; kernel {platform.release()}; {shown}")


def _read_os_release() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""
