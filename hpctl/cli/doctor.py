"""`hpctl doctor`: is everything there that hpctl needs, and set as it should be?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import click

from hpctl.cli import output
from hpctl.cli.doctor_checks import examine
from hpctl.cli.doctor_view import CheckView
from hpctl.cli.output import Exit
from hpctl.config import Config
from hpctl.errors import HpctlError


@dataclass(frozen=True, slots=True)
class DoctorView:
    """What `hpctl doctor` shows."""

    as_of: datetime
    checks: tuple[CheckView, ...]


def verdict(view: DoctorView) -> Exit:
    """A failed check outweighs one that cannot tell; warnings and notes alone are fine."""
    verdicts = {check.verdict for check in view.checks}
    if "fail" in verdicts:
        return Exit.PROBLEM
    return Exit.CANNOT_TELL if "unknown" in verdicts else Exit.FINE


def read_config(path: str) -> tuple[Config | None, CheckView]:
    """The configuration as the first thing that is checked."""
    try:
        config = output.load_config(path)
    except HpctlError as error:
        return None, CheckView("configuration", "fail", str(error), error.hint)
    return config, CheckView("configuration", "ok", f"{path}, mode {config.mode}", "")


@click.command()
@output.json_option
@output.config_option
def doctor(config: str, as_json: bool) -> None:
    """Check this cluster's settings and name the mends.

    Changes nothing. Exit code: 0 fine or only warnings, 1 a check failed, 3 a check cannot tell.
    """
    from hpctl.cli import render_doctor

    at = output.now()
    loaded, first = read_config(config)
    view = DoctorView(at, (first, *examine(loaded, at)))
    output.show("doctor", view, as_json, render_doctor.doctor)
    output.leave(verdict(view))
