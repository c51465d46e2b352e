"""Which GPUs this node has, and their power limits, by `nvidia-smi -q -x`.

It asks nvidia-smi, because only the agent's NVML child loads NVML (ADR 0016). The time limit is
long, because to kill a process inside the driver can cost the GPU.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from hpctl.detection.check import CheckResultUnknownError
from hpctl.detection.machine import PRODUCT_NAME
from hpctl.detection.outside.plugin_child import PluginProcess
from hpctl.nodes.acceptance.cards import GpuCard
from hpctl.toolkit.bounds import make_printable

COMMAND: Final = ("nvidia-smi", "-q", "-x")
TIMEOUT_S: Final = 30.0
MAX_OUTPUT: Final = 4 << 20
"""Bytes; one GPU takes about 20 kB."""
MAX_NAME: Final = 96
DRIVER: Final = Path("/dev/nvidiactl")

_GPU = re.compile(r"<gpu id=")
_NAME = re.compile(r"<product_name>([^<]+)</product_name>")
_MIG = re.compile(r"<current_mig>Enabled</current_mig>")
# Drivers before R535 call the limit that counts `enforced`.
_LIMIT = re.compile(r"<(?:current|enforced)_power_limit>([0-9]{1,5}(?:\.[0-9]{1,3})?) W<")
_DEFAULT = re.compile(r"<default_power_limit>([0-9]{1,5}(?:\.[0-9]{1,3})?) W<")


def read_node_gpu_card(driver: Path = DRIVER, root: Path = Path("/")) -> GpuCard:
    """Return the GPUs of this node; without a name where nvidia-smi does not answer in time.

    Never raises: without a card the tests still count, and their figures are judged by the instance
    type.
    """
    if not driver.exists():
        return GpuCard()
    machine = _read_product_name(root)
    try:
        ended = PluginProcess(COMMAND, TIMEOUT_S, {**os.environ, "LC_ALL": "C"}, MAX_OUTPUT).run()
    except CheckResultUnknownError:
        return GpuCard(machine=machine)
    return parse_nvidia_smi_gpu_card(ended.output.decode(errors="replace"), machine)


def parse_nvidia_smi_gpu_card(text: str, machine: str = "") -> GpuCard:
    """Return what the XML of nvidia-smi says of all GPUs; without a name where it names none.

    GPUs of several kinds, and those with MIG slices, get a name that no figure is known for: a
    slice gives less than its card.
    """
    gpus = _GPU.split(text)[1:]
    matches = [_NAME.search(gpu) for gpu in gpus]
    names = {match[1].strip() for match in matches if match is not None}
    name = ", ".join(sorted(names))
    if any(_MIG.search(gpu) for gpu in gpus):
        name = f"MIG of {name}"
    return GpuCard(
        name=make_printable(name)[:MAX_NAME],
        power_limit_w=_find_lowest_power_limit(_LIMIT, gpus),
        default_power_limit_w=_find_lowest_power_limit(_DEFAULT, gpus),
        machine=machine,
    )


def _find_lowest_power_limit(pattern: re.Pattern[str], gpus: list[str]) -> float:
    """Return the lowest of the GPUs' limits, in watts; 0 where one does not report its own."""
    found = [pattern.search(gpu) for gpu in gpus]
    limits = [float(match[1]) for match in found if match is not None]
    return min(limits) if limits and len(limits) == len(gpus) else 0.0


def _read_product_name(root: Path) -> str:
    """Return the product name in the firmware's tables; on a Nitro instance its type."""
    with contextlib.suppress(OSError):
        text = (root / PRODUCT_NAME.lstrip("/")).read_text(errors="replace").strip()
        return make_printable(text)[:MAX_NAME]
    return ""
