"""How fast this machine computes, copies and talks: `python speed.py cpu|gpu|group SECONDS`.

Prints figures and a line of the contract (hpctl/nodes/acceptance/result.py). It runs by its path,
under whatever interpreter has numpy or torch, and imports nothing of hpctl. Of several GPUs the
slowest counts: a job goes at its speed. GB are 10^9 bytes.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

GPU_EDGE, CPU_EDGE = 8192, 1024
"""Rows of the square matrices."""
COPY = 1 << 30
SMALL_COPY = 1 << 26
"""Bytes that one copy moves, of a GPU and of a processor."""
REDUCED = 1 << 24
"""Numbers (of four bytes) that one all-reduce adds up."""


def print_test_result_and_exit(status: str, remedy: str = "none", reason: str = "") -> NoReturn:
    """Print the line of the contract and end."""
    host = socket.gethostname().partition(".")[0]
    print(f"HEALTH_CHECK_RESULT:{host}:{status}:{remedy}:{reason}", flush=True)
    sys.exit(1 if status == "Failed" else 0)


def import_library_or_skip_test(name: str) -> Any:
    """Import numpy or torch; without it the test is skipped."""
    try:
        return __import__(name)
    except ImportError:
        where = "set HPCTL_TEST_PYTHON to an interpreter that has it"
        print_test_result_and_exit("Skipped", reason=f"{sys.executable} has no {name}; {where}")


def measure_calls_per_second(
    work: Callable[[], object], wait: Callable[[], object], seconds: float
) -> float:
    """Return how often a second `work` is done, over about so many seconds, after a first time."""
    work()
    wait()
    start, done, spent = time.perf_counter(), 0, 0.0
    while spent < seconds:
        work()
        done += 1
        if done % 8 == 0 or spent == 0.0:
            wait()
        spent = time.perf_counter() - start
    wait()
    return done / (time.perf_counter() - start)


def measure_cpu_speed(seconds: float) -> dict[str, float]:
    """Measure GEMM in float64 on all processors that this process may use, and copies by one."""
    np = import_library_or_skip_test("numpy")
    a = np.random.default_rng(1).random((CPU_EDGE, CPU_EDGE))
    out = np.empty_like(a)
    source, target = np.ones(SMALL_COPY, np.uint8), np.empty(SMALL_COPY, np.uint8)
    flops = 2.0 * CPU_EDGE**3
    gemm = measure_calls_per_second(lambda: np.matmul(a, a, out=out), lambda: None, seconds / 2)
    copy = measure_calls_per_second(lambda: np.copyto(target, source), lambda: None, seconds / 2)
    if not np.allclose(out[0], a[0] @ a):
        print_test_result_and_exit("Failed", "replace", "the processors multiply wrongly")
    return {"fp64_gflops": gemm * flops / 1e9, "memory_gbs": copy * 2 * SMALL_COPY / 1e9}


def measure_gpu_speeds(seconds: float) -> dict[str, float]:
    """Measure of every GPU: GEMM in bfloat16, copies within it, from and to the host, and to the
    next.

    All GPUs multiply at the same time, as in a job: power and cooling are shared.
    """
    torch = import_library_or_skip_test("torch")
    if not torch.cuda.is_available():
        print_test_result_and_exit(
            "Skipped", reason=f"torch {torch.__version__} finds no GPU that it can use"
        )
    count = torch.cuda.device_count()
    found = {"bf16_tflops": measure_gpu_gemm_tflops(torch, count, seconds)}
    rates: dict[str, list[float]] = {}
    for one in range(count):
        for name, value in measure_gpu_copy_bandwidths(
            torch, one, count, seconds / 4 / count
        ).items():
            rates.setdefault(name, []).append(value)
        torch.cuda.empty_cache()
    return found | {name: min(values) for name, values in rates.items()}


def prepare_gpu_matrix_product(torch: Any, one: int) -> tuple[Any, Any, Any]:
    """Return a matrix of one GPU, its product with itself, and room for further products."""
    generator = torch.Generator(f"cuda:{one}").manual_seed(1)
    shape, where = (GPU_EDGE, GPU_EDGE), {"device": f"cuda:{one}", "dtype": torch.bfloat16}
    a = torch.randn(shape, generator=generator, **where)
    return a, a @ a, torch.empty_like(a)


def synchronize_gpus(torch: Any, count: int) -> None:
    """Wait for all GPUs."""
    for one in range(count):
        torch.cuda.synchronize(one)


def measure_gpu_gemm_tflops(torch: Any, count: int, seconds: float) -> float:
    """Return the TFLOPS of the slowest GPU while all multiply; a wrong product ends the test."""
    work = [prepare_gpu_matrix_product(torch, one) for one in range(count)]
    begin = [torch.cuda.Event(enable_timing=True) for _ in work]
    end = [torch.cuda.Event(enable_timing=True) for _ in work]
    done, start = 0, time.perf_counter()
    for one, event in enumerate(begin):
        event.record(torch.cuda.current_stream(one))
    while time.perf_counter() - start < seconds:
        for a, _, out in work:
            for _ in range(16):
                torch.matmul(a, a, out=out)
        done += 16
        if done % 64 == 0:
            synchronize_gpus(torch, count)
    for one, event in enumerate(end):
        event.record(torch.cuda.current_stream(one))
        torch.cuda.synchronize(one)
    for one, (_, first, out) in enumerate(work):
        # The same kernel on the same numbers gives the same bits; where not, it computes wrongly.
        if not torch.equal(first, out):
            print_test_result_and_exit(
                "Failed", "replace", f"GPU {one} multiplies the same matrices to another product"
            )
    ms = [b.elapsed_time(e) for b, e in zip(begin, end)]  # noqa: B905 -- an older interpreter
    return float(done * 2.0 * GPU_EDGE**3 / (max(ms) / 1000) / 1e12)


def measure_gpu_copy_bandwidths(
    torch: Any, one: int, count: int, seconds: float
) -> dict[str, float]:
    """Return the GB a second of one GPU: in its memory, over PCIe both ways, and to the next
    GPU."""
    here = torch.empty(COPY, dtype=torch.uint8, device=f"cuda:{one}")
    there, host = torch.empty_like(here), allocate_pinned_host_memory(torch, one)

    def measure_copy(target: Any, source: Any) -> float:
        work = lambda: target.copy_(source, non_blocking=True)  # noqa: E731
        return (
            measure_calls_per_second(work, lambda: torch.cuda.synchronize(one), seconds)
            * COPY
            / 1e9
        )

    found = {
        "hbm_gbs": 2 * measure_copy(there, here),
        "h2d_gbs": measure_copy(here, host),
        "d2h_gbs": measure_copy(host, here),
    }
    if count > 1:
        far = torch.empty(COPY, dtype=torch.uint8, device=f"cuda:{(one + 1) % count}")
        found["p2p_gbs"] = measure_copy(far, here)
    return found


def allocate_pinned_host_memory(torch: Any, one: int) -> Any:
    """Return pinned memory of the NUMA node that a GPU is at.

    Memory of another node is reached over the link between the processors: that would be measured.
    """
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usual & list_gpu_numa_cpus(torch, one) or usual)
    try:
        return torch.empty(COPY, dtype=torch.uint8, pin_memory=True)
    finally:
        os.sched_setaffinity(0, usual)


def list_gpu_numa_cpus(torch: Any, one: int, root: str = "/sys/bus/pci/devices") -> set[int]:
    """Return the processors of a GPU's NUMA node, by sysfs; none where torch or sysfs does not
    say."""
    gpu = torch.cuda.get_device_properties(one)
    try:
        address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
        with open(f"{root}/{address}/local_cpulist", encoding="ascii") as file:
            ranges = [part.split("-") for part in file.read().strip().split(",")]
        cpus: set[int] = set()
        for ends in ranges:
            cpus.update(range(int(ends[0]), int(ends[-1]) + 1))
        return cpus
    except (AttributeError, OSError, ValueError):
        return set()


def measure_all_reduce_bandwidth(seconds: float) -> dict[str, float]:
    """Return all-reduce among the tasks of this Slurm step: GB a second of this task's bus."""
    torch, dist = import_library_or_skip_test("torch"), sys.modules["torch.distributed"]
    env = os.environ
    rank, size = int(env.get("SLURM_PROCID", "0")), int(env.get("SLURM_NTASKS", "1"))
    if size < 2 or "HPCTL_GROUP_HEAD" not in env:
        print_test_result_and_exit(
            "Skipped", reason="a group needs two nodes or more: `hpctl acceptance culprit`"
        )
    cuda = torch.cuda.is_available()
    host, port = env["HPCTL_GROUP_HEAD"], int(env["HPCTL_GROUP_PORT"])
    store = dist.TCPStore(host, port, size, rank == 0)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=size)
    numbers = torch.ones(
        REDUCED, device=f"cuda:{rank % torch.cuda.device_count()}" if cuda else "cpu"
    )

    def synchronize_process_group() -> None:
        if cuda:
            torch.cuda.synchronize()

    def all_reduce_tensor() -> None:
        numbers.fill_(1.0)
        dist.all_reduce(numbers)

    # The count is agreed: a rank that stopped by its own clock would leave the others waiting.
    start = time.perf_counter()
    all_reduce_tensor()
    synchronize_process_group()
    each = torch.tensor([time.perf_counter() - start], device=numbers.device)
    dist.all_reduce(each, dist.ReduceOp.MAX)
    times = max(1, min(1000, int(seconds / float(each))))
    start = time.perf_counter()
    for _ in range(times):
        all_reduce_tensor()
    synchronize_process_group()
    spent = (time.perf_counter() - start) / times
    if float(numbers[0]) != size or float(numbers[-1]) != size:
        print_test_result_and_exit("Failed", "none", f"the sum over {size} nodes is wrong")
    dist.destroy_process_group()
    return {"busbw_gbs": 2 * (size - 1) / size * numbers.numel() * 4 / spent / 1e9}


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    found = {
        "cpu": measure_cpu_speed,
        "gpu": measure_gpu_speeds,
        "group": measure_all_reduce_bandwidth,
    }[sys.argv[1]](float(sys.argv[2]))
    print(json.dumps({"figures": found}))
    print_test_result_and_exit("Passed")
