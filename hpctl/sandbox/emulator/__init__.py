"""An emulator of SageMaker's HyperPod cluster API that real boto3 and the AWS CLI talk to.

`service` dispatches calls, `shapes` holds every request and response against botocore's model,
`state` keeps clusters and nodes, `clusters`, `nodes` and `updates` implement the calls, `launch`
starts and replaces instances, `faults` are the faults of the API itself, `capacity` bounds what
can be had, `history` keeps events. Processes are reached only through `hpctl.sandbox.machines`.
"""

from hpctl.sandbox.emulator.faults import ApiError, Fault, FaultKind
from hpctl.sandbox.emulator.service import Emulator
from hpctl.sandbox.emulator.state import loopback_addresses
from hpctl.sandbox.machines import NullMachines

__all__ = ["ApiError", "Emulator", "Fault", "FaultKind", "NullMachines", "loopback_addresses"]
