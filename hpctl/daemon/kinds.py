"""The kinds of recovery that a daemon drives, in the order in which they advance.

A feature is removed by deleting its modules and its lines here.
"""

from collections.abc import Sequence

from hpctl.capacity.kind import make_capacity_kind
from hpctl.engine.kinds import RecoveryKind
from hpctl.insight.forecast.history import estimate_weekly_failure_risks
from hpctl.jobs.kind import JOBS
from hpctl.jobs.readiness import is_job_ready_to_stop
from hpctl.jobs.suspicions import find_suspected_nodes
from hpctl.nodes.acceptance.daemon import ACCEPTANCE, list_test_findings
from hpctl.nodes.evidence.decide import EVIDENCE
from hpctl.nodes.kind import make_node_recovery_kind
from hpctl.nodes.windows.kind import WINDOWS

KINDS: Sequence[RecoveryKind] = (
    make_node_recovery_kind(
        testing=ACCEPTANCE,
        before=EVIDENCE,
        may_stop=is_job_ready_to_stop,
        find_suspicions=find_suspected_nodes,
    ),
    JOBS,
    WINDOWS,
    make_capacity_kind(rank_risks=estimate_weekly_failure_risks, read_results=list_test_findings),
)
