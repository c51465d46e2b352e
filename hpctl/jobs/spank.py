"""What the SPANK plugin asks: `python ... hpctl.jobs.spank sbatch|srun DIRECTORY POLICY WORDS...`

Not a command for people. It writes into DIRECTORY the command to run instead of `sbatch WORDS` or
`srun WORDS`, its words NUL-terminated, and the files that they name, and exits with 0; or says on
stderr why not, and exits otherwise. It submits and starts nothing: until the plugin has the whole
answer it can continue plainly.
"""

import importlib
import os
import sys
from pathlib import Path

from hpctl.jobs.sbatch import context
from hpctl.jobs.sbatch.options import (
    HpctlOptionValue,
    ParsedHpctlOptions,
    parse_sbatch_command_line,
)
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError

ANSWER = ".hpctl-command"


def main(arguments: list[str]) -> int:
    """Answer one question. Exit code 0 where the answer is there."""
    try:
        kind, directory, policy, *text = arguments
        answer = {"sbatch": _rewrite_sbatch_options, "srun": _rewrite_srun_command_with_supervisor}[
            kind
        ](Path(directory), policy, text)
        _write_rewritten_arguments_file(Path(directory), answer)
    except HpctlError as error:
        print(
            make_printable(f"hpctl: {error}\n  {error.hint}".rstrip(), lines=True), file=sys.stderr
        )
        return 1
    except OSError as error:  # a full disk, a quota
        place = error.filename or directory  # a failed write names no file
        print(make_printable(f"hpctl: {place}: {error.strerror}"), file=sys.stderr)
        return 1
    return 0


def _write_rewritten_arguments_file(directory: Path, answer: list[str]) -> None:
    """Write the command, whole or not at all. Raises OSError."""
    part = directory / f"{ANSWER}.part"
    part.write_bytes(b"".join(os.fsencode(word) + b"\0" for word in answer))
    part.rename(part.with_name(ANSWER))


def _rewrite_sbatch_options(directory: Path, policy: str, args: list[str]) -> list[str]:
    """Return the same sbatch, with a job that resumes."""
    from hpctl.jobs.sbatch import command

    line = parse_sbatch_command_line([*([f"--policy={policy}"] if policy else []), *args])
    _, submission = command.plan_submission_from_command_line(line)
    command.print_submission_warnings(submission, quiet="quiet" in line.given)
    for base in submission.bases:
        command.create_checkpoint_directory(base)
    return ["sbatch", *command.build_sbatch_arguments(line, submission, directory)]


def _rewrite_srun_command_with_supervisor(
    _directory: Path, policy: str, args: list[str]
) -> list[str]:
    """Return the step under a supervisor. What would only come out when that starts comes out
    now."""
    for name in ("hpctl.jobs.run.command", "hpctl.jobs.run.supervise", "hpctl.jobs.crash"):
        importlib.import_module(name)  # it imports them when it runs; a broken one shows here
    from hpctl.jobs.run.settings import read_run_settings
    from hpctl.jobs.run.srun import parse_srun_command

    read_run_settings(parse_srun_command(args), os.environ)
    options: list[str] = []
    if policy:
        asked = ParsedHpctlOptions(policy=HpctlOptionValue(policy, f"--resilient={policy}"))
        cwd = context.read_working_directory()
        context.load_job_recovery_policy(asked, os.environ, cwd)
        options = ["--policy", str(context.find_job_policy_file(policy, os.environ, cwd))]
    return [sys.executable, *SAFE_PATH, "hpctl", "run", *options, "--", *args]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
