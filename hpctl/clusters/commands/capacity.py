"""`hpctl capacity`: what is reserved, running, spare and failed, by group and zone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec import Struct

from hpctl.clusters import capacity as training_plans
from hpctl.clusters.arguments import WordType
from hpctl.clusters.capacity import Offer, Plan
from hpctl.clusters.commands.context import fleet_of, known, place, place_options
from hpctl.clusters.commands.waiting import Waiting, confirm, settled, until_options, yes_option
from hpctl.engine.aws_account import open_aws
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType, NameType, aws_options
from hpctl.toolkit.errors import Absent, HpctlError, Refused
from hpctl.toolkit.lazy_commands import LazyGroup
from hpctl.toolkit.output import DRY_RUN, Exit
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
    from hpctl.engine.world import attempt

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


EVERY_S = 10.0
_NAME = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}"
PLAN = NameType(
    "plan", rf"{_NAME}|arn:aws[a-z-]*:sagemaker:.*:training-plan/.*", "a training plan's name"
)
NEW_PLAN = NameType("plan", _NAME, "a name of letters, digits and single dashes, such as p5-in-may")
ULTRA = NameType("type", r"ml\.u-[a-z0-9.-]+", "an UltraServer type such as ml.u-p6e-gb200x72")
OFFER = NameType("offer", r"[a-z0-9-]{1,256}", "an offering's id (`hpctl capacity offers`)")


class OffersView(Struct, frozen=True):
    """What `hpctl capacity offers` shows. `request` is SearchTrainingPlanOfferings'."""

    as_of: datetime
    request: Mapping[str, Any]
    offers: tuple[Offer, ...]


class TrainingPlansView(Struct, frozen=True):
    """What `hpctl capacity plans` shows. `whole`: one, with all its parts."""

    as_of: datetime
    whole: bool
    plans: tuple[Plan, ...]
    unknown: tuple[str, ...] = ()


class TrainingPlanOrderView(Struct, frozen=True):
    """What `buy` and `extend` show. `outcome`: dry_run, ordered, done, unchanged, failed, deadline.

    `offer` is null where it was bought before; `status` is the plan's, or the extension's.
    """

    as_of: datetime
    operation: str
    plan: str
    offer: Offer | None
    outcome: str
    status: str = ""
    message: str = ""


def complete_plan(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The training plans of the account that the options before name."""
    try:
        aws = open_aws(*(ctx.params.get(key) for key in ("profile", "region", "endpoint_url")))
        names = [str(one["TrainingPlanName"]) for one in training_plans.plans(aws)]
    except HpctlError:
        return []
    return [name for name in names if name.startswith(incomplete)]


_DAY = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])
_searching = output.together(
    click.option(
        "--type", "kind", type=WordType("InstanceType", "type"), help="The instance type."
    ),
    click.option(
        "--count",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="How many instances, or UltraServers.",
    ),
    click.option(
        "--ultraserver-type", "ultra_type", type=ULTRA, help="Whole UltraServers of this type."
    ),
    click.option(
        "--after", type=_DAY, metavar="DATE", help="It starts after this day or time (UTC)."
    ),
    click.option(
        "--before", type=_DAY, metavar="DATE", help="It ends before this day or time (UTC)."
    ),
)
"""What SearchTrainingPlanOfferings is asked for: give the values to `_request`."""

_duration = click.option(
    "--duration", "for_s", type=DurationType("1h"), help="For how long: 7d. Whole hours are bought."
)
_ordering = output.together(until_options("Until it is paid."), yes_option, aws_options)
"""What both orders take."""


def _request(
    for_s: float | None, kind: str | None = None, count: int = 1, ultra_type: str | None = None,
    after: datetime | None = None, before: datetime | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The request without what names the target. Raises UsageError."""
    if bool(kind) == bool(ultra_type) or not for_s:
        raise click.UsageError(
            "a new plan needs --duration, and --type or --ultraserver-type; an extension, --plan"
        )
    of, named = ("UltraServer", ultra_type) if ultra_type else ("Instance", kind)
    request: dict[str, Any] = {f"{of}Type": named, f"{of}Count": count}
    for key, at in (("StartTimeAfter", after), ("EndTimeBefore", before)):
        request |= {key: at.replace(tzinfo=output.now().tzinfo)} if at else {}
    return request | _hours(for_s)


def _hours(for_s: float | None) -> dict[str, Any]:
    return {"DurationHours": math.ceil(for_s / 3600)} if for_s else {}


@capacity.command()
@_searching
@_duration
@click.option(
    "--plan", "extends", type=PLAN, shell_complete=complete_plan, help="Extensions of this plan."
)
@output.json_option
@aws_options
def offers(
    for_s: float | None, extends: str | None, as_json: bool, profile: str | None,
    region: str | None, endpoint_url: str | None, **wanted: Any,
) -> None:  # fmt: skip
    """Search reserved capacity to buy for a cluster, with its price.

    For a new training plan, or to extend one. Exit code 1 where nothing is offered.
    """
    request = _hours(for_s) if extends else _request(for_s, **wanted)
    aws = open_aws(profile, region, endpoint_url)
    of = training_plans.plan(aws, extends)[0] if extends else None
    found = training_plans.offers(aws, request, of)
    view = OffersView(output.now(), request, found)
    output.show("training-plan-offers", view, as_json, draw_offers)
    output.leave(Exit.FINE if found else Exit.PROBLEM)


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


@capacity.command(short_help="Buy a training plan.")
@click.argument("name", metavar="NAME", type=NEW_PLAN)
@click.argument("offer", metavar="OFFER", type=OFFER)
@_searching
@_duration
@_ordering
def buy(
    name: str, offer: str, for_s: float | None, profile: str | None, region: str | None,
    endpoint_url: str | None, kind: str | None, count: int, ultra_type: str | None, **rest: Any,
) -> None:  # fmt: skip
    """Buy a training plan: an offer of `hpctl capacity offers` with the same options.

    It is paid up front and cannot be taken back: the price is shown and asked about. Where NAME is
    there already, nothing is bought. Exit code: 0 paid, 1 refused or not paid, 3 not known.
    """
    times = {key: rest.pop(key) for key in ("after", "before")}
    request = _request(for_s, kind, count, ultra_type, **times)
    aws = open_aws(profile, region, endpoint_url)
    there = training_plans.describe_plan(aws, name)
    found = training_plans.offers(aws, request)
    if there is not None and not _same(there, request, [it for it in found if it.id == offer]):
        raise Refused(
            f"another training plan has the name {name}: it is {there['Status']}",
            f"`hpctl capacity plans {name}` shows it; choose another name",
        )
    chosen = None if there is not None else _chosen(found, offer)

    def status() -> tuple[str, str]:
        answer = training_plans.describe_plan(aws, name) or {}
        return str(answer.get("Status", "Pending")), str(answer.get("StatusMessage", ""))

    patience = Waiting(every_s=EVERY_S).patience
    _order(
        "buy", name, chosen, lambda it: training_plans.buy(aws, name, it, patience), status, **rest
    )


@capacity.command(short_help="Extend a training plan.")
@click.argument("name", metavar="PLAN", type=PLAN, shell_complete=complete_plan)
@click.argument("offer", metavar="OFFER", type=OFFER)
@_duration
@_ordering
def extend(
    name: str, offer: str, for_s: float | None, profile: str | None, region: str | None,
    endpoint_url: str | None, **rest: Any,
) -> None:  # fmt: skip
    """Extend a training plan: an offer of `hpctl capacity offers --plan PLAN`.

    It is paid up front and cannot be taken back: the price is shown and asked about. An offer that
    was bought before is not bought again. Exit code: 0 paid, 1 refused or not paid, 3 not known.
    """
    aws = open_aws(profile, region, endpoint_url)
    of, unknown = training_plans.plan(aws, name)
    if "TrainingPlanExtensions" not in of:
        raise Refused(f"whether it was bought before is not known: {unknown[-1]}")
    chosen = None
    if training_plans.bought(of["TrainingPlanExtensions"], offer) is None:
        if why := training_plans.unfit(of):
            raise Refused(f"training plan {name} cannot be extended: {why}")
        chosen = _chosen(training_plans.offers(aws, _hours(for_s), of), offer)

    def status() -> tuple[str, str]:
        one = training_plans.bought(training_plans.extensions(aws, of), offer)
        answer = one or {"PaymentStatus": "Failed"}
        paid = "Pending" in answer.get("PaymentStatus", "")
        return ("Pending" if paid else str(answer.get("Status") or "Failed")), ""

    patience = Waiting(every_s=EVERY_S).patience
    _order(
        "extend", str(of["TrainingPlanName"]), chosen,
        lambda it: training_plans.extend(aws, of, it, patience), status, **rest,
    )  # fmt: skip


def _same(there: Plan, request: Mapping[str, Any], offered: list[Offer]) -> bool:
    """Whether a plan is what is asked for, and not one whose payment failed."""
    parts: Any = there.get("ReservedCapacitySummaries") or ({},)
    keys = ("InstanceType", "UltraServerType", "UltraServerCount")
    same = all(parts[0].get(key) == request[key] for key in keys if key in request)
    total = there.get("TotalInstanceCount")
    same &= there["Status"] != "Failed" and total == request.get("InstanceCount", total)
    return same and all(one.starts == there.get("StartTime") for one in offered)


def _chosen(found: tuple[Offer, ...], wanted: str) -> Offer:
    for one in found:
        if one.id == wanted:
            return one
    raise Absent(
        f"{wanted} is not among the {len(found)} offers that this search finds now",
        "offers come and go: `hpctl capacity offers` with the same options shows them",
    )


def _order(
    operation: str, name: str, offer: Offer | None, send: Callable[[Offer], None],
    status: Callable[[], tuple[str, str]], *, dry_run: bool, yes: bool, waits: bool,
    timeout_s: float, as_json: bool,
) -> None:  # fmt: skip
    """Show what it costs, ask, send it once, follow the payment, and tell how it ended."""
    now, message, outcome = "", "", "dry_run"
    if not dry_run or offer is None:
        if offer is not None:
            output.on_stderr(draw_offer, offer)
            confirm(f"Pay {offer.fee} {offer.currency}? It cannot be taken back.", yes)
            send(offer)

        def look() -> tuple[str, bool, tuple[str, str]]:
            found = status()
            return found[0], found[0] == "Pending", found

        until_s = timeout_s if waits else 0.0
        now, message = settled(name, look, until_s, EVERY_S, as_json)
        outcome = {"Failed": "failed", "Pending": "deadline" if waits else "ordered"}.get(
            now, "done"
        )
        outcome = "unchanged" if offer is None and outcome == "done" else outcome
    view = TrainingPlanOrderView(output.now(), operation, name, offer, outcome, now, message)
    output.show("training-plan-order", view, as_json, draw_order)
    codes = {"failed": Exit.PROBLEM, "deadline": Exit.CANNOT_TELL}
    output.leave(codes.get(outcome, Exit.FINE))


ORDERED = {
    "dry_run": "would be bought",
    "ordered": "is ordered; its payment is pending",
    "done": "is bought",
    "unchanged": "was bought before: nothing was done",
    "failed": "is not bought: the payment failed",
    "deadline": "is ordered, and its payment still pending",
}


def draw_offers(out: Console, view: OffersView) -> None:
    """One after the other, with their ids."""
    for one in view.offers:
        draw_offer(out, one)
    if not view.offers:
        out.print("Nothing is offered. Try another --duration, --count, --after or --region.")


def draw_offer(out: Console, one: Offer) -> None:
    """What it is, when, and what it costs."""
    what = f"{one.instances} x {one.instance_type}"
    what += f" (UltraServers: {one.ultra_servers})" if one.ultra_servers else ""
    where = f"{', '.join(one.zones)}, {_minute(one.starts)} to {_minute(one.ends)} UTC"
    gaps = f", in {one.parts} parts" if one.parts > 1 else ""
    out.print(f"{one.fee} {one.currency}: {what} in {where}, {one.hours} h{gaps}")
    out.print(f"  {one.id}")


def draw_order(out: Console, view: TrainingPlanOrderView) -> None:
    """What is bought now, and what to do with it."""
    if view.outcome == "dry_run" and view.offer:
        draw_offer(out, view.offer)
    what = "Training plan" if view.operation == "buy" else "The extension of training plan"
    status = f" ({view.status})" if view.status else ""
    out.print(f"{what} {view.plan} {ORDERED[view.outcome]}{status}.")
    if view.message:
        out.print(f"  {view.message}")
    out.print(DRY_RUN if view.outcome == "dry_run" else f"hpctl capacity plans {view.plan}")


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
        out.print("There is no training plan: `hpctl capacity offers`.")
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
