"""Where this launcher stands among the others: by options, else by each task's environment."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hpctl.core.hostlist import HostlistError, expand
from hpctl.core.join import is_address, spelled
from hpctl.errors import HpctlError
from hpctl.jobs.elastic import SECRET

LEAST_SECRET = 16
ASK_S = 10.0
"""How long slurmctld has to say where a node is."""


@dataclass(frozen=True, slots=True)
class LauncherPlace:
    """`node` is the group rank, `address` where the first launcher and rank 0 are found."""

    node: int
    nodes: int
    host: str
    address: str
    run_id: str
    secret: str


def place(
    environment: Mapping[str, str],
    *,
    nodes: int | None = None,
    node: int | None = None,
    address: str = "",
    run_id: str = "",
) -> LauncherPlace:
    """Options first, then SLURM_* of the step, then alone. Raises HpctlError."""
    get = environment.get
    try:
        count = (
            int(get("SLURM_STEP_NUM_NODES") or get("SLURM_NNODES") or 1) if nodes is None else nodes
        )
        mine = int(get("SLURM_PROCID", "0")) if node is None else node
        tasks = int(get("SLURM_STEP_NUM_TASKS") or get("SLURM_NTASKS") or count)
        names = expand(get("SLURM_STEP_NODELIST") or get("SLURM_JOB_NODELIST") or "")
    except (ValueError, HostlistError) as error:
        raise HpctlError(f"Slurm's environment cannot be read: {error}") from error
    if nodes is None and tasks != count:
        raise HpctlError(
            f"this step has {tasks} tasks on {count} nodes; the launcher runs once a node",
            "Start it with `srun --ntasks-per-node=1`: it starts the ranks itself.",
        )
    if not 0 <= mine < count:
        raise HpctlError(f"node rank {mine} is not among {count} nodes")
    return LauncherPlace(
        node=mine,
        nodes=count,
        host=get("SLURMD_NODENAME") or socket.gethostname(),
        address=address or _first(names, count),
        run_id=run_id or _run_id(get("SLURM_JOB_ID", ""), get("SLURM_STEP_ID", "")),
        secret=_secret(get(SECRET, ""), count),
    )


def address_of(name: str) -> str:
    """Where a node is reached: the address that its name spells, else Slurm's NodeAddr.

    Where Slurm has none either: the name. Names by instance group (`gpu-compute-1`, with
    `UseInstanceNames`) resolve nowhere, or to an instance that was replaced since.
    """
    if address := name if is_address(name) else spelled(name):
        return address
    # Only where it is asked: the reader of Slurm's text doubles what a launcher imports.
    from hpctl.slurm.parse import node_lines, nodes
    from hpctl.slurm.run import Runner

    ran = Runner(timeout=ASK_S).run("scontrol", "-o", "show", "node", name)
    known, _ = nodes(node_lines(ran.text))
    return next((node.address for node in known if node.name == name and node.address), name)


def in_use(environment: Mapping[str, str] = os.environ) -> str:
    """The run id that `place` gives in this environment."""
    return _run_id(environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", ""))


def _first(names: tuple[str, ...], count: int) -> str:
    if names:
        return address_of(names[0])
    if count > 1:
        raise HpctlError(
            "nobody says where the first node is",
            "Start it under srun, or give --master-addr and --node-rank.",
        )
    return "127.0.0.1"


def _run_id(job: str, step: str) -> str:
    return f"{job}.{step}" if job else "alone"


def _secret(text: str, count: int) -> str:
    if not text and count == 1:
        return secrets.token_hex(16)
    if len(text) < LEAST_SECRET or not text.isascii():
        raise HpctlError(
            f"{SECRET} must hold at least {LEAST_SECRET} characters that no other user knows",
            f"Before srun: export {SECRET}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')",
        )
    return text
