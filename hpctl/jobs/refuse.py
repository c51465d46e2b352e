"""What cannot be made resumable, with the mend: an HpctlError each."""

from __future__ import annotations

import difflib

from hpctl.errors import HpctlError
from hpctl.jobs import preamble
from hpctl.jobs.options import CommandLine
from hpctl.jobs.script import SHELLS, Script


def het(line: CommandLine, script: Script | None) -> None:
    """Refuse a heterogeneous job."""
    if line.het or (script is not None and script.het):
        raise HpctlError(
            "a heterogeneous job: --requeue and --comment would reach its first component only",
            "Submit it with plain sbatch and --requeue in every component, or as one component.",
        )


def foreign(script: Script) -> None:
    """Refuse a script that shell lines cannot go into."""
    if script.shell in SHELLS:
        return
    if not script.shell:
        raise HpctlError(f"{script.name} has no #! line, which sbatch refuses", "Add #!/bin/sh.")
    raise HpctlError(
        f"{script.name} is a {script.shell} script: the lines that find the checkpoint are sh",
        f"Submit a #!/bin/sh script whose last line runs {script.name}.",
    )


def placeholders(option: str, directory: str, *, array: bool) -> None:
    """Refuse placeholders that nothing fills in, and array tasks that would share a place."""
    used = preamble.placeholders(directory)
    for name in used:
        if name not in preamble.PLACEHOLDERS:
            near = difflib.get_close_matches(name, preamble.PLACEHOLDERS, n=1, cutoff=0.4)
            known = " and ".join(f"{{{each}}}" for each in preamble.PLACEHOLDERS)
            raise HpctlError(
                f"unknown placeholder {{{name}}} in {directory}",
                f"Did you mean {{{near[0]}}}?" if near else f"There are {known}.",
            )
    if array and "array_task_id" not in used:
        raise HpctlError(
            f"the tasks of this array would share one checkpoint directory, {directory}",
            f"Give each its own: --{option} {directory}/{{array_task_id}}",
        )
    if not array and "array_task_id" in used:
        raise HpctlError(
            f"{{array_task_id}} in {directory}, but this is no job array",
            "Submit with --array, or leave the placeholder out.",
        )
