"""What each instance type has: GPUs, EFA devices, disks."""

from collections.abc import Mapping

from msgspec import Struct

#
# How many devices an instance type has: a machine is compared with it if nothing is configured.


class InstanceTypeHardware(Struct, frozen=True):
    """What one instance type has; None is unknown, and is then not checked."""

    efa_devices: int | None = None
    gpus: int | None = None
    neuron_devices: int | None = None
    nvme_disks: int | None = None
    memory_gib: int | None = None


_GPUS = {1: ("", "2", "4", "8", "16"), 4: ("12", "24"), 8: ("48",)}
"""The sizes of G5, G6 and G6e by their GPUs, A10G, L4 and L40S: 16xlarge has one, 12xlarge four.

G5 and the sizes of G6 up to 16xlarge are in AWS's own table (AWS Batch User Guide, "Running GPU
jobs"); the larger ones and G6e are assumed to be alike, and were not checked on an instance."""


def _build_gpu_family_hardware(family: str) -> dict[str, InstanceTypeHardware]:
    """Return the shapes of a family whose sizes have the GPUs of `_GPUS`."""
    shapes = {}
    for gpus, sizes in _GPUS.items():
        for size in sizes:
            shapes[f"{family}.{size}xlarge"] = InstanceTypeHardware(gpus=gpus)
    return shapes


SHAPES: Mapping[str, InstanceTypeHardware] = {
    **_build_gpu_family_hardware("g5"),
    **_build_gpu_family_hardware("g6"),
    **_build_gpu_family_hardware("g6e"),
    "g5.48xlarge": InstanceTypeHardware(gpus=8, memory_gib=768),
    "g6.48xlarge": InstanceTypeHardware(gpus=8, memory_gib=768),
    "g6e.48xlarge": InstanceTypeHardware(gpus=8, memory_gib=1536),
    # Amazon EC2 User Guide, "Elastic Fabric Adapter", and facts/detection 1.8 and 5.1; instance
    # storage: Amazon EC2 instance types, accelerated computing.
    "p4d.24xlarge": InstanceTypeHardware(efa_devices=4, gpus=8, nvme_disks=8, memory_gib=1152),
    "p4de.24xlarge": InstanceTypeHardware(efa_devices=4, gpus=8, nvme_disks=8, memory_gib=1152),
    "p5.48xlarge": InstanceTypeHardware(efa_devices=32, gpus=8, nvme_disks=8, memory_gib=2048),
    "p5e.48xlarge": InstanceTypeHardware(efa_devices=32, gpus=8, nvme_disks=8, memory_gib=2048),
    "p5en.48xlarge": InstanceTypeHardware(efa_devices=16, gpus=8, nvme_disks=8, memory_gib=2048),
    "p6-b200.48xlarge": InstanceTypeHardware(efa_devices=8, gpus=8, nvme_disks=8, memory_gib=2048),
    # AWS Neuron documentation: EFA set-up guide (trn1), Trainium2 architecture, instance pages.
    "trn1.2xlarge": InstanceTypeHardware(neuron_devices=1, nvme_disks=1),
    "trn1.32xlarge": InstanceTypeHardware(
        efa_devices=8, neuron_devices=16, nvme_disks=4, memory_gib=512
    ),
    "trn1n.32xlarge": InstanceTypeHardware(
        efa_devices=16, neuron_devices=16, nvme_disks=4, memory_gib=512
    ),
    "trn2.48xlarge": InstanceTypeHardware(
        efa_devices=16, neuron_devices=16, nvme_disks=4, memory_gib=2048
    ),
    "trn2u.48xlarge": InstanceTypeHardware(efa_devices=16, neuron_devices=16, nvme_disks=4),
    "inf2.24xlarge": InstanceTypeHardware(neuron_devices=6),
    "inf2.48xlarge": InstanceTypeHardware(neuron_devices=12),
}
"""By EC2's name, without SageMaker's `ml.`."""


def get_instance_type_hardware(instance_type: str) -> InstanceTypeHardware:
    """Return the shape of an instance type, `ml.p5.48xlarge` or `p5.48xlarge`; empty if unknown."""
    return SHAPES.get(instance_type.removeprefix("ml."), InstanceTypeHardware())
