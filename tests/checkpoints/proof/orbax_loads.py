"""Loads steps that Orbax saved in each ordinary way: a path a line in, a JSON object a line out.

`python -m tests.checkpoints.proof.orbax_loads`. The object has "" for each way that loads, and the
library's error for each that does not.
"""

import json
import os
import sys

# Before the import, which reads both. The samples were saved on four devices.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as v1


def managed(path: Path) -> dict[str, Callable[[], object]]:
    """A manager's step: without arguments, and with those of each item that is there."""
    arguments = {
        "state": ocp.args.PyTreeRestore() if path.name == "5" else ocp.args.StandardRestore(),
        "data": ocp.args.JsonRestore(),
        "arr": ocp.args.ArrayRestore(),
        "key": ocp.args.JaxRandomKeyRestore(),
        "np_key": ocp.args.NumpyRandomKeyRestore(),
    }
    if path.name != "5":
        arguments = {name: arguments[name] for name in ("state", "data")}
    step = int(path.name)

    def restore() -> object:
        return ocp.CheckpointManager(path.parent).restore(step)

    def restore_items() -> object:
        args = ocp.args.Composite(**arguments)
        return ocp.CheckpointManager(path.parent).restore(step, args=args)

    def metrics() -> object:
        return ocp.CheckpointManager(path.parent).metrics(step)

    found = {"manager": restore, "manager with arguments": restore_items}
    return {**found, "metrics": metrics} if path.name == "5" else found


def ways(path: Path) -> dict[str, Callable[[], object]]:
    """How a program loads this step, without a target."""
    if path.name.isdigit():
        return managed(path)
    if path.name == "step_6":
        return {"v1": lambda: v1.load_checkpointables(path)}
    return {
        "standard": lambda: ocp.StandardCheckpointer().restore(path),
        "pytree": lambda: ocp.PyTreeCheckpointer().restore(path),
    }


def outcome(load: Callable[[], object]) -> str:
    """ "" where it loads, else the error."""
    try:
        load()
    except Exception as error:  # noqa: BLE001 -- whatever it raises is the answer
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def main() -> None:
    """Answer until the end of the input."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        found = {name: outcome(load) for name, load in ways(Path(line.strip())).items()}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
