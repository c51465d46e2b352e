"""One function for each command of hpctl that a job's owner uses."""

from __future__ import annotations

import os
import re
import shlex
from typing import Sequence, Union

from . import command
from .errors import ClientError
from .values import AnyJob, Checkpoints, Explanation, Job, Status

Option = Union[
    None, bool, str, int, float, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]
]
_JOB_ID = re.compile(r"\d+([_+]\d+)?")
_NOTE = "hpctl: "
_WARNING = "hpctl: warning: "


def submit(
    script: str | os.PathLike[str] | Sequence[str], *arguments: str, **options: Option
) -> Job:
    """Submit a batch job that hpctl protects, by `hpctl sbatch`. Raises ClientError.

    `script` is the path of a batch script, and `arguments` are its own; or a list, the words of a
    command that runs as the job: `submit(["srun", "python", "train.py"], nodes=2)`. `options` are
    those of `hpctl sbatch` and sbatch by their long names, with `_` for `-`:
    `checkpoint_dir="/shared/runs/{job_id}"`, `save_signal="USR1@120"`, `gpus_per_node=8`. True
    stands for an option without a value, a list for one that is repeated; None and False leave it
    out.

    Where the answer of Slurm is lost the error says so: look with `squeue --me` before you repeat.
    """
    words = [
        command.find_hpctl_command(),
        "sbatch",
        "--parsable",
        *format_command_line_options(options),
    ]
    if isinstance(script, (str, os.PathLike)):
        words += [os.fspath(script), *arguments]
    elif arguments:
        raise ClientError("arguments beside a command", "Put them into the list")
    else:
        words.append("--wrap=" + " ".join(shlex.quote(word) for word in script))
    done = command.run_command_with_timeout(words, command.SUBMIT_S)
    found = re.match(r"(\d+)(;|$)", done.stdout.strip())
    if done.returncode != 0 or found is None:
        raise command.make_command_error(
            ["hpctl", "sbatch"], done.returncode, done.stderr or done.stdout
        )
    notes, warnings = parse_sbatch_notes_and_warnings(done.stderr)
    return Job(found.group(1), notes, warnings)


def status() -> Status:
    """Return the state of the cluster and of hpctl's daemon. Raises ClientError."""
    return Status.of(command.run_hpctl_json("status"))


def explain(job: AnyJob) -> Explanation:
    """Return what hpctl did about a job, or a node, and why. Raises ClientError."""
    return Explanation.of(command.run_hpctl_json("explain", str(job)))


def checkpoints(place: AnyJob | os.PathLike[str], *, files: Sequence[str] = ()) -> Checkpoints:
    """Return the checkpoints of a directory, an s3:// prefix or a job, newest first.

    A job is a Job or its id, and its directory the one that it was submitted with. `files` are
    patterns of `--checkpoint-files`. Raises ClientError, also where a job names no directory.
    """
    words = [f"--checkpoint-files={pattern}" for pattern in files]
    named = os.fspath(place) if isinstance(place, os.PathLike) else str(place)
    is_job = not isinstance(place, os.PathLike) and _JOB_ID.fullmatch(named) is not None
    words.append(f"--job={named}" if is_job else named)
    return Checkpoints.of(command.run_hpctl_json("checkpoint", "ls", *words))


def format_command_line_options(options: dict[str, Option]) -> list[str]:
    """Return options as words of a command line."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, (str, int, float, os.PathLike)):
            words.append(f"{option}={_convert_option_value_to_text(value)}")
        else:
            words += [f"{option}={_convert_option_value_to_text(each)}" for each in value]
    return words


def parse_sbatch_notes_and_warnings(stderr: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the notes and the warnings of `hpctl sbatch`."""
    lines = [line for line in stderr.splitlines() if line.startswith(_NOTE)]
    warnings = tuple(line[len(_WARNING) :] for line in lines if line.startswith(_WARNING))
    notes = tuple(line[len(_NOTE) :] for line in lines if not line.startswith(_WARNING))
    return notes, warnings


def _convert_option_value_to_text(value: str | int | float | os.PathLike[str]) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
