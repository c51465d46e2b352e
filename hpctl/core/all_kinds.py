"""The kinds of recovery that a daemon drives, in the order in which they advance.

A feature is removed by deleting its modules and its line here.
"""

from collections.abc import Sequence

from hpctl.core.capacity_kind import make_capacity_kind
from hpctl.core.forecast import rank_risks
from hpctl.core.job_kind import JOBS
from hpctl.core.kinds import Kind
from hpctl.core.node_kind import NODES

KINDS: Sequence[Kind] = (NODES, JOBS, make_capacity_kind(rank_risks))
