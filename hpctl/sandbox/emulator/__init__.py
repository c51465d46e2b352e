"""An emulator of SageMaker's HyperPod cluster API that real boto3 and the AWS CLI talk to.

`service` dispatches calls, `shapes` holds every request and response against botocore's model,
`state` keeps clusters and nodes, `clusters`, `nodes` and `updates` implement the calls, `launch`
starts and replaces instances, `faults` are the faults of the API itself, `capacity` bounds what
can be had, `history` keeps events. Processes are reached only through `hpctl.sandbox.machines`.
"""

from hpctl.sandbox.emulator.faults import ApiError, FaultKind, ServiceFault
from hpctl.sandbox.emulator.service import HyperPodEmulator
from hpctl.sandbox.emulator.state import make_loopback_address_allocator
from hpctl.sandbox.machines import NullMachineBackend

__all__ = [
    "ApiError",
    "FaultKind",
    "HyperPodEmulator",
    "NullMachineBackend",
    "ServiceFault",
    "make_loopback_address_allocator",
]
