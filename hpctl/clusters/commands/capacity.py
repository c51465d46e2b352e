"""`hpctl capacity`: what is reserved, running, spare and failed, by group and zone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec import Struct

from hpctl.clusters import capacity as training_plans
from hpctl.clusters.capacity import Plan
from hpctl.clusters.commands.context import fleet_of, known, place, place_options
from hpctl.engine.aws_account import open_aws
from hpctl.toolkit import output
from hpctl.toolkit.arguments import NameType, aws_options
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.lazy_commands import LazyGroup
from hpctl.toolkit.output import Exit
from hpctl.toolkit.tables import BAD, count, moment, numbers, styled, table, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.clusters.capacity import CapacityView


@click.group(cls=LazyGroup, invoke_without_command=True)
@output.json_option
@place_options
@click.pass_context
def capacity(ctx: click.Context, /, as_json: bool, **where: Any) -> None:
    """What is reserved, running, spare and failed.

    By instance group and zone, with the training plans behind them. On a head node Slurm tells
    what is spare, idle, busy and out. Exit code: 0, 1 where a group is Failed or Degraded or an
    instance has failed, 3 where something that is at hand could not be read.
    """
    from hpctl.clusters.capacity import capacity_of, read_plans
    from hpctl.engine.adapters import make_scheduler
    from hpctl.engine.world_offline import attempt

    if ctx.invoked_subcommand:
        given = [p for p in where if ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE]
        if given or as_json:
            raise click.UsageError(f"options stand behind {ctx.invoked_subcommand}, not before it")
        return
    here = place(**where)
    fleet = fleet_of(here, details=True)
    plans, unread = read_plans(here.aws, fleet.description)
    slurm_view = known(here)
    rows = slurm_view.join(fleet.rows, here)
    reservations, why = None, slurm_view.slurm_error
    if slurm_view.slurm is not None:
        reservations, why = attempt(True, make_scheduler(here.settings()).reservations)
    unknown = (*unread, *([f"Slurm: {why}"] if why else []))
    view = capacity_of(fleet.description, rows, plans, reservations, output.now(), unknown)
    output.show("capacity", view, as_json, draw)
    blind = here.slurm and reservations is None
    if view.problems:
        output.leave(Exit.PROBLEM)
    output.leave(Exit.CANNOT_TELL if blind or any(row.unread for row in rows) else Exit.FINE)


def draw(out: Console, view: CapacityView) -> None:
    """Groups by zone, then the plans behind them, then what could not be read."""
    out.print(f"{view.cluster} is {view.status}")
    _draw_groups(out, view)
    if view.plans:
        out.print()
        _draw_plans(out, view)
    for line in view.problems:
        out.print(styled(line, BAD))
    for why in view.unknown:
        out.print(f"Not known: {why}")


def _draw_groups(out: Console, view: CapacityView) -> None:
    """One row for each zone of a group; a group's own figures in its first."""
    slurm = any(zone.idle is not None for zone in view.zones)
    used = ("SPARE", "IDLE", "BUSY", "OUT") if slurm else ()
    counts = numbers("TARGET", "RUNNING", *used, "FAILED", "COMING")
    heads = (("GROUP", {"no_wrap": False, "overflow": "fold"}), "TYPE", "STATUS", "ZONE", *counts)
    left = {group.group: group for group in view.groups}
    rows: list[tuple[object, ...]] = []
    for zone in view.zones:
        group = left.pop(zone.group, None)
        first = (
            (group.status, zone.zone or None, group.target)
            if group
            else ("", zone.zone or None, "")
        )
        nodes = (zone.spare, zone.idle, zone.busy, zone.out) if slurm else ()
        now = (zone.running, *nodes, zone.failed, zone.coming + zone.leaving)
        rows.append((zone.group, zone.instance_type, *first, *now))
    for group in left.values():
        none = [0] * (len(used) + 3)
        rows.append((group.group, group.instance_type, group.status, None, group.target, *none))
    table(out, heads, rows, wide=("TYPE", "STATUS"))


def _draw_plans(out: Console, view: CapacityView) -> None:
    counts = numbers("RESERVED", "IN USE", "FREE", "UNHEALTHY")
    heads = (wrapped("TRAINING PLAN"), "TYPE", "STARTS", "ZONE", *counts, "STATUS", "ENDS")
    rows = []
    for p in view.plans:
        starts, ends = moment(p.starts, "%Y-%m-%d"), moment(p.ends, "%Y-%m-%d")
        nodes = (p.total, p.in_use, p.available, p.unhealthy)
        rows.append((p.plan, p.instance_type, starts, p.zone or None, *nodes, p.status, ends))
    table(out, heads, rows, wide=("TYPE", "STARTS"))


_NAME = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}"
PLAN = NameType(
    "plan", rf"{_NAME}|arn:aws[a-z-]*:sagemaker:.*:training-plan/.*", "a training plan's name"
)


class TrainingPlansView(Struct, frozen=True):
    """What `hpctl capacity plans` shows. `whole`: one, with all its parts."""

    as_of: datetime
    whole: bool
    plans: tuple[Plan, ...]
    unknown: tuple[str, ...] = ()


def complete_plan(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The training plans of the account that the options before name."""
    try:
        aws = open_aws(*(ctx.params.get(key) for key in ("profile", "region", "endpoint_url")))
        names = [str(one["TrainingPlanName"]) for one in training_plans.plans(aws)]
    except HpctlError:
        return []
    return [name for name in names if name.startswith(incomplete)]


@capacity.command()
@click.argument("name", metavar="[PLAN]", type=PLAN, required=False, shell_complete=complete_plan)
@output.json_option
@aws_options
def plans(name: str | None, as_json: bool, **account: str | None) -> None:
    """List the training plans, or show one with its parts.

    One: its reserved capacities, their UltraServers, and its extensions. Exit code 3 where
    something of it could not be read.
    """
    aws = open_aws(**account)
    if name:
        one, unknown = training_plans.plan(aws, name)
        view = TrainingPlansView(output.now(), True, (one,), unknown)
    else:
        view = TrainingPlansView(output.now(), False, tuple(training_plans.plans(aws)))
    output.show("training-plans", view, as_json, draw_plans)
    output.leave(Exit.CANNOT_TELL if view.unknown else Exit.FINE)


def draw_plans(out: Console, view: TrainingPlansView) -> None:
    """One row a plan; of a single one its parts."""
    rows = []
    for one in view.plans:
        used = (one.get("TotalInstanceCount"), one.get("InUseInstanceCount"))
        times = (_minute(one.get("StartTime")), _minute(one.get("EndTime")))
        fee = f"{one.get('UpfrontFee', '-')} {one.get('CurrencyCode', '')}"
        rows.append((one["TrainingPlanName"], *used, one["Status"], *times, fee))
    if rows:
        heads = (wrapped("TRAINING PLAN"), *numbers("INSTANCES", "IN USE"), "STATUS", "STARTS")
        table(out, (*heads, "ENDS", "FEE"), rows, wide=("FEE",))
    else:
        out.print("There is no training plan.")
    for one in view.plans if view.whole else ():
        _parts(out, one)
    for why in view.unknown:
        out.print(f"Not known: {why}")


def _parts(out: Console, one: Plan) -> None:
    """The ARN, which cluster.yaml names, then each part."""
    out.print(f"training_plan: {one['TrainingPlanArn']}", soft_wrap=True)
    if one.get("StatusMessage"):
        out.print(one["StatusMessage"])
    for part in one["ReservedCapacitySummaries"]:
        what = f"{part['TotalInstanceCount']} x {part['InstanceType']}, {part['Status']}"
        used = f"{count(part.get('InUseInstanceCount'))} in use"
        out.print(f"Reserved in {part.get('AvailabilityZone', '-')}: {what}, {used}")
        for server in part.get("UltraServers", ()):
            ill = f"{count(server.get('UnhealthyInstanceCount'))} unhealthy"
            what = f"{server['TotalInstanceCount']} instances, {ill}"
            name, health = server["UltraServerId"], server.get("HealthStatus", "-")
            out.print(f"  {name} {server['UltraServerType']} {health}: {what}")
    for more in one.get("TrainingPlanExtensions", ()):
        times = f"{_minute(more.get('StartDate'))} to {_minute(more.get('EndDate'))}"
        paid = f"payment {more.get('PaymentStatus', '-')}"
        fee = f"{more.get('UpfrontFee', '-')} {more.get('CurrencyCode', '')}"
        out.print(f"Extended {times}: {more.get('Status', '-')}, {fee}, {paid}")


def _minute(at: datetime | None) -> str:
    return moment(at, "%Y-%m-%d %H:%M")
