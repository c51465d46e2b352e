"""A lifecycle bundle tried as the one node of a sandbox, for `hpctl cluster lifecycle test`."""

import os
from pathlib import Path
from typing import Any

from hpctl.sandbox import packages
from hpctl.sandbox.api import Sandbox
from hpctl.toolkit.errors import HpctlError


def try_lifecycle_scripts_in_sandbox(directory: Path) -> str:
    """Boot a sandbox of one node from the bundle: what became of it, in words."""
    try:
        packages.find_sandbox_programs("", netns=False)
    except HpctlError as error:
        return f"not tried: {error}"
    # Without the emulated API, which would keep the failed instance and go on.
    bare: dict[str, Any] = {"nodes": 1, "agents": False, "emulator": False}
    box = Sandbox(f"lifecycle-{os.getpid()}", lifecycle=str(directory), **bare)
    try:
        with box:
            return f"{box.nodes[0]} is idle in a real Slurm"
    except HpctlError as error:
        return f"failed: {error}"
    finally:
        box.down()
