"""The kinds of recovery that a daemon drives, in the order in which they advance.

A feature is removed by deleting its modules and its line here.
"""

from collections.abc import Sequence

from hpctl.capacity.kind import make_capacity_kind
from hpctl.engine.kinds import Kind
from hpctl.insight.forecast.history import rank_risks
from hpctl.jobs.kind import JOBS
from hpctl.nodes.kind import NODES

KINDS: Sequence[Kind] = (NODES, JOBS, make_capacity_kind(rank_risks))
