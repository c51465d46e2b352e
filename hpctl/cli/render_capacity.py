"""How `hpctl capacity` and `hpctl autoscale` are shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hpctl.cli.output import DRY_RUN
from hpctl.cli.render import BAD, columns, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.console import Console
    from rich.table import Table

    from hpctl.cli.autoscale import AutoscaleView
    from hpctl.cli.training_plans import OffersView, TrainingPlanOrderView, TrainingPlansView
    from hpctl.cli.views import ChangeView
    from hpctl.clusters.capacity import CapacityView
    from hpctl.clusters.training_plans import Offer, Plan

WIDE = 110
"""From so many columns on a table shows what else there is."""


def capacity(out: Console, view: CapacityView) -> None:
    """Groups by zone, then the plans behind them, then what could not be read."""
    out.print(Text(f"{view.cluster} is {view.status}"))
    wide = out.width >= WIDE
    slurm = any(zone.idle is not None for zone in view.zones)
    told = {group.group: group for group in view.groups}
    used = ("SPARE", "IDLE", "BUSY", "OUT") if slurm else ()
    more = ("TYPE", "STATUS") if wide else ()
    heads = ("TARGET", "RUNNING", *used, "FAILED", "COMING")
    name = ("GROUP", {"no_wrap": False, "overflow": "fold"})
    rows = columns(name, *more, "ZONE", *_right(*heads))
    shown = set[str]()
    for zone in view.zones:
        group = told.get(zone.group)
        first, shown = zone.group not in shown, shown | {zone.group}
        cells = [zone.group]
        if wide:
            cells += [zone.instance_type, group.status if group and first else ""]
        cells += [zone.zone or "-", str(group.target) if group and first else ""]
        cells.append(str(zone.running))
        if slurm:
            cells += [_count(n) for n in (zone.spare, zone.idle, zone.busy, zone.out)]
        rows.add_row(*map(Text, [*cells, str(zone.failed), str(zone.coming + zone.leaving)]))
    for group in view.groups:
        if group.group not in shown:
            empty = [group.instance_type, group.status] if wide else []
            zeros = ["0"] * (1 + len(used) + 2)
            rows.add_row(*map(Text, [group.group, *empty, "-", str(group.target), *zeros]))
    out.print(rows)
    if view.plans:
        out.print()
        _plans(out, view, wide)
    for line in view.problems:
        out.print(Text(line, BAD))
    for why in view.unknown:
        out.print(Text(f"Not known: {why}"))


def _plans(out: Console, view: CapacityView, wide: bool) -> None:
    more = ("TYPE", "STARTS") if wide else ()
    heads = ("RESERVED", "IN USE", "FREE", "UNHEALTHY")
    counts = _right(*heads)
    rows = columns(wrapped("TRAINING PLAN"), *more, "ZONE", *counts, "STATUS", "ENDS")
    for plan in view.plans:
        cells = [plan.plan]
        if wide:
            cells += [plan.instance_type, f"{plan.starts:%Y-%m-%d}" if plan.starts else "-"]
        cells += [plan.zone or "-", str(plan.total)]
        cells += [_count(n) for n in (plan.in_use, plan.available, plan.unhealthy)]
        cells += [plan.status, f"{plan.ends:%Y-%m-%d}" if plan.ends else "-"]
        rows.add_row(*map(Text, cells))
    out.print(rows)


def _right(*names: str) -> list[tuple[str, dict[str, object]]]:
    """Columns of numbers."""
    return [(name, {"justify": "right"}) for name in names]


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def autoscale(out: Console, view: AutoscaleView) -> None:
    """Each group with its answer, then what waits, then the changes."""
    hours = "" if view.hours_left is None else f", {view.hours_left:g} instance-hours"
    left = f"{view.adds_left} instances{hours} may be added within these 24 hours"
    observe = "; mode observe: nothing is done" if view.mode == "observe" else ""
    if view.enabled:
        out.print(Text(f"Autoscaling is on{observe}. {left}."))
    else:
        out.print(Text("Autoscaling is off (autoscale.enabled): nothing is added or removed."))
    if not view.groups:
        out.print("No group is named in autoscale.groups.")
    else:
        _groups(out, view)
    if view.waiting:
        out.print()
        rows = columns("JOB", "PARTITION", *_right("NODES"), "SINCE")
        for job in view.waiting:
            since = f"{job.since:%Y-%m-%d %H:%M:%S}"
            rows.add_row(str(job.job), ",".join(job.partitions), str(job.nodes), since)
        out.print(rows)
    if view.changes:
        out.print()
        out.print(changes(view.changes))
    for why in view.unknown:
        out.print(Text(f"Not known: {why}"))


def changes(rows: Sequence[ChangeView]) -> Table:
    """Changes of capacity, one a row."""
    table = columns("CHANGE", "BEGUN", wrapped("WHAT"), "PHASE", wrapped("WHY"))
    for change in rows:
        begun = f"{change.at:%m-%d %H:%M:%S}"
        table.add_row(change.id, begun, Text(change.what), change.phase, Text(change.why))
    return table


def _groups(out: Console, view: AutoscaleView) -> None:
    heads = ("TARGET", "RUNNING", "IDLE", "COMING", "SPARES") if out.width >= WIDE else ("TARGET",)
    rows = columns("GROUP", "LIMITS", *_right(*heads), "ANSWER", wrapped("WHY"))
    for group in view.groups:
        cells = [group.group, f"{group.min_count}-{group.max_count}", _count(group.target)]
        if len(heads) > 1:
            cells += [_count(n) for n in (group.running, group.idle, group.arriving)]
            cells.append(str(group.spares))
        answer = f"{group.answer} {group.count}" if group.count else group.answer
        why = f"{group.rule}: {group.why}" if group.rule else group.why
        rows.add_row(*map(Text, [*cells, answer, why]))
    out.print(rows)


ORDERED = {
    "dry_run": "would be bought",
    "ordered": "is ordered; its payment is pending",
    "done": "is bought",
    "unchanged": "was bought before: nothing was done",
    "failed": "is not bought: the payment failed",
    "deadline": "is ordered, and its payment still pending",
}


def offers(out: Console, view: OffersView) -> None:
    """One after the other, with their ids."""
    for one in view.offers:
        offer(out, one)
    if not view.offers:
        out.print("Nothing is offered. Try another --duration, --count, --after or --region.")


def offer(out: Console, one: Offer) -> None:
    """What it is, when, and what it costs."""
    what = f"{one.instances} x {one.instance_type}"
    what += f" (UltraServers: {one.ultra_servers})" if one.ultra_servers else ""
    where = f"{', '.join(one.zones)}, {_at(one.starts)} to {_at(one.ends)} UTC"
    gaps = f", in {one.parts} parts" if one.parts > 1 else ""
    out.print(Text(f"{one.fee} {one.currency}: {what} in {where}, {one.hours} h{gaps}"))
    out.print(Text(f"  {one.id}"))


def order(out: Console, view: TrainingPlanOrderView) -> None:
    """What is bought now, and what to do with it."""
    if view.outcome == "dry_run" and view.offer:
        offer(out, view.offer)
    what = "Training plan" if view.operation == "buy" else "The extension of training plan"
    status = f" ({view.status})" if view.status else ""
    out.print(Text(f"{what} {view.plan} {ORDERED[view.outcome]}{status}."))
    if view.message:
        out.print(Text(f"  {view.message}"))
    out.print(Text(DRY_RUN if view.outcome == "dry_run" else f"hpctl capacity plans {view.plan}"))


def training_plans(out: Console, view: TrainingPlansView) -> None:
    """One row a plan; of a single one its parts."""
    more = ("FEE",) if out.width >= WIDE else ()
    counts = _right("INSTANCES", "IN USE")
    rows = columns(wrapped("TRAINING PLAN"), *counts, "STATUS", "STARTS", "ENDS", *more)
    for one in view.plans:
        numbers = [_count(one.get(f"{key}InstanceCount")) for key in ("Total", "InUse")]
        times = [_at(one.get("StartTime")), _at(one.get("EndTime"))]
        fee = [f"{one.get('UpfrontFee', '-')} {one.get('CurrencyCode', '')}"] if more else []
        cells = [one["TrainingPlanName"], *numbers, one["Status"], *times, *fee]
        rows.add_row(*map(Text, cells))
    out.print(rows if view.plans else "There is no training plan: `hpctl capacity offers`.")
    for one in view.plans if view.whole else ():
        _parts(out, one)
    for why in view.unknown:
        out.print(Text(f"Not known: {why}"))


def _parts(out: Console, one: Plan) -> None:
    """The ARN, which cluster.yaml names, then each part."""
    out.print(Text(f"training_plan: {one['TrainingPlanArn']}"), soft_wrap=True)
    if one.get("StatusMessage"):
        out.print(Text(one["StatusMessage"]))
    for part in one["ReservedCapacitySummaries"]:
        what = f"{part['TotalInstanceCount']} x {part['InstanceType']}, {part['Status']}"
        used = f"{_count(part.get('InUseInstanceCount'))} in use"
        out.print(Text(f"Reserved in {part.get('AvailabilityZone', '-')}: {what}, {used}"))
        for server in part.get("UltraServers", ()):
            ill = f"{_count(server.get('UnhealthyInstanceCount'))} unhealthy"
            what = f"{server['TotalInstanceCount']} instances, {ill}"
            name, health = server["UltraServerId"], server.get("HealthStatus", "-")
            out.print(Text(f"  {name} {server['UltraServerType']} {health}: {what}"))
    for more in one.get("TrainingPlanExtensions", ()):
        times = f"{_at(more.get('StartDate'))} to {_at(more.get('EndDate'))}"
        paid = f"payment {more.get('PaymentStatus', '-')}"
        fee = f"{more.get('UpfrontFee', '-')} {more.get('CurrencyCode', '')}"
        out.print(Text(f"Extended {times}: {more.get('Status', '-')}, {fee}, {paid}"))


def _at(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else "-"
