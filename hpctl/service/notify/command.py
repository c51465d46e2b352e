"""`hpctl notify`: who is notified of what, what waits for each sink, and a test message."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import datetime
from typing import ClassVar

import click
import msgspec
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.engine.config import MAILPROG, Config
from hpctl.service.notify import sinks
from hpctl.service.notify.outbox import NotificationMessage, Outbox
from hpctl.toolkit import output
from hpctl.toolkit.checks_view import CheckView, DoctorView, choose_doctor_exit_code
from hpctl.toolkit.declared_view import ItemTextLines, Layout
from hpctl.toolkit.errors import ServiceUnavailable


class NotifySinkView(Struct, frozen=True):
    """One sink. `source` has its URL. `waiting`: notices, since `oldest`; `sent`: the last message
    of this hour."""

    name: str
    source: str
    events: str
    waiting: int
    oldest: datetime | None
    sent: datetime | None

    @property
    def since(self) -> str:
        """When the oldest notice that waits was made; empty where none waits."""
        return f" since {self.oldest:%Y-%m-%d %H:%M} UTC" if self.oldest else ""

    @property
    def last_sent(self) -> str:
        """Return when the last message was sent; empty where none was in this hour."""
        return f", last sent {self.sent:%H:%M} UTC" if self.sent else ""


class NotifyView(Struct, frozen=True):
    """What `hpctl notify list` shows."""

    sinks: tuple[NotifySinkView, ...]

    layout: ClassVar[Layout] = (
        ItemTextLines(
            "sinks",
            "{name} ({source}) receives {events}: {waiting} waiting{since}{last_sent}",
            unbroken=True,
        ),
    )


@click.group()
def notify() -> None:
    """Which sink receives what, and a test message."""


def _read_notification_outbox(config: Config) -> Outbox:
    from hpctl.engine.adapters import open_journal_reader

    with suppress(ServiceUnavailable), closing(open_journal_reader(config)) as store:
        kept = store.outbox()
        if kept:
            return msgspec.json.decode(kept, type=Outbox)
    return Outbox(0)


@notify.command("list")
@output.json_option
@output.config_option
def show(config: str, as_json: bool) -> None:
    """Show the sinks, what they receive, and what waits for each."""
    loaded = config_loading.load_config(config)
    settings, posted, rows = loaded.notify, _read_notification_outbox(loaded).posted, []
    mail = {MAILPROG: "slurm.conf"} if settings.users == MAILPROG else {}
    for name, source in {**settings.sinks, **mail}.items():
        mine = [p for p in posted if p.sink == name]
        waits = [p.at for p in mine if not p.sent]
        sent = max((p.sent for p in mine if p.sent), default=None)
        events = [(*r.kinds, *r.partitions, *r.accounts) for r in settings.routes if name in r.to]
        text = "; ".join(" ".join(one) or "everything" for one in events)
        text = text or ("job owners" if name == settings.users else "everything")
        rows.append(NotifySinkView(name, source, text, len(waits), min(waits, default=None), sent))
    output.show_view("notify-list", NotifyView(tuple(rows)), as_json)


@notify.command()
@click.argument("sink", required=False)
@output.json_option
@output.config_option
def test(sink: str | None, config: str, as_json: bool) -> None:
    """Send a test message to one sink, or to all. Exit code: 1 where one did not take it."""
    loaded = config_loading.load_config(config)
    known = loaded.notify.sinks
    if sink is not None and sink not in known:
        raise output.make_not_found_error("notify list", sink, known)
    at, found = output.get_current_utc_time(), []
    for name in known if sink is None else [sink]:
        title = f"[{loaded.cluster.name or 'hpctl'}] test of sink {name}"
        body = "Sent by hpctl notify test.\nNobody has to do anything.\nNext: hpctl status"
        why = sinks.deliver_sink_message(name, known[name], NotificationMessage(title, body))
        found.append(CheckView(name, "fail" if why else "ok", why or "sent", ""))
    found = found or [CheckView("sinks", "fail", "there is none", "docs/notify.md")]
    view = DoctorView(at, tuple(found))
    output.show_view("notify-test", view, as_json)
    output.exit_with_code(choose_doctor_exit_code(view))
