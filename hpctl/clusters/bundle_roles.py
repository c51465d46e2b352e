"""What a cluster's file tells its bundle: the roles of the groups.

A node cannot find out that it is a login node where the API sets Slurm up: resource_config.json
says who the controllers are and no more, and login nodes run slurmd as compute nodes do.
"""

from __future__ import annotations

import json
from pathlib import Path

from hpctl.clusters import provisioning
from hpctl.clusters.spec import ClusterSpec
from hpctl.errors import HpctlError

CONFIG = "config.json"


def tell(directory: Path, spec: ClusterSpec) -> str:
    """Write the roles into a bundle that is laid; the file that has them, empty for none.

    That is config.json, or provisioning_parameters.json where the cluster has it. What somebody
    wrote there already stays. Raises HpctlError.
    """
    roles = {group.name: group.role for group in spec.groups if group.role}
    if not roles:
        return ""
    if spec.slurm_config == "provisioning_parameters":
        path = directory / provisioning.FILE
        if not path.exists():
            path.write_text(json.dumps(provisioning.render(spec), indent=2) + "\n")
        return provisioning.FILE
    path = directory / CONFIG
    try:
        said = json.loads(path.read_text())
        said["roles"] = {**roles, **said.get("roles", {})}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise HpctlError(
            f"{CONFIG} cannot be given the groups' roles: {error}", "mend it"
        ) from error
    path.write_text(json.dumps(said, indent=2) + "\n")
    return CONFIG
