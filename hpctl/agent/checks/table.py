"""Every check with its times and limits: the one place for them, and what docs/checks.md shows."""

from __future__ import annotations

from hpctl.agent.check import Spec
from hpctl.agent.checks.table_fabric import FABRIC
from hpctl.agent.checks.table_gpu import GPU
from hpctl.agent.checks.table_host import HOST

SECTIONS: tuple[tuple[str, tuple[Spec, ...]], ...] = (
    ("GPUs, by the sweeps of the NVML child", GPU),
    ("EFA, InfiniBand and RoCE, Neuron", FABRIC),
    ("The host", HOST),
)
"""The table as the documentation shows it: a title and its rows."""

CHECKS: tuple[Spec, ...] = tuple(spec for _, specs in SECTIONS for spec in specs)
