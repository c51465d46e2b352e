"""The kinds of recovery that a daemon drives, in the order in which they advance.

A feature is removed by deleting its modules and its lines here.
"""

from collections.abc import Sequence

from hpctl.capacity.kind import make_capacity_recovery_kind
from hpctl.engine.kinds import RecoveryKind
from hpctl.insight.forecast.history import estimate_weekly_node_failure_risks
from hpctl.jobs.kind import JOBS
from hpctl.jobs.readiness import is_job_ready_for_node_down
from hpctl.jobs.suspicions import find_nodes_suspected_by_job_failures
from hpctl.nodes.acceptance.daemon import ACCEPTANCE, judge_reported_test_findings
from hpctl.nodes.evidence.decide import EVIDENCE
from hpctl.nodes.kind import make_node_recovery_kind
from hpctl.nodes.windows.kind import WINDOWS

KINDS: Sequence[RecoveryKind] = (
    make_node_recovery_kind(
        testing=ACCEPTANCE,
        before=EVIDENCE,
        may_stop=is_job_ready_for_node_down,
        find_suspicions=find_nodes_suspected_by_job_failures,
    ),
    JOBS,
    WINDOWS,
    make_capacity_recovery_kind(
        rank_risks=estimate_weekly_node_failure_risks, read_results=judge_reported_test_findings
    ),
)
