"""The sandbox is a real Slurm: jobs run, and faults are what a driver would log."""

import os

import pytest

from hpctl.sandbox.slurmconf import ETC_HOSTS
from tests.daemon.chaos import cluster

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.timeout(180)]


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write to the kernel's log")
def test_the_real_kernel_log_is_written_where_asked(slurm):
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


RENDEZVOUS = '''MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
getent hosts "$MASTER_ADDR"'''


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a node an /etc/hosts of its own")
def test_a_job_finds_its_first_node_by_name(slurm):
    before = ETC_HOSTS.read_text()
    first = slurm.nodes[2]
    step = ["srun", f"--nodelist={first},{slurm.nodes[3]}", "--ntasks=2", "sh", "-c", RENDEZVOUS]
    found = [line.split() for line in slurm.run(step).stdout.splitlines()]
    assert found == [[slurm.spec.address(3), first]] * 2
    assert ETC_HOSTS.read_text() == before, "the machine's own file stays as it is"


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a node an /etc/hosts of its own")
def test_a_replaced_node_is_found_at_its_new_address():
    with cluster(nodes=2, node_names="group") as live:
        asking, moving = live.sandbox.nodes
        ask = ["srun", f"--nodelist={asking}", "getent", "hosts", moving]
        (before, _) = live.sandbox.run(ask).stdout.split()
        live.order("replace", moving)
        live.returned(moving)
        (after, _) = live.sandbox.run(ask).stdout.split()
        assert after != before
        shown = live.sandbox.run(["scontrol", "--oneliner", "show", "node", moving]).stdout
        assert f"NodeAddr={after} " in shown
