"""What `hpctl sbatch` submits: decided here from values, without touching the world.

`EffectiveSbatchOptions` are sbatch's options from the command line, SBATCH_* variables and #SBATCH
lines. What in a script or its options keeps a job from resuming is refused, or a warning with the
fix. The script is read line by line, not parsed as shell: what is found there is worth a look, and
what is not found proves nothing. So nothing in its text refuses a job.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from hpctl.jobs.restart import JobRestartSetup, choose_first_restart_method
from hpctl.jobs.sbatch import preamble
from hpctl.jobs.sbatch.context import SbatchSubmissionContext, explain_why_directory_is_unshared
from hpctl.jobs.sbatch.options import (
    SAVE_BEFORE_S,
    SHELLS,
    BatchScript,
    ParsedHpctlOptions,
    SbatchCommandLine,
    build_wrap_script,
)
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.registration import JobRegistration, format_registration_comment


class SbatchSubmission(Struct, frozen=True):
    """The outcome: sbatch's options before the script, the script where it is a copy, notes for
    the user, and the directories that must exist on every node."""

    options: tuple[str, ...]
    copy: BatchScript | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    bases: tuple[str, ...]
    registered: JobRegistration | None

    @property
    def text(self) -> str | None:
        """Return the changed script."""
        return None if self.copy is None else self.copy.text


def build_resumable_submission(
    line: SbatchCommandLine,
    script: BatchScript | None,
    hpctl: ParsedHpctlOptions,
    context: SbatchSubmissionContext,
) -> SbatchSubmission:
    """Decide. `script` is None for `--wrap`. Raises HpctlError for what cannot be made resumable.

    Options that hpctl adds precede the user's, because of two sbatch obeys the later one; those
    that replace the user's (nodes, comment) follow.
    """
    options = EffectiveSbatchOptions(line, script, context.environment)
    refuse_heterogeneous_job(line, script)
    body = script if script is not None else build_wrap_script(line.given["wrap"])
    draft = _SbatchSubmissionBuilder(options, hpctl, context, body)
    draft.requeue()
    if script is None and line.script is not None:
        return draft.submission(line, None)  # --wrap and a script: sbatch refuses it
    draft.add_spare_nodes()
    draft.signal()
    draft.add_submission_warnings()
    if body.shell not in SHELLS and not draft.needs_preamble:
        return draft.submission(line, None, registers=True)
    refuse_non_shell_script(body)
    places = [("tier", tier) for tier in hpctl.tiers]
    if hpctl.checkpoint_dir is not None:
        places.insert(0, ("checkpoint-dir", hpctl.checkpoint_dir))
    for option, place in places:
        validate_directory_placeholders(option, place, array=options.has("array"))
    return draft.submission(line, draft.build_script_with_preamble())


class _SbatchSubmissionBuilder:
    """A submission in the making."""

    def __init__(
        self,
        options: EffectiveSbatchOptions,
        hpctl: ParsedHpctlOptions,
        context: SbatchSubmissionContext,
        body: BatchScript,
    ) -> None:
        self.body = body
        self.options = options
        self.hpctl = hpctl
        self.context = context
        self.before: list[str] = []
        self.after: list[str] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.policy = dict(context.policy)
        spares = self.policy.get("spares")
        self.restart = choose_first_restart_method(JobRestartSetup(has_hpctl_run_command(body)))
        self.spares = hpctl.spares if hpctl.spares is not None else _get_integer_or_zero(spares)

    def requeue(self) -> None:
        """Add requeue and open-mode, unless the user gave them."""
        if not self.options.has("no-requeue") and not self.options.has("requeue"):
            self.before.append("--requeue")
        if not self.options.has("open-mode"):
            self.before.append("--open-mode=append")

    def add_spare_nodes(self) -> None:
        """Add the spare nodes, and have the job outlive the loss of one."""
        asked = parse_node_range(self.options.value("nodes") or "")
        if asked is not None and asked[1] is not None:
            # What the job may run on is what it asked of Slurm, unless its policy is narrower.
            self.policy.setdefault("nodes", f"{asked[0]}-{asked[1]}")
        if not self.spares:
            return
        if asked is None:
            raise HpctlError(
                "--spares adds spare nodes to those of --nodes, but --nodes is not given",
                "Add --nodes N, with the number of nodes that the program runs on.",
            )
        least, most = asked[0] + self.spares, None if asked[1] is None else asked[1] + self.spares
        tasks = self.options.value("ntasks")
        if tasks is not None and tasks.isdigit() and int(tasks) < least:
            raise HpctlError(
                f"cannot add spare nodes: --ntasks={tasks} with --nodes={least} would place tasks "
                "on the spare nodes as well",
                "Give --ntasks-per-node instead of --ntasks.",
            )
        totals = [name for name in ("ntasks", "gpus") if self.options.has(name)]
        if totals:
            self.warnings.append(
                f"--{totals[0]} is a total: it does not say what a spare node must have room for;"
                f" say --{totals[0]}-per-node"
            )
        if self.options.value("no-kill") == "off":
            raise HpctlError(
                "--spares and --no-kill=off conflict: Slurm would end the job when it loses its "
                "first node",
                "Remove --no-kill=off; hpctl sets --no-kill.",
            )
        self.after.append(f"--nodes={least}" + (f"-{most}" if most is not None else ""))
        if not self.options.has("no-kill"):
            self.after.append("--no-kill")

    def signal(self) -> None:
        """Request a save before the time limit, from the process that can handle it.

        `hpctl run` gets it in the batch shell and passes it on (B:). Without it the steps get it
        from slurmstepd, because a shell that waits for srun does nothing with a signal; a program
        that the script itself becomes (exec) gets it as the batch shell.
        """
        save = self.hpctl.save_signal
        if self.options.has("signal"):
            if save is not None:
                raise HpctlError(
                    "--save-signal and --signal conflict: both send a signal before the time limit",
                    "Remove --signal.",
                )
            return
        if self.restart.has_supervisor:
            seconds = save.seconds if save else SAVE_BEFORE_S
            if save is not None or self.options.has("time"):
                self.before.append(f"--signal=B:USR1@{seconds}")
        elif save is not None:
            shell = "" if has_job_steps(self.body) else "B:"
            self.before.append(f"--signal={shell}{save.name}@{save.seconds}")
        elif self.options.has("time") and self.hpctl.checkpoint_dir is not None:
            self.notes.append(
                "no save is requested before the time limit: if your program saves at a signal,"
                f" say --save-signal USR1@{SAVE_BEFORE_S}"
            )

    def add_submission_warnings(self) -> None:
        """Add warnings about the options, the script and the checkpoint directory."""
        directory = self.hpctl.checkpoint_dir
        self.warnings += list_option_warnings(
            self.options, self.spares, resumes=directory is not None
        )
        self.warnings += [
            f"{option} after the script is an argument of the script, and hpctl does not read it:"
            " options go before the script"
            for option in self.options.late
        ]
        self.warnings += [
            f"--{option}: the directory {directory} does not exist on this machine; Slurm does not"
            " create it: where a node has none, the job fails and leaves no log"
            for option, directory in self.context.missing
        ]
        self.warnings += [
            f"--dependency: hpctl runs job {job} again when its program fails, and in the moment"
            " before Slurm may take that end for its last; where this job must not begin then, give"
            f" job {job} a policy of `restarts: 0`, or submit this job at the end of its script"
            for job in self.context.restarted
        ]
        self.warnings += list_batch_script_warnings(self.body)
        self.warnings += [
            f"{self.body.name}:{number}: #HPCTL after the first command is not read: move it up"
            for number in self.body.late
        ]
        export = self.options.value("export")
        self.warnings += list_hung_job_rule_warnings(export, self.context.environment)
        if directory is not None:
            self.warnings += list_resume_from_scratch_warnings(export, self.context.environment)
            self.warnings += list_checkpoint_storage_warnings(
                directory, self.context.filesystem, self.hpctl.tiers
            )
            self.warnings += [self.context.unknown] if self.context.unknown else []
            self.warnings += list_checkpoint_file_pattern_warnings(self.hpctl)
        elif self.hpctl.tiers:
            raise HpctlError(
                "--tier names places for copies of the checkpoint directory, but the job has no "
                "checkpoint directory",
                "Add --checkpoint-dir DIR, on storage that the nodes share.",
            )
        if self.spares and not self.restart.has_supervisor:
            self.warnings.append(
                f"srun takes all nodes, the {self.spares} spare too, and one lost node ends the"
                f" step: start the program with `hpctl run --spares {self.spares} -- ...`"
            )

    @property
    def needs_preamble(self) -> bool:
        """Return whether something was asked for that only shell lines in the script can do."""
        registration = self.registration
        asked = registration.ckpt or registration.preflight or registration.supervised
        return bool(asked or registration.save_signal or registration.spares)

    @property
    def registration(self) -> JobRegistration:
        """Return what is registered. Every job of `hpctl sbatch` is, also without any field."""
        save = self.hpctl.save_signal
        return JobRegistration(
            ckpt=self.hpctl.checkpoint_dir or "",
            files=self.hpctl.checkpoint_files,
            tiers=self.hpctl.tiers,
            policy=self.policy,
            spares=self.spares,
            save_signal=save.name if save else "",
            supervised=self.restart.has_supervisor,
            preflight=self.hpctl.preflight,
            fast=self.hpctl.fast,
        )

    def build_script_with_preamble(self) -> BatchScript:
        """Return the script with the preamble in it."""
        text = preamble.render_batch_script_preamble(
            self.context.runtime, self.registration, resume=self.hpctl.resume
        )
        body = self.body
        if not self.restart.has_supervisor:
            body = self._remove_exec_from_last_command()
        lines = tuple(body.insert_before_first_command(text).splitlines(keepends=True))
        return replace(self.body, lines=lines)

    def _remove_exec_from_last_command(self) -> BatchScript:
        """Return the script without the last command's `exec`: after it no shell is left to read
        why the program ended. A program that gets a signal as the batch shell keeps it."""
        signal = self.options.value("signal") or ""
        flags, colon, _ = signal.partition(":")
        to_shell = "B" in flags and bool(colon)
        to_shell = to_shell or any(option.startswith("--signal=B:") for option in self.before)
        number = find_final_exec_line_number(self.body)
        if to_shell or not number:
            return self.body
        lines = list(self.body.lines)
        lines[number - 1] = _EXEC.sub("", lines[number - 1], count=1)
        return replace(self.body, lines=tuple(lines))

    def _add_missing_restart_feature_notes(self, *, readable: bool) -> None:
        """Say what this job does not get."""
        if self.hpctl.checkpoint_dir is None and self.hpctl.resume:
            self.notes.append(
                "no --checkpoint-dir: every restart begins at the script's beginning;"
                " --policy with `restarts: 0` leaves a job that crashes as it ended"
            )
        if self.restart.has_supervisor:
            return
        if not readable:
            self.notes.append(
                f"{self.body.name} is no sh script: why it ends is not read from its log"
            )
            return
        self.notes += list_unreadable_job_log_reasons(self._remove_exec_from_last_command())

    def submission(
        self, line: SbatchCommandLine, copy: BatchScript | None, *, registers: bool = False
    ) -> SbatchSubmission:
        """Return what comes out of it all. `registers`: the job is registered without a copy,
        too."""
        added = [*self.before, *self.after]
        registered = self.registration if registers or copy is not None else None
        if registered is not None:
            self._add_missing_restart_feature_notes(readable=copy is not None)
            fields = ", ".join(registered.fields()) or "its cluster's policy"
            self.notes.append(f"registered in the job's Comment: {fields}")
            comment = self.options.value("comment") or ""
            self.after.append(f"--comment={format_registration_comment(registered, comment)}")
            if comment:
                self.notes.append("your --comment stands after what hpctl registers there")
        wrap = [f"--wrap={line.given['wrap']}"] if copy is None and "wrap" in line.given else []
        notes = [f"added {' '.join(added)}", *self.notes] if added else self.notes
        directory, tiers = self.hpctl.checkpoint_dir, self.hpctl.tiers
        shared = [place for place in (directory, *tiers) if place and place.startswith("/")]
        if directory and self.hpctl.resume:
            also = f" or {', '.join(tiers)}" if tiers else ""
            notes.append(f"resumes from the last complete checkpoint in {directory}{also}")
            notes.append(describe_recognized_checkpoint_files(self.hpctl.checkpoint_files))
        return SbatchSubmission(
            options=(*self.before, *line.passed, *self.after, *wrap),
            copy=copy,
            notes=tuple(notes),
            warnings=tuple(self.warnings),
            bases=tuple(
                preamble.find_directory_prefix_without_placeholders(place) for place in shared
            ),
            registered=registered,
        )


def list_checkpoint_file_pattern_warnings(asked: ParsedHpctlOptions) -> Iterator[str]:
    """Yield where the files that --checkpoint-files declares are not looked for."""
    if not asked.checkpoint_files:
        return
    if asked.fast:
        yield (
            "--fast-dir does not copy the files that --checkpoint-files declares; save"
            " those to the checkpoint directory"
        )
    stored = [tier for tier in asked.tiers if tier.startswith("s3://")]
    if stored:
        yield (
            f"the files that --checkpoint-files declares are not looked for in {stored[0]}: a"
            " restart resumes from those in the checkpoint directory"
        )


def describe_recognized_checkpoint_files(declared: tuple[str, ...]) -> str:
    """Return what counts as a checkpoint, for the user."""
    known = (
        "PyTorch files that record their step or epoch, and saves of Lightning, HF Trainer,"
        " Accelerate, DCP, DeepSpeed, Megatron, Composer, torchtune, Orbax and Flax"
    )
    if not declared:
        return f"recognizes {known}; declare others with --checkpoint-files"
    return (
        f"recognizes {', '.join(declared)}, a step once it has as many files as the step before,"
        f" and {known}"
    )


def _get_integer_or_zero(value: object) -> int:
    return value if type(value) is int else 0


# The names that do not follow from the option's (sbatch(1), INPUT ENVIRONMENT VARIABLES).
_VARIABLES = {"array": "SBATCH_ARRAY_INX", "time": "SBATCH_TIMELIMIT"}
# Options that sbatch reads from no variable, whatever its name would be.
_NO_VARIABLE = frozenset({"comment", "nodes", "nodelist", "ntasks", "ntasks-per-node"})
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class EffectiveSbatchOptions:
    """sbatch's options from all three places, in sbatch's own order of precedence."""

    def __init__(
        self, line: SbatchCommandLine, script: BatchScript | None, environment: Mapping[str, str]
    ) -> None:
        self._line = line
        self._script = script
        self._environment = environment
        self.late = tuple(line.options_after_script)

    def value(self, option: str) -> str | None:
        """Return the value of an option (long name) that is obeyed, "" for a flag; None if not
        given."""
        if option in self._line.given:
            return self._line.given[option]
        variable = _VARIABLES.get(option, "SBATCH_" + option.upper().replace("-", "_"))
        if option not in _NO_VARIABLE and variable in self._environment:
            return self._environment[variable]
        return self._script.given.get(option) if self._script is not None else None

    def has(self, option: str) -> bool:
        """Return whether an option (long name) is given anywhere."""
        return self.value(option) is not None


def parse_node_range(text: str) -> tuple[int, int | None] | None:
    """Parse `--nodes` into least and most (None where only one number is given); None if it is
    neither."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if found is None:
        return None
    return int(found[1]), int(found[2]) if found[2] else None


def parse_time_limit_s(text: str) -> float | None:
    """Return `--time` in seconds; infinity for no limit, None for what is no time."""
    if text.strip().upper() in ("UNLIMITED", "INFINITE", "-1"):
        return float("inf")
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in found.groups())
    if found[1] is not None:  # days-hours[:minutes[:seconds]]
        return days * 86400.0 + first * 3600.0 + second * 60.0 + third
    if found[4] is not None:  # hours:minutes:seconds
        return first * 3600.0 + second * 60.0 + third
    return first * 60.0 + second  # minutes[:seconds]


def refuse_heterogeneous_job(line: SbatchCommandLine, script: BatchScript | None) -> None:
    """Refuse a heterogeneous job."""
    if line.het or (script is not None and script.het):
        raise HpctlError(
            "hpctl sbatch cannot submit a heterogeneous job: its --requeue and --comment would "
            "apply only to the first component",
            "Submit the job with sbatch and --requeue in every component, or as a job of one "
            "component.",
        )


def refuse_non_shell_script(script: BatchScript) -> None:
    """Refuse a script that shell lines cannot go into."""
    if script.shell in SHELLS:
        return
    if not script.shell:
        raise HpctlError(
            f"{script.name} has no #! line, so sbatch would reject the script",
            "Write #!/bin/sh as the script's first line.",
        )
    raise HpctlError(
        f"{script.name} is a {script.shell} script, but hpctl can add its lines only to an sh "
        "script",
        f"Submit a #!/bin/sh script whose last line runs {script.name}.",
    )


def validate_directory_placeholders(option: str, directory: str, *, array: bool) -> None:
    """Refuse placeholders that nothing fills in, and array tasks that would share a place."""
    used = preamble.list_placeholders(directory)
    for name in used:
        if name not in preamble.PLACEHOLDERS:
            near = difflib.get_close_matches(name, preamble.PLACEHOLDERS, n=1, cutoff=0.4)
            known = " and ".join(f"{{{each}}}" for each in preamble.PLACEHOLDERS)
            raise HpctlError(
                f"the checkpoint directory {directory} has the unknown placeholder {{{name}}}",
                f"Did you mean {{{near[0]}}}?" if near else f"Write {known}.",
            )
    if array and "array_task_id" not in used:
        raise HpctlError(
            f"the tasks of this array would share one checkpoint directory, {directory}",
            f"Give each its own: --{option} {directory}/{{array_task_id}}",
        )
    if not array and "array_task_id" in used:
        raise HpctlError(
            f"{directory} contains {{array_task_id}}, but the job is not a job array",
            "Submit with --array, or leave the placeholder out.",
        )


REPLACEMENT_S = 30 * 60.0
"""A HyperPod node is replaced in 20 to 30 minutes."""

_SUPERVISED = re.compile(r"\bhpctl['\"]?\s+run\b|\bsrun\b.*\s--resilient\b")
_LAUNCH = re.compile(r"(^|[\s;&|(])(srun|mpirun|mpiexec|torchrun|deepspeed|accelerate\s+launch)\s")
_RDZV = re.compile(
    r"(?:\b(?:MASTER_ADDR|head_node_ip|MASTER_HOST)=|--(?:rdzv[_-]endpoint|master[_-]addr)[=\s]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|]+)"
)
_SRUN_NODES = re.compile(
    r"\bsrun\b.*\s(?:-w\s*|--nodelist[=\s]\s*)(?P<value>[\"']?[A-Za-z0-9][^\s]*)"
)
_SUBMITS = re.compile(r"(?:^|[\s;&|(])(?<!hpctl )sbatch\s")
_SAYS = re.compile(r"(?:echo|printf)\s")
_STEP_EXPORT = re.compile(r"\bsrun\b.*\s--export[=\s]\s*[\"']?(?P<names>[^\s\"']+)")
_STEP_OUTPUT = re.compile(
    r"\bsrun\b.*\s(?:--output|--error|-o|-e)[=\s]|\bsrun\b.*[^&\d]\s*>>?\s*[^&\s]"
)
_AUTO_RESUME = re.compile(r"--auto-resume(?:[=\s]\s*)[\"']?1\b")
HANG_RULES = "HYPERPOD_HANG_RULES"
"""Names the rules of HyperPod's hung-job agent, which watches a job that has it."""
_HANG_RULES = re.compile(rf"\b{HANG_RULES}=[\"']?[^\s\"';]")
_HANG_AGENT = (
    f"{HANG_RULES} is set: HyperPod's hung-job agent may cancel this job, and a job that was"
    " cancelled is not run again; leave it out (`hpctl run` finds hangs, names the rank and"
    " restarts), or have its rules notify only"
)
_HIDDEN = re.compile(r"\|\|\s*(true|:|exit\s+0|echo\b[^;&|]*)\s*$")
_APART = re.compile(r"\$\([^()]*\)|`[^`]*`")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_PIPED = re.compile(r"[^|]\|&?\s*[^|\s]")
_ENDS_WELL = re.compile(
    r"(exit\s+0|true|:|set\s+\S+|(conda|source)\s+deactivate"
    r"|(echo|printf|date|sleep|rm|cp|mv|ls|cat|sync|touch|mkdir|hostname)(\s.*)?)$"
)
_STARTS = re.compile(
    r"(?:\w+=\S*\s+)*(?:srun|mpirun|mpiexec|torchrun|deepspeed|accelerate\s+launch|hpctl\s+run)\s"
)
_LOOKS = re.compile(r"\$\?|\|\||&&|&\s*$|\bwait\b|\bexit\s")
"""What takes an exit code into account, or runs a program next to others."""
_NO_END = re.compile(r"^(?:fi|done|esac|\}|\)|else|return|exit|wait|set|trap)\b|^[})]|[\"'`\\]$")
_PROGRAM = re.compile(
    r"(?:\w+=\S*\s+)*(?:exec|python[\d.]*|bash|sh|source|\.|time|timeout|env|nohup|singularity"
    r"|apptainer|docker|enroot|podman|uv|conda|poetry|make|julia|node|hpctl)\s|[\w./$\{-]*/|\S+\.sh\b|\$"
)
"""Commands that may be the job's own program."""
_STRICT = re.compile(r"^\s*set\s+(-[a-z]*e|-o\s+errexit|.*\s-o\s+errexit)", re.MULTILINE)
_PIPEFAIL = re.compile(r"^\s*set\s+.*\bpipefail\b", re.MULTILINE)


def has_hpctl_run_command(script: BatchScript | None) -> bool:
    """Return whether the script starts its program with `hpctl run`."""
    return script is not None and any(
        _SUPERVISED.search(text) for _, text in list_script_command_lines(script)
    )


def has_job_steps(script: BatchScript | None) -> bool:
    """Return whether the script starts job steps (or something else that does)."""
    return script is not None and any(
        _LAUNCH.search(text) for _, text in list_script_command_lines(script)
    )


def list_script_command_lines(script: BatchScript) -> Iterator[tuple[int, str]]:
    """Yield the lines with commands in them, after the leading comments: number and text,
    continuations joined, comments left out."""
    held, start = "", 0
    for number, raw in enumerate(script.lines[script.block :], start=script.block + 1):
        text = raw.strip()
        if not held:
            start = number
        if text.endswith("\\"):
            held += text[:-1] + " "
            continue
        text, held = (held + text).strip(), ""
        if text and not text.startswith("#"):
            yield start, text
    if held.strip():
        yield start, held.strip()


def list_batch_script_warnings(script: BatchScript) -> list[str]:
    """Return what the script's own lines would break."""
    lines = list(list_script_command_lines(script))
    found: list[tuple[int, str]] = []
    for number, text in lines:
        found += [(number, why) for why in _list_script_line_warnings(text, script)]
    found += _list_masked_exit_code_warnings(lines, script)
    return [f"{script.name}:{number}: {why}" for number, why in found]


def _list_script_line_warnings(text: str, script: BatchScript) -> Iterator[str]:
    yield from _list_fixed_host_name_warnings(text)
    if not _SAYS.match(text):
        yield from _list_conflicting_tool_warnings(text, script)
    text = _remove_quoted_text(text)
    if not (_LAUNCH.search(text) or _SUPERVISED.search(text)):
        return
    if _HIDDEN.search(text):
        yield "hides the exit code of what it starts: a crash would look like success"
    elif _PIPED.search(text) and not _PIPEFAIL.search(script.text):
        yield (
            "of a pipe the shell keeps the last command's exit code: a crash would look like"
            " success; add `set -o pipefail` or use --output"
        )


def _has_srun_export_all(names: str, script: str) -> bool:
    """Return whether the value of srun --export has ALL in it, or is a variable that the script
    does not set without."""
    variable = re.fullmatch(r"\$\{?(\w+)\}?", names)
    if variable is None:
        return "ALL" in names.split(",")
    values = re.findall(rf"\b{variable[1]}=[\"']?([^\s\"';]*)", script)
    return not values or any("ALL" in value.split(",") for value in values)


def _list_fixed_host_name_warnings(text: str) -> Iterator[str]:
    """Yield a warning of a line that names one machine."""
    pinned = _RDZV.search(text)
    if pinned and (host := _parse_literal_host_name(pinned["value"])):
        yield (
            f"the rendezvous is pinned to {host}, which may be the node that is lost; take the"
            " first of the nodes that the job has: $(scontrol show hostnames | head -n 1)"
        )
    pinned = _SRUN_NODES.search(text)
    if pinned and (host := _parse_literal_host_name(pinned["value"])):
        yield f"this step is pinned to {host}, which may be the node that is lost; leave -w out"


def _list_conflicting_tool_warnings(text: str, script: BatchScript) -> Iterator[str]:
    """Yield warnings of a line that has another tool act on the job, or keeps the program from what
    it needs."""
    if _AUTO_RESUME.search(text):
        yield (
            "--auto-resume=1 is HyperPod's own: it would replace nodes and requeue the job while"
            " hpctl does the same; leave it out"
        )
    if _HANG_RULES.search(text):
        yield _HANG_AGENT
    exported = _STEP_EXPORT.search(text)
    if exported and not _has_srun_export_all(exported["names"], script.text):
        yield (
            "srun --export without ALL keeps HPCTL_RESUME_FROM and the job's other variables from"
            " the program; add ALL"
        )
    if _SUBMITS.search(_remove_quoted_text(text)):
        yield (
            "sbatch submits a job that does not register with hpctl, and a restart of this job"
            " submits it once more; write hpctl sbatch, and submit only where"
            " HPCTL_RESTART_COUNT is 0"
        )


def _remove_quoted_text(text: str) -> str:
    """Return a line without what is a word to the shell, or runs apart: that has no say in its exit
    code."""
    return _QUOTED.sub("_", _APART.sub("_", text))


def _parse_literal_host_name(value: str) -> str:
    """Return the host that a value names, "" where it is computed or this very machine."""
    host = value.strip("\"'").partition(":")[0]
    if re.search(r"[$`(]", value) or host in ("", "localhost", "127.0.0.1", "0.0.0.0"):  # noqa: S104
        return ""
    return host


def _list_masked_exit_code_warnings(
    lines: list[tuple[int, str]], script: BatchScript
) -> Iterator[tuple[int, str]]:
    """Yield a warning of an ending that turns every failure before it into exit code 0."""
    if not any(_LAUNCH.search(text) or _SUPERVISED.search(text) for _, text in lines):
        return
    number, last = lines[-1]
    background = sum(bool(re.search(r"[^&]&\s*$", text)) for _, text in lines)
    if last == "wait" and background > 1:
        yield (
            number,
            "`wait` alone waits for all programs and ends with 0: one that crashes neither ends nor"
            " fails the job while others run; write `wait -n; exit $?` to end with the first",
        )
    elif last == "wait" and background:
        yield number, "`wait` alone ends with 0 whatever it waited for; write `wait $pid`"
    strict = _STRICT.search(script.text) or re.search(r"^#!.*\s-[a-z]*e", script.lines[0])
    if strict or _LAUNCH.search(last):
        return
    if _ENDS_WELL.match(last) or _is_program_exit_code_masked(lines, script):
        yield (
            number,
            f"the script ends with `{last[:40]}`, which hides the exit code of what it"
            " started: a crash would look like success; add `set -e` at the top",
        )


def _is_program_exit_code_masked(lines: list[tuple[int, str]], script: BatchScript) -> bool:
    """Return whether the last command is a separate one, after the program, that looks at no exit
    code.

    A program, a script or a function of the script may be what the job is about: those do not
    count, nor the end of a compound command, a text for a program, or a quote.
    """
    last = lines[-1][1]
    if "<<" in script.text or _NO_END.search(last) or _PROGRAM.match(last):
        return False
    word = re.split(r"[\s;]", last, maxsplit=1)[0]
    if re.search(rf"^\s*(?:function\s+)?{re.escape(word)}\s*\(\)", script.text, re.MULTILINE):
        return False
    launched = [at for at, (_, text) in enumerate(lines) if _STARTS.match(text)]
    if not launched:
        return False
    after = [text for _, text in lines[launched[-1] :]]
    return not any(_LOOKS.search(text) for text in after)


_EXEC = re.compile(
    r"^exec\s+(?=(?:srun|mpirun|mpiexec|torchrun|deepspeed|accelerate|python[\d.]*)\s)"
)
_EXIT_TRAP = re.compile(r"^trap\s+(?!-\s).*\s(?:EXIT|0)\b")


def find_final_exec_line_number(script: BatchScript) -> int:
    """Return the line of an `exec` of a program that ends the script, 0 where there is none.

    Only at a line's beginning and with all its quotes closed: what is quoted runs elsewhere.
    """
    lines = list(list_script_command_lines(script))
    if not lines:
        return 0
    number, text = lines[-1]
    if not _EXEC.match(script.lines[number - 1]):
        return 0
    words = _split_command_words(text)
    return number if words and words[-1] != "&" else 0


def _split_command_words(text: str) -> list[str]:
    """Return the words of a command; none where a quote in it is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def list_unreadable_job_log_reasons(script: BatchScript) -> list[str]:
    """Return what keeps hpctl from reading in the job's log why a run ended."""
    found: list[str] = []
    for number, text in list_script_command_lines(script):
        where = f"{script.name}:{number}"
        if _STEP_OUTPUT.search(_remove_quoted_text(text)):
            found.append(
                f"{where}: this step writes to separate files, which are not read: of a program"
                " that fails, rank, node and exit code are reported, and no exception"
            )
        if _EXEC.match(text) and _split_command_words(text):
            found.append(
                f"{where}: `exec` replaces the shell, so why this program ends is not read from the"
                " log; leave exec out"
            )
        elif _EXIT_TRAP.match(text):
            found.append(
                f"{where}: this EXIT trap replaces hpctl's, so why the run ends is not read from"
                " the log"
            )
    return found


_JOB_ID = re.compile(r"%\d*[AjJ]")


def list_job_log_directories(options: EffectiveSbatchOptions, cwd: str) -> list[tuple[str, str]]:
    """Return the directories of --output and --error: option and path, as far as it can exist.

    A directory with the job's id in its name does not exist before the job does; other patterns are
    left out.
    """
    base = os.path.join(cwd, options.value("chdir") or "")
    found: list[tuple[str, str]] = []
    for option in ("output", "error"):
        value = options.value(option)
        parent = os.path.dirname(value) if value else ""
        if not parent:
            continue
        kept: list[str] = []
        for part in parent.split("/"):
            if "%" in part and not _JOB_ID.search(part):
                break
            kept.append(part)
        found.append((option, os.path.normpath(os.path.join(base, "/".join(kept) or "/"))))
    return found


def list_option_warnings(
    options: EffectiveSbatchOptions, spares: int, *, resumes: bool
) -> list[str]:
    """Return what the options to sbatch would break."""
    found: list[str] = []
    if options.has("no-requeue"):
        found.append(
            "--no-requeue is set: neither Slurm nor hpctl can run this job again; leave it out"
        )
    if options.value("requeue") == "expedite":
        found.append(
            "--requeue=expedite: Slurm holds this job when its program fails, and hpctl starts no"
            " held job; leave it out (hpctl adds --requeue, and starts the job at once where a node"
            " is lost)"
        )
    if (options.value("open-mode") or "").startswith("t"):
        found.append(
            "--open-mode=truncate: each start wipes the log of the run that was lost;"
            " leave it out (hpctl adds append)"
        )
    if options.has("no-kill") and options.value("no-kill") != "off" and not spares:
        found.append(
            "--no-kill without --spares: Slurm no longer requeues this job when a node fails;"
            " leave it out, or add --spares K"
        )
    pinned = options.value("nodelist") or options.value("nodefile")
    if pinned:
        found.append(
            f"the job is pinned to {pinned}: without one of them it cannot start again;"
            " leave --nodelist out, or use --constraint or --partition"
        )
    limit = parse_time_limit_s(options.value("time") or "")
    if resumes and limit is not None and limit < REPLACEMENT_S and not spares:
        found.append(
            f"--time={options.value('time')} is shorter than a node's replacement"
            f" ({REPLACEMENT_S / 60:g} min): where no spare node is idle, the job may end before"
            " a replacement arrives; allow more, or add --spares K"
        )
    return found


def list_resume_from_scratch_warnings(
    export: str | None, environment: Mapping[str, str]
) -> list[str]:
    """HPCTL_RESUME=scratch, which stays in the job's environment. `export` is sbatch's."""
    if _find_exported_variable_value("HPCTL_RESUME", export, environment) != "scratch":
        return []
    return [
        "HPCTL_RESUME=scratch holds for every start of this job: after a fault it starts over too,"
        " whatever it has saved by then; give an empty --checkpoint-dir instead"
    ]


def list_hung_job_rule_warnings(export: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return warnings of rules for HyperPod's hung-job agent in the job's environment. `export` is
    sbatch's."""
    return [_HANG_AGENT] if _find_exported_variable_value(HANG_RULES, export, environment) else []


def _find_exported_variable_value(
    name: str, export: str | None, environment: Mapping[str, str]
) -> str:
    """Return what a variable is in the job's environment; "" where it has none."""
    entries = (export or "ALL").split(",")
    values = [entry.partition("=")[2] for entry in entries if entry.startswith(f"{name}=")]
    if {"ALL", name} & set(entries):
        values.append(environment.get(name, ""))
    return values[0] if values else ""


def list_checkpoint_storage_warnings(
    directory: str, filesystem: str, tiers: tuple[str, ...]
) -> list[str]:
    """Return warnings of places for checkpoints that other nodes cannot read.

    `filesystem` is the type of the one that the checkpoint directory is on, "" where unknown.
    """
    found: list[str] = []
    if f"local:{directory}" not in tiers and (
        why := explain_why_directory_is_unshared(directory, filesystem)
    ):
        found.append(
            f"{directory} {why}: other nodes would find no checkpoint there;"
            " share it, or name it with --tier local:DIR beside a shared one"
        )
    found += [
        f"--tier {tier} {why}: say --tier local:{tier}"
        for tier in tiers
        if tier.startswith("/") and (why := explain_why_directory_is_unshared(tier, ""))
    ]
    return found
