"""The instances that a sandbox's cluster starts with."""

from __future__ import annotations

import secrets

from hpctl.core.join import guessed
from hpctl.core.model import InstanceId, LogicalId, NodeName
from hpctl.sandbox.machines import Machine
from hpctl.sandbox.spec import Spec

CONTROLLER_TYPE = "ml.m5.xlarge"
WORKER_TYPE = "ml.p5.48xlarge"
LIFECYCLE_S3 = "s3://sagemaker-sandbox/lifecycle/"
ON_CREATE = "on_create.sh"


def initial(spec: Spec) -> list[Machine]:
    """One controller and the workers, with fresh ids, for a sandbox without the emulator."""
    controller = Machine(
        instance_id=_instance_id(),
        logical_id=_logical_id(),
        name="controller-1",
        group="controller",
        instance_type=CONTROLLER_TYPE,
        role="controller",
        address=spec.head_address,
        node=head_node(spec),
        partition="",
        source_s3_uri=LIFECYCLE_S3,
        on_create=ON_CREATE,
        on_init_complete="",
    )
    return [controller, *(_worker(spec, number) for number in range(1, spec.nodes + 1))]


def head_node(spec: Spec) -> NodeName:
    """The head node's name, which is no Slurm node's."""
    return NodeName(guessed(spec.head_address, ""))


def _worker(spec: Spec, number: int) -> Machine:
    group = spec.group(number)
    index = spec.members(int(group.rsplit("-")[-1])).index(number) + 1
    return Machine(
        instance_id=_instance_id(),
        logical_id=_logical_id(),
        name=f"{group}-{index}",
        group=group,
        instance_type=WORKER_TYPE,
        role="compute",
        address=spec.address(number),
        node=NodeName(spec.node(number)),
        partition=group,
        source_s3_uri=LIFECYCLE_S3,
        on_create=ON_CREATE,
        on_init_complete="",
    )


def _instance_id() -> InstanceId:
    return InstanceId(f"i-{secrets.token_hex(8)}{secrets.token_hex(1)[:1]}")


def _logical_id() -> LogicalId:
    return LogicalId(secrets.token_hex(8))
