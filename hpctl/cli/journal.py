"""`hpctl journal`: check, copy, put back and print the journal, on whatever database it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine import config_loading
from hpctl.toolkit import output
from hpctl.toolkit.bounds import escape_json_for_terminal
from hpctl.toolkit.declared_view import JsonOnly, Layout, NestedViewPart, TextLine
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.lazy_commands import LazyCommandGroup

if TYPE_CHECKING:
    from hpctl.engine.journal.check import JournalSummary, Tell


class ProblemView(Struct, frozen=True):
    """The first row that is wrong: its table and key, why, and what to do."""

    table: str
    row: str
    why: str
    fix: str

    @property
    def place(self) -> str:
        """Return the table and the row's key."""
        return f"{self.table} {self.row}".strip()


class JournalView(Struct, frozen=True):
    """A journal that was read as a whole. `rows`: how many each table has. `newest`: the newest
    event's time. `digest`: of all events, so that two journals can be compared."""

    journal: str
    ok: bool
    schema_version: str
    rows: dict[str, int]
    newest: datetime | None
    open_recoveries: int
    audit_digest: str
    digest: str
    problem: ProblemView | None

    layout: ClassVar[Layout] = (
        TextLine("{journal}: {verdict}", unbroken=True),
        TextLine("  schema {schema_version}; rows: {counts}", unbroken=True, when="rows"),
        TextLine(
            "  newest event {newest:%Y-%m-%d %H:%M:%S} UTC;"
            " {open_recoveries} recoveries and changes open",
            when="newest",
        ),
        TextLine("  {problem.place}: {problem.why}", unbroken=True, when="problem"),
        TextLine("  fix: {problem.fix}", unbroken=True, when="problem"),
    )
    json_only: ClassVar[JsonOnly] = ("audit_digest", "digest")

    @property
    def verdict(self) -> str:
        """Return whether the journal is whole."""
        return "whole" if self.ok else "DAMAGED"

    @property
    def counts(self) -> str:
        """Return the tables that have rows, each with their number."""
        named = [f"{count} {name}" for name, count in self.rows.items() if count]
        return ", ".join(named) or "none"


class RestoreView(Struct, frozen=True):
    """A backup and where it goes. `events`, `lost`: those of the journal there, and how many of
    them are younger than the backup. `done`: false for `--dry-run`."""

    backup: JournalView
    journal: str
    events: int
    lost: int
    done: bool

    layout: ClassVar[Layout] = (
        NestedViewPart("backup"),
        TextLine("{journal}: {present}", unbroken=True),
        TextLine("Restored. Start the daemons.", when="done"),
    )

    @property
    def present(self) -> str:
        """Return what the journal there holds."""
        if not self.events:
            return "empty"
        lost = f"of which {self.lost} are newer than the backup and will be lost"
        return f"{self.events} events, {lost}"


@contextmanager
def _show_progress_bar(what: str) -> Iterator[Tell]:
    """Show a progress bar on stderr, where that is a terminal."""
    from rich import progress as bars

    err = output.make_console(err=True)
    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as shown:
        task = shown.add_task(what)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _make_journal_summary_view(found: JournalSummary) -> JournalView:
    bad = found.problem
    problem = None if bad is None else ProblemView(bad.table, bad.row, bad.why, bad.fix)
    rows = {name.removeprefix("hpctl_"): count for name, count in found.rows.items()}
    return JournalView(
        found.journal, bad is None, found.schema, rows, found.newest, found.open_recoveries,
        found.audit_digest, found.digest, problem,
    )  # fmt: skip


def _check_journal_integrity(url: str, what: str) -> JournalView:
    from hpctl.engine.journal.check import check_journal_at_url

    with _show_progress_bar(what) as tell:
        return _make_journal_summary_view(check_journal_at_url(url, tell))


@click.group(cls=LazyCommandGroup)
def journal() -> None:
    """Check, back up, restore, export and audit the journal."""


@journal.command("check")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@output.json_option
@output.config_option
def check_command(file: Path | None, config: str, as_json: bool) -> None:
    """Read and replay all of it; name the first wrong row.

    FILE: a backup, in place of the configured journal. Exit code: 0 intact, 1 not, 3 not reachable.
    """
    from hpctl.engine.adapters import find_readable_journal_url
    from hpctl.engine.journal.source import make_sqlite_url

    url = (
        make_sqlite_url(file)
        if file
        else find_readable_journal_url(config_loading.load_config(config))
    )
    view = _check_journal_integrity(url, "checking")
    output.show_view("journal-check", view, as_json)
    output.exit_with_code(output.ExitCode.FINE if view.ok else output.ExitCode.PROBLEM)


@journal.command()
@click.argument("file", type=click.Path(path_type=Path))
@output.json_option
@output.config_option
def backup(file: Path, config: str, as_json: bool) -> None:
    """Copy the journal to FILE while daemons run, and check it.

    FILE is a SQLite file whatever the database is, for root and the daemon alone. Exit code: 0
    whole, 1 not.
    """
    from hpctl.engine.adapters import find_readable_journal_url
    from hpctl.engine.journal import backup as journal_backup
    from hpctl.engine.journal.source import make_sqlite_url

    with _show_progress_bar("copying") as tell:
        journal_backup.back_up_journal_to_file(
            find_readable_journal_url(config_loading.load_config(config)), file, tell
        )
    view = _check_journal_integrity(make_sqlite_url(file), "checking")
    output.show_view("journal-check", view, as_json)
    output.exit_with_code(output.ExitCode.FINE if view.ok else output.ExitCode.PROBLEM)


@journal.command()
@output.config_option
def create(config: str) -> None:
    """Create an empty journal for a new cluster.

    It is needed once where the configuration says `journal: {create: false}`. Root creates it for
    the owner of the state directory.
    """
    from hpctl.engine.journal.creation import create_journal

    try:
        file = create_journal(config_loading.load_config(config).url, config)
    except OSError as error:
        raise HpctlError(
            f"hpctl could not create its journal: {error}",
            "fix the cause in the message, and run the command again",
        ) from error
    output.echo(f"{file}: created")


@journal.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check FILE and the journal; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output.json_option
@output.config_option
def restore(file: Path, dry_run: bool, yes: bool, config: str, as_json: bool) -> None:
    """Put a backup in the journal's place.

    The journal must be empty, or the one that FILE is a copy of, and no daemon may run. A restore
    that fails changes nothing.
    """
    from tempfile import TemporaryDirectory

    from hpctl.engine.journal import restore as journal_restore

    url = config_loading.load_config(config).url
    with TemporaryDirectory(prefix="hpctl-restore-") as directory:
        source = journal_restore.prepare_backup_copy(file, Path(directory))
        found = replace(_check_journal_integrity(source, "checking"), journal=str(file))
        if not found.ok:
            output.show_view("journal-check", found, as_json)
            output.exit_with_code(output.ExitCode.PROBLEM)
        there = journal_restore.find_journal_restore_target(
            source, url, output.get_current_utc_time()
        )
        view = RestoreView(found, there.journal, there.events, there.lost, done=False)
        if dry_run:
            output.show_view("journal-restore", view, as_json)
            if not as_json:
                output.echo(output.DRY_RUN)
            return
        if not yes:
            output.draw_value_on_stderr(output.draw_declared_view, view)
            output.confirm(f"replace {there.events} events?", abort=True)
        with _show_progress_bar("restoring") as tell:
            journal_restore.restore_journal(source, url, output.get_current_utc_time(), tell)
    output.show_view("journal-restore", replace(view, done=True), as_json)


@journal.command()
@click.option("--since", type=output.PastTimeType(), help="Events since (30min, 7d, ISO).")
@click.option("--recovery", metavar="ID", help="Events of this recovery or change alone.")
@output.json_anyway_option
@output.config_option
def export(
    since: datetime | None,
    recovery: str | None,
    config: str,
    as_json: bool,  # noqa: ARG001 -- JSON either way
) -> None:
    """Print events as JSON, one a line, oldest first."""
    from hpctl.engine.adapters import find_readable_journal_url
    from hpctl.engine.journal.check import list_journal_events

    for seq, kind, payload in list_journal_events(
        find_readable_journal_url(config_loading.load_config(config)), since, recovery
    ):
        line = f'{{"seq":{seq},"kind":"{kind}","event":{payload}}}'
        output.echo(escape_json_for_terminal(line.replace("\n", " ")))
