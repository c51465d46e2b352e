"""Run the `hpctl` command and Slurm's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any, Mapping, Sequence

from .errors import ClientError, CommandFailedError, CommandNotFoundError

VARIABLE = "HPCTL_COMMAND"
INSTALLED = "/opt/hpctl/bin/hpctl"
"""Where the Debian package has it."""
ANSWER_S = 120.0
"""How long a command that reads may take."""
SUBMIT_S = 660.0
"""How long a submission may take: sbatch retries for minutes while slurmctld is away."""


def find_hpctl_command(environ: Mapping[str, str] | None = None) -> str:
    """Return the path of the `hpctl` command. Raises CommandNotFoundError.

    $HPCTL_COMMAND names it; else it is the one on PATH, else /opt/hpctl/bin/hpctl.
    """
    environment = os.environ if environ is None else environ
    given = environment.get(VARIABLE, "")
    for candidate in [given] if given else ["hpctl", INSTALLED]:
        found = shutil.which(candidate, path=environment.get("PATH"))
        if found is not None:
            return found
    where = f"{VARIABLE}={given} is no program" if given else "there is no hpctl command here"
    raise CommandNotFoundError(
        where,
        f"Run this on a machine with hpctl, such as a login node, or set {VARIABLE} to its path",
    )


def find_slurm_command(program: str) -> str:
    """Return the path of a command of Slurm. Raises CommandNotFoundError.

    $HPCTL_SLURM_BIN names Slurm's bin directory; else it is looked for on PATH.
    """
    where = os.environ.get("HPCTL_SLURM_BIN") or None
    found = shutil.which(program, path=where)
    if found is None:
        raise CommandNotFoundError(
            f"there is no {program} {'in ' + where if where else 'on PATH'}",
            "Run this where Slurm's commands are, or set HPCTL_SLURM_BIN to their directory",
        )
    return found


def run_command_with_timeout(
    command: Sequence[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it printed, whatever its exit code. Raises ClientError."""
    try:
        return subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClientError(
            f"{os.path.basename(command[0])} did not answer within {timeout_s:g} s",
            "Look with squeue --me before you submit again",
        ) from None
    except OSError as error:
        raise CommandNotFoundError(f"cannot run {command[0]}: {error.strerror}") from None


def run_hpctl_json(*arguments: str) -> dict[str, Any]:
    """Run an `hpctl` command with `--json` and return its object. Raises ClientError.

    Exit codes other than 0 are answers too where there is an object: 1 is "something is wrong with
    what was asked about", 3 "not all could be asked".
    """
    command = [find_hpctl_command(), *arguments, "--json"]
    done = run_command_with_timeout(command, ANSWER_S)
    if not done.stdout.strip():
        raise make_command_error(["hpctl", *arguments], done.returncode, done.stderr)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ClientError(
            f"hpctl {arguments[0]} --json printed no JSON: {done.stdout[:200]!r}",
            f"{command[0]} is another program, or another version of hpctl",
        ) from None
    return dict(answer)


def make_command_error(command: list[str], exit_code: int, stderr: str) -> CommandFailedError:
    """Return the error for a program that failed: its first line, and its hint where it has one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = lines[0] if lines else "it said nothing"
    hint = " ".join(lines[1:])
    shown = " ".join(command[:2])
    return CommandFailedError(
        f"{shown} failed with exit code {exit_code}: {said}",
        hint,
        exit_code=exit_code,
        stderr=stderr,
    )
