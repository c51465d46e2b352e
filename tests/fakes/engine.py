"""The engine's decisions with every kind of recovery, as a daemon makes them."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from hpctl.core import advance as advance_module
from hpctl.core import plan as plan_module
from hpctl.core import requests as requests_module
from hpctl.core import retire as retire_module
from hpctl.core.advance import Progress
from hpctl.core.all_kinds import KINDS
from hpctl.core.catalogue import Rules
from hpctl.core.journal import Event, State
from hpctl.core.kinds import Plan
from hpctl.core.model import JobId, NodeName, SlurmJob
from hpctl.core.policy import Policy
from hpctl.core.retire import Retired
from hpctl.core.view import Request, View

ORDERS = requests_module.collect_orders(KINDS)


def advance_all(view: View, policy: Policy, now: datetime) -> Progress:
    """Advance every open recovery."""
    return advance_module.advance_all(view, policy, now, KINDS)


def plan(
    view: View,
    policy: Policy,
    rules: Rules,
    here: Mapping[NodeName, Sequence[SlurmJob]],
    now: datetime,
) -> Plan:
    """Decide on every candidate."""
    return plan_module.plan(view, policy, rules, here, now, KINDS)


def take(request: Request, view: View, policy: Policy, now: datetime) -> list[Event]:
    """Take one request."""
    return requests_module.take(request, view, policy, now, ORDERS)


def retire(state: State, before: datetime, living: Collection[JobId]) -> Retired:
    """Find what of the journal is past."""
    return retire_module.retire(state, before, living, KINDS)
