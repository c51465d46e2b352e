"""`hpctl events`: the journal, one line an event, in the words of `hpctl explain`."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.engine import config_loading, views
from hpctl.engine.completion import complete_any, list_explainable_targets
from hpctl.engine.journal.events import (
    ClockSet,
    ConfigurationTaken,
    DaemonStarted,
    Event,
    GateBlocked,
    HoldLifted,
    JobReported,
    RequestTaken,
    format_event_kind,
)
from hpctl.engine.journal.state import EngineState
from hpctl.engine.timeline import find_recovery_or_capacity_change, make_journal_event_line
from hpctl.engine.world_offline import JournalReplayer
from hpctl.toolkit import output
from hpctl.toolkit.bounds import EARLIEST, escape_json_for_terminal, make_printable
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.node_recovery import NodeRecovery

if TYPE_CHECKING:
    from hpctl.engine.journal.reader import JournalReader

EVERY_S = 1.0
PATIENCE = 10
"""Opening the journal takes at most one part in so many of the time: who may not read it gets a
copy, which is work for the daemon."""
DAY = timedelta(days=1)


class JournalEvent(Struct, frozen=True):
    """One line. `kind`: the journal's record; `recovery` is empty where it belongs to none."""

    seq: int
    at: datetime
    kind: str
    recovery: str
    text: str
    mark: str


def list_event_resource_names(event: Event, state: EngineState) -> set[str]:
    """Return what an event is about: ids, nodes, jobs, groups."""
    match event:
        case GateBlocked():
            return {event.target, event.shown}
        case HoldLifted() | RequestTaken():
            return {event.target}
        case JobReported():
            return {str(event.report.job)}
        case DaemonStarted() | ConfigurationTaken() | ClockSet():
            return set()
    about = find_recovery_or_capacity_change(event.recovery, state)
    if isinstance(about, NodeRecovery):
        return {about.id, about.node}
    if isinstance(about, ClusterChange):
        return {about.id, about.opened.group, str(about.opened.node), *about.opened.nodes}
    return {about.id, str(about.attempt.job), about.shown, about.cause, *about.bad_nodes}


def stream_journal_events(
    store: JournalReader, journal: JournalReplayer, since: datetime, targets: tuple[str, ...]
) -> Iterator[JournalEvent]:
    """Yield what is new in the journal, without steps that were just accepted. Raises Unavailable,
    CorruptJournalError."""
    for seq, event in journal.news(store):
        if event.at < since or (
            targets and list_event_resource_names(event, journal.state).isdisjoint(targets)
        ):
            continue
        line = make_journal_event_line(event, journal.state)
        if line:
            rid, kind = getattr(event, "recovery", ""), format_event_kind(type(event))
            yield JournalEvent(seq, event.at, kind, rid, line.text, line.mark)


@contextmanager
def _suppress_interrupt_and_broken_pipe() -> Iterator[None]:
    """Ctrl-C, and a reader who has left, end what follows the journal: that is no error."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Python writes what is left of its buffer when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sleep_or_raise_broken_pipe(seconds: float) -> None:
    """Wait, at most until the reader has left. Raises BrokenPipeError."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # An error or a hang-up is always reported.
    if poll.poll(seconds * 1000):
        raise BrokenPipeError


def _print_event(view: JournalEvent, as_json: bool) -> None:
    if as_json:
        import msgspec

        body = {"schema": "hpctl.event/1", **msgspec.to_builtins(view)}
        output.echo(escape_json_for_terminal(msgspec.json.encode(body).decode()))
    else:
        text = make_printable(" ".join(view.text.split()))
        output.echo(f"{view.at:%Y-%m-%d %H:%M:%S}  {text}")


@click.command()
@click.argument("targets", metavar="[TARGET]...", nargs=-1, shell_complete=complete_any)
@click.option("--follow", "-f", is_flag=True, help="Print new events until Ctrl-C.")
@click.option(
    "--since",
    type=output.PastTimeType(),
    help="Events since then (30min, 7d, ISO). Default: a day; with TARGET all except retired ones.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line (docs/cli-json.md)."
)
@output.config_option
def events(
    targets: tuple[str, ...], follow: bool, since: datetime | None, config: str, as_json: bool
) -> None:
    """What hpctl saw, decided and did, one line an event.

    TARGET is a node, a job, an instance group or the id of a recovery or change. Steps that were
    accepted at once have one line, those that were not a second one.
    """
    from hpctl.engine.adapters import open_journal_reader

    loaded, now = config_loading.load_config(config), output.get_current_utc_time()
    begun = since or (EARLIEST if targets else now - DAY)
    past = views.needs_archived_recoveries(now, ended=False, since=since)
    journal = JournalReplayer(None if targets else min(begun, now - DAY), past=past)
    found = False
    with _suppress_interrupt_and_broken_pipe():
        while True:
            at = time.monotonic()
            try:
                with closing(open_journal_reader(loaded)) as store:
                    opened_s, health = time.monotonic() - at, store.health()
                    for view in stream_journal_events(store, journal, begun, targets):
                        _print_event(view, as_json)
                        found = True
            except ServiceUnavailable as error:
                if not (follow and journal.state.events):
                    raise
                output.echo(f"hpctl: {error}; trying again", err=True)
            if not follow:
                break
            _sleep_or_raise_broken_pipe(max(EVERY_S, PATIENCE * opened_s))
    known = {*map(str, list_explainable_targets(journal.state)), *map(str, health)}
    if not found:
        for target in set(targets) - known:
            raise output.make_not_found_error("recoveries --all", target, known)
        output.echo("hpctl: no event", err=True)
