"""The engine's decisions with every kind of recovery, as a daemon makes them."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from hpctl.daemon.kinds import KINDS
from hpctl.engine import advance as advance_module
from hpctl.engine import plan as plan_module
from hpctl.engine import requests as requests_module
from hpctl.engine import retire as retire_module
from hpctl.engine.advance import RecoveryPassResult
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.state import EngineState
from hpctl.engine.kinds import RecoveryPlan
from hpctl.engine.retire import RetirableJournalRecords
from hpctl.engine.view import PlanningView, Request
from hpctl.faults.catalogue import FaultRules
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SlurmJob

ORDERS = requests_module.map_verbs_to_operator_orders(KINDS)


def advance_all(view: PlanningView, policy: RecoveryPolicy, now: datetime) -> RecoveryPassResult:
    """Advance every open recovery."""
    return advance_module.advance_open_recoveries(view, policy, now, KINDS)


def plan(
    view: PlanningView,
    policy: RecoveryPolicy,
    rules: FaultRules,
    here: Mapping[NodeName, Sequence[SlurmJob]],
    now: datetime,
) -> RecoveryPlan:
    """Decide on every candidate."""
    return plan_module.plan_recoveries(view, policy, rules, here, now, KINDS)


def take(
    request: Request, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> list[Event]:
    """Take one request."""
    return requests_module.process_operator_request(request, view, policy, now, ORDERS)


def retire(
    state: EngineState, before: datetime, living: Collection[JobId]
) -> RetirableJournalRecords:
    """Find what of the journal is past."""
    return retire_module.find_retirable_journal_records(state, before, living, KINDS)
