"""The sandbox is a real Slurm: jobs run, and faults are what a driver would log."""

import os

import pytest

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
