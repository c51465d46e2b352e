"""A HyperPod cluster for the operator's commands: the emulator over HTTP, machines on paper."""

import os
import time

from hpctl.sagemaker.aws import AwsAccount
from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend
from hpctl.sandbox.emulator.service import ApiCallLog
from tests.sagemaker.contract.beds import SANDBOX_KEYS, cluster

CLUSTER = "llm"
REGION = "us-west-2"


class AwsBed:
    """One controller and some workers. A setting that is None is left out of CreateCluster."""

    def __init__(self, workers=4, parameters=lambda _: None, **more):
        os.environ |= SANDBOX_KEYS
        self.spec = {
            key: value
            for key, value in cluster(CLUSTER, workers, **more).items()
            if value is not None
        }
        self.machines = NullMachineBackend()
        self.emulator = HyperPodEmulator(
            self.machines, boot_time_s=0.02, parallel_boots=32, parameters=parameters
        )
        self.emulator.start()
        self.aws = AwsAccount(region=REGION, endpoint_url=self.emulator.endpoint_url)
        self._create()

    def _create(self) -> None:
        self.emulator.create(self.spec)
        self.emulator.wait_until_cluster_in_service(CLUSTER, 30)

    def reset(self) -> None:
        """A fresh cluster; making an emulator's client costs far more."""
        assert self.emulator.response_errors == []
        self.emulator.faults.clear()
        for name in self.emulator.world.clusters:
            self.emulator.wait_until_cluster_in_service(name, 60)
        self.emulator.world.clusters.clear()
        self.machines.done.clear()
        self.forget_calls()
        self._create()

    def close(self) -> None:
        self.emulator.stop()
        assert self.emulator.response_errors == []

    def forget_calls(self) -> None:
        self.emulator.calls = ApiCallLog()

    def operations(self) -> list[str]:
        return [call.operation for call in self.emulator.calls.all()]

    def instances(self, group: str = "workers") -> list[str]:
        world = self.emulator.world
        with world.lock:
            nodes = world.cluster(CLUSTER).nodes.values()
            return [str(n.state.instance_id) for n in nodes if n.group.name == group]

    def worker(self, at: int = 0) -> str:
        return self.instances()[at]

    def behind_a_list(self, operation: str, instance: str) -> None:
        """Do something to a node that the lists of the next half second do not know of yet."""
        begun = time.monotonic()
        time.sleep(0.5)
        self.emulator.handle(operation, {"ClusterName": CLUSTER, "NodeIds": [instance]})
        self.emulator.wait_until_cluster_in_service(CLUSTER, 60)
        lag = time.monotonic() - begun
        self.emulator.faults.add("list_lag", seconds=lag, operations=["ListClusterNodes"])
