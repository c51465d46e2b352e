"""The parts of the proof in their order: what matters most comes first, because a budget that runs
out costs the last parts."""

import importlib
from types import ModuleType

BUDGET_S = 480.0
"""A command on the machines that this was made for takes ten minutes at most."""
IMPORTANT = ("machine", "node_lost", "slurm_training", "accept_job", "flight_recorder")
"""The default budget has time for these, even if each takes as long as it may."""
PARTS: tuple[str, ...] = (
    *IMPORTANT,
    # These ask NVML alone, and run while flight_recorder waits for timeouts.
    "nvml_contract",
    "nvml_child",
    "nvml_calls",
    "agent",
    "crashes",
    "ways_to_die",
    "hangs",
    "checkpoints",
    "in_process",
    "acceptance",
)


def load_part(name: str) -> ModuleType:
    """Return the module of one part.

    A part is a module `tests.gpu.parts.NAME` (a name with dots is a module's full name) with

    TITLE          one line for the page
    LIMIT_S        seconds that it may take on a real GPU
    DRY_LIMIT_S    seconds that it may take with stand-ins on two cores
    SIDE_BY_SIDE   True if it neither measures time nor disturbs a part that does: such neighbors in
                   PARTS run at the same time
    NEEDS          what must be there, of `tests.gpu.needs.PROBES`: {"gpu", "slurm", "torch", ...}
    run(context)   the part itself; raises NotRun(why) if it finds that it cannot run

    The runner imports every module, so a part imports torch and hpctl inside its functions.
    Raises ModuleNotFoundError for a name that is no part.
    """
    return importlib.import_module(name if "." in name else f"tests.gpu.parts.{name}")
