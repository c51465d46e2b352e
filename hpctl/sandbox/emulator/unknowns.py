"""What AWS's pages leave open, or tell in two ways: hpctl must do right with either value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Unknowns:
    """How the emulated service behaves where nobody can tell how the real one does.

    `managed_by_default`: a cluster that names no SlurmConfigStrategy is Managed (the guide's
    sagemaker-hyperpod-ref), or Merge (its sagemaker-hyperpod-slurm-api-config-migration).
    `becomes_continuous`: UpdateCluster moves a cluster to Continuous (the API model and the
    migration guide), or refuses (sagemaker-hyperpod-scaling-slurm until early 2026).
    `rolling_batches`: RollingUpdatePolicy is honored on Slurm, or all nodes are updated at once.
    `inherits_image`: a new group of a Continuous cluster has the image of the earliest group
    (ImageId in the API model), or the latest (ImageReleaseVersion there).
    `lingers_s`: how long the id of a replaced instance is still listed as ShuttingDown, in
    seconds, while its successor comes up; `lingering_code` answers who addresses it then.
    """

    managed_by_default: bool = False
    becomes_continuous: bool = True
    rolling_batches: bool = True
    inherits_image: bool = True
    lingers_s: float = 0.0
    lingering_code: Literal["InstanceIdInUse", "InstanceIdNotFound"] = "InstanceIdInUse"
