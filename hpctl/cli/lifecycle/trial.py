"""`hpctl lifecycle test`."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctl.cli.arguments import ThereType
from hpctl.cli.output import Exit, json_option, leave, show

if TYPE_CHECKING:
    from hpctl.clusters.bundle_checks import Problem
    from hpctl.clusters.bundle_trial import Trial


@dataclass(frozen=True, slots=True)
class TestView:
    """What `hpctl lifecycle test` shows. `slurm`: how a real instance fared, or why none did."""

    digest: str
    mode: str
    problems: tuple[Problem, ...]
    trials: tuple[Trial, ...]
    slurm: str
    passed: bool


@click.command()
@click.argument("directory", metavar="BUNDLE", type=ThereType(path_type=Path, exists=True))
@click.option(
    "--mode",
    type=click.Choice(["OnCreate", "OnInitComplete"]),
    default="OnCreate",
    show_default=True,
    help="Which entry point.",
)
@click.option("--no-slurm", is_flag=True, help="Start no Slurm: run the scripts alone.")
@json_option
def test(directory: Path, mode: str, no_slurm: bool, as_json: bool) -> None:
    """Run a bundle before a node is paid for it.

    As a node of each role, below a directory; then as a sandbox's instance, which must join a real
    Slurm. What needs systemd, mounts or accounts is left out: hpctl lifecycle show says so.
    """
    from hpctl.cli import render_lifecycle
    from hpctl.clusters import bundle as bundles
    from hpctl.clusters import bundle_checks, bundle_trial

    directory = directory.absolute()
    read = bundles.read(directory)
    found = bundle_checks.problems(directory)
    trials: tuple[Trial, ...] = ()
    slurm = "not tried"
    if not found:
        with tempfile.TemporaryDirectory(prefix="hpctl-lifecycle-") as room:
            trials = tuple(
                bundle_trial.run_as(directory, role, mode, Path(room) / role)
                for role in bundle_trial.roles(directory)
            )
        if not no_slurm and all(trial.code == 0 for trial in trials):
            slurm = _with_slurm(directory)
    passed = not found and all(trial.code == 0 for trial in trials) and "failed" not in slurm
    view = TestView(read.digest, mode, found, trials, slurm, passed)
    show("lifecycle-test", view, as_json, render_lifecycle.test)
    leave(Exit.FINE if passed else Exit.PROBLEM)


def _with_slurm(directory: Path) -> str:
    """Boot a sandbox of one node from the bundle: what became of it, in words."""
    from hpctl.errors import HpctlError
    from hpctl.sandbox import packages
    from hpctl.sandbox.api import Sandbox

    try:
        packages.find("", netns=False)
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
