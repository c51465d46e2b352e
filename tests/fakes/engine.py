"""The engine's decisions with every kind of recovery, as a daemon makes them."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from hpctl.daemon.kinds import KINDS
from hpctl.engine import advance as advance_module
from hpctl.engine import plan as plan_module
from hpctl.engine import requests as requests_module
from hpctl.engine import retire as retire_module
from hpctl.engine.advance import AdvancePass
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.state import State
from hpctl.engine.kinds import Plan
from hpctl.engine.retire import RetiredRecords
from hpctl.engine.view import Request, View
from hpctl.faults.catalogue import Rules
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SlurmJob

ORDERS = requests_module.collect_orders(KINDS)


def advance_all(view: View, policy: RecoveryPolicy, now: datetime) -> AdvancePass:
    """Advance every open recovery."""
    return advance_module.advance_recoveries(view, policy, now, KINDS)


def plan(
    view: View,
    policy: RecoveryPolicy,
    rules: Rules,
    here: Mapping[NodeName, Sequence[SlurmJob]],
    now: datetime,
) -> Plan:
    """Decide on every candidate."""
    return plan_module.plan_recoveries(view, policy, rules, here, now, KINDS)


def take(request: Request, view: View, policy: RecoveryPolicy, now: datetime) -> list[Event]:
    """Take one request."""
    return requests_module.take_request(request, view, policy, now, ORDERS)


def retire(state: State, before: datetime, living: Collection[JobId]) -> RetiredRecords:
    """Find what of the journal is past."""
    return retire_module.find_retired(state, before, living, KINDS)
