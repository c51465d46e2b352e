"""What a rank finds in its environment: torchrun's variables, by the same names and meanings.

The list is that of `LocalElasticAgent._start_workers` (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctl.jobs.elastic.place import Place


def rank_environment(
    base: Mapping[str, str],
    order: Mapping[str, Any],
    place: Place,
    *,
    local: int,
    locals_: int,
    error_file: Path,
) -> dict[str, str]:
    """The environment of one rank. `order` is the controller's message that starts a generation."""
    rank, world = str(order["base"] + local), str(order["world"])
    fresh = {
        **base,
        "RANK": rank,
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(locals_),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(order["nodes"]),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": str(order["address"]),
        "MASTER_PORT": str(order["port"]),
        "TORCHELASTIC_RESTART_COUNT": str(order["start"]),
        "TORCHELASTIC_MAX_RESTARTS": str(order["max_restarts"]),
        "TORCHELASTIC_RUN_ID": place.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(error_file),
    }
    fresh.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if locals_ > 1:
        fresh.setdefault("OMP_NUM_THREADS", "1")
    fresh.pop("HPCTL_RESUME_FROM", None)
    if order["resume"]:
        fresh["HPCTL_RESUME_FROM"] = str(order["resume"])
    return fresh
