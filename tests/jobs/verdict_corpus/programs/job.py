"""What the training programs share: the process group, progress, and one part that goes wrong.

The environment variable JOB holds JSON: `part` is the module that replaces one action of the
program, in rank `rank` at step `step` (`lasting`: from then on); `timeout_s` is the process group's
timeout in seconds. gloo writes no dump of torch's flight recorder, so each rank does what NCCL's
watchdog does: it dumps when a line comes through its debug pipe and when a collective fails.
"""

import importlib
import json
import os
import sys
import threading
import time
import types
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace


def find_place() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    The processes that Lightning starts have no RANK, and the first of a node no LOCAL_RANK either.
    """
    if "PER_NODE" not in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    count = int(os.environ["PER_NODE"])
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return int(os.environ["NODE_RANK"]) * count + local, int(os.environ["NODES"]) * count


RANK, WORLD = find_place()
CONFIG = json.loads(os.environ["JOB"])
DUMPING = threading.Lock()
"""A line through the pipe and an exception may both ask for a dump."""
PAUSE_S = 0.1
"""Seconds a step takes at least: the machine that records is shared."""


def leave_out_compiler() -> None:
    """Keep torch from importing its compiler for a dump: ten seconds of a processor in each rank.

    It maps frames of compiled code to source, of which these programs have none (py_symbolize in
    torch/csrc/profiler/python/combined_traceback.cpp).
    """
    name = "torch._inductor.codecache"
    module = types.ModuleType(name)
    cache = type("PyCodeCache", (), {"stack_frames_for_code": staticmethod(lambda *_: None)})
    module.PyCodeCache = cache
    sys.modules[name] = module


def dump_flight() -> None:
    """Write this rank's flight recorder where NCCL's watchdog would."""
    with DUMPING:
        path = Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(RANK))
        half = path.with_suffix(".part")
        half.write_bytes(_dump_fr_trace())
        half.rename(path)


def serve_debug_pipe() -> None:
    """Dump at each line that comes through the pipe."""
    path = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{RANK}.pipe"
    os.mkfifo(path)
    # Opened for both, so that it never reads the end of the file.
    with open(os.open(path, os.O_RDWR), "rb", buffering=0) as pipe:
        while pipe.readline():
            dump_flight()


def prepare() -> None:
    """Set up what a program needs before there is a process group."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    leave_out_compiler()
    torch.set_num_threads(1)
    torch.manual_seed(int(CONFIG["seed"]) + RANK)
    threading.Thread(target=serve_debug_pipe, daemon=True).start()


def register() -> None:
    """Write the process id down, and dump at an exception: this rank is in the process group."""
    hook = sys.excepthook

    def dump_and_print(*error: object) -> None:
        with suppress(OSError):
            dump_flight()
        hook(*error)

    sys.excepthook = dump_and_print
    Path("pids", str(RANK)).write_text(str(os.getpid()))


def start() -> None:
    """Join the process group and write the process id down."""
    prepare()
    dist.init_process_group("gloo", timeout=timedelta(seconds=CONFIG["timeout_s"]))
    register()


def finish_step(step: int, loss: float) -> None:
    """Record progress; rank 0 prints it."""
    half = Path("steps", f"{RANK}.part")
    half.write_text(str(step))
    half.rename(Path("steps", str(RANK)))
    if RANK == 0 and step % int(CONFIG["log_every"]) == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)
    time.sleep(PAUSE_S)


def replace_action(action: str, step: int, value: object = None) -> bool:
    """Run the part in place of an action, where it is configured for this one; return whether it
    did."""
    part = str(CONFIG["part"])
    if not part or CONFIG["action"] != action or CONFIG["rank"] != RANK:
        return False
    due = step >= CONFIG["step"] if CONFIG["lasting"] else step == CONFIG["step"]
    if not due:
        return False
    function = importlib.import_module(part)
    return function.run(step, value, CONFIG) is not False
