"""GPU checks of PCIe and NVLink, and of processes that hold a GPU without a job."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hpctl.agent.check import NotHere
from hpctl.agent.checks import check_gpu_pcie, check_gpu_processes
from hpctl.agent.nvml.snapshot import Gpu, NvLink, NvmlError, Pcie, Process, Snapshot
from tests.sweeps import MINUTE, but, check, codes, gpus, judged, machine, pci

GEN5 = Pcie(generation=5, generation_max=5, width=16, width_max=16, replays=0)


def link(load: int | None = 90, at: float = 100.0, **changed: int | None) -> Snapshot:
    among = gpus(utilization=90, pcie=GEN5)
    return Snapshot(at, gpus=but(2, among, utilization=load, pcie=replace(GEN5, **changed)))


# --- PCIe -------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0, 90, None])
def test_a_narrow_link_is_narrow_busy_or_not(load):
    assert codes("gpu.pcie", link(load, width=8)) == {pci(2): "width"}


def test_from_pcie_6_on_an_idle_link_may_be_narrow():
    among = gpus(utilization=0, pcie=Pcie(6, 6, 16, 16))
    idle = but(2, among, pcie=Pcie(6, 6, 4, 16))
    assert codes("gpu.pcie", Snapshot(1.0, gpus=idle)) == {}
    assert codes("gpu.pcie", Snapshot(1.0, gpus=but(2, idle, utilization=80))) == {pci(2): "width"}


def test_an_instance_type_that_wires_eight_lanes_is_no_fault():
    seen = Snapshot(1.0, gpus=gpus(4, pcie=Pcie(3, 3, 8, 16)))
    assert set(codes("gpu.pcie", seen).values()) == {"width-all"}
    single = Snapshot(1.0, gpus=gpus(1, pcie=Pcie(3, 3, 8, 16)))
    assert codes("gpu.pcie", single) == {pci(0): "width-all"}


@pytest.mark.parametrize(
    ("load", "generation", "found"),
    [
        (90, 4, {pci(2): "generation"}),
        (50, 1, {pci(2): "generation"}),
        (49, 1, {}),
        (0, 1, {}),
        (None, 1, {}),
        (90, 5, {}),
        (90, None, {}),
    ],
)
def test_the_generation_counts_under_load_only(load, generation, found):
    assert codes("gpu.pcie", link(load, generation=generation)) == found


def test_all_busy_gpus_at_a_low_generation_are_the_platform():
    seen = Snapshot(1.0, gpus=gpus(4, utilization=90, pcie=Pcie(4, 5, 16, 16)))
    assert set(codes("gpu.pcie", seen).values()) == {"generation-all"}


def test_an_idle_node_is_silent():
    assert codes("gpu.pcie", Snapshot(1.0, gpus=gpus(utilization=0, pcie=Pcie(1, 5, 16, 16)))) == {}
    assert codes("gpu.pcie", Snapshot(1.0, gpus=gpus())) == {}


# 32 Gbit/s x 16 lanes x 60 s at one error in 10^12 bits is 30.72 a minute.
@pytest.mark.parametrize(
    ("replays", "found"),
    [
        (4, []),
        (5, ["replays-peers"]),
        (30, ["replays-peers"]),
        (31, ["replays", "replays-peers"]),
    ],
)
def test_replays_of_one_gpu_alone(replays, found):
    before, seen = link(replays=1000, at=0.0), link(replays=1000 + replays, at=MINUTE)
    assert [o.code for o in judged("gpu.pcie", seen, before)] == found


def test_replays_are_compared_with_ten_times_the_peers():
    def node(at: float, worst: int, others: int) -> Snapshot:
        among = gpus(pcie=replace(GEN5, replays=others))
        return Snapshot(at, gpus=but(0, among, pcie=replace(GEN5, replays=worst)))

    assert codes("gpu.pcie", node(MINUTE, 20, 2), node(0.0, 0, 0)) == {}
    assert codes("gpu.pcie", node(MINUTE, 21, 2), node(0.0, 0, 0)) == {pci(0): "replays-peers"}


@pytest.mark.parametrize(("now", "then"), [(3, 5000), (None, 0), (5000, None)])
def test_replay_counters_that_go_back_or_are_missing(now, then):
    assert codes("gpu.pcie", link(replays=now, at=MINUTE), link(replays=then, at=0.0)) == {}


def test_the_gauge_is_the_rate_of_the_worst():
    before, seen = link(replays=10, at=0.0), link(replays=22, at=2 * MINUTE)
    assert check_gpu_pcie.gauges(seen, before) == {"gpu.pcie_replays_per_minute": 6.0}
    assert check_gpu_pcie.gauges(seen, None) == {}


# --- NVLink -----------------------------------------------------------------------------------


def links(up: int, of: int = 18) -> tuple[NvLink, ...]:
    return tuple(NvLink(number, active=number < up) for number in range(of))


def test_all_links_up():
    assert codes("gpu.nvlink", Snapshot(1.0, gpus=gpus(nvlinks=links(18)))) == {}


def test_one_link_down():
    (said,) = judged(
        "gpu.nvlink", Snapshot(1.0, gpus=but(7, gpus(nvlinks=links(18)), nvlinks=links(17)))
    )
    assert (said.code, said.device) == ("down", pci(7))
    assert said.detail == "17 of 18 NVLinks up; down: 17"


@pytest.mark.parametrize(
    ("name", "up", "of", "count"),
    [
        ("NVIDIA A100-SXM4-80GB", 12, 12, 0),
        ("NVIDIA A100-SXM4-80GB", 10, 12, 8),
        ("NVIDIA H100 80GB HBM3", 15, 18, 8),
        ("NVIDIA H200", 15, 18, 8),
        ("NVIDIA H200 NVL", 6, 18, 0),
        ("NVIDIA B200", 17, 18, 8),
        ("NVIDIA RTX A6000", 4, 4, 0),
    ],
)
def test_a_switch_that_fails_takes_a_link_from_every_gpu(name, up, of, count):
    seen = Snapshot(
        1.0,
        gpus=tuple(Gpu(i, f"GPU-{i}", pci(i), name, nvlinks=links(up, of)) for i in range(8)),
    )
    assert len(codes("gpu.nvlink", seen)) == count


def test_a_share_of_a_board_without_any_link_up_is_no_fault():
    assert codes("gpu.nvlink", Snapshot(1.0, gpus=gpus(1, nvlinks=links(0)))) == {}


def test_a_gpu_in_mig_mode_has_no_nvlink_to_lose():
    among = but(2, gpus(mig=False, nvlinks=links(18)), mig=True, nvlinks=links(0))
    assert codes("gpu.nvlink", Snapshot(1.0, gpus=among)) == {}
    both = but(5, among, nvlinks=links(17))
    assert codes("gpu.nvlink", Snapshot(1.0, gpus=both)) == {pci(5): "down"}


def test_a_lost_gpu_and_one_that_does_not_say_are_not_compared():
    among = gpus(nvlinks=links(18))
    lost = but(1, among, nvlinks=links(0), error=NvmlError(15, "nvmlDeviceGetNvLinkState"))
    silent = but(2, lost, nvlinks=tuple(NvLink(n) for n in range(18)))
    gone = but(3, silent, nvlinks=())
    assert codes("gpu.nvlink", Snapshot(1.0, gpus=gone)) == {}


@pytest.mark.parametrize("name", ["gpu.nvlink", "gpu.nvlink.errors"])
def test_no_nvlink_is_not_here(name):
    with pytest.raises(NotHere):
        check(name).gather(machine(Snapshot(1.0, gpus=gpus())))


def troubled(at: float, **values: float | None) -> Snapshot:
    among = gpus(nvlinks=(NvLink(0, True, recoveries=0), NvLink(1, True, recoveries=0)))
    return Snapshot(at, gpus=but(4, among, nvlinks=(NvLink(0, True), NvLink(1, True, **values))))


@pytest.mark.parametrize(
    ("now", "then", "found"),
    [
        ({"recoveries": 3}, {"recoveries": 2}, ["recovery"]),
        ({"recoveries": 2}, {"recoveries": 2}, []),
        ({"recoveries": 0}, {"recoveries": 2}, []),
        ({"recoveries": None}, {"recoveries": 2}, []),
        ({"recoveries_failed": 1}, {"recoveries_failed": 0}, ["recovery-failed"]),
        ({"crc_errors": 900, "replays": 900}, {"crc_errors": 0, "replays": 0}, []),
        ({"effective_ber": 1e-12}, {}, []),
        ({"effective_ber": 2e-12}, {}, ["ber"]),
        ({"symbol_ber": 1e-6}, {}, ["ber"]),
        ({"symbol_ber": 2e-6}, {}, ["ber-high"]),
        ({"effective_ber": 0.0, "symbol_ber": 1e-15}, {}, []),
    ],
)
def test_a_link_in_trouble(now, then, found):
    said = judged("gpu.nvlink.errors", troubled(MINUTE, **now), troubled(0.0, **then))
    assert [o.code for o in said] == found
    assert all(o.device == pci(4) and "link 1" in o.detail for o in said)


# --- processes --------------------------------------------------------------------------------

MIB = 1024 * 1024


def process(root: Path, pid: int, name: str, cmdline: bytes = b"", cgroup: str = "") -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(cmdline)
    (folder / "cgroup").write_text(cgroup)


def holding(*processes: Process) -> Snapshot:
    return Snapshot(1.0, gpus=but(1, gpus(processes=()), processes=processes))


@pytest.mark.parametrize(("mib", "found"), [(15, {}), (16, {pci(1): "stray"})])
def test_a_process_on_a_node_without_a_job(tmp_path, mib, found):
    process(tmp_path, 4242, "python3", b"python3\0train.py\0", "0::/user.slice/session-4.scope\n")
    process(tmp_path, 1, "systemd", b"/sbin/init\0")
    sample = check_gpu_processes.gather(machine(holding(Process(4242, mib * MIB)), tmp_path))
    assert codes("gpu.processes", sample) == found


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n",
        "4:memory:/slurm/uid_1000/job_77/step_batch\n1:name=systemd:/x\n",
    ],
)
def test_a_process_of_a_job_is_known_by_its_control_group(tmp_path, cgroup):
    process(tmp_path, 4242, "python3", b"python3\0", cgroup)
    sample = check_gpu_processes.gather(machine(holding(Process(4242, 900 * MIB)), tmp_path))
    assert sample.jobs == {"77"}
    assert codes("gpu.processes", sample) == {}


@pytest.mark.parametrize("title", [b"slurmstepd: [77.batch]", b"slurmstepd: [77.extern]\0\0"])
def test_a_step_anywhere_on_the_node_is_a_job(tmp_path, title):
    process(tmp_path, 4242, "python3", b"python3\0")
    process(tmp_path, 4200, "slurmstepd", title)
    sample = check_gpu_processes.gather(machine(holding(Process(4242, 900 * MIB)), tmp_path))
    assert codes("gpu.processes", sample) == {}


def test_a_user_who_calls_a_process_after_slurm_is_no_job(tmp_path):
    process(tmp_path, 4242, "python3", b"python3\0slurmstepd: [77.batch]\0")
    process(tmp_path, 4243, "python3", b"slurmstepd: [77.batch]\0")
    sample = check_gpu_processes.gather(machine(holding(Process(4242, 900 * MIB)), tmp_path))
    assert codes("gpu.processes", sample) == {pci(1): "stray"}


def test_a_process_that_hangs_in_the_driver_does_not_hang_the_check(tmp_path):
    """To read its command line would: a pipe that nobody writes stands in for it."""
    process(tmp_path, 4242, "python3")
    line = tmp_path / "proc/4242/cmdline"
    line.unlink()
    os.mkfifo(line)
    done = []
    here = machine(holding(Process(4242, 900 * MIB)), tmp_path)
    look = threading.Thread(
        target=lambda: done.append(check_gpu_processes.gather(here)), daemon=True
    )
    look.start()
    look.join(5)
    with contextlib.suppress(OSError):
        os.close(os.open(line, os.O_WRONLY | os.O_NONBLOCK))
    assert done, "the look at the processes hangs with one of them"
    assert codes("gpu.processes", done[0]) == {pci(1): "stray"}


def test_services_gone_processes_and_unknown_memory_are_not_stray(tmp_path):
    process(tmp_path, 900, "nv-hostengine", b"nv-hostengine\0")
    process(tmp_path, 902, "python3", b"python3\0")
    seen = holding(Process(900, 400 * MIB), Process(901, 400 * MIB), Process(902, None))
    sample = check_gpu_processes.gather(machine(seen, tmp_path))
    assert codes("gpu.processes", sample) == {}


def test_a_driver_that_does_not_list_processes(tmp_path):
    with pytest.raises(NotHere):
        check_gpu_processes.gather(machine(Snapshot(1.0, gpus=gpus()), tmp_path))
