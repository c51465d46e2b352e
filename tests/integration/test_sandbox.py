"""The sandbox is a real Slurm: jobs run, instances are replaced, faults are faults."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config as BotoConfig

from hpctl import config
from hpctl.errors import HpctlError
from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.proctree import environ, listening, start_time
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


def node_state(sandbox: Sandbox, node: str) -> str:
    match = re.search(r"State=(\S+)", sandbox.scontrol("show", "node", node))
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
    assert sorted(out.read_text().split("\n")) == [
        "",
        f"{slurm.nodes[0]} {gpus}",
        f"{slurm.nodes[1]} {gpus}",
    ]


def test_every_node_has_eight_gpus_and_both_partitions(slurm: Sandbox) -> None:
    shown = slurm.run(["sinfo", "--noheader", "--Node", "-o", "%N %P %G %T"]).stdout.splitlines()
    assert sorted(shown) == sorted(
        f"{node} {partition} gpu:8 idle"
        for node in slurm.nodes
        for partition in ("worker-1", "dev*")
    )


def test_the_requeue_delay_is_slurms_own(slurm: Sandbox) -> None:
    shown = slurm.scontrol("show", "config")
    assert "requeue_delay" not in shown
    assert re.search(r"JobRequeue\s*= 1", shown)


def test_a_credential_carries_its_nodes_address(slurm: Sandbox) -> None:
    made = slurm.run(
        ["munge", "--no-input", f"--socket={slurm.node_dir(slurm.nodes[2])}/munge.sock"]
    ).stdout
    read = slurm.run(["unmunge", f"--socket={slurm.munge_socket}"], input=made).stdout
    assert re.search(r"ENCODE_HOST:.*\b127\.0\.1\.3\b", read)


def test_the_daemons_configuration_is_valid(cluster: Sandbox) -> None:
    read = config.load(cluster.config_path)
    assert read.cluster.endpoint_url == cluster.endpoint_url
    assert read.slurm.conf == Path(cluster.env["SLURM_CONF"])


def test_replace_kills_the_instance_and_boots_another(cluster: Sandbox) -> None:
    node = cluster.nodes[0]
    before = instance_of(cluster, node)
    job = cluster.run(
        ["sbatch", "--parsable", "-w", node, "-D", "/", "-o", "/dev/null", "--wrap", "sleep 600"]
    ).stdout.strip()
    wait_for(lambda: job_state(cluster, job) == "RUNNING")
    name = cluster.spec.cluster
    client = sagemaker(cluster)
    answer = client.batch_replace_cluster_nodes(ClusterName=name, NodeIds=[before["instance_id"]])
    assert answer["Successful"] == [before["instance_id"]]
    after = wait_for(
        lambda: (
            (now := instance_of(cluster, node))["alive"]
            and now["instance_id"] != before["instance_id"]
            and now
        )
    )
    assert not start_time(before["slurmd_pid"])
    assert after["boot_id"] != before["boot_id"]
    assert after["address"] == before["address"]
    said = (cluster.node_dir(node) / "lifecycle.log").read_text().splitlines()[-1]
    assert said.startswith(f"hpctl lifecycle: OK node={node} role=compute")
    cluster.run(["scancel", job])
    wait_for(lambda: node_state(cluster, node).startswith("IDLE"))


def test_reboot_changes_the_boot_id_and_nothing_else(cluster: Sandbox) -> None:
    node = cluster.nodes[1]
    before = instance_of(cluster, node)
    (cluster.node_dir(node) / "lifecycle.log").unlink()
    sagemaker(cluster).batch_reboot_cluster_nodes(
        ClusterName=cluster.spec.cluster, NodeIds=[before["instance_id"]]
    )
    after = wait_for(
        lambda: (
            (now := instance_of(cluster, node))["alive"]
            and now["boot_id"] != before["boot_id"]
            and now
        )
    )
    assert after["instance_id"] == before["instance_id"]
    assert not (cluster.node_dir(node) / "lifecycle.log").exists()


def test_the_lifecycle_script_sees_hyperpods_environment(
    sandbox_factory: SandboxFactory, tmp_path: Path
) -> None:
    (tmp_path / "on_create.sh").write_text('cat "$SAGEMAKER_RESOURCE_CONFIG_PATH"\n')
    sandbox = sandbox_factory(nodes=1, agents=False, lifecycle=str(tmp_path))
    seen = json.loads((sandbox.node_dir(sandbox.nodes[0]) / "lifecycle.log").read_text())
    workers = next(g for g in seen["InstanceGroups"] if g["Name"] == "worker-1")
    assert workers["Instances"][0]["CustomerIpAddress"] == "127.0.1.1"
    assert workers["Instances"][0]["InstanceName"] == "worker-1-1"
    assert seen["ClusterConfig"]["ClusterName"] == sandbox.spec.cluster


def test_a_failing_lifecycle_script_is_named(
    sandbox_factory: SandboxFactory, tmp_path: Path
) -> None:
    (tmp_path / "on_create.sh").write_text("echo no such file system; exit 3\n")
    sandbox = sandbox_factory(
        up=False, nodes=1, agents=False, emulator=False, lifecycle=str(tmp_path)
    )
    with pytest.raises(HpctlError, match=r"on_create\.sh exited with code 3: no such file system"):
        sandbox.up()


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


def test_freeze_stops_every_process_and_thaw_continues_them(cluster: Sandbox) -> None:
    node = cluster.nodes[2]
    pid = instance_of(cluster, node)["slurmd_pid"]

    def letter() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]

    cluster.inject(node, "freeze-node")
    wait_for(lambda: letter() == "T")
    cluster.inject(node, "thaw-node")
    wait_for(lambda: letter() in "SR")


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


def test_faults_that_cannot_be_are_refused(cluster: Sandbox) -> None:
    with pytest.raises(HpctlError, match="no network namespaces"):
        cluster.inject(cluster.nodes[0], "partition")
    with pytest.raises(HpctlError, match="there is no node nope"):
        cluster.inject("nope", "kill-node")
    with pytest.raises(HpctlError, match="unknown fault 'typo'"):
        cluster.inject(cluster.nodes[0], "typo")
    with pytest.raises(HpctlError, match="unknown fault of the API"):
        cluster.inject_api("typo")


def test_faults_of_the_api_reach_the_emulator(cluster: Sandbox) -> None:
    client = sagemaker(cluster)
    cluster.inject_api("throttle", calls="1")
    with pytest.raises(client.exceptions.ClientError, match="Throttl"):
        client.list_cluster_nodes(ClusterName=cluster.spec.cluster)
    client.list_cluster_nodes(ClusterName=cluster.spec.cluster)
    before = instance_of(cluster, cluster.nodes[4])
    cluster.inject_api("second-actor", node=cluster.nodes[4])
    wait_for(
        lambda: (
            (now := instance_of(cluster, cluster.nodes[4]))["alive"]
            and now["instance_id"] != before["instance_id"]
        )
    )


def test_a_shortage_reaches_the_emulator(cluster: Sandbox) -> None:
    client, name = sagemaker(cluster), cluster.spec.cluster
    wanted = [{"InstanceGroupName": "worker-1", "IncrementTargetCountBy": 1}]
    with pytest.raises(HpctlError, match=r"api capacity: .*'few'"):
        cluster.inject_api("capacity", **{"ml.p5.48xlarge": "few"})
    cluster.inject_api("capacity", quota="yes", **{"ml.p5.48xlarge": str(len(cluster.nodes))})
    with pytest.raises(client.exceptions.ClientError, match=r"service limit 'ml\.p5\.48xlarge"):
        client.batch_add_cluster_nodes(ClusterName=name, NodesToAdd=wanted)
    cluster.inject_api("capacity", quota="yes", **{"ml.p5.48xlarge": "any"})
    with pytest.raises(client.exceptions.ClientError, match="instances of this sandbox"):
        client.batch_add_cluster_nodes(ClusterName=name, NodesToAdd=wanted)
    with pytest.raises(HpctlError, match="is no spot instance"):
        cluster.inject_api("spot-interruption", node=cluster.nodes[0])


def test_slurmctld_can_be_killed_and_started_again(cluster: Sandbox) -> None:
    port = cluster.spec.ports.slurmctld
    assert listening(port)
    cluster.kill_slurmctld()
    assert not listening(port)
    assert cluster.status()["services"]["slurmctld"] == 0
    cluster.start_slurmctld()
    wait_for(lambda: node_state(cluster, cluster.nodes[0]).startswith("IDLE"))


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_pulled_cable_makes_a_node_unreachable(sandbox_factory: SandboxFactory) -> None:
    sandbox = sandbox_factory(nodes=2, agents=False, netns=True)
    port = sandbox.spec.ports.slurmd

    def reached(number: int) -> bool:
        address = (sandbox.spec.address(number), port + number)
        code = f"import socket; socket.create_connection({address!r}, 1)"
        return sandbox.run([sys.executable, "-c", code], check=False).returncode == 0

    assert (reached(1), reached(2)) == (True, True)
    sandbox.inject(sandbox.nodes[1], "partition")
    assert (reached(1), reached(2)) == (True, False)
    sandbox.inject(sandbox.nodes[1], "heal")
    wait_for(lambda: reached(2))
    before = instance_of(sandbox, sandbox.nodes[1])["instance_id"]
    sandbox.inject_api("second-actor", node=sandbox.nodes[1])
    wait_for(
        lambda: instance_of(sandbox, sandbox.nodes[1]).get("instance_id") not in (None, before)
    )
    wait_for(lambda: reached(2))


def test_an_agent_can_be_hung(sandbox_factory: SandboxFactory) -> None:
    sandbox = sandbox_factory(nodes=1, emulator=False)
    node = sandbox.nodes[0]
    pid = wait_for(lambda: instance_of(sandbox, node)["agent_pid"])
    assert environ(pid)["SLURM_CONF"] == str(sandbox.node_dir(node) / "slurm.conf")
    sandbox.inject(node, "hang-agent")
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T")


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


def test_moto_serves_s3_with_the_lifecycle_scripts(sandbox_factory: SandboxFactory) -> None:
    sandbox = sandbox_factory(nodes=1, agents=False, emulator=False, moto=True)
    keys = {
        "aws_access_key_id": sandbox.exports["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": sandbox.exports["AWS_SECRET_ACCESS_KEY"],
    }
    url = sandbox.env["AWS_ENDPOINT_URL"]
    s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
    listed = s3.list_objects_v2(Bucket="sagemaker-sandbox", Prefix="lifecycle/")["Contents"]
    assert "lifecycle/on_create.sh" in {item["Key"] for item in listed}
    sts = boto3.client("sts", endpoint_url=url, region_name="us-east-1", **keys)
    assert sts.get_caller_identity()["Account"]


def test_an_epilog_of_the_controller_runs(sandbox_factory: SandboxFactory, tmp_path: Path) -> None:
    script, mark = tmp_path / "epilog", tmp_path / "mark"
    script.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" > {mark}\n')
    script.chmod(0o755)
    sandbox = sandbox_factory(nodes=1, agents=False, emulator=False, epilog_slurmctld=str(script))
    sandbox.run(["srun", "true"])
    assert wait_for(lambda: mark.exists() and mark.read_text()) == "1\n"


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


def test_thirty_two_nodes_run_one_job(sandbox_factory: SandboxFactory) -> None:
    sandbox = sandbox_factory(nodes=32, groups=4, agents=False, emulator=False)
    said = sandbox.run(["srun", "-N32", "--gres=gpu:8", "printenv", "SLURMD_NODENAME"]).stdout
    assert sorted(said.split()) == sorted(sandbox.nodes)
    shown = sandbox.run(["sinfo", "--noheader", "-o", "%R %D"]).stdout.split("\n")
    assert sorted(shown) == ["", "dev 32", *(f"worker-{n} 8" for n in range(1, 5))]
