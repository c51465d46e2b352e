"""The sandbox is a real Slurm: jobs run, and faults are what a driver would log."""

import os
import re
from pathlib import Path

import pytest

from hpctl.sandbox.api import Sandbox
from tests.integration.test_training_slurm import wait

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def test_a_job_of_two_nodes_and_sixteen_gpus_runs(slurm: Sandbox, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = "srun sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    arguments = ["sbatch", "--parsable", "-N2", "--gres=gpu:8", "-D", "/", "-o", str(out)]
    wait(slurm, slurm.run([*arguments, "--wrap", script]).stdout.strip(), "COMPLETED", timeout=20)
    gpus = ",".join(map(str, range(8)))
    assert sorted(out.read_text().split()) == sorted([*slurm.nodes[:2], gpus, gpus])


def test_xid_lines_are_kernel_records(slurm: Sandbox) -> None:
    node = slurm.nodes[2]
    slurm.inject(node, "xid", code=79, pci="0000:9a:00")
    slurm.inject(node, "sxid", code=20034)
    first, second = (slurm.node_dir(node) / "kmsg").read_text().splitlines()
    assert re.fullmatch(
        r"3,0,\d+,-;NVRM: Xid \(PCI:0000:9a:00\): 79, .*GPU has fallen off the bus\.", first
    )
    assert re.fullmatch(
        r"3,1,\d+,-;nvidia-nvswitch0: SXid \(PCI:0000:c5:00\.0\): 20034, Fatal, .*", second
    )


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write to the kernel's log")
def test_the_real_kernel_log_is_written_where_asked(slurm: Sandbox) -> None:
    text = f"hpctl sandbox test {os.getpid()}"
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(log, 0, os.SEEK_END)
        slurm.inject(slurm.nodes[3], "kmsg", text=text, real_kmsg=True)
        head, _, line = os.read(log, 8192).decode().partition(";")
    finally:
        os.close(log)
    assert line.startswith(text)
    # User space cannot speak as the kernel: facility user (1), level error (3).
    assert head.split(",")[0] == str(1 * 8 + 3)
    assert (slurm.node_dir(slurm.nodes[3]) / "kmsg").read_bytes() == b""
