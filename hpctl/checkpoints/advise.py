"""`hpctl checkpoint advise`: how often to save, from measured costs and the cluster's failures."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import click
from msgspec import Struct

from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.checkpoints.save_interval import (
    DAY_S,
    FailureRate,
    MeasuredSaves,
    compute_daly_interval,
    compute_effective_training_time_ratio,
    compute_failure_rate,
    find_median,
    measure_checkpoint_save_timings,
)
from hpctl.engine import config_loading
from hpctl.engine.world_offline import replay_journal_events
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType, complete_file_path
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.declared_view import (
    BREAK,
    ItemTextLines,
    JsonOnly,
    LabeledValueRow,
    LabeledValueTable,
    Layout,
    RepeatedLayoutParts,
    TextLine,
)
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary import job_recovery
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment
from hpctl.vocabulary.slurm_facts import SlurmJob

RESTART_S = 300.0
"""The default where no restart was recorded: requeue, start of the program and loading."""


class SaveIntervalView(Struct, frozen=True):
    """One interval of the table. `ratio`: the effective training time ratio."""

    interval_s: float
    steps: int | None
    ratio: float


def _format_step_count(steps: int | None) -> str:
    return "" if steps is None else f" ({steps} step{'s' * (steps != 1)})"


def _format_interval(seconds: float, steps: int | None, ratio: float) -> str:
    return f"{format_duration(seconds)}{_format_step_count(steps)}: {ratio:.2%} effective"


class AdviceView(Struct, frozen=True):
    """What `hpctl checkpoint advise` shows; docs/checkpoints.md describes each field."""

    directory: str
    formats: tuple[str, ...]
    checkpoints: int
    nodes: int
    save_s: float
    save_from: str
    restart_s: float
    restart_from: str
    failures: int | None
    node_days: float | None
    failures_per_1000_node_days: float | None
    failures_from: str
    mtbf_s: float
    interval_s: float
    interval_steps: int | None
    ratio: float
    now_s: float | None
    now_steps: int | None
    now_ratio: float | None
    table: tuple[SaveIntervalView, ...]
    notes: tuple[str, ...]

    layout: ClassVar[Layout] = (
        LabeledValueTable(
            (
                LabeledValueRow("checkpoints", "{checkpoints} whole in {directory}{format_names}"),
                LabeledValueRow("save", lambda v: f"{format_duration(v.save_s)}, {v.save_from}"),
                LabeledValueRow(
                    "restart", lambda v: f"{format_duration(v.restart_s)}, {v.restart_from}"
                ),
                LabeledValueRow("failures", "failures_from"),
                LabeledValueRow("job", "{nodes_text}: a failure every {mtbf}"),
                BREAK,
                LabeledValueRow("save every", "best"),
                LabeledValueRow("now", "now"),
            )
        ),
        TextLine("            INTERVAL      LOST TIME", gap=True),
        ItemTextLines("interval_lines"),
        RepeatedLayoutParts("notes", (TextLine("{}", gap=True),)),
    )
    json_only: ClassVar[JsonOnly] = ("failures", "node_days", "failures_per_1000_node_days")

    @property
    def format_names(self) -> str:
        """Return the formats of the checkpoints, in parentheses."""
        return f" ({', '.join(self.formats)})" if self.formats else ""

    @property
    def nodes_text(self) -> str:
        """Return `2 nodes`."""
        return f"{self.nodes} node{'' if self.nodes == 1 else 's'}"

    @property
    def mtbf(self) -> str:
        """Return the mean time between failures of the job."""
        return format_duration(self.mtbf_s)

    @property
    def best(self) -> str:
        """Return the interval that loses the least time."""
        return _format_interval(self.interval_s, self.interval_steps, self.ratio)

    @property
    def now(self) -> str:
        """Return the interval that the job has now; empty where it is not known."""
        if self.now_s is None or self.now_ratio is None:
            return ""
        return _format_interval(self.now_s, self.now_steps, self.now_ratio)

    @property
    def interval_lines(self) -> list[str]:
        """Return half the best interval, the best and its double, with the time that each loses."""
        return [
            f"{name:<10}  {format_duration(row.interval_s):<12}  {1 - row.ratio:.2%}"
            for name, row in zip(("half", "best", "double"), self.table, strict=True)
        ]


@click.command()
@click.argument("target", metavar="JOB|DIR", shell_complete=complete_file_path)
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes of the job. JOB knows its own.")
@click.option(
    "--save-cost",
    "save_s",
    type=DurationType("0.01s"),
    help="For how long a save stops the training.",
)
@click.option(
    "--restart-cost",
    "restart_s",
    type=DurationType("0.01s"),
    help="From a failure to the first new step.",
)
@click.option(
    "--mtbf",
    "mtbf_s",
    type=DurationType("0.01s"),
    help="Of the whole job, instead of the history's.",
)
@click.option(
    "--last",
    "newest",
    type=click.IntRange(2, 1000),
    default=8,
    show_default=True,
    help="How many of the newest complete checkpoints to measure.",
)
@output.json_option
@output.config_option
def advise(config: str, as_json: bool, **asked: Any) -> None:
    """Say how often to save.

    The cost of a save and the present interval come from the files of the whole checkpoints in
    DIR, or in the directory that JOB was submitted with; failures and restarts from the journal.
    Where nothing is known, published numbers are taken, and the answer says so.
    """
    view = compute_save_interval_advice(
        SaveAdviceRequest(**asked), config, output.get_current_utc_time()
    )
    output.show_view("advise", view, as_json)


class SaveAdviceRequest(Struct, frozen=True):
    """The command line. None: to be measured."""

    target: str
    nodes: int | None
    save_s: float | None
    restart_s: float | None
    mtbf_s: float | None
    newest: int


class NodeFailureHistory(Struct, frozen=True):
    """The journal's record: since when, failures of nodes, and how long restarts took."""

    since: datetime | None = None
    nodes: int = 0
    failures: int = 0
    restarts_s: tuple[float, ...] = ()
    missing: str = ""
    """Why there is no history, as a text to print."""

    def rate(self, now: datetime) -> FailureRate:
        """Return failures of a node per day. Without a history: the published rate."""
        if self.since is None:
            return compute_failure_rate(0, 0.0)
        return compute_failure_rate(
            self.failures, self.nodes * (now - self.since).total_seconds() / DAY_S
        )


def compute_save_interval_advice(
    asked: SaveAdviceRequest, config: str, now: datetime
) -> AdviceView:
    """Return the advice. Raises HpctlError and click.UsageError where a number is missing; the
    error names the option that gives it."""
    directory, nodes, registered = _resolve_job_directory(asked, config)
    saves = _measure_directory_saves(directory, asked.newest, registered.files)
    save_s, save_from = _choose_save_cost(asked, saves)
    history = _read_failure_history(config)
    restart_s, restart_from = _choose_restart_cost(asked, history)
    known = history.rate(now)
    mtbf = asked.mtbf_s
    if mtbf is None:
        mtbf = DAY_S / (known.per_node_day * nodes)
    apart, step_s = saves.save_interval_s, saves.step_s

    def assess_interval(interval_s: float) -> SaveIntervalView:
        ratio = compute_effective_training_time_ratio(interval_s, save_s, restart_s, mtbf)
        steps = None if step_s is None else max(1, round(interval_s / step_s))
        return SaveIntervalView(_round_to_three_digits(interval_s), steps, round(ratio, 5))

    best = compute_daly_interval(save_s, mtbf)
    now_at = None if apart is None else assess_interval(max(apart - save_s, 1e-3))
    return AdviceView(
        directory=str(directory),
        formats=saves.formats,
        checkpoints=len(saves.saves),
        nodes=nodes,
        save_s=_round_to_three_digits(save_s),
        save_from=save_from,
        restart_s=_round_to_three_digits(restart_s),
        restart_from=restart_from,
        **_make_failure_fields(asked, known, history),
        mtbf_s=round(mtbf),
        interval_s=_round_to_three_digits(best),
        interval_steps=assess_interval(best).steps,
        ratio=assess_interval(best).ratio,
        now_s=None if now_at is None else now_at.interval_s,
        now_steps=None if apart is None else assess_interval(apart).steps,
        now_ratio=None if now_at is None else now_at.ratio,
        table=tuple(assess_interval(best * times) for times in (0.5, 1, 2)),
        notes=(
            *_list_fast_save_notes(registered.fast),
            *_collect_advice_notes(asked, known, history),
        ),
    )


def _resolve_job_directory(
    asked: SaveAdviceRequest, config: str
) -> tuple[Path, int, JobRegistration]:
    """Return the directory, how many nodes the job has, and how it was registered."""
    if not asked.target.isdecimal() or Path(asked.target).is_dir():
        if asked.nodes is None:
            raise click.UsageError(
                "cannot advise how often to save: the number of nodes is not given; add --nodes "
                "N, or name a JOB"
            )
        return Path(asked.target).absolute(), asked.nodes, JobRegistration()
    directory, registered = find_checkpoint_directory(asked.target, config)
    nodes = asked.nodes or len(_find_slurm_job(config, asked.target).nodes)
    if not nodes:
        raise click.UsageError(
            f"cannot advise how often to save: job {asked.target} has no nodes yet; add --nodes N"
        )
    return Path(directory), nodes, registered


def find_checkpoint_directory(job: str, config: str) -> tuple[str, JobRegistration]:
    """Return where a job's checkpoints are, and how it was registered. Raises HpctlError."""
    registered = parse_registration_comment(_find_slurm_job(config, job).comment)
    directory = registered.ckpt.replace("{job_id}", job) if registered else ""
    if registered is None or not directory or "{" in directory:
        raise HpctlError(
            f"hpctl does not know where job {job} saves its checkpoints: it was submitted without "
            "--checkpoint-dir",
            "Name the checkpoint directory instead of the job.",
        )
    return directory, registered


def _find_slurm_job(config: str, wanted: str) -> SlurmJob:
    from hpctl.engine.adapters import make_slurm_command_client
    from hpctl.engine.config import Config

    # On a login node there is no configuration; the commands are on PATH there.
    loaded = config_loading.load_config(config) if Path(config).exists() else Config()
    job = make_slurm_command_client(loaded).view().jobs.get(JobId(parse_count(wanted)))
    if job is None:
        raise HpctlError(
            f"Slurm does not know job {wanted}",
            "Check the job id with `squeue`, or name the job's checkpoint directory instead.",
        )
    return job


def _measure_directory_saves(directory: Path, newest: int, files: tuple[str, ...]) -> MeasuredSaves:
    try:
        return measure_checkpoint_save_timings(
            directory, newest, parse_checkpoint_file_patterns(files)
        )
    except OSError as error:
        raise ServiceUnavailable(
            f"cannot read the checkpoint directory {directory}: {error.strerror or error}",
            "check that the directory is mounted on this machine and that you may read it",
        ) from error


def _choose_save_cost(asked: SaveAdviceRequest, saves: MeasuredSaves) -> tuple[float, str]:
    if asked.save_s is not None:
        return asked.save_s, "as given (--save-cost)"
    reported = find_median(saves.reported_s)
    if reported is not None:
        count = len(saves.reported_s)
        return max(reported, 0.01), f"median of {count} as the program reported to hpctl run"
    measured = saves.save_s
    if measured is None:
        why = "each is a single file" if saves.saves else "there is no complete checkpoint"
        raise click.UsageError(
            f"cannot measure how long a save takes in {saves.directory} ({why}): give the time "
            "with --save-cost"
        )
    count = sum(save.files > 1 for save in saves.saves)
    how = f"median of {count} by their files' times" if count > 1 else "by its files' times"
    # A tick of the file times: a save that fits into one still has a cost.
    return max(measured, 0.01), how


def _read_failure_history(config: str) -> NodeFailureHistory:
    from hpctl.engine.adapters import open_journal_reader

    if not Path(config).exists():
        return NodeFailureHistory(missing=f"this host has no {config}")
    try:
        with closing(open_journal_reader(config_loading.load_config(config))) as store:
            events, health = list(store.events(past=True)), store.health()
    except HpctlError as error:
        return NodeFailureHistory(missing=str(error).splitlines()[0])
    if not events:
        return NodeFailureHistory(missing="the journal is empty")
    state = replay_journal_events(events)
    restarts_s: list[float] = []
    for job in state.jobs.values():
        runs = [
            move.at
            for move in job.trail
            if move.signal == job_recovery.JobRecoverySignal.RUNNING_SEEN
        ]
        restarts_s += [(at - job.opened).total_seconds() for at in runs]
    return NodeFailureHistory(
        since=events[0].at,
        nodes=max(len(health), len({node.node for node in state.nodes.values()})),
        # An operator's own order is not a failure; one that waits for the jobs to end costs
        # nothing.
        failures=sum(n.urgency is Urgency.NOW and not n.by for n in state.nodes.values()),
        restarts_s=tuple(restarts_s),
    )


def _choose_restart_cost(
    asked: SaveAdviceRequest, history: NodeFailureHistory
) -> tuple[float, str]:
    if asked.restart_s is not None:
        return asked.restart_s, "as given (--restart-cost)"
    seen = find_median(history.restarts_s)
    if seen is None:
        return RESTART_S, "assumed: no restart was seen yet (--restart-cost says better)"
    count = len(history.restarts_s)
    how = f"median of {count} restarts" if count > 1 else "the one restart seen"
    return seen, f"{how}, without the program's own start and loading"


def _make_failure_fields(
    asked: SaveAdviceRequest, known: FailureRate, history: NodeFailureHistory
) -> dict[str, Any]:
    """Return the view's fields about failures. They are empty where the MTBF was given."""
    given = asked.mtbf_s is not None
    seen = not given and history.since is not None
    return {
        "failures": known.failures if seen else None,
        "node_days": round(known.node_days, 1) if seen else None,
        "failures_per_1000_node_days": None
        if given
        else _round_to_three_digits(known.per_node_day * 1000),
        "failures_from": "as given (--mtbf)" if given else _describe_failure_rate(known, history),
    }


def _describe_failure_rate(known: FailureRate, history: NodeFailureHistory) -> str:
    each = f"{known.per_node_day * 1000:.2f} per 1000 node-days"
    if history.since is None:
        return f"{each}, published"
    return f"{known.failures} in {known.node_days:.1f} node-days: {each}"


def _list_fast_save_notes(fast: FastCheckpointSaveOptions | None) -> tuple[str, ...]:
    if fast is None:
        return ()
    partners = "its partner" if fast.replicas == 1 else "both its partners"
    return (
        f"The job saves to its nodes ({fast.dir}) too: the checkpoints above are flushes, every"
        f" {format_duration(fast.flush_s)}. A node's loss costs the work since the newest save that"
        f" `hpctl checkpoint ls --job` shows as complete; that of a node with {partners}, on"
        f" average half a flush interval, {format_duration(fast.flush_s / 2)}.",
    )


def _collect_advice_notes(
    asked: SaveAdviceRequest, known: FailureRate, history: NodeFailureHistory
) -> tuple[str, ...]:
    notes = []
    if asked.mtbf_s is None and history.missing:
        notes.append(
            f"This cluster's failures are not known ({history.missing}): the published rate of"
            " 6.50 per 1000 node-days is taken (Meta RSC-1, arXiv 2410.21680)."
        )
    elif asked.mtbf_s is None and known.has_few_failures:
        notes.append(
            "That is few failures: the published 6.50 per 1000 node-days (Meta RSC-1, arXiv"
            " 2410.21680) is mixed in with the weight of one failure."
        )
    if asked.save_s is None:
        notes.append(
            "Files' times show how long the writing took. A program that saves in the background"
            " stops for less: say --save-cost, and save more often."
        )
    return tuple(notes)


def _round_to_three_digits(value: float) -> float:
    """Round to three digits, which is more precision than such an estimate has."""
    return float(f"{value:.3g}")
