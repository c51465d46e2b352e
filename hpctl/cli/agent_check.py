"""What `hpctl agent check` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import click

from hpctl.agent import config as files
from hpctl.agent import runner
from hpctl.agent.config import apply
from hpctl.agent.machine import machine
from hpctl.agent.nvml.client import Client
from hpctl.agent.outside.plugins import specs_and_checks
from hpctl.agent.runner import Check, CheckRow, load
from hpctl.cli import output
from hpctl.cli.output import Exit
from hpctl.core.faults.table import CHECKS

FIRST_SWEEP_S = 30.0
"""How long a driver may take to say its first word: initialising eight GPUs takes seconds."""


@dataclass(frozen=True, slots=True)
class AgentCheckView:
    """One run of the checks: `lost` counts records that the kernel's log had dropped."""

    as_of: datetime
    kmsg: str
    lost: int
    checks: tuple[CheckRow, ...]


def look(
    only: Sequence[str], kmsg: Path, accept_user: bool, root: Path, config: Path, plugins: Path
) -> AgentCheckView:
    """Run the chosen checks. Raises HpctlError for a bad file, UsageError for a bad name."""
    settings = files.load(config, CHECKS)
    own = [load(spec, limits) for spec, limits in apply(settings, CHECKS)]
    checks = chosen(only, [*own, *_plugins(plugins)])
    rows, lost = [], 0
    if not only or runner.LOG in only:
        row, lost = runner.look_at_log(kmsg, accept_user=accept_user)
        rows.append(row)
    nvml = Client(root=root)
    try:
        here = replace(machine(root, settings.machine()), nvml=partial(nvml.wait, FIRST_SWEEP_S))
        rows += runner.look(checks, here)
    finally:
        nvml.close()
    return AgentCheckView(output.now(), str(kmsg), lost, tuple(rows))


def chosen(only: Sequence[str], checks: Sequence[Check]) -> list[Check]:
    """The checks that the words name; all where there are none. Raises UsageError."""
    names = [check.spec.name for check in checks]
    for word in only:
        if word != runner.LOG and not any(_named(word, name) for name in names):
            raise _no_check(word, [runner.LOG, *names])
    return [c for c in checks if not only or any(_named(word, c.spec.name) for word in only)]


def _plugins(directory: Path) -> list[Check]:
    """The site's own checks; none where it has no directory for them."""
    if not directory.exists():
        return []
    return [Check(c.spec, c.gather, c.judge, {}) for c in specs_and_checks(directory)]


def verdict(view: AgentCheckView) -> Exit:
    """A failed check outweighs one that cannot tell."""
    states = {row.state for row in view.checks}
    if "fail" in states:
        return Exit.PROBLEM
    return Exit.CANNOT_TELL if "unknown" in states else Exit.FINE


def _no_check(word: str, names: list[str]) -> click.UsageError:
    near = get_close_matches(word, [*names, *{n.partition(".")[0] for n in names}], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/checks.md names all of them"
    return click.UsageError(f"no check is called {word!r}: {hint}")


def _named(word: str, name: str) -> bool:
    return name == word or name.startswith(f"{word}.")
