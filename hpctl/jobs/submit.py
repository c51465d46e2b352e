"""What `hpctl sbatch` submits: decided here from values, without touching the world."""

from msgspec import Struct
from msgspec.structs import replace

from hpctl.errors import HpctlError
from hpctl.jobs import job_comment, preamble, submit_checks
from hpctl.jobs.job_comment import JobRegistration
from hpctl.jobs.sbatch_options import SAVE_BEFORE_S, BatchScript, CommandLine, HpctlOptions, wrapped
from hpctl.jobs.submit_checks import EffectiveOptions, node_range
from hpctl.jobs.submit_context import SubmitContext


class Submission(Struct, frozen=True):
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
        """The changed script."""
        return None if self.copy is None else self.copy.text


def plan(
    line: CommandLine, script: BatchScript | None, hpctl: HpctlOptions, context: SubmitContext
) -> Submission:
    """Decide. `script` is None for `--wrap`. Raises HpctlError for what cannot be made resumable.

    Options that hpctl adds stand before the user's, because of two sbatch obeys the later one;
    those that replace the user's (nodes, comment) stand after.
    """
    options = EffectiveOptions(line, script, context.environment)
    submit_checks.refuse_heterogeneous(line, script)
    body = script if script is not None else wrapped(line.given["wrap"])
    draft = _Draft(options, hpctl, context, body)
    draft.requeue()
    if script is None and line.script is not None:
        return draft.submission(line, None)  # --wrap and a script: sbatch refuses it
    draft.spare_nodes()
    draft.signal()
    draft.examine()
    if not draft.registration.fields():
        draft.notes.append("no --checkpoint-dir: a requeued run starts at the script's beginning")
        return draft.submission(line, None)
    submit_checks.refuse_non_shell(body)
    places = [("tier", tier) for tier in hpctl.tiers]
    if hpctl.checkpoint_dir is not None:
        places.insert(0, ("checkpoint-dir", hpctl.checkpoint_dir))
    for option, place in places:
        submit_checks.check_placeholders(option, place, array=options.has("array"))
    return draft.submission(line, draft.rewritten())


class _Draft:
    """A submission in the making."""

    def __init__(
        self,
        options: EffectiveOptions,
        hpctl: HpctlOptions,
        context: SubmitContext,
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
        self.supervised = submit_checks.supervised(body)
        self.spares = hpctl.spares if hpctl.spares is not None else _number(spares)

    def requeue(self) -> None:
        """Requeue and open-mode, unless the user spoke."""
        if not self.options.has("no-requeue") and not self.options.has("requeue"):
            self.before.append("--requeue=expedite" if self.context.expedite else "--requeue")
        if not self.options.has("open-mode"):
            self.before.append("--open-mode=append")

    def spare_nodes(self) -> None:
        """K nodes more, and a job that outlives the loss of one."""
        asked = node_range(self.options.value("nodes") or "")
        if asked is not None and asked[1] is not None and self.registration.fields():
            # What the job may run on is what it asked of Slurm, unless its policy is narrower.
            self.policy.setdefault("nodes", f"{asked[0]}-{asked[1]}")
        if not self.spares:
            return
        if asked is None:
            raise HpctlError(
                "--spares needs a number of nodes to add to",
                "Say how many the program itself runs on: --nodes N.",
            )
        least, most = asked[0] + self.spares, None if asked[1] is None else asked[1] + self.spares
        tasks = self.options.value("ntasks")
        if tasks is not None and tasks.isdigit() and int(tasks) < least:
            raise HpctlError(
                f"--ntasks={tasks} on {least} nodes: sbatch would take the spares away again",
                "Say --ntasks-per-node instead of --ntasks.",
            )
        if totals := [name for name in ("ntasks", "gpus") if self.options.has(name)]:
            self.warnings.append(
                f"--{totals[0]} is a total: it does not say what a spare node must have room for;"
                f" say --{totals[0]}-per-node"
            )
        if self.options.value("no-kill") == "off":
            raise HpctlError(
                "--spares with --no-kill=off: the first lost node would end the job",
                "Leave --no-kill out; hpctl sets it.",
            )
        self.after.append(f"--nodes={least}" + (f"-{most}" if most is not None else ""))
        if not self.options.has("no-kill"):
            self.after.append("--no-kill")

    def signal(self) -> None:
        """A request to save before the time limit, to whoever can do something with it.

        `hpctl run` gets it in the batch shell and passes it on (B:). Without it the steps get it
        from slurmstepd, because a shell that waits for srun does nothing with a signal; a program
        that the script itself becomes (exec) gets it as the batch shell.
        """
        save = self.hpctl.save_signal
        if self.options.has("signal"):
            if save is not None:
                raise HpctlError(
                    "--save-signal and --signal both ask for a signal before the time limit",
                    "Leave --signal out.",
                )
            return
        if self.supervised:
            seconds = save.seconds if save else SAVE_BEFORE_S
            if save is not None or self.options.has("time"):
                self.before.append(f"--signal=B:USR1@{seconds}")
        elif save is not None:
            shell = "" if submit_checks.launches(self.body) else "B:"
            self.before.append(f"--signal={shell}{save.name}@{save.seconds}")
        elif self.options.has("time") and self.hpctl.checkpoint_dir is not None:
            self.notes.append(
                "nobody asks for a save before the time limit: if your program saves at a signal,"
                f" say --save-signal USR1@{SAVE_BEFORE_S}"
            )

    def examine(self) -> None:
        """Warnings about the options, the script and the checkpoint directory."""
        directory = self.hpctl.checkpoint_dir
        self.warnings += submit_checks.option_warnings(
            self.options, self.spares, resumes=directory is not None
        )
        self.warnings += submit_checks.script_warnings(self.body)
        self.warnings += [
            f"{self.body.name}:{number}: #HPCTL after the first command is not read: move it up"
            for number in self.body.late
        ]
        export = self.options.value("export")
        self.warnings += submit_checks.hang_rule_warnings(export, self.context.environment)
        if directory is not None:
            self.warnings += submit_checks.scratch_warnings(export, self.context.environment)
            self.warnings += submit_checks.storage_warnings(
                directory, self.context.filesystem, self.hpctl.tiers
            )
            self.warnings += [self.context.unknown] if self.context.unknown else []
        elif self.hpctl.tiers:
            raise HpctlError(
                "--tier names further places beside the checkpoint directory, and there is none",
                "Add --checkpoint-dir DIR, on storage that the nodes share.",
            )
        if self.spares and not self.supervised:
            self.warnings.append(
                f"srun takes all nodes, the {self.spares} spare too, and one lost node ends the"
                f" step: start the program with `hpctl run --spares {self.spares} -- ...`"
            )

    @property
    def registration(self) -> JobRegistration:
        """What is registered; without any field the job is one of plain sbatch's."""
        save = self.hpctl.save_signal
        return JobRegistration(
            ckpt=self.hpctl.checkpoint_dir or "",
            tiers=self.hpctl.tiers,
            policy=self.policy,
            spares=self.spares,
            save_signal=save.name if save else "",
            supervised=self.supervised,
            preflight=self.hpctl.preflight,
            fast=self.hpctl.fast,
        )

    def rewritten(self) -> BatchScript:
        """The script with the preamble in it."""
        text = preamble.render(self.context.runtime, self.registration, resume=self.hpctl.resume)
        lines = tuple(self.body.with_inserted(text).splitlines(keepends=True))
        return replace(self.body, lines=lines)

    def submission(self, line: CommandLine, copy: BatchScript | None) -> Submission:
        """What comes out of it all."""
        added = [*self.before, *self.after]
        registered = self.registration if copy is not None else None
        if registered is not None:
            self.notes.append(f"registered in the job's Comment: {', '.join(registered.fields())}")
            comment = self.options.value("comment") or ""
            self.after.append(f"--comment={job_comment.encode(registered, comment)}")
            if comment:
                self.notes.append("your --comment stands after what hpctl registers there")
        wrap = [f"--wrap={line.given['wrap']}"] if copy is None and "wrap" in line.given else []
        notes = [f"added {' '.join(added)}", *self.notes] if added else self.notes
        directory, tiers = self.hpctl.checkpoint_dir, self.hpctl.tiers
        shared = [place for place in (directory, *tiers) if place and place.startswith("/")]
        if directory and self.hpctl.resume:
            also = f" or {', '.join(tiers)}" if tiers else ""
            notes.append(f"resumes from the last complete checkpoint in {directory}{also}")
        return Submission(
            options=(*self.before, *line.passed, *self.after, *wrap),
            copy=copy,
            notes=tuple(notes),
            warnings=tuple(self.warnings),
            bases=tuple(preamble.base(place) for place in shared),
            registered=registered,
        )


def _number(value: object) -> int:
    return value if type(value) is int else 0
