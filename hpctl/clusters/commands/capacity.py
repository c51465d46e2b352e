"""`hpctl cluster capacity`: what is reserved, running, spare and failed, by group and zone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

import click
from click.core import ParameterSource
from msgspec import Struct

from hpctl.clusters import capacity as training_plans
from hpctl.clusters.capacity import Plan, make_cluster_capacity_view, read_cluster_training_plans
from hpctl.clusters.commands.context import (
    add_cluster_options,
    read_existing_cluster_fleet,
    read_local_cluster_state,
    resolve_cluster_context,
)
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import PatternType, aws_options
from hpctl.toolkit.declared_view import (
    Column,
    ItemTextLines,
    Layout,
    RepeatedLayoutParts,
    RowTable,
    TextLine,
    make_number_column,
)
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import format_count, format_datetime
from hpctl.vocabulary.slurm_facts import map_reserved_nodes


@click.group(cls=LazyCommandGroup, invoke_without_command=True)
@output.json_option
@add_cluster_options
@click.pass_context
def capacity(ctx: click.Context, /, as_json: bool, **where: Any) -> None:
    """What is reserved, running, spare and failed.

    By instance group and zone, with the training plans behind them. On a head node Slurm tells
    what is spare, idle, busy and out. Exit code: 0, 1 where a group is Failed or Degraded or an
    instance has failed, 3 where something that is at hand could not be read.
    """
    from hpctl.engine.adapters import make_slurm_command_client
    from hpctl.engine.world_offline import read_source_if_requested

    if ctx.invoked_subcommand:
        given = [p for p in where if ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE]
        if given or as_json:
            raise click.UsageError(
                f"write the options after the subcommand {ctx.invoked_subcommand}, not before it"
            )
        return
    here = resolve_cluster_context(**where)
    fleet = read_existing_cluster_fleet(here, details=True)
    plans, unread = read_cluster_training_plans(here.aws, fleet.description)
    answer = read_local_cluster_state(here, live=False, placement=True)
    rows = answer.join(fleet.rows, here)
    reservations, why = None, answer.slurm_error
    if answer.world is not None:
        reservations = answer.world.reservations
    if answer.slurm is not None and reservations is None:
        found, why = read_source_if_requested(
            True, make_slurm_command_client(here.settings()).reservations
        )
        reservations = None if found is None else map_reserved_nodes(found)
    unknown = (*unread, *([f"Slurm: {why}"] if why else []))
    view = make_cluster_capacity_view(
        fleet.description, rows, plans, reservations, output.get_current_utc_time(), unknown
    )
    output.show_view("capacity", view, as_json)
    blind = here.slurm and reservations is None
    if view.problems:
        output.exit_with_code(ExitCode.PROBLEM)
    output.exit_with_code(
        ExitCode.CANNOT_TELL if blind or any(row.unread for row in rows) else ExitCode.FINE
    )


_NAME = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}"
PLAN = PatternType(
    "plan", rf"{_NAME}|arn:aws[a-z-]*:sagemaker:.*:training-plan/.*", "a training plan's name"
)


def _format_time_to_minute(at: datetime | None) -> str:
    return format_datetime(at, "%Y-%m-%d %H:%M")


def _format_training_plan_fee(bill: Mapping[str, Any]) -> str:
    return f"{bill.get('UpfrontFee', '-')} {bill.get('CurrencyCode', '')}"


PLAN_COLUMNS = (
    Column("TRAINING PLAN", "TrainingPlanName", fold=True),
    make_number_column("INSTANCES", "TotalInstanceCount"),
    make_number_column("IN USE", "InUseInstanceCount"),
    Column("STATUS", "Status"),
    Column("STARTS", lambda plan: _format_time_to_minute(plan.get("StartTime"))),
    Column("ENDS", lambda plan: _format_time_to_minute(plan.get("EndTime"))),
    Column("FEE", _format_training_plan_fee, wide=True),
)


def _format_reserved_capacity(part: Mapping[str, Any]) -> str:
    what = f"{part['TotalInstanceCount']} x {part['InstanceType']}, {part['Status']}"
    used = f"{format_count(part.get('InUseInstanceCount'))} in use"
    return f"Reserved in {part.get('AvailabilityZone', '-')}: {what}, {used}"


def _format_ultra_server(server: Mapping[str, Any]) -> str:
    ill = f"{format_count(server.get('UnhealthyInstanceCount'))} unhealthy"
    what = f"{server['TotalInstanceCount']} instances, {ill}"
    name, health = server["UltraServerId"], server.get("HealthStatus", "-")
    return f"  {name} {server['UltraServerType']} {health}: {what}"


def _format_plan_extension(more: Mapping[str, Any]) -> str:
    start, end = (_format_time_to_minute(more.get(key)) for key in ("StartDate", "EndDate"))
    times = f"{start} to {end}"
    paid = f"payment {more.get('PaymentStatus', '-')}"
    return f"Extended {times}: {more.get('Status', '-')}, {_format_training_plan_fee(more)}, {paid}"


PLAN_PARTS: Layout = (
    # The ARN is what cluster.yaml names.
    TextLine("training_plan: {TrainingPlanArn}", unbroken=True),
    TextLine("{StatusMessage}", when="StatusMessage"),
    RepeatedLayoutParts(
        "ReservedCapacitySummaries",
        (TextLine(_format_reserved_capacity), ItemTextLines("UltraServers", _format_ultra_server)),
    ),
    ItemTextLines("TrainingPlanExtensions", _format_plan_extension),
)


class TrainingPlansView(Struct, frozen=True):
    """What `hpctl cluster capacity plans` shows. `whole`: one, with all its parts."""

    as_of: datetime
    whole: bool
    plans: tuple[Plan, ...]
    unknown: tuple[str, ...] = ()

    layout: ClassVar[Layout] = (
        RowTable("plans", PLAN_COLUMNS, otherwise="There is no training plan."),
        RepeatedLayoutParts("plans", PLAN_PARTS, when="whole"),
        ItemTextLines("unknown", "Not known: {}"),
    )


def complete_training_plan_name(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    """Return the training plans of the account that the options before name."""
    try:
        aws = make_aws_client_for_command(
            *(ctx.params.get(key) for key in ("profile", "region", "endpoint_url"))
        )
        names = [str(one["TrainingPlanName"]) for one in training_plans.list_training_plans(aws)]
    except HpctlError:
        return []
    return [name for name in names if name.startswith(incomplete)]


@capacity.command()
@click.argument(
    "name", metavar="[PLAN]", type=PLAN, required=False, shell_complete=complete_training_plan_name
)
@output.json_option
@aws_options
def plans(name: str | None, as_json: bool, **account: str | None) -> None:
    """List the training plans, or show one with its parts.

    One: its reserved capacities, their UltraServers, and its extensions. Exit code 3 where
    something of it could not be read.
    """
    aws = make_aws_client_for_command(**account)
    if name:
        one, unknown = training_plans.read_training_plan(aws, name)
        view = TrainingPlansView(output.get_current_utc_time(), True, (one,), unknown)
    else:
        view = TrainingPlansView(
            output.get_current_utc_time(), False, tuple(training_plans.list_training_plans(aws))
        )
    output.show_view("training-plans", view, as_json)
    output.exit_with_code(ExitCode.CANNOT_TELL if view.unknown else ExitCode.FINE)
