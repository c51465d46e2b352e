"""cluster.yaml: one file that says what a cluster is.

`read` is the entrance: it reads the file, checks it against itself and reports every problem at
once. `cluster` holds the keys, `field_types` the types of their values as the service accepts
them, `reading` the rules between keys, `schema` the JSON schema for editors.
"""

from hpctl.clusters.spec.cluster import ClusterSpec, GroupSpec, Settings
from hpctl.clusters.spec.reading import (
    DEFAULT_PATH,
    ClusterSpecError,
    build_cluster_spec,
    parse_cluster_spec_yaml,
    read_cluster_spec,
    require_valid_cluster_spec,
)

__all__ = [
    "DEFAULT_PATH",
    "ClusterSpec",
    "ClusterSpecError",
    "GroupSpec",
    "Settings",
    "build_cluster_spec",
    "parse_cluster_spec_yaml",
    "read_cluster_spec",
    "require_valid_cluster_spec",
]
