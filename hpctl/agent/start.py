"""What an agent that starts must know: this boot's age, what it replaces, what it runs on."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import hpctl
from hpctl.agent.check import CannotTell, Expected, Machine, NotHere
from hpctl.agent.instance_shapes import shape_of

PRODUCT_NAME = "/sys/devices/virtual/dmi/id/product_name"


def boot_age_s(machine: Machine) -> float:
    """Seconds since the machine booted; 0 where it does not say, so that every grace holds."""
    try:
        return float(machine.text("/proc/uptime").split()[0])
    except (CannotTell, NotHere, ValueError, IndexError):
        return 0.0


def upgraded(spool: Path) -> bool:
    """Whether another version of the agent ran here last. Leaves this version's name behind.

    A first start is no upgrade. A spool that cannot be written makes no upgrade either: the
    grace would begin anew with every restart.
    """
    file = spool / "version"
    try:
        last = file.read_text().strip()
    except OSError:
        last = ""
    if last == hpctl.__version__:
        return False
    with contextlib.suppress(OSError):
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{hpctl.__version__}\n")
        return last != ""
    return False


def machine(root: Path, said: Expected) -> Machine:
    """The machine to check: what the settings leave open comes from its instance type.

    A Nitro instance has its type as the product name in its firmware's tables.
    """
    bare = Machine(root, said)
    kind = said.instance_type
    if not kind:
        with contextlib.suppress(CannotTell, NotHere):
            kind = bare.text(PRODUCT_NAME)
    shape = shape_of(kind)
    gpus = shape.gpus if said.gpus is None else said.gpus
    return replace(bare, expected=replace(said, instance_type=kind, gpus=gpus))
