"""What the rooms of features add to commands that belong to no feature: one explicit list each.

A feature is removed by deleting its room, its lines here and in `hpctl.cli.main`, and its lines in
`hpctl.daemon`. Each function imports what it lists: a command pays for its own list alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from hpctl.detection.service import Hold, NodeTestResults, Report
    from hpctl.detection.settings import AgentSettings
    from hpctl.engine.config import Config
    from hpctl.engine.explain_view import ExplainExtensions
    from hpctl.toolkit.checks_view import CheckView
    from hpctl.vocabulary.model import Finding

    Check = Callable[[Config, datetime], Iterable[CheckView]]


def list_feature_doctor_checks() -> Mapping[str, Check]:
    """Return what `hpctl doctor` checks after its own, by name."""
    from hpctl.jobs.other_actors import check_conflicting_restart_tools
    from hpctl.nodes.acceptance.check_command import check_acceptance_command
    from hpctl.nodes.evidence.check import check_evidence_destinations
    from hpctl.service.checks import check_notifications

    return {
        "notifications": check_notifications,
        "acceptance": check_acceptance_command,
        "evidence": check_evidence_destinations,
        "other actors": lambda *_: check_conflicting_restart_tools(),
    }


def make_explain_extensions() -> ExplainExtensions:
    """Return what features add to the explanations of `hpctl explain` and the page."""
    from hpctl.checkpoints.explain import describe_newest_checkpoint
    from hpctl.engine.explain_view import ExplainExtensions
    from hpctl.jobs.explain import (
        describe_policy_action_on_crash,
        diagnose_failed_job_run,
        explain_job_end_at_time_limit,
    )
    from hpctl.jobs.run_gates import RUN_GATES
    from hpctl.nodes.acceptance.limits import ORDERS
    from hpctl.nodes.stuck import STUCK

    return ExplainExtensions(
        orders=(STUCK, *ORDERS.values()),
        run_gates=(*RUN_GATES,),
        on_jobs=(describe_newest_checkpoint,),
        on_crashes=(describe_policy_action_on_crash,),
        on_ends=(explain_job_end_at_time_limit,),
        on_failures=(diagnose_failed_job_run,),
    )


def list_test_result_readers() -> Sequence[Callable[[Path], NodeTestResults]]:
    """Return what reads the results that tests leave in the spool of a node's agent."""
    from hpctl.nodes.acceptance.result import AcceptanceResultInbox

    return (AcceptanceResultInbox,)


def make_agent_order_handler(
    settings: AgentSettings, hold: Hold, report: Report, earlier: Sequence[Finding]
) -> Callable[[str], None]:
    """Return what obeys the daemon's orders on a node, each a credential. Parameters as
    `hpctl.detection.service.MakeOrderHandler` has them."""
    from hpctl.nodes.agent_orders import AgentOrderHandler, Handlers
    from hpctl.nodes.evidence.agent import NodeEvidenceRunner
    from hpctl.nodes.gpu_reset import GpuResetRunner
    from hpctl.vocabulary.evidence import EvidenceCollectionOrder
    from hpctl.vocabulary.reset_order import GpuResetOrder

    handlers: Handlers = {
        GpuResetOrder: GpuResetRunner(settings, hold, report, earlier).begin,
        EvidenceCollectionOrder: NodeEvidenceRunner(settings, report, earlier).begin,
    }
    return AgentOrderHandler(settings, handlers).obey
