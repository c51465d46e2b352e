"""The sandbox is a real Slurm: jobs run, instances are replaced, faults are faults."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config as BotoConfig

from hpctl.errors import HpctlError
from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.proctree import start_time
from tests.conftest import SandboxFactory
from tests.integration.provision import states

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def wait_for(what: Callable[[], Any], timeout: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (got := what()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)
    return got


def job_state(sandbox: Sandbox, job: str) -> str:
    match = re.search(r"JobState=(\S+)", sandbox.scontrol("show", "job", job))
    assert match is not None
    return match[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Five nodes in two groups behind the emulated API."""
    state = Path(f"/tmp/hpctl-test-{os.getpid()}")
    try:
        with Sandbox("cluster", state_dir=state, nodes=5, groups=2, agents=False) as sandbox:
            yield sandbox
    finally:
        assert not state.exists()


def sagemaker(sandbox: Sandbox) -> Any:
    return boto3.client(
        "sagemaker",
        endpoint_url=sandbox.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=sandbox.exports["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=sandbox.exports["AWS_SECRET_ACCESS_KEY"],
        config=BotoConfig(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=10),
    )


def instance_of(sandbox: Sandbox, node: str) -> dict[str, Any]:
    return next(n for n in sandbox.status()["nodes"] if n["node"] == node)


def test_a_job_of_two_nodes_and_sixteen_gpus_runs(slurm: Sandbox, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = "srun sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    words = ["sbatch", "--parsable", "-N2", "--gres=gpu:8", "-D", "/", "-o", str(out)]
    job = slurm.run([*words, "--wrap", script]).stdout.strip()
    wait_for(lambda: job_state(slurm, job) == "COMPLETED")
    gpus = ",".join(map(str, range(8)))
    assert sorted(out.read_text().split()) == sorted([*slurm.nodes[:2], gpus, gpus])


def test_xid_lines_are_kernel_records(cluster: Sandbox) -> None:
    node = cluster.nodes[2]
    cluster.inject(node, "xid", code=79, pci="0000:9a:00")
    cluster.inject(node, "sxid", code=20034)
    first, second = (cluster.node_dir(node) / "kmsg").read_text().splitlines()
    assert re.fullmatch(
        r"3,0,\d+,-;NVRM: Xid \(PCI:0000:9a:00\): 79, .*GPU has fallen off the bus\.", first
    )
    assert re.fullmatch(
        r"3,1,\d+,-;nvidia-nvswitch0: SXid \(PCI:0000:c5:00\.0\): 20034, Fatal, .*", second
    )


@pytest.mark.nightly
def test_kill_node_takes_the_job_with_it(cluster: Sandbox, tmp_path: Path) -> None:
    node = cluster.nodes[3]
    mark = tmp_path / "pid"
    # What leaves its session, its parent and its environment behind still belongs to the node.
    escape = f"env -i setsid sh -c 'echo $$ > {mark}; exec sleep 600' & disown -a; sleep 600"
    words = ["sbatch", "--parsable", "--no-requeue", "-w", node, "-D", "/", "-o", "/dev/null"]
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{escape}\n")
    cluster.run([*words, str(script)])
    pid = int(wait_for(lambda: mark.exists() and mark.read_text()))
    assert start_time(pid)
    cluster.inject(node, "kill-node")
    assert not start_time(pid)
    assert not instance_of(cluster, node)["alive"]
    with pytest.raises(HpctlError, match="dead"):
        cluster.inject(node, "freeze-node")
    sagemaker(cluster).batch_reboot_cluster_nodes(
        ClusterName=cluster.spec.cluster, NodeIds=[instance_of(cluster, node)["instance_id"]]
    )
    wait_for(lambda: instance_of(cluster, node)["alive"])


@pytest.mark.nightly
def test_a_sandbox_grows_into_its_slots_and_shrinks(sandbox_factory: SandboxFactory) -> None:
    sandbox = sandbox_factory(nodes=2, slots=3, agents=False)
    client, name = sagemaker(sandbox), sandbox.spec.cluster
    wanted = [{"InstanceGroupName": "worker-1", "IncrementTargetCountBy": 1}]
    client.batch_add_cluster_nodes(ClusterName=name, NodesToAdd=wanted)
    wait_for(lambda: states(sandbox).get("ip-127-0-1-3") == "idle")
    assert (
        sandbox.run(["srun", "-w", "ip-127-0-1-3", "-p", "worker-1", "echo", "x"]).stdout == "x\n"
    )
    old = instance_of(sandbox, "ip-127-0-1-1")["instance_id"]
    client.batch_delete_cluster_nodes(ClusterName=name, NodeIds=[old])
    wait_for(lambda: list(states(sandbox)) == ["ip-127-0-1-2", "ip-127-0-1-3"])
    assert list(states(sandbox, "worker-1")) == ["ip-127-0-1-2", "ip-127-0-1-3"]


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write to the kernel's log")
def test_the_real_kernel_log_is_written_where_asked(cluster: Sandbox) -> None:
    node, text = cluster.nodes[2], f"hpctl sandbox test {os.getpid()}"
    before = (cluster.node_dir(node) / "kmsg").read_bytes()
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(log, 0, os.SEEK_END)
        cluster.inject(node, "kmsg", text=text, real_kmsg=True)
        record = os.read(log, 8192).decode()
    finally:
        os.close(log)
    head, _, said = record.partition(";")
    assert said.startswith(text)
    # User space cannot speak as the kernel: facility user (1), level error (3).
    assert head.split(",")[0] == str(1 * 8 + 3)
    assert (cluster.node_dir(node) / "kmsg").read_bytes() == before
