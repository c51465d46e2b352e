"""The steps that remove hpctl from a node."""

from __future__ import annotations

import atexit
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from hpctl.cli.install_layout import (
    DROP_IN,
    HOME,
    KEPT,
    LINK,
    PACKAGE,
    PLUGINS,
    SLURM_FILES,
    UNITS,
    InstallStep,
)
from hpctl.cli.install_steps import (
    ADDED_LINE,
    DELAY_SETTING,
    make_lifecycle_script_node,
    reconfigure_slurm,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.machine import Machine


def plan_uninstall_steps(machine: Machine, purge: bool) -> Iterator[InstallStep]:
    """Yield everything that is not the Debian package's; journal and configuration only to
    purge."""
    yield _make_script_removal_step(machine)
    # A socket first: it would start its service again.
    for unit in sorted(chain(*UNITS.values()), key=lambda name: not name.endswith(".socket")):
        yield _make_unit_removal_step(machine, unit)
    link = machine.path(LINK)
    yield InstallStep("PATH", f"no {LINK}", lambda: not link.is_symlink(), link.unlink)
    yield _make_program_removal_step(machine)
    for name in KEPT:
        kept = machine.path(name)
        if kept.exists() and purge:
            yield InstallStep("purge", f"no {name}", lambda: False, partial(shutil.rmtree, kept))
        elif kept.exists():
            yield InstallStep("kept", f"{name} (--purge removes it)", lambda: True, bool)


def _make_program_removal_step(machine: Machine) -> InstallStep:
    """Return the program; where this very process runs from it, when that ends."""
    home = machine.path(PLUGINS if machine.path(PACKAGE).exists() else HOME)
    what = f"no {HOME}"
    if home.name != Path(HOME).name:
        what = f"no {PLUGINS}; `apt-get remove hpctl` removes the rest"
    own = Path(sys.prefix).is_relative_to(home)
    run = partial(atexit.register, shutil.rmtree, home) if own else partial(shutil.rmtree, home)
    return InstallStep("program", what, lambda: not home.exists(), run)


def _make_script_removal_step(machine: Machine) -> InstallStep:
    """Remove our scripts from Slurm's files: a Prolog that does not exist drains every node."""
    directory = make_lifecycle_script_node(machine, "head").slurm_etc
    ours = re.compile(
        rf"(?m)^(?:[^#\n]*{re.escape(HOME)}/.*|SchedulerParameters={DELAY_SETTING}$)\n?"
        rf"|^{ADDED_LINE}\n(.*),{DELAY_SETTING}"
    )
    places = (directory / name for name in SLURM_FILES)
    files = [path for path in places if path.is_file()]

    def has_no_scripts() -> bool:
        return not any(ours.search(path.read_text()) for path in files)

    def remove_scripts() -> None:
        for path in files:
            mode = path.stat().st_mode & 0o7777
            machine.write(path.resolve(), ours.sub(r"\1", path.read_text()), mode)
        reconfigure_slurm(machine)

    return InstallStep(
        "Slurm plugins", f"none of ours in {directory}", has_no_scripts, remove_scripts
    )


def _make_unit_removal_step(machine: Machine, unit: str) -> InstallStep:
    """Stopped, disabled, and without a file of ours in /etc."""
    own = machine.path("/etc/systemd/system")
    drop_in = [machine.path(DROP_IN)] if unit == UNITS["head"][0] else []
    files = [
        own / unit,
        *drop_in,
        *(own / f"{by}.target.wants" / unit for by in ("multi-user", "sockets")),
    ]

    def is_unit_removed() -> bool:
        runs = machine.running and machine.works("systemctl", "is-active", "--quiet", unit)
        return not (runs or any(file.is_symlink() or file.exists() for file in files))

    def remove_unit() -> None:
        if machine.running:
            machine.run("systemctl", "stop", unit, timeout=180, ok=(0, 5))
        for left in files:
            left.unlink(missing_ok=True)
        with suppress(OSError):  # a site's own drop-in stays, or there was none
            machine.path(DROP_IN).parent.rmdir()
        if machine.running:
            machine.run("systemctl", "daemon-reload")

    return InstallStep("service", f"{unit} stopped and disabled", is_unit_removed, remove_unit)
