"""Tasks that sleep in the kernel, zombies, and the kernel's limits."""

import pytest
from msgspec.structs import replace

from hpctl.detection import procs
from hpctl.detection.check import CheckResultUnknownError
from hpctl.detection.checks import host_dstate, host_zombies
from hpctl.detection.checks.host_dstate import StuckTask
from hpctl.detection.checks.host_zombies import ProcessCountSample
from hpctl.detection.nvml.snapshot import GpuProcess, NvmlSnapshot
from hpctl.detection.procs import ProcessScanner
from hpctl.vocabulary.model import DeviceVerdict
from tests.detection.host import limits, machine, summary
from tests.fakes.fabric import Clock
from tests.sweeps import gpus

NVIDIA = "[<0>] os_acquire_mutex+0x2c/0x40 [nvidia]\n[<0>] _nv012345rm+0x1c/0x30 [nvidia]"

UVM = "[<0>] down_write+0x33/0x60\n[<0>] uvm_va_space_mm_shutdown+0x1d/0x90 [nvidia_uvm]"

EFA = "[<0>] efa_com_wait_and_process_admin_cq+0x5/0x9 [efa]\n[<0>] ib_dereg_mr+0x1/0x2 [ib_core]"

LUSTRE = "[<0>] ptlrpc_set_wait+0x2c/0x7 [ptlrpc]\n[<0>] ll_getattr+0x1/0x2 [lustre]"

NFS = "[<0>] rpc_wait_bit_killable+0x1e/0x90 [sunrpc]\n[<0>] nfs_getattr+0x1/0x2 [nfs]"

DISK = "[<0>] folio_wait_bit_common+0x13/0x3\n[<0>] ext4_filemap_fault+0x2/0x4"

OURS = "[<0>] my_nvidia_helper_thing+0x1/0x2\n[<0>] do_syscall_64+0x5b/0x80"


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(host_dstate, "SCAN", ProcessScanner())
    monkeypatch.setattr(host_dstate, "KNOWN", {})
    return Clock()


def task(
    pid=7,
    state="D",
    *,
    comm="python",
    flags=0x400000,
    threads=1,
    start=99,
    switches=5,
    stack=NVIDIA,
):
    zeros = "0 " * 10
    stat = f"{pid} ({comm}) {state} 1 7 7 0 -1 {flags} {zeros}{threads} 0 {start} 0 0"
    status = (
        f"Name:\t{comm}\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n"
    )
    folder = f"/proc/{pid}"
    files = {f"{folder}/stat": stat, f"{folder}/status": status, f"{folder}/stack": stack}
    return {**files, f"{folder}/wchan": "0"}


def looks(tmp_path, clock, *rounds, pause_s=30.0):
    """What is said at the last of several looks at these files."""
    seen: tuple[StuckTask, ...] = ()
    for files in rounds:
        seen = host_dstate.list_stuck_tasks(machine(tmp_path, files, monotonic=clock))
        clock.now += pause_s
    return summary(host_dstate.judge_stuck_tasks(seen, None, limits("host.dstate")))


@pytest.mark.parametrize(
    ("stack", "driver"),
    [
        (NVIDIA, "nvidia"), (UVM, "nvidia"), (EFA, "efa"), (LUSTRE, "lustre"), (NFS, "nfs"),
        (DISK, ""), (OURS, ""), ("", ""), ("ptlrpc_set_wait", "lustre"),
        ("rpc_wait_bit_killable", "nfs"), ("os_acquire_mutex", "nvidia"),
        ("efa_com_cmd_exec", "efa"), ("wait_woken", ""),
    ],
)  # fmt: skip
def test_whose_code_it_is(tmp_path, stack, driver):
    made = machine(tmp_path, {"/proc/7/stack": stack})
    assert (
        host_dstate.find_driver_in_kernel_stack(host_dstate.read_task_kernel_stack(made, 7))
        == driver
    )


@pytest.mark.parametrize(
    "rounds",
    [
        [task()] * 3,
        [task(comm="a) D (b")] * 3,
        [{**task(stack=""), "/proc/7/wchan": "os_acquire_mutex"}] * 3,
        # Many that wait for a file server hide no GPU.
        [{k: v for pid in range(9, 99) for k, v in task(pid, stack=DISK).items()} | task(900)] * 3,
    ],
)
def test_a_minute_in_the_driver_is_reported(tmp_path, clock, rounds):
    assert looks(tmp_path, clock, *rounds) == [("nvidia", "", DeviceVerdict.FAIL)]


@pytest.mark.parametrize(
    "rounds",
    [
        [task(switches=5), task(switches=6), task(switches=7)],
        [task(start=1), task(start=1), task(start=2)],
        [task(), task(state="S"), task(), task()],
        [task(comm="UVM GPU1 BH", flags=0x208040)] * 3,
        [task(stack=DISK)] * 3,
    ],
    ids=["ran in between", "another of that pid", "woke", "a kernel thread", "other code"],
)
def test_what_is_not_stuck_in_a_driver_is_not_reported(tmp_path, clock, rounds):
    assert looks(tmp_path, clock, *rounds) == []


def test_just_below_a_minute_is_not(tmp_path, clock):
    assert looks(tmp_path, clock, task(), task(), task(), pause_s=29.9) == []


def of_a_thread(state):
    """A process in this state, one of whose threads sleeps in the driver."""
    thread = task(8, comm="pt_autograd_0")
    files = task(7, state, threads=2) | {f"/proc/7/task/8{k[7:]}": v for k, v in thread.items()}
    return files | {k: v for k, v in thread.items() if not k.endswith("/stat")}


def test_a_thread_holds_a_killed_process(tmp_path, clock):
    assert looks(tmp_path, clock, *[of_a_thread("Z")] * 3) == [("nvidia", "", DeviceVerdict.FAIL)]


@pytest.mark.parametrize(("on_gpu", "found"), [(7, [("nvidia", "", DeviceVerdict.FAIL)]), (9, [])])
def test_a_thread_of_a_process_on_a_gpu_hangs_while_the_first_waits(tmp_path, clock, on_gpu, found):
    swept = NvmlSnapshot(1.0, gpus=gpus(processes=(GpuProcess(on_gpu),)))
    for _ in range(3):
        here = machine(tmp_path, of_a_thread("S"), monotonic=clock)
        seen = host_dstate.list_stuck_tasks(replace(here, nvml=lambda: swept))
        clock.now += 30.0
    assert summary(host_dstate.judge_stuck_tasks(seen, None, limits("host.dstate"))) == found


def test_the_evidence_names_the_task_and_the_place():
    seen = (StuckTask(7, "python", 61.0, "nv_ioctl+0x1 [nvidia]\nvfs_ioctl+0x2"),)
    (reported,) = host_dstate.judge_stuck_tasks(seen, None, limits("host.dstate"))
    assert reported.detail == "python (7) has not run for 61 s"
    assert reported.evidence == "nv_ioctl+0x1 [nvidia] < vfs_ioctl+0x2"


FAIL, WARN = DeviceVerdict.FAIL, DeviceVerdict.WARN

FILES = {
    "/proc/loadavg": "0.52 0.58 0.59 3/1234 4711\n",
    "/proc/sys/kernel/pid_max": "4194304\n",
    "/proc/sys/kernel/threads-max": "65536\n",
    "/proc/sys/fs/file-nr": "2048\t0\t9223372036854775807\n",
}


def stat(pid, state="S", flags=0, comm="sh"):
    return {f"/proc/{pid}/stat": f"{pid} ({comm}) {state} 1 7 7 0 -1 {flags} {'0 ' * 10}1 0 9 0"}


@pytest.fixture(autouse=True)
def scan(monkeypatch):
    monkeypatch.setattr(host_zombies, "SCAN", procs.ProcessScanner())


def test_what_proc_says(tmp_path):
    files = {**FILES, **stat(5, "Z"), **stat(6), **stat(7, "Z")}
    seen = host_zombies.count_processes_and_open_files(machine(tmp_path, files))
    assert seen == ProcessCountSample(2, 1234, 65536, 2048, 9223372036854775807)
    assert (
        summary(host_zombies.judge_process_and_file_counts(seen, None, limits("host.zombies")))
        == []
    )


@pytest.mark.parametrize("name", ["/proc/loadavg", "/proc/sys/fs/file-nr"])
def test_what_proc_should_not_say(tmp_path, name):
    with pytest.raises(CheckResultUnknownError):
        host_zombies.count_processes_and_open_files(machine(tmp_path, {**FILES, name: "?"}))


def test_a_scan_reads_a_kernel_thread_once_in_ten_times(tmp_path):
    scan, made = procs.ProcessScanner(), machine(tmp_path, {**stat(5), **stat(9, flags=0x200000)})
    assert [t.pid for t in scan.tasks(made)] == [5]
    # Its pid went to a process: seen when the kernel threads are looked at again.
    machine(tmp_path, stat(9))
    assert [[t.pid for t in scan.tasks(made)] for _ in range(10)] == [[5]] * 9 + [[5, 9]]


def test_a_scan_is_bounded_and_continues_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(procs, "MOST", 3)
    files = {name: text for pid in range(1, 6) for name, text in stat(pid).items()}
    scan, made = procs.ProcessScanner(), machine(tmp_path, files)
    assert [[t.pid for t in scan.tasks(made)] for _ in "123"] == [[1, 2, 3], [4, 5, 1], [2, 3, 4]]
