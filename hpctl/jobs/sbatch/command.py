"""`hpctl sbatch`: sbatch, with a job that resumes."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import click
from click.shell_completion import CompletionItem

import hpctl
from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.jobs.sbatch import context, options
from hpctl.jobs.sbatch.context import PythonRuntime, SbatchSubmissionContext
from hpctl.jobs.sbatch.options import (
    HPCTL_OPTIONS,
    ParsedHpctlOptions,
    SbatchCommandLine,
    merge_hpctl_options,
    parse_sbatch_command_line,
)
from hpctl.jobs.sbatch.submit import (
    EffectiveSbatchOptions,
    SbatchSubmission,
    build_resumable_submission,
    list_job_log_directories,
)
from hpctl.toolkit import output
from hpctl.toolkit.arguments import complete_file_path
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.registration import COMMENT_PREFIX

ANSWER_S = 600.0
"""sbatch itself keeps trying while slurmctld is away; this is only an end to it."""

_SAYS_AND_ENDS = frozenset({"help", "usage", "version"})


class SbatchCommand(click.Command):
    """A command whose arguments are sbatch's to parse, all but hpctl's own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Answer --help; hand everything else over unparsed."""
        if args[:1] in (["--help"], ["-h"]) and not ctx.resilient_parsing:
            output.echo(ctx.get_help())
            ctx.exit()
        ctx.params["arguments"] = tuple(args)
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete hpctl's own options; else files, of which the script is one."""
        if incomplete.startswith("-"):
            own = [f"--{name}" for name in (*HPCTL_OPTIONS, "help")]
            return [CompletionItem(name) for name in own if name.startswith(incomplete)]
        return complete_file_path(ctx, None, incomplete)


@click.command(
    cls=SbatchCommand,
    options_metavar="[HPCTL OPTIONS] [SBATCH OPTIONS] [SCRIPT [ARGUMENTS]]",
    short_help="Submit a batch job that resumes from checkpoints.",
)
def sbatch(arguments: tuple[str, ...]) -> None:
    """Submit a batch job that resumes from checkpoints.

    Everything that sbatch takes is passed on; stdout and the exit code are sbatch's. hpctl adds
    --requeue and --open-mode=append unless you set them, and says what in the script or its options
    would keep the job from resuming.

    \b
      --checkpoint-dir DIR      where the job saves, on storage that all nodes share
      --checkpoint-files PATTERN
                                what the job's checkpoints are called where hpctl does not
                                recognize them: ckpt_{step}_rank*.pt; repeatable
      --tier PLACE              where else checkpoints may be: DIR, local:DIR on each node's
                                own disk, or s3://BUCKET/PREFIX; repeatable
      --fast-dir PLACE          for frequent saves: local:DIR on each node's own disk, or mem:DIR
                                in its memory, which hpctl copies to other nodes
      --fast-flush TIME         between their flushes to the checkpoint directory (15m)
      --fast-replicas N         on how many other nodes, 1 or 2 (1)
      --fast-size SIZE          what saves and copies may take on each node, 64G say
      --fast-rate SIZE          what a node fetches a second (1G)
      --fast-keep               leave it on the nodes when the job ends
      --no-resume               the program finds its checkpoint itself
      --policy FILE|NAME        how the job is treated (docs/policies.md)
      --log-rules PRESET|FILE   what to look for in its log (docs/logs.md); repeatable
      --spares K                K nodes more than --nodes, for hpctl run to go on with
      --preflight LEVEL         quick or full: test the nodes first, leave out those that fail
      --save-signal SIG[@S]     the program saves at this signal; it gets it S seconds
                                before the time limit, and before it is stopped

    \b
      --dry-run                 print the script and the command; submit nothing
      --json                    with --dry-run: print JSON
      --slurm-bin DIR           where sbatch is (or HPCTL_SLURM_BIN; else PATH)

    Options go before SCRIPT: what follows it are the script's own arguments, as with sbatch. The
    script may say all but the last three, in its leading comments: #HPCTL --spares 1. The
    command line wins. In directories {job_id} and {array_task_id} are filled in.

    A few shell lines go into the copy that is submitted. At every start they export
    HPCTL_CHECKPOINT_DIR, HPCTL_RESTART_COUNT and, where a checkpoint is complete,
    HPCTL_RESUME_FROM. HPCTL_RESUME=scratch starts over. When the script fails, they read in its log
    why.
    """
    line = parse_sbatch_command_line(arguments)
    program = find_sbatch_program(line)
    if "json" in line.own and "dry-run" not in line.own:
        raise HpctlError(
            "--json works only with --dry-run",
            "Add --dry-run; to print the id of a submitted job for scripts, use --parsable.",
        )
    _reject_dry_run_after_script(line)
    if _SAYS_AND_ENDS & line.given.keys():
        raise SystemExit(_run_sbatch([program, *line.passed], line))
    script, submission = plan_submission_from_command_line(line)
    if "dry-run" in line.own:
        _print_dry_run_submission(program, line, script, submission)
        return
    print_submission_warnings(submission, quiet="quiet" in line.given)
    raise SystemExit(_submit_job(program, line, script, submission))


def _reject_dry_run_after_script(line: SbatchCommandLine) -> None:
    """Raise HpctlError where --dry-run follows the script: it would be an argument of the script,
    and the job would be submitted."""
    if "--dry-run" in line.options_after_script:
        raise HpctlError(
            f"--dry-run after {line.script} is an argument of the script: nothing is submitted",
            f"Options go before the script: `hpctl sbatch --dry-run {line.script}`. Where it is for"
            f" the script, write -- before that: `hpctl sbatch -- {line.script} --dry-run`.",
        )


def plan_submission_from_command_line(
    line: SbatchCommandLine,
) -> tuple[options.BatchScript | None, SbatchSubmission]:
    """Return the script, None for --wrap, and what is to be submitted. Raises HpctlError."""
    script = _read_batch_script(line)
    cwd = context.read_working_directory()
    asked = merge_hpctl_options(line.own, script.own if script else {}, cwd)
    return script, build_resumable_submission(
        line, script, asked, _build_sbatch_submission_context(line, asked, script, cwd)
    )


def _build_sbatch_submission_context(
    line: SbatchCommandLine, asked: ParsedHpctlOptions, script: options.BatchScript | None, cwd: str
) -> SbatchSubmissionContext:
    """Return what the submission depends on: policy files, the controller, the mount table."""
    effective = EffectiveSbatchOptions(line, script, os.environ)
    logs = list_job_log_directories(effective, cwd)
    missing = tuple(each for each in logs if not os.path.isdir(each[1]))
    if missing:
        with contextlib.suppress(HpctlError):  # no sbatch on PATH: its release is unknown
            missing = (
                ()
                if context.can_slurm_create_log_directories(find_sbatch_program(line))
                else missing
            )
    where = asked.checkpoint_dir
    return SbatchSubmissionContext(
        runtime=_get_current_python_runtime(),
        environment=os.environ,
        policy=context.load_job_recovery_policy(asked, os.environ, cwd),
        filesystem=context.find_file_system_type(where) if where is not None else "",
        unknown=describe_unrecognized_checkpoint_files(where, asked.checkpoint_files)
        if where is not None and asked.resume
        else "",
        missing=missing,
        restarted=_list_restartable_dependencies(line, effective.value("dependency") or ""),
    )


def _list_restartable_dependencies(line: SbatchCommandLine, dependency: str) -> tuple[str, ...]:
    """Return the jobs that this one depends on, and that hpctl may run again."""
    with contextlib.suppress(HpctlError):  # no sbatch on PATH, so no squeue either
        return context.find_restartable_dependencies(
            dependency, os.path.join(os.path.dirname(find_sbatch_program(line)), "squeue")
        )
    return ()


def describe_unrecognized_checkpoint_files(directory: str, files: tuple[str, ...] = ()) -> str:
    """Return what is there that this job will not resume from, for hpctl knows no format of it."""
    with contextlib.suppress(OSError):
        # Of what users own nothing is opened as root.
        if os.stat(directory).st_uid == 0 or os.geteuid() != 0:
            from hpctl.checkpoints.search import CheckpointSearchResult, list_checkpoint_candidates

            candidates, passed = list_checkpoint_candidates(
                Path(directory), declared=parse_checkpoint_file_patterns(files)
            )
            return (
                ""
                if candidates
                else CheckpointSearchResult(None, tuple(passed)).unrecognized_files_note
            )
    return ""


def print_submission_warnings(submission: SbatchSubmission, *, quiet: bool = False) -> None:
    """Say on stderr what is to be warned of, and what was added unless sbatch is to be quiet."""
    for note in () if quiet else submission.notes:
        output.echo(f"hpctl: {note}", err=True)
    for warning in submission.warnings:
        output.echo(f"hpctl: warning: {warning}", err=True)


def find_sbatch_program(line: SbatchCommandLine) -> str:
    """Return the sbatch that is to be used. Raises HpctlError."""
    given = line.own.get("slurm-bin")
    where = given[-1].value if given else os.environ.get("HPCTL_SLURM_BIN")
    program = shutil.which("sbatch", path=where or None)
    if program is None:
        raise HpctlError(
            f"cannot find the program sbatch in {where}"
            if where
            else "cannot find the program sbatch on PATH",
            "Run this on a login node, or name Slurm's bin directory with --slurm-bin.",
        )
    return program


def _read_batch_script(line: SbatchCommandLine) -> options.BatchScript | None:
    """Return the script, read from its file or from stdin; None for --wrap."""
    if "wrap" in line.given:
        return None  # sbatch itself judges a script next to --wrap
    if line.script is None:
        raw = sys.stdin.buffer.read()
        return options.parse_batch_script("sbatch", raw.decode("utf-8", "surrogateescape"))
    path = _find_script_path(line)
    try:
        raw = path.read_bytes()
    except OSError as error:
        # The likeliest reason: the "script" is the value of an option newer than the table.
        hint = (
            f"If {line.unknown[-1]} is an option with a value, write it as OPTION=VALUE."
            if line.unknown
            else ""
        )
        raise HpctlError(f"cannot read the script {line.script}: {error.strerror}", hint) from None
    return options.parse_batch_script(path.name, raw.decode("utf-8", "surrogateescape"))


def _find_script_path(line: SbatchCommandLine) -> Path:
    """Return where sbatch finds it: a bare name on PATH, then where --chdir says, then here
    (search_path in src/common/env.c, and seen on 22.05)."""
    assert line.script is not None
    if "/" in line.script:
        return Path(line.script)
    on_path = shutil.which(line.script, mode=os.R_OK)
    if on_path:
        return Path(on_path)
    there = Path(line.given.get("chdir", ""), line.script)
    return there if os.access(there, os.R_OK) else Path(line.script)


def _get_current_python_runtime() -> PythonRuntime:
    """Return this interpreter; and PYTHONPATH if hpctl was imported from elsewhere than
    site-packages."""
    root = str(Path(hpctl.__file__).resolve().parent.parent)
    installed = {str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib")}
    if root in installed:
        return PythonRuntime(sys.executable)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [os.path.abspath(each) for each in inherited if each]
    return PythonRuntime(
        sys.executable, os.pathsep.join([root, *(each for each in absolute if each != root)])
    )


def create_checkpoint_directory(base: str) -> None:
    """Create the directory now, so that its absence on a node means: not mounted there."""
    try:
        os.makedirs(base, exist_ok=True)
    except OSError as error:
        raise HpctlError(
            f"cannot create the checkpoint directory {base}: {error.strerror}",
            "It must be on a file system that this machine and the compute nodes share.",
        ) from None


def _submit_job(
    program: str,
    line: SbatchCommandLine,
    script: options.BatchScript | None,
    submission: SbatchSubmission,
) -> int:
    for base in submission.bases:
        create_checkpoint_directory(base)
    with tempfile.TemporaryDirectory(prefix="hpctl-sbatch-") as directory:
        command = [program, *build_sbatch_arguments(line, submission, Path(directory), script)]
        stdin = script.text if script and not (submission.copy or line.script) else None
        return _run_sbatch(command, line, stdin=stdin)


def build_sbatch_arguments(
    line: SbatchCommandLine,
    submission: SbatchSubmission,
    directory: Path,
    read: options.BatchScript | None = None,
) -> list[str]:
    """Return sbatch's arguments, program name excepted; a changed script is written into
    `directory`, and what was `read` from something that can be read only once (`hpctl sbatch
    <(...)`).

    The copy keeps its name, because Slurm names the job after it.
    """
    script = [line.script] if line.script else []
    once = read if line.script and not _find_script_path(line).is_file() else None
    copied = submission.copy or once
    if copied is not None:
        copy = directory / copied.name
        copy.write_bytes(copied.text.encode("utf-8", "surrogateescape"))
        script = [str(copy)]
    return [*submission.options, *script, *line.arguments]


def _run_sbatch(command: list[str], line: SbatchCommandLine, stdin: str | None = None) -> int:
    """Run sbatch with our stdout and stderr. --wait may last as long as the job."""
    timeout = None if "wait" in line.given or "SBATCH_WAIT" in os.environ else ANSWER_S
    data = stdin.encode("utf-8", "surrogateescape") if stdin is not None else None
    sys.stdout.flush()
    try:
        return subprocess.run(command, input=data, timeout=timeout, check=False).returncode
    except subprocess.TimeoutExpired:
        raise HpctlError(
            f"sbatch did not answer within {ANSWER_S:g} s: the job may or may not be submitted",
            "Check with `squeue --me` before you submit the job again.",
        ) from None


def _print_dry_run_submission(
    program: str,
    line: SbatchCommandLine,
    script: options.BatchScript | None,
    submission: SbatchSubmission,
) -> None:
    """Show what would be submitted: the script, what is registered, the command."""
    shown = submission.copy or script
    text = shown.text if shown is not None else ""
    tail = [line.script or "<stdin>", *line.arguments] if script is not None else []
    if script is None and submission.copy is not None:
        tail = ["<the script above>"]
    command = [program, *submission.options, *tail]
    registered = submission.registered.fields() if submission.registered else {}
    if "json" in line.own:
        document = {
            "command": command,
            "script": text,
            "registered": registered,
            "notes": submission.notes,
            "warnings": submission.warnings,
        }
        output.echo(json.dumps(document, indent=1))
        return
    print_submission_warnings(submission)
    if text:
        output.print_exact_text(text, nl=not text.endswith("\n"))
    if registered:
        pretty = json.dumps(registered, indent=1).replace("\n", "\n# ")
        output.echo(f"# registered in the job's Comment:\n# {COMMENT_PREFIX}{pretty}")
    output.echo(f"# {shlex.join(command)}")
