"""The parts of the proof in their order: what matters most comes first, because what comes last is
what a spent budget costs."""

import importlib
from types import ModuleType

PARTS: tuple[str, ...] = (
    "machine",
    "slurm_training",
    "node_lost",
    "flight_recorder",
    "ways_to_die",
    "hangs",
    "checkpoints",
    "nvml_calls",
    "agent",
    "nvml_child",
    "nvml_contract",
    "crashes",
    "acceptance",
    "accept_job",
    "in_process",
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
