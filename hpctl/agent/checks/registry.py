"""All checks that run at intervals, by their names in `hpctl.core.faults`."""

from __future__ import annotations

from collections.abc import Mapping

from hpctl.agent.check import Functions
from hpctl.agent.checks import (
    check_efa,
    check_gpu_driver,
    check_gpu_errors,
    check_gpu_memory,
    check_gpu_nvlink,
    check_gpu_pcie,
    check_gpu_processes,
    check_gpu_settings,
    check_gpu_speed,
    check_host_clock,
    check_host_disk,
    check_host_ec2,
    check_host_filesystems,
    check_host_memory,
    check_host_nvme,
    check_host_processes,
    check_host_units,
    check_neuron,
    check_rdma,
)

FUNCTIONS: Mapping[str, Functions] = {
    **check_efa.CHECKS,
    **check_gpu_driver.CHECKS,
    **check_gpu_errors.CHECKS,
    **check_gpu_memory.CHECKS,
    **check_gpu_nvlink.CHECKS,
    **check_gpu_pcie.CHECKS,
    **check_gpu_processes.CHECKS,
    **check_gpu_settings.CHECKS,
    **check_gpu_speed.CHECKS,
    **check_host_clock.CHECKS,
    **check_host_disk.CHECKS,
    **check_host_ec2.CHECKS,
    **check_host_filesystems.CHECKS,
    **check_host_memory.CHECKS,
    **check_host_nvme.CHECKS,
    **check_host_processes.CHECKS,
    **check_host_units.CHECKS,
    **check_neuron.CHECKS,
    **check_rdma.CHECKS,
}
