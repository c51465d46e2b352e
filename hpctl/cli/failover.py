"""`hpctl daemon failover`: let another head node lead, to which the leader hands over."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.engine.request_client import send_operator_requests
from hpctl.engine.status_view import StandbyDaemonView, make_standby_daemon_views
from hpctl.toolkit import output
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import ExitCode

if TYPE_CHECKING:
    from hpctl.engine.config import Config
    from hpctl.engine.journal.rows import DaemonLeaseInfo

WAIT_S = 30.0
LOOK_S = 0.1
NO_ANSWER = "no leader has answered yet: hpctl status"


class FailoverView(Struct, frozen=True):
    """Who led, who leads now, and who could. `ok`: the leader agreed, or would. `done`: false for
    `--dry-run`, and where no leader was seen yet."""

    leader: str
    leads_now: str
    standbys: tuple[StandbyDaemonView, ...]
    ok: bool
    done: bool
    answer: str


def _read_leader_and_standbys(
    config: Config,
) -> tuple[DaemonLeaseInfo | None, tuple[StandbyDaemonView, ...]]:
    from hpctl.engine.adapters import open_journal_reader

    with closing(open_journal_reader(config)) as store:
        return store.daemon(), make_standby_daemon_views(
            store.standbys(), output.get_current_utc_time()
        )


def _list_standby_hosts(config: Config) -> list[str]:
    return [one.host for one in _read_leader_and_standbys(config)[1] if not one.is_lost]


def _complete_standby_hosts(ctx: click.Context, _param: click.Parameter, start: str) -> list[str]:
    try:
        found = _list_standby_hosts(config_loading.load_config(ctx.params.get("config") or ""))
    except HpctlError:
        return []
    return [name for name in found if name.startswith(start)]


def preview_daemon_failover(
    before: DaemonLeaseInfo | None, standbys: tuple[StandbyDaemonView, ...], to: str
) -> FailoverView:
    """Return what would become of it now."""
    ready = [one for one in standbys if not one.is_lost]
    chosen = [one for one in ready if to in ("", one.host, one.address)]
    leader = before.host if before else ""
    names = ", ".join(one.host for one in ready) or "none"
    would = f"{leader} would hand over to {chosen[0].host}" if chosen else ""
    answer = would or f"no standby is ready there; ready: {names}"
    return FailoverView(leader, leader, standbys, bool(chosen), done=False, answer=answer)


def transfer_leadership(
    config: Config, before: DaemonLeaseInfo | None, to: str, wait: bool
) -> FailoverView:
    """Ask the leader; with `wait` until the next one leads."""
    (row,) = send_operator_requests(config, "failover", [to]).requests
    epoch, until = (before.epoch if before else 0), time.monotonic() + WAIT_S * wait
    while True:
        now, standbys = _read_leader_and_standbys(config)
        done = now is not None and now.epoch > epoch
        if done or not row.ok or time.monotonic() >= until:
            break
        time.sleep(LOOK_S)
    answer = row.answer if row.answered else NO_ANSWER
    leads = now.host if now is not None and now.lease_s else ""
    return FailoverView(before.host if before else "", leads, standbys, row.ok, done, answer)


@click.command()
@click.option(
    "--to",
    metavar="HOST",
    default="",
    shell_complete=_complete_standby_hosts,
    help="Which standby is to lead.",
)
@click.option("--dry-run", is_flag=True, help="Say who would lead; ask for nothing.")
@click.option("--wait", is_flag=True, help="Wait until the other one leads, 30 s at most.")
@output.json_option
@output.config_option
def failover(to: str, dry_run: bool, wait: bool, config: str, as_json: bool) -> None:
    """Let another head node lead.

    The leader ends what is under way, writes it down and lets go; open recoveries continue at once
    where the standby leads. Exit code: 0 it agreed, 1 it refused, 3 no answer, or with
    --wait no leader yet.
    """
    loaded = config_loading.load_config(config)
    if loaded.database_url is None:
        raise click.UsageError(
            "cannot fail over to another head node: hpctl's journal is a file on this head node. "
            "To use several head nodes, keep the journal in a database: set database_url in "
            "hpctl.yaml (docs/head-nodes.md)"
        )
    before, standbys = _read_leader_and_standbys(loaded)
    view = (
        preview_daemon_failover(before, standbys, to)
        if dry_run
        else transfer_leadership(loaded, before, to, wait)
    )
    if as_json:
        output.echo(output.format_view_json("failover", view))
    else:
        output.echo(view.answer)
        if dry_run:
            output.echo(output.DRY_RUN)
        elif view.done:
            output.echo(f"{view.leads_now} leads")
    unanswered = view.answer == NO_ANSWER or (wait and view.ok and not (view.done or dry_run))
    output.exit_with_code(
        ExitCode.CANNOT_TELL if unanswered else ExitCode.FINE if view.ok else ExitCode.PROBLEM
    )
