"""Where an installed hpctl lies, and one step of an installation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpctl.clusters import bundle
from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.machine import Machine


HOME = "/opt/hpctl"


PLUGINS = "/opt/hpctl/slurm"


PACKAGE = "/usr/lib/hpctl/id"
"""There where the Debian package is installed."""


LINK = "/usr/local/bin/hpctl"


PROGRAM = "/opt/hpctl/bin/hpctl"


AGENT_ENV = "/etc/hpctl/agent.env"


DROP_IN = "/etc/systemd/system/hpctl-daemon.service.d/slurm-user.conf"


UNITS = {
    "head": ("hpctl-daemon.service", "hpctl-daemon.socket"),
    "node": ("hpctl-agent.service", "hpctl.slice"),
}
"""The service of a role, and what it needs beside it."""


ROLES = {"head": "controller", "node": "compute", "login": "login"}
"""Ours, and the lifecycle scripts' words for them."""


KEPT = ("/etc/hpctl", "/var/lib/hpctl", "/var/log/hpctl")


SLURM_FILES = ("slurm.conf", "plugstack.conf")


class InstallStepView(Struct, frozen=True):
    """One step. `state` is already, done, would (`--dry-run`), skipped or failed."""

    name: str
    state: str
    what: str


class InstallStep(Struct, frozen=True):
    """What is to be so, whether it is, and how it becomes so. `absent`: why it cannot be here."""

    name: str
    what: str
    done: Callable[[], bool]
    run: Callable[[], Any]
    absent: str = ""


def open_machine_at_root(root: Path) -> Machine:
    """Return the machine below a root, as the lifecycle scripts see it."""
    scripts = str(bundle.find_lifecycle_script_directory())
    if scripts not in sys.path:
        sys.path.append(scripts)
    from lifecycle.machine import Machine

    return Machine(str(root))


def run_install_steps(steps: Iterator[InstallStep], dry_run: bool) -> Iterator[InstallStepView]:
    """Take the steps in order; the first that fails is the last."""
    from lifecycle.failure import Failure

    for step in steps:
        try:
            if step.absent:
                yield InstallStepView(step.name, "skipped", step.absent)
            elif step.done():
                yield InstallStepView(step.name, "already", step.what)
            elif dry_run:
                yield InstallStepView(step.name, "would", step.what)
            else:
                with redirect_stdout(StringIO()) as printed:
                    step.run()
                what = "; ".join([step.what, *printed.getvalue().splitlines()])
                yield InstallStepView(step.name, "done", what)
        except (Failure, HpctlError, OSError) as error:
            yield InstallStepView(step.name, "failed", f"{step.what}: {error}")
            return
