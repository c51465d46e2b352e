"""`hpctl checkpoint repair-latest`: pointers that name nothing whole."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from hpctl.cli import checkpoint_text as say
from hpctl.cli import output
from hpctl.jobs.checkpoints.pointers import Repair, mend, repairs

SCHEMA = "checkpoint-repair"


@dataclass(frozen=True, slots=True)
class PointerView:
    """One `latest` pointer; docs/cli-json.md says what each field means."""

    path: str
    why: str
    right: bool
    content: str | None
    mended: bool
    backup: str | None


@dataclass(frozen=True, slots=True)
class RepairsView:
    """What `hpctl checkpoint repair-latest` found and did. `why`: nothing could be looked at."""

    directory: str
    pointers: tuple[PointerView, ...]
    why: str = ""


@click.command("repair-latest", short_help="Mend broken `latest` pointers.")
@click.argument("directory", type=click.Path(path_type=Path, readable=False))
@click.option("--newest", is_flag=True, help="Move a pointer that is not broken to the newest.")
@click.option("--dry-run", is_flag=True, help="Say what it would do, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def repair_latest(directory: Path, newest: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Mend Megatron's and DeepSpeed's broken `latest` pointers in DIRECTORY.

    A pointer that is missing, empty, garbled, or names something that is not whole gets the newest
    whole checkpoint. Nothing is deleted: the old one is kept as NAME.hpctl-backup-TIME. Do not run
    it while the job runs.

    Exit codes: 0 right now, 1 broken and nothing whole to name (or not mended), 3 cannot tell.
    """
    try:
        found = repairs(directory.absolute(), newest=newest)
    except OSError as error:
        why = f"cannot read {directory}: {error.strerror or error}"
        if as_json:
            say.print_json(SCHEMA, RepairsView(str(directory), (), why))
            sys.exit(3)
        say.cannot_read(str(directory), why, None)
    todo = [repair for repair in found if repair.content is not None]
    if not as_json:
        for repair in found:
            output.echo(_text(repair))
        if not found:
            output.echo(f"no pointer in {directory}, and no checkpoint that is resumed by one")
    go = bool(todo) and not dry_run and (yes or _asked(as_json))
    backups = mended(todo, quiet=as_json) if go else {}
    if as_json:
        rows = tuple(_row(repair, backups) for repair in found)
        say.print_json(SCHEMA, RepairsView(str(directory), rows))
    if any(repair.unreadable for repair in found):
        sys.exit(3)
    wrong = [repair for repair in found if not repair.right and repair.path not in backups]
    sys.exit(1 if wrong and not (dry_run and wrong == todo) else 0)


def mended(todo: list[Repair], *, quiet: bool = False) -> dict[Path, Path | None]:
    """Mend, telling each on stderr; the backups of those that were. A failure is told, too."""
    done: dict[Path, Path | None] = {}
    for repair in todo:
        try:
            done[repair.path] = mend(repair)
        except OSError as error:
            output.echo(f"hpctl: {repair.path} was not mended: {error}", err=True)
            continue
        if not quiet:
            backup = done[repair.path]
            kept = f", the old one is kept as {backup.name}" if backup else ""
            output.echo(f"hpctl: {repair.path} now says {repair.content}{kept}", err=True)
    return done


def _asked(as_json: bool) -> bool:
    if as_json or not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: add --yes, or --dry-run")
    return output.confirm("Mend it?")


def _text(repair: Repair) -> str:
    what = f" -> {repair.content}" if repair.content is not None else ""
    return f"{repair.path}: {repair.why}{what}"


def _row(repair: Repair, backups: dict[Path, Path | None]) -> PointerView:
    backup = backups.get(repair.path)
    return PointerView(
        path=str(repair.path),
        why=repair.why,
        right=repair.right,
        content=repair.content,
        mended=repair.path in backups,
        backup=str(backup) if backup else None,
    )
