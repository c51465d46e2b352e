"""The steps in their order: a table, and the modules that it names, one a step."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Step:
    """One row: `weight` is required, optional or off where config.json says nothing else.

    Its module has `applies(node)`, true or a `No` with the reason, `done(node)`, which looks at
    the machine and changes nothing, and `run(node)`, which may be killed anywhere and run again.
    """

    name: str
    weight: str
    timeout_s: float
    tries: int

    @property
    def module(self) -> Any:
        """Return the step's own module, imported when it is wanted."""
        return import_module("lifecycle.steps." + self.name)


STEPS = (
    Step("find_fsx", "off", 300, 2),
    Step("mount_fsx", "required", 300, 6),
    Step("mount_openzfs", "required", 300, 6),
    Step("mount_s3", "off", 700, 3),
    Step("users", "required", 300, 3),
    Step("sssd", "off", 900, 3),
    Step("ssh_keys", "optional", 120, 3),
    Step("known_hosts", "optional", 60, 2),
    Step("shared_state", "required", 400, 3),
    Step("accounting", "required", 400, 4),
    Step("slurm_plugins", "optional", 300, 2),
    Step("containers", "optional", 400, 3),
    Step("docker", "off", 900, 3),
    Step("pam", "off", 120, 2),
    Step("slurm", "required", 400, 4),
    Step("accounting_users", "optional", 180, 3),
    Step("hpctl", "required", 600, 3),
    Step("log_rotation", "optional", 30, 2),
    Step("observability", "off", 900, 2),
    Step("motd", "off", 30, 2),
    Step("site", "optional", 900, 2),
)


def find(name: str) -> Step:
    """Return a step by its name."""
    return next(step for step in STEPS if step.name == name)
