"""`hpctl maintenance`: plan windows in which an administrator has nodes, look at them, end them.

Each request is queued for the daemon; only the daemon acts. Exit code: 0 it agreed, 1 it or
slurmctld refused, 3 no answer.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import ClassVar

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node, complete_window
from hpctl.engine.config import Config
from hpctl.engine.request_client import (
    ANSWER_S,
    expand_hostlists,
    find_invoking_user,
    print_request_answers_and_exit,
    send_operator_requests,
)
from hpctl.engine.views import (
    MaintenanceWindowView,
    list_maintenance_windows,
    make_maintenance_window_view,
)
from hpctl.engine.world import World
from hpctl.engine.world_reader import (
    WorldReader,
    read_live_world,
    read_slurm_reservations,
    read_world_once,
)
from hpctl.nodes.windows.jobs_ahead import JobInWindow, find_jobs_on_window_nodes
from hpctl.nodes.windows.requests import (
    ADD,
    END,
    WindowRefusedError,
    WindowRequest,
    find_window,
    plan_window,
)
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import Layout, RowTable, TextLine
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.change import ChangeOpened, ClusterChangePhase

RESERVED_S = 10.0
LOOK_S = 0.1
TIME = "%Y-%m-%d %H:%M:%S UTC"


class WindowsView(Struct, frozen=True):
    """What `hpctl maintenance list` and `show` print."""

    as_of: datetime
    windows: tuple[MaintenanceWindowView, ...]

    layout: ClassVar[Layout] = (
        TextLine("No maintenance window is open.", when=lambda view: not view.windows),
        RowTable("windows", title="Maintenance windows (times in UTC)"),
    )


class WindowPlanView(Struct, frozen=True):
    """What `hpctl maintenance add --dry-run` prints. `refused` says why the daemon would refuse the
    window; empty: it would not."""

    as_of: datetime
    nodes: str
    count: int
    start: datetime
    end: datetime
    why: str
    jobs: tuple[JobInWindow, ...]
    refused: str


@click.group()
def maintenance() -> None:
    """Plan windows in which an administrator has nodes."""


@maintenance.command()
@click.argument("names", metavar="[NODES]...", nargs=-1, shell_complete=complete_node)
@click.option("--partition", metavar="P", default="", help="A partition's nodes.")
@click.option("--all", "every", is_flag=True, help="All nodes.")
@click.option(
    "--from",
    "start",
    type=output.FutureTimeType(),
    required=True,
    help="now, +2h (two hours from now), or ISO 8601.",
)
@click.option(
    "--until",
    "end",
    type=output.FutureTimeType(),
    required=True,
    help="+6h (six hours from now), or ISO 8601.",
)
@click.option("--why", required=True, metavar="TEXT", help="The reason, for all users to read.")
@click.option("--dry-run", is_flag=True, help="Print what would happen; ask for nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output.json_option
@output.config_option
def add(
    names: tuple[str, ...],
    partition: str,
    every: bool,
    start: datetime,
    end: datetime,
    why: str,
    dry_run: bool,
    yes: bool,
    config: str,
    as_json: bool,
) -> None:
    """Plan a window for NODES, --partition or --all.

    hpctl has Slurm reserve the nodes with Flags=MAINT,IGNORE_JOBS. Before the window begins the
    jobs on them are asked to save and are requeued; those that Slurm cannot requeue run on.
    Within it hpctl does nothing to the nodes. Each is verified before it serves again.
    """
    if sum(map(bool, (names, partition, every))) != 1:
        raise click.UsageError("the command needs exactly one of NODES, --partition and --all")
    listed = fold_hostlist(expand_hostlists(names))
    asked = WindowRequest(start, end, why, listed, partition, every)
    loaded = config_loading.load_config(config)
    view = _preview_window(loaded, asked)
    if dry_run and as_json:
        output.echo(output.format_view_json("maintenance-plan", view))
    elif dry_run or not as_json:
        for line in format_window_plan_lines(view):
            output.echo(line, err=not dry_run)
    if dry_run:
        if not as_json:
            output.echo(output.DRY_RUN)
        output.exit_with_code(ExitCode.PROBLEM if view.refused else ExitCode.FINE)
        return
    if view.refused:
        raise HpctlError(view.refused)
    if not yes:
        output.confirm(f"Reserve {view.count} node(s)?", abort=True)
    answers = send_operator_requests(
        loaded, ADD, [""], wait_s=ANSWER_S, detail=msgspec.json.encode(asked).decode()
    )
    if not any(row.ok for row in answers.requests):
        print_request_answers_and_exit(answers, as_json, waited=True)
        return
    _wait_for_window_reservation(loaded, answers.requests[0].answer.split()[0], as_json=as_json)


def _preview_window(config: Config, asked: WindowRequest) -> WindowPlanView:
    """Plan on what Slurm shows now. Leaves with exit code 3 where it cannot be read."""
    w = read_live_world(config, output.get_current_utc_time())
    if w.slurm is None:
        output.echo(f"hpctl: cannot see which jobs run on the nodes: {w.slurm_error}", err=True)
        raise click.exceptions.Exit(ExitCode.CANNOT_TELL)
    w = replace(w, slurm=replace(w.slurm, reservations=read_slurm_reservations(config)))
    refused, opened = "", None
    try:
        opened = plan_window(asked, find_invoking_user(), w.view(), w.policy, w.now)
    except WindowRefusedError as error:
        refused = str(error)
    return WindowPlanView(
        as_of=w.now,
        nodes=fold_hostlist(opened.nodes) if opened else asked.nodes,
        count=len(opened.nodes) if opened else 0,
        start=asked.start,
        end=asked.end,
        why=asked.why,
        jobs=_list_window_jobs(opened, w),
        refused=refused,
    )


def _list_window_jobs(opened: ChangeOpened | None, w: World) -> tuple[JobInWindow, ...]:
    return () if opened is None else find_jobs_on_window_nodes(opened, w.view(), w.policy, w.now)


def format_window_plan_lines(view: WindowPlanView) -> list[str]:
    """Return the plan of a window for people."""
    if view.refused:
        return [f"The daemon would refuse now: {view.refused}"]
    lines = [
        f"{view.count} node(s), {view.nodes}, from {view.start:{TIME}} until {view.end:{TIME}}:"
        f" {view.why}"
    ]
    lines += [
        f"  job {job.shown} ({job.name}, {job.user}) on {job.nodes} node(s) {job.fate}"
        for job in view.jobs
    ]
    if not view.jobs:
        lines.append("  no job runs on them")
    return lines


def _wait_for_window_reservation(config: Config, name: str, *, as_json: bool) -> None:
    """Wait until slurmctld has the reservation, print the window, and leave."""
    reader = WorldReader(config, recent=True)
    until = time.monotonic() + RESERVED_S
    while True:
        w = reader.read(output.get_current_utc_time())
        window = find_window(name, w.state)
        settled = window is not None and window.phase is not ClusterChangePhase.OPEN
        if settled or time.monotonic() >= until:
            break
        time.sleep(LOOK_S)
    if window is None:
        raise HpctlError(
            f"hpctl's daemon has not yet confirmed the maintenance window {name}",
            "Look for the window in `hpctl maintenance list`, and check that the daemon runs: "
            "hpctl doctor",
        )
    view = WindowsView(w.now, (make_maintenance_window_view(window, w.state),))
    output.show_view("maintenance-list", view, as_json)
    if window.phase is ClusterChangePhase.FAILED:
        output.exit_with_code(ExitCode.PROBLEM)
    if window.phase is ClusterChangePhase.OPEN:
        output.exit_with_code(ExitCode.CANNOT_TELL)


@maintenance.command("list")
@click.option("--ended", is_flag=True, help="Show ended windows too.")
@output.json_option
@output.config_option
def list_windows(ended: bool, config: str, as_json: bool) -> None:
    """Show the open windows, and those whose nodes are being verified."""
    w = read_world_once(config_loading.load_config(config), output.get_current_utc_time())
    views = [
        make_maintenance_window_view(one, w.state) for one in list_maintenance_windows(w.state)
    ]
    shown = [v for v in views if ended or v.waits or v.phase not in ("done", "failed", "cancelled")]
    output.show_view("maintenance-list", WindowsView(w.now, tuple(shown)), as_json)


@maintenance.command()
@click.argument("window", metavar="ID", shell_complete=complete_window)
@output.json_option
@output.config_option
def show(window: str, config: str, as_json: bool) -> None:
    """Show one window; `hpctl explain ID` tells its story."""
    w = read_world_once(config_loading.load_config(config), output.get_current_utc_time())
    found = find_window(window, w.state)
    if found is None:
        raise output.make_not_found_error("maintenance list", window, _list_window_names(w))
    view = WindowsView(w.now, (make_maintenance_window_view(found, w.state),))
    output.show_view("maintenance-list", view, as_json)


@maintenance.command()
@click.argument("window", metavar="ID", shell_complete=complete_window)
@output.json_option
@output.config_option
def end(window: str, config: str, as_json: bool) -> None:
    """End a window: its reservation goes, and its nodes are verified.

    Of one that has not begun, the reservation is deleted.
    """
    answers = send_operator_requests(
        config_loading.load_config(config), END, [window], wait_s=ANSWER_S
    )
    print_request_answers_and_exit(answers, as_json, waited=True)


def _list_window_names(w: World) -> list[str]:
    return [one.opened.group for one in list_maintenance_windows(w.state)]
