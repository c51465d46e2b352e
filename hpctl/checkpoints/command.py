"""`hpctl checkpoint ls|verify|last`: what the files prove."""

import os
import re
import sys
from collections.abc import Callable
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from msgspec import Struct

from hpctl.checkpoints import files, hpctl_checkpoint, search
from hpctl.checkpoints.files import Place, RemotePath
from hpctl.checkpoints.marks import CheckpointMarkFile
from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.checkpoints.remote import open_local_or_s3_checkpoint_path
from hpctl.checkpoints.resume import (
    count_tasks_per_job_step,
    find_newest_complete_checkpoint,
    load_usable_fast_save_spec,
    read_declared_patterns,
)
from hpctl.checkpoints.search import CompleteCheckpoint, SkippedCheckpoint
from hpctl.toolkit import output
from hpctl.toolkit.arguments import complete_file_path
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.toolkit.progress_bar import show_transfer_progress

F = TypeVar("F", bound=Callable[..., Any])
_EXIT_CODES = {"found": 0, "none": 1, "incomplete": 1, "unreadable": 3}


SKIP_ASKED = "HPCTL_EXPORT_SKIP"
"""Set by the preamble of a job that reads `skip 20:22 found PATH`; one of an earlier release does
not."""


class S3StorageOptions(Struct, frozen=True):
    """How to reach S3, as elsewhere with AWS."""

    profile: str | None
    region: str | None
    endpoint_url: str | None

    def place(self, text: str) -> Place:
        """Return a directory, or a prefix of S3. Raises OSError where no client can be made."""
        if re.match(r"s3:(/?[^/]|$)", text):
            right = "s3://" + text.removeprefix("s3:").lstrip("/")
            raise click.UsageError(f"{text} is not an S3 URL: did you mean {right}?")
        return open_local_or_s3_checkpoint_path(
            text, profile=self.profile, region=self.region, endpoint_url=self.endpoint_url
        )


def _add_search_options(command: F) -> F:
    """Add the options of a command that searches checkpoints."""
    for option in (
        click.option("--endpoint-url", metavar="URL", help="Another endpoint for S3."),
        click.option("--region", help="The bucket's AWS region."),
        click.option("--profile", help="A profile of ~/.aws/config, for s3://."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--world-size",
            type=click.IntRange(min=1),
            help="How many ranks there were, for formats that do not record it (NVRx local).",
        ),
        click.option("--deep", is_flag=True, help="Read every byte and compare the digests."),
    ):
        command = option(command)
    return command


_declared_option = click.option(
    "--checkpoint-files",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="What files are checkpoints where hpctl recognizes none: ckpt_{step}.pt. Repeatable.",
)


@click.group(
    cls=LazyCommandGroup,
    table={
        "advise": ("hpctl.checkpoints.advise:advise", "Say how often to save."),
        "mark": (
            "hpctl.checkpoints.mark_command:mark",
            "Have a checkpoint passed over, or take that back.",
        ),
    },
    short_help="Look at a job's checkpoints.",
    epilog="Exit codes: 0 found, 1 none or incomplete, 2 usage, 3 cannot read.",
)
def checkpoint() -> None:
    """Look at a job's checkpoints: which are complete, proved by their files.

    A place is a directory or s3://BUCKET/PREFIX.
    """


@checkpoint.command(short_help="List a job's checkpoints, newest first.")
@click.argument("place", required=False, shell_complete=complete_file_path)
@_declared_option
@click.option("--job", metavar="ID", help="Those of this job, and its saves on its nodes.")
@_add_search_options
@output.config_option
def ls(
    place: str | None,
    job: str | None,
    config: str,
    deep: bool,
    world_size: int | None,
    patterns: tuple[str, ...],
    as_json: bool,
    **aws: str | None,
) -> None:
    """List PLACE's checkpoints, newest first, and why others are incomplete.

    With --job, those in the directory that the job was submitted with, and the steps that its
    nodes hold where it has --fast-dir: which nodes, and how many copies of each file.
    """
    from hpctl.checkpoints.advise import find_checkpoint_directory

    if (place is None) == (job is None):
        raise click.UsageError(
            "no place of checkpoints is given: name a directory, s3://BUCKET/PREFIX, or --job JOB"
        )
    fast: tuple[FastRow, ...] = ()
    if job is not None:
        place, registered = find_checkpoint_directory(job, config)
        fast = _list_fast_save_steps_on_nodes(Path(place), job) if registered.fast else ()
        patterns = patterns or registered.files
    assert place is not None
    declared = parse_checkpoint_file_patterns(patterns)
    try:
        rows = search.list_checkpoints(
            S3StorageOptions(**aws).place(place),
            deep=deep,
            world_size=world_size,
            declared=declared,
        )
    except OSError as error:
        _exit_unreadable_place(place, error, "checkpoint-ls" if as_json else None)
    _print_checkpoint_rows("checkpoint-ls", place, rows, as_json, deep, fast)


def _list_fast_save_steps_on_nodes(place: Path, job: str) -> tuple["FastRow", ...]:
    """Return the steps that the job's nodes hold. Why they cannot be asked goes to stderr."""
    from contextlib import closing

    from hpctl.checkpoints.fast import spec as specs
    from hpctl.checkpoints.fast.lead import list_node_steps
    from hpctl.checkpoints.fast.union import PeerConnections

    try:
        spec = specs.read_fast_save_spec(place / specs.META / f"{job}.json")
    except HpctlError as error:
        output.echo(f"hpctl: its nodes are not asked: {error}", err=True)
        return ()
    with closing(PeerConnections(spec)) as peers:
        steps, answered = list_node_steps(peers, spec.hosts, 0)
    silent = [host for host in spec.hosts if host not in answered]
    if silent:
        output.echo(f"hpctl: no helper answers on {', '.join(silent)}", err=True)
    rows = []
    for each in steps:
        path = str(Path(spec.saves.dir) / each.row.name)
        hosts = {host for host, _ in chain.from_iterable(each.held.values())}
        lost = {file.origin for file in each.lost}
        rows.append(
            FastRow(
                each.row.step,
                path,
                each.row.format,
                each.copies,
                tuple(sorted(hosts)),
                tuple(sorted(lost)),
            )
        )
    return tuple(rows)


@checkpoint.command(short_help="Prove one checkpoint, or say what is wrong.")
@click.argument("path", shell_complete=complete_file_path)
@_add_search_options
def verify(path: str, deep: bool, world_size: int | None, as_json: bool, **aws: str | None) -> None:
    """Verify one checkpoint (a directory, a prefix or a .ckpt file).

    One that is marked as poisoned is named with its mark, and the exit code is 1.
    """
    try:
        place = S3StorageOptions(**aws).place(path)
        if isinstance(place, RemotePath):
            place = place.take_snapshot()
        else:
            place.stat()
            if place.is_dir():
                next(place.iterdir(), None)
    except OSError as error:
        _exit_unreadable_place(path, error, "checkpoint-verify" if as_json else None)
    row = search.verify_checkpoint_and_mark(place, deep=deep, world_size=world_size)
    _print_checkpoint_rows("checkpoint-verify", path, [row], as_json, deep)


def _print_checkpoint_rows(
    schema: str,
    place: str,
    rows: list[CompleteCheckpoint | SkippedCheckpoint],
    as_json: bool,
    deep: bool,
    fast: tuple["FastRow", ...] = (),
) -> NoReturn:
    """Print the rows. The exit code is 0 where one is complete, 3 where none is and some cannot be
    read, 1 otherwise."""
    usable = (row for row in rows if isinstance(row, CompleteCheckpoint) and row.mark is None)
    whole = next(usable, None)
    result = search.CheckpointSearchResult(
        whole, tuple(row for row in rows if isinstance(row, SkippedCheckpoint))
    )
    if as_json:
        views = tuple(map(make_checkpoint_view, rows))
        listed = schema == "checkpoint-ls"
        print_json_document(
            schema, LsView(place, views, "", fast) if listed else VerifyView(place, views)
        )
    else:
        for held in fast:
            copies = f"complete ({held.copies} of each file on {', '.join(held.nodes)})"
            lost = f"lost with {', '.join(held.lost)}"
            output.echo(
                f"{held.path}  step {held.step}  {held.format}  {lost if held.lost else copies}"
            )
        for row in rows:
            output.echo(format_checkpoint_row(row, deep=deep))
        if not rows and not fast:
            output.echo(f"hpctl: no checkpoints in {place}", err=True)
        _print_checkpoint_search_notes(result)
    sys.exit(0 if any(not held.lost for held in fast) else _EXIT_CODES[result.verdict])


@checkpoint.command(short_help="Print what saves checkpoints of any format.")
@click.option("--shell", is_flag=True, help="Print the one for sh and bash.")
def helper(shell: bool) -> None:
    """Print a file with which a program saves checkpoints of any format: JSON, numpy, its own.

    They are then found, proved and resumed from like those of the formats that hpctl knows. A job
    that uses the file needs no hpctl: Python 3.8 or later, or any POSIX shell.

    \b
      hpctl checkpoint helper > hpctl_checkpoint.py      beside the program
        import hpctl_checkpoint
        with hpctl_checkpoint.saving(step) as save:
            with open(save.path("state.json"), "w") as file:
                json.dump(state, file)

    \b
      hpctl checkpoint helper --shell > hpctl_checkpoint.sh
        sh hpctl_checkpoint.sh "$HPCTL_CHECKPOINT_DIR/step-120.tmp-$SLURM_JOB_ID" 120

    The file itself says the rest. A program that finds its checkpoints without hpctl is submitted
    with `hpctl sbatch --no-resume`.
    """
    path = Path(hpctl_checkpoint.__file__).with_suffix(".sh" if shell else ".py")
    output.print_exact_text(path.read_text(), nl=False)


@checkpoint.command()
@click.argument("places", nargs=-1, shell_complete=complete_file_path)
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    metavar="PLACE",
    help="Look here, too: DIR, s3://..., or local:DIR on this node's own disk. Repeatable.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    envvar=["SLURM_JOB_NUM_NODES", "SLURM_NNODES"],
    default=1,
    help="How many nodes the job has: with several, checkpoints on a node's own disk are ignored.",
)
@_declared_option
@_add_search_options
@click.option("--export", is_flag=True, help="Print one line for scripts; reasons go to stderr.")
@click.option(
    "--tell",
    is_flag=True,
    help="In a job: tell the head node the step, and note the start beside the checkpoints.",
)
@click.option(
    "--fetch",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Copy one that is in S3 into this directory; --export does so into the first directory.",
)
def last(
    places: tuple[str, ...],
    tiers: tuple[str, ...],
    nodes: int,
    deep: bool,
    world_size: int | None,
    patterns: tuple[str, ...],
    as_json: bool,
    export: bool,
    fetch: Path | None,
    tell: bool,
    **aws: str | None,
) -> None:
    """Find the newest complete checkpoint in PLACES.

    Of two of the same step the nearer one wins: this node's disk, directories, S3; within these
    as they are named.

    --export prints one of: `found PATH`, `none` (nothing there claims to be a checkpoint),
    `incomplete N` (N do, and none is whole), `unreadable WHY`.
    """
    if not places and not tiers:
        raise click.UsageError(
            "no place of checkpoints is given: name a directory, s3://BUCKET/PREFIX, or --tier "
            "PLACE"
        )
    look_in = [*places, *tiers]
    into = fetch or (_find_first_directory(look_in) if export else None)
    result = find_newest_complete_checkpoint(
        look_in,
        S3StorageOptions(**aws).place,
        None if into is None else _make_checkpoint_fetcher(into.absolute(), deep),
        nodes=nodes,
        fast=load_usable_fast_save_spec(os.environ) if export else None,
        deep=deep,
        world_size=world_size,
        declared=patterns or (read_declared_patterns(os.environ) if export else ()),
    )
    if not as_json:
        _explain_search_result(result)
    if not as_json and not export and result.caution:
        output.echo(f"hpctl: {result.caution}", err=True)
    if as_json:
        print_json_document("checkpoint-last", LastView.of(result))
    elif export:
        skip = f"skip {result.skip} " if result.skip and os.environ.get(SKIP_ASKED) else ""
        output.print_exact_text(skip + _format_search_result(result))
    elif result.found is not None:
        output.print_exact_text(str(result.found.path))
    elif result.verdict == "none" and not result.unrecognized_files_note:
        output.echo(f"hpctl: no checkpoints in {', '.join((*places, *tiers))}", err=True)
    if tell:
        _send_resume_point_to_daemon(result)
        if isinstance(into, Path):
            files.record_job_start(into, count_tasks_per_job_step(os.environ))
    sys.exit(_EXIT_CODES[result.verdict])


def _send_resume_point_to_daemon(result: search.CheckpointSearchResult) -> None:
    if result.verdict not in ("found", "none"):
        return
    from hpctl.wire.job_report_client import send_run_start_report

    step = result.found.step if result.found is not None else None
    place = "starting from the beginning"
    if result.found is not None:
        place = f"resuming from {f'step {step}' if step is not None else result.found.path}"
    sys.stdout.flush()
    send_run_start_report(os.environ, step=step, place=place)


def _make_checkpoint_fetcher(
    into: Path, deep: bool
) -> Callable[[CompleteCheckpoint], CompleteCheckpoint | SkippedCheckpoint]:
    def fetch_remote_checkpoint(
        found: CompleteCheckpoint,
    ) -> CompleteCheckpoint | SkippedCheckpoint:
        if not isinstance(found.path, RemotePath):
            return found
        from hpctl.checkpoints.fetch import fetch_checkpoint

        output.echo(f"hpctl: fetching {found.path} into {into}", err=True)
        with show_transfer_progress() as progress:
            return fetch_checkpoint(found, into, deep=deep, progress=progress)

    return fetch_remote_checkpoint


def _find_first_directory(places: list[str]) -> Path | None:
    shared = (Path(text) for text in places if not text.startswith(("local:", "s3:")))
    return next((place for place in shared if place.is_dir()), None)


def _explain_search_result(result: search.CheckpointSearchResult) -> None:
    for unseen in result.unseen:
        output.echo(f"hpctl: cannot read {unseen.place}: {unseen.why}", err=True)
    if result.unseen and result.found is not None:
        output.echo("hpctl: there may be a newer checkpoint where it cannot look", err=True)
    for flaw in result.marks.flaws:
        output.echo(f"hpctl: {flaw}", err=True)
    for each in result.passed_over:
        if each.claimed or each.format:
            output.echo(f"hpctl: passed over {each.path}: {each.why}", err=True)
    if result.found is not None and result.found.unproven:
        output.echo(f"hpctl: unproven of {result.found.path}: {result.found.unproven}", err=True)
    _print_checkpoint_search_notes(result)


def _print_checkpoint_search_notes(result: search.CheckpointSearchResult) -> None:
    # Otherwise a run with its own format would restart from the beginning each time, without a
    # visible reason.
    if result.unrecognized_files_note:
        output.echo(f"hpctl: {result.unrecognized_files_note}", err=True)


def _format_search_result(result: search.CheckpointSearchResult) -> str:
    if result.found is not None:
        return f"found {result.found.path}"
    claimed = [each for each in result.passed_over if each.claimed]
    unseen = next((f"{each.place}: {each.why}" for each in result.unseen), None)
    where = ", ".join(sorted({str(each.path.parent) for each in claimed}))
    marked = any(each.mark is not None for each in claimed)
    fit = "complete and not marked as poisoned" if marked else "complete"
    return {
        "none": "none",
        "incomplete": f"incomplete {len(claimed)} checkpoints in {where}, none of them {fit}",
        "unreadable": f"unreadable {unseen or f'{where}: some checkpoints there cannot be read'}",
    }[result.verdict]


def _exit_unreadable_place(place: str, error: OSError, schema: str | None) -> NoReturn:
    """Exit with code 3 where a place cannot be read, never with "none". `schema`: print JSON."""
    why = f"cannot read {place}: {error.strerror or error}"
    if schema:
        kind = LsView if schema == "checkpoint-ls" else VerifyView
        print_json_document(schema, kind(place, (), why))
    else:
        output.echo(f"hpctl: {why}", err=True)
    sys.exit(3)


class RowView(Struct, frozen=True):
    """One checkpoint, or a directory that is not one; docs/cli-json.md describes each field."""

    path: str
    complete: bool | None
    step: int | None
    world_size: int | None
    format: str | None
    digests_checked: bool
    claimed: bool
    why: str
    fetched_from: str
    unproven: str
    mark: "CheckpointMarkView | None" = None


class CheckpointMarkView(Struct, frozen=True):
    """The mark by which a checkpoint is passed over: who wrote it, when, why, and its file."""

    by: str
    at: datetime
    why: str
    path: str

    @classmethod
    def of(cls, placed: CheckpointMarkFile | None) -> "CheckpointMarkView | None":
        """Return the view of a checkpoint's mark."""
        if placed is None:
            return None
        return cls(placed.mark.by, placed.mark.at, placed.mark.why, placed.path)


class FastRow(Struct, frozen=True):
    """One step on a job's own nodes. `copies`: nodes that hold a file, the least of all files.
    `lost`: nodes whose files no node holds any longer."""

    step: int | None
    path: str
    format: str
    copies: int
    nodes: tuple[str, ...]
    lost: tuple[str, ...]


class VerifyView(Struct, frozen=True):
    """What `hpctl checkpoint verify` found. `why`: the reason where nothing could be read."""

    place: str
    checkpoints: tuple[RowView, ...]
    why: str = ""


class LsView(VerifyView, frozen=True):
    """What `hpctl checkpoint ls` found. `fast`: with --job, the steps that its nodes hold."""

    fast: tuple[FastRow, ...] = ()


class LastView(Struct, frozen=True):
    """What `hpctl checkpoint last` found."""

    verdict: str
    found: RowView | None
    passed_over: tuple[RowView, ...]
    unseen: tuple[search.UnsearchedPlace, ...]

    @classmethod
    def of(cls, result: search.CheckpointSearchResult) -> "LastView":
        """Return the view of a whole search."""
        found = make_checkpoint_view(result.found) if result.found else None
        return cls(
            result.verdict,
            found,
            tuple(map(make_checkpoint_view, result.passed_over)),
            result.unseen,
        )


def make_checkpoint_view(each: CompleteCheckpoint | SkippedCheckpoint) -> RowView:
    """Return the view of one of them."""
    if isinstance(each, CompleteCheckpoint):
        return RowView(
            path=str(each.path),
            complete=True if not each.unproven else None,
            step=each.step,
            world_size=each.world_size,
            format=each.format,
            digests_checked=each.deep,
            claimed=True,
            why="",
            fetched_from=str(each.origin or ""),
            unproven=each.unproven,
            mark=CheckpointMarkView.of(each.mark),
        )
    return RowView(
        path=str(each.path),
        complete=None if each.unreadable else False,
        step=None,
        world_size=None,
        format=each.format,
        digests_checked=False,
        claimed=each.claimed,
        why=str(each.why),
        fetched_from="",
        unproven="",
        mark=CheckpointMarkView.of(each.mark),
    )


def format_checkpoint_row(each: CompleteCheckpoint | SkippedCheckpoint, *, deep: bool) -> str:
    """Return a row in one line."""
    text = _format_row_without_mark(each, deep=deep)
    return text if each.mark is None else f"{text}; passed over: {each.mark.text}"


def _format_row_without_mark(each: CompleteCheckpoint | SkippedCheckpoint, *, deep: bool) -> str:
    if isinstance(each, CompleteCheckpoint):
        how = "digests match" if each.deep else "sizes match"
        if deep and not each.deep:
            how += "; the format has no digests"
        step = "step unknown" if each.step is None else f"step {each.step}"
        if each.unproven:
            return f"{each.path}  {step}  {each.format}  unproven: {each.unproven}"
        ranks = "" if each.world_size is None else f"{each.world_size} ranks  "
        return f"{each.path}  {step}  {ranks}{each.format}  complete ({how})"
    if each.holds:
        return f"{each.path}  {each.why}"
    form = f"{each.format}  " if each.format else ""
    return f"{each.path}  {form}{'unreadable' if each.unreadable else 'not complete'}: {each.why}"


def print_json_document(schema: str, view: object) -> None:
    """Print a document on stdout."""
    output.echo(output.format_view_json(schema, view))
