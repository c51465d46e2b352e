"""`python -m benchmarks [NAME...] [--json FILE]`: run them, print a table each.

Exits with 0 even where a bar is missed: a loaded machine is no broken program. It says so
loudly instead, and `--json` carries every figure. A benchmark that breaks is exit code 1.
"""

import json
import os
import platform
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

import click
from rich.console import Console

from benchmarks.table import Outcome, show

NAMES = (
    "cli",
    "journal",
    "years",
    "intake",
    "agents",
    "perimeter",
    "storm",
    "agent",
    "verdict",
    "cycle",
    "reading",
    "rpc",
    "grey",
    "forecast",
    "logs",
    "triage",
    "checkpoints",
    "progress",
    "clusters",
    "heal",
    "failover",
    "hma",
    "restart",
    "in_process",
    "reset",
    "attack",
    "page",
    "stacks",
    "flight",
    "fast",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write every figure here.")
def main(names: tuple[str, ...], path: Path | None) -> None:
    """Measure hpctl against named rivals, in one run on this machine."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    begun = time.monotonic()
    outcomes: list[Outcome] = []
    console.print(_machine(), style="dim", highlight=False)
    broken: list[str] = []
    for name in names or NAMES:
        try:
            outcome = import_module(f"benchmarks.{name}").run()
        # One that breaks must not take the others' figures with it; the exit code tells.
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            broken.append(name)
            continue
        outcomes.append(outcome)
        show(outcome, console)
    missed = sum(len(o.missed) for o in outcomes)
    barred = sum(row.bar is not None for o in outcomes for row in o.rows)
    console.print(
        f"{barred - missed} of {barred} bars met, {time.monotonic() - begun:.0f} s,"
        f" load {os.getloadavg()[0]:.1f} at the end",
        style="bold red" if missed else "bold green",
    )
    if path:
        document = {
            "schema": "hpctl.benchmarks/1",
            "machine": _machine(),
            "benchmarks": {o.name: o.document() for o in outcomes},
        }
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if broken:
        raise SystemExit(f"not measured, broken: {', '.join(broken)}")


def _machine() -> str:
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} CPUs, {platform.system()} {platform.release()},"
        f" Python {platform.python_version()}, load {load:.1f} at the start"
    )


if __name__ == "__main__":
    main()
