"""What nodes have and jobs ask for, from Slurm's words for it: texts in every release.

Seen on 22.05.8: a pending job's NumNodes is an estimate of scontrol's (2 for three tasks of two
CPUs on nodes of 16), its TRES has what was asked for; GRES stand in TRES only where accounting
tracks them, so they are read from TresPer*; a job that asks for no memory is given all of a node's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hpctl.core.bounds import natural
from hpctl.core.model import NOTHING_KNOWN, Demand, Tres

_UNITS = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_SHARED = ("", "OK", "YES")
"""OverSubscribe of a job whose nodes others may be on, too. Not NO, USER, MCS."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """What SelectType deals out of a node: all of it to one job, or CPUs and perhaps memory."""

    whole: bool = False
    memory: bool = True


UNASKED: Final = Dealt()


def dealt(config: Mapping[str, str]) -> Dealt:
    """By `scontrol show config`."""
    whole = config.get("SelectType", "") == "select/linear"
    return Dealt(whole, "MEMORY" in config.get("SelectTypeParameters", "").upper())


@lru_cache(maxsize=1024)
def node_tres(cpus: int, memory: int, gres: str, by: Dealt) -> Tres:
    """What jobs can have of a node; NOTHING_KNOWN where it goes to one job as a whole."""
    if by.whole or cpus <= 0:
        return NOTHING_KNOWN
    return Tres(cpus, memory if by.memory else 0, gres_of(gres))


@lru_cache(maxsize=1024)
def gres_of(text: str) -> tuple[tuple[str, int], ...]:
    """GRES by name, of `gpu:h100:8(S:0-1),nvme:1`, `gres:gpu:1`, `gres/gpu:2`; types added up.

    24.11 has `cpu=2` among what is asked for by task: that is told elsewhere.
    """
    found: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        name, _, rest = re.sub(r"^gres[:/]", "", part.strip().replace("=", ":")).partition(":")
        if name in ("", "(null)", "cpu", "mem", "node", "billing"):
            continue
        last = rest.rpartition(":")[2]
        found[name] = found.get(name, 0) + natural(last, 1)
    return tuple(sorted(found.items()))


def mebibytes(text: str) -> int:
    """Of `2000M`, `1.5G`; 0 where it is no size."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)", text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else 0


def tres_of(text: str) -> dict[str, str]:
    """A TRES string as `cpu=16,mem=2000M,node=2`."""
    return {name: count for name, _, count in (part.partition("=") for part in text.split(","))}


@dataclass(frozen=True, slots=True)
class Asked:
    """The words that a pending job's size stands in."""

    tres: str
    nodes: int
    tasks: int
    cpus: int
    cpus_each: int
    array_tasks: int = 1
    per_node: str = ""
    per_job: str = ""
    per_task: str = ""
    per_socket: str = ""
    oversubscribe: str = "OK"
    features: str = ""
    named: bool = False


def demand(asked: Asked) -> Demand:
    """What a pending job asks for, of each node and together."""
    tres = tres_of(asked.tres)
    least = tres.get("node", "")
    nodes = max(natural(least, asked.nodes), 1)
    together = dict(gres_of(asked.per_job))
    for name, count in gres_of(asked.per_task):
        together[name] = max(together.get(name, 0), count * max(asked.tasks, 1))
    for name, count in gres_of(asked.per_node):
        together[name] = max(together.get(name, 0), count * nodes)
    cpus = tres.get("cpu", "")
    return Demand(
        nodes=nodes,
        tasks=max(asked.array_tasks, 1),
        each=Tres(asked.cpus_each, 0, gres_of(asked.per_node)),
        total=Tres(
            natural(cpus, asked.cpus),
            mebibytes(tres.get("mem", "")),
            tuple(sorted(together.items())),
        ),
        # How many sockets a node has is not told: such a job is taken to fill its nodes.
        whole=asked.oversubscribe not in _SHARED or bool(asked.per_socket),
        features=asked.features,
        named=asked.named,
    )
