"""`hpctl journal audit`: who asked what, and by which configuration the daemon acted."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.engine.journal.events import ConfigurationTaken, RequestTaken
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import ItemTextLines, JsonOnly, Layout, TextLine

if TYPE_CHECKING:
    from hpctl.engine.journal.audit_chain import AuditTrailRow


class AuditEntry(Struct, frozen=True):
    """One row. `what`: the request, or the settings that changed. `digest` chains it to those
    before it."""

    seq: int
    at: datetime
    by: str
    proof: str
    what: str
    ok: bool
    answer: str
    digest: str


def _format_audit_entry(e: AuditEntry) -> str:
    answer = f": {e.answer}" if e.answer else ""
    refused = "" if e.ok else " (refused)"
    proof = f" ({e.proof})" if e.proof else ""
    return f"{e.at:%Y-%m-%d %H:%M:%S}  {e.by}{proof}  {e.what}{refused}{answer}"


class AuditView(Struct, frozen=True):
    """What `hpctl journal audit` shows, oldest first."""

    entries: tuple[AuditEntry, ...]

    layout: ClassVar[Layout] = (
        ItemTextLines("entries", _format_audit_entry, unbroken=True),
        TextLine("There are no requests yet.", when=lambda view: not view.entries),
    )


class AuditVerifyView(Struct, frozen=True):
    """What `hpctl journal audit verify` found. `broken_at`: the first row that does not follow from
    the rows before it. `expected`: whether the digest that was asked for is in the chain."""

    rows: int
    ok: bool
    broken_at: int | None
    expected: bool | None
    digest: str

    layout: ClassVar[Layout] = (TextLine("{verdict}"),)
    json_only: ClassVar[JsonOnly] = ("ok",)

    @property
    def verdict(self) -> str:
        """Return whether the trail is whole, and where it is not."""
        if self.broken_at is not None:
            return (
                f"Row {self.broken_at} does not follow from the rows before it: the trail was"
                " changed there. Compare with a backup of the journal and the daemon's log"
                " (digest=)."
            )
        if self.expected is False:
            return "The chain is intact but lacks this digest: it was rebuilt or truncated."
        return f"{self.rows} rows, each follows from the one before. Newest: {self.digest}"


def make_audit_entries(trail: list[AuditTrailRow]) -> list[AuditEntry]:
    """Rows as people read them. Raises CorruptJournalError where one cannot be read."""
    found = []
    before: dict[str, str] = {}
    for row in trail:
        match row.event:
            case RequestTaken() as e:
                what = f"{e.verb} {e.target}".strip()
                answer = f"{e.answer} ({e.why})" if e.why else e.answer
                entry = AuditEntry(row.seq, e.at, e.by, e.proof, what, e.ok, answer, row.digest)
            case ConfigurationTaken() as e:
                what = _format_settings_change(before, e.settings)
                before = e.settings
                entry = AuditEntry(row.seq, e.at, e.by, "owns the file", what, True, "", row.digest)
            case _:
                continue
        found.append(entry)
    return found


def _format_settings_change(before: dict[str, str], after: dict[str, str]) -> str:
    moved = [
        f"{key}: {before.get(key, 'default')} -> {after.get(key, 'default')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    return "configuration: " + ("; ".join(moved) or "all defaults")


def _read_audit_trail(config: str) -> list[AuditTrailRow]:
    from hpctl.engine.adapters import open_journal_reader

    with closing(open_journal_reader(config_loading.load_config(config))) as store:
        return store.audit_trail()


@click.group(invoke_without_command=True)
@click.option("--since", type=output.PastTimeType(), help="Requests since (30min, 7d, ISO).")
@output.json_option
@output.config_option
@click.pass_context
def audit(ctx: click.Context, since: datetime | None, config: str, as_json: bool) -> None:
    """Operators' requests and changes of the daemon's configuration."""
    if ctx.invoked_subcommand is not None:
        return
    rows = [
        e for e in make_audit_entries(_read_audit_trail(config)) if since is None or e.at >= since
    ]
    output.show_view("audit", AuditView(tuple(rows)), as_json)


@audit.command()
@click.option("--expect", metavar="DIGEST", help="A digest that the daemon logged: is it there?")
@output.json_option
@output.config_option
def verify(expect: str | None, config: str, as_json: bool) -> None:
    """Verify that no row was changed, removed or inserted.

    A user who may write to the database can rebuild the whole chain: compare with a digest that
    the daemon's log has (`journalctl -u hpctl-daemon -g digest=`). Exit code: 0 intact, 1 not.
    """
    from hpctl.engine.journal.audit_chain import FIRST, find_audit_row_with_wrong_digest

    trail = _read_audit_trail(config)
    bad = find_audit_row_with_wrong_digest(trail)
    known = None if expect is None else any(row.digest == expect for row in trail)
    view = AuditVerifyView(
        rows=len(trail),
        ok=bad is None and known is not False,
        broken_at=bad.seq if bad else None,
        expected=known,
        digest=trail[-1].digest if trail else FIRST,
    )
    output.show_view("audit-verify", view, as_json)
    if not view.ok:
        output.exit_with_code(output.ExitCode.PROBLEM)
