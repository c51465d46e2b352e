"""The kinds of recovery that a daemon drives, in the order in which they advance.

A feature is removed by deleting its modules and its lines here.
"""

from collections.abc import Sequence

from hpctl.capacity.kind import make_capacity_kind
from hpctl.engine.kinds import RecoveryKind
from hpctl.insight.forecast.history import rank_risks
from hpctl.jobs.kind import JOBS
from hpctl.jobs.readiness import may_be_stopped
from hpctl.jobs.suspicions import find_suspicions
from hpctl.nodes.acceptance.daemon import ACCEPTANCE, read_results
from hpctl.nodes.evidence.decide import EVIDENCE
from hpctl.nodes.kind import make_node_kind
from hpctl.nodes.windows.kind import WINDOWS

KINDS: Sequence[RecoveryKind] = (
    make_node_kind(
        testing=ACCEPTANCE,
        before=EVIDENCE,
        may_stop=may_be_stopped,
        find_suspicions=find_suspicions,
    ),
    JOBS,
    WINDOWS,
    make_capacity_kind(rank_risks=rank_risks, read_results=read_results),
)
