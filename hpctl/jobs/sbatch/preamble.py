"""The shell lines that `hpctl sbatch` puts into a script: find the checkpoint, export it.

The lines themselves are in preamble.sh.

They run as the user, on a compute node, at every start of the job, under whatever options the
`#!` line sets (`-eu` included), in any POSIX shell. Who decides what, when things go wrong:

- hpctl cannot run there (no interpreter, a broken environment, no answer in time): a first start,
  which the empty directory shows, does not fail for it. Where the directory holds anything, or the
  job has tiers, or saves on the nodes from an earlier run, only hpctl can tell which checkpoint is
  whole. The job ends with exit code 127 then, as a command that is not found: another node may have
  what is missing here, so its policy may requeue it.
- No checkpoint at all: a first start. The script begins at the beginning.
- There are checkpoints, and none is whole; or the directory cannot be read (not mounted on this
  node, say): the job stops with exit code 93 and says why. Starting from scratch would look like
  success while it throws away the run: hours of GPU time are spent again, and trainers that keep
  the last k saves by name delete the older ones, which a person could have rescued. A job that
  cannot read its checkpoint directory could not save there either. 93 is the code that NVIDIA's
  resiliency extension uses for "do not requeue". HPCTL_RESUME=scratch in the job's environment
  overrides it.

Without `hpctl run` a start is reported, and the daemon's answer says in the log why the run before
ended; `hpctl run` does both. Without it, too, the script's EXIT trap has hpctl read in the log why
a run ended with another code than 0 (`hpctl.jobs.run.script_end`). The exit code stays what it was.
"""

import json
import re
import shlex
from functools import cache
from importlib.resources import files

import msgspec

from hpctl.jobs.sbatch.context import PythonRuntime
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.vocabulary.registration import JobRegistration
from hpctl.vocabulary.trouble import NOT_FOUND_EXIT_CODE, STOP_EXIT_CODE

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
PLACEHOLDERS = {
    # Array tasks have job ids of their own; the array's is what the user calls the job.
    "job_id": '"${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-0}}"',
    "array_task_id": '"${SLURM_ARRAY_TASK_ID:-0}"',
}

LOOK_S = 120
"""How long a look at directories may take before it counts as no answer."""
FETCH_S = 3600
"""The same where the newest may be in S3, and is then copied into the checkpoint directory."""

STARTED = "hpctl.jobs.run.script_start"
"""The module that reports a start, where no look for a checkpoint does."""
READER = "hpctl.jobs.run.script_end"
"""The module that reads why a script ended."""

_EXPORTED = "    : exports\n"
_NOT_TRAPPED = ("TERM", "INT", "HUP", "QUIT", "CONT")
"""With these a job is ended, or does not end: the shell keeps its own way with them."""


def render_batch_script_preamble(
    runtime: PythonRuntime, job: JobRegistration, *, resume: bool = True
) -> str:
    """Return the lines, with a last newline. `resume` is False for a program that finds its
    checkpoint itself."""
    root = find_directory_prefix_without_placeholders(job.ckpt) if job.ckpt else ""
    sections = _load_template_sections()
    text = sections["begin"]
    if job.preflight:
        text += sections["preflight"]
    if job.fast:
        text += sections["fast"]
    if not job.supervised and not (job.ckpt and resume):
        text += sections["reports"]
    if job.ckpt:
        text += sections["resume" if resume else "make"]
    signals = ["USR1"]
    if job.save_signal and job.save_signal not in (*_NOT_TRAPPED, "USR1"):
        signals.append(job.save_signal)
    # `VAR=x $limit cmd` sets VAR for cmd even where $limit is empty: assignments are recognised
    # before expansion, in every POSIX shell. Those that a script exports are for another Python,
    # and an empty one counts as unset.
    path = f"PYTHONHOME= PYTHONPATH={shlex.quote(runtime.python_path)} "
    values = {
        "PYTHON": shlex.quote(runtime.python),
        "SAFE_PATH": shlex.join(SAFE_PATH),
        "SEARCH": "".join(f" {quote_placeholder_path_for_shell(tier)}" for tier in job.tiers),
        "LIMIT": str(FETCH_S if job.fast or _has_s3_checkpoint_tier(job) else LOOK_S),
        "BASE": shlex.quote(root),
        "BASE_TEXT": re.sub(r'(["\\$`])', r"\\\1", root),
        "ENVIRONMENT": path,
        "STOP": str(STOP_EXIT_CODE),
        "UNSTARTED": str(NOT_FOUND_EXIT_CODE),
        "LEVEL": job.preflight,
        "SIGNALS": " ".join(signals),
        "STARTED": STARTED,
        "TELL": "" if job.supervised else " --tell",
        "READ_END": shlex.quote(_render_exit_trap(path)),
    }
    text += sections["end"]
    if not job.supervised:
        text += sections["ended"]
    text = re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text + sections["last"])
    return text.replace(_EXPORTED, _render_job_environment_exports(job))


def _render_exit_trap(path: str) -> str:
    """Return the EXIT trap: hpctl reads why the script failed, and its exit code is kept.

    `path`: the assignments of hpctl's own PYTHONHOME and PYTHONPATH.
    """
    reader = f'"$HPCTL_PYTHON" {shlex.join(SAFE_PATH)} {READER} "$hpctl_code"'
    return (
        "hpctl_code=$?\n"
        'if [ "$hpctl_code" -ne 0 ] && [ -n "${HPCTL_PYTHON:-}" ]; then\n'
        f"    {path}{reader} </dev/null || :\n"
        "fi\n"
        'exit "$hpctl_code"'
    )


@cache
def _load_template_sections() -> dict[str, str]:
    text = files(__package__).joinpath("preamble.sh").read_text(encoding="utf-8")
    named = re.split(r"^#@ (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(named[1::2], named[2::2], strict=True))


def _render_job_environment_exports(job: JobRegistration) -> str:
    """Return what the job's processes find in their environment, only where it was asked for."""
    values = {
        "HPCTL_CHECKPOINT_DIR": quote_placeholder_path_for_shell(job.ckpt) if job.ckpt else "",
        "HPCTL_CHECKPOINT_FILES": shlex.quote(encode_compact_json(list(job.files)))
        if job.files
        else "",
        "HPCTL_TIERS": quote_placeholder_path_for_shell(encode_compact_json(list(job.tiers)))
        if job.tiers
        else "",
        "HPCTL_FAST_DIR": quote_placeholder_path_for_shell(job.fast.dir) if job.fast else "",
        "HPCTL_FAST_OPTIONS": shlex.quote(encode_compact_json(msgspec.to_builtins(job.fast)))
        if job.fast
        else "",
        "HPCTL_POLICY": shlex.quote(encode_compact_json(dict(job.policy))) if job.policy else "",
        "HPCTL_SPARES": str(job.spares) if job.spares else "",
        "HPCTL_SAVE_SIGNAL": job.save_signal,
    }
    exports = "".join(f"    export {name}={word}\n" for name, word in values.items() if word)
    # Only below what is there: a directory that is made where a mount is missing would hide that.
    made = "".join(
        f"    if [ -d {shlex.quote(find_directory_prefix_without_placeholders(tier))} ]; then"
        " mkdir -p "
        f"{quote_placeholder_path_for_shell(tier)} || :; fi\n"
        for tier in job.tiers
        if tier.startswith("/")
    )
    return exports + made


def _has_s3_checkpoint_tier(job: JobRegistration) -> bool:
    return any(tier.startswith("s3://") for tier in job.tiers)


def encode_compact_json(value: object) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def find_directory_prefix_without_placeholders(directory: str) -> str:
    """Return the part before the first component with a placeholder: what must exist on every
    node."""
    parts = directory.split("/")
    kept = next((i for i, part in enumerate(parts) if list_placeholders(part)), len(parts))
    return "/".join(parts[:kept]) or "/"


def quote_placeholder_path_for_shell(directory: str) -> str:
    """Return a directory with placeholders as one word of shell."""
    word, at = "", 0
    for match in _PLACEHOLDER.finditer(directory):
        word += shlex.quote(directory[at : match.start()]) + PLACEHOLDERS[match[1]]
        at = match.end()
    rest = directory[at:]
    return word + (shlex.quote(rest) if rest or not word else "")


def list_placeholders(directory: str) -> list[str]:
    """Return the names in braces, known or not."""
    return _PLACEHOLDER.findall(directory)
