"""cluster.yaml: one file that says what a cluster is. `read` is its door."""

from hpctl.clusters.spec.cluster import ClusterSpec, GroupSpec, Settings
from hpctl.clusters.spec.reading import DEFAULT_PATH, SpecError, checked, parse, read

__all__ = [
    "DEFAULT_PATH",
    "ClusterSpec",
    "GroupSpec",
    "Settings",
    "SpecError",
    "checked",
    "parse",
    "read",
]
