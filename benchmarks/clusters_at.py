"""The service that `benchmarks.clusters` measures against: 1,000 nodes, 50 ms a call.

Its own process, so that what it costs is not counted to its clients. Prints its endpoint and
serves until it is terminated.
"""

import signal
import threading

from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend

CLUSTER, REGION = "thousand", "us-west-2"
NODES = 1000
LATENCY_S = 0.05
_ROLE = "arn:aws:iam::000000000000:role/hyperpod"


def main() -> None:
    """Make the cluster, then slow every call down."""
    emulator = HyperPodEmulator(
        NullMachineBackend(), region=REGION, boot_time_s=0.0, parallel_boots=32
    )
    emulator.start()
    compute = {"NodeType": "Compute", "PartitionNames": ["dev"]}
    emulator.create(
        {
            "ClusterName": CLUSTER,
            "NodeProvisioningMode": "Continuous",
            "NodeRecovery": "None",
            "InstanceGroups": [
                _group("controller", 1, {"NodeType": "Controller"}),
                _group("workers", NODES - 1, compute),
            ],
        }
    )
    emulator.wait_until_cluster_in_service(CLUSTER, 120)
    emulator.faults.add("latency", seconds=LATENCY_S)
    print(emulator.endpoint_url, flush=True)
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    done.wait()
    emulator.stop()


def _group(name: str, count: int, slurm: dict[str, object]) -> dict[str, object]:
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": count,
        "ExecutionRole": _ROLE,
        "SlurmConfig": slurm,
    }


if __name__ == "__main__":
    main()
