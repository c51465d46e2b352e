"""An emulator of SageMaker's HyperPod cluster API that real boto3 and the AWS CLI talk to."""

from hpctl.sandbox.emulator.faults import ApiError, Fault, FaultKind
from hpctl.sandbox.emulator.service import Emulator
from hpctl.sandbox.emulator.state import loopback_addresses
from hpctl.sandbox.machines import NullMachines

__all__ = ["ApiError", "Emulator", "Fault", "FaultKind", "NullMachines", "loopback_addresses"]
