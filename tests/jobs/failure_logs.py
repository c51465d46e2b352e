"""Logs of failed runs in the words of launchers and libraries, with the cause and the rank that are
right. What the ranks that lost a peer say comes after the cause, or before it where named so."""

from collections.abc import Sequence

from msgspec import Struct

from hpctl.jobs.run.srun import SrunTaskEnd
from hpctl.vocabulary.identity import NodeName

PEER = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"
    " Connection closed by peer [127.0.0.1]:22707"
)
SITE = "/opt/lib/python3.11/site-packages"
STEPS = tuple(f"step {number} loss 2.1" for number in range(6))
KILLED, TOO_LARGE = 137, 153
CODE = frozenset({"program", "data"})
OUTSIDE = frozenset({"unknown", "preemption"})


class FailureLog(Struct, frozen=True):
    """One log. `causes` are those that are right, `ends` the ranks' ends as (rank, exit code)."""

    name: str
    causes: frozenset[str]
    rank: int
    tail: Sequence[str]
    ends: Sequence[tuple[int, int]] = ((2, 1),)

    def list_ends(self) -> list[SrunTaskEnd]:
        """Return the ends as srun reports them, each rank on its own node."""
        texts = {KILLED: "Killed"}
        return [
            SrunTaskEnd(NodeName(f"n{rank + 1}"), rank, code, texts.get(code, f"exit code {code}"))
            for rank, code in self.ends
        ]


def trace(error: str, prefix: str = "[rank2]: ", file: str = "/home/u/train.py") -> list[str]:
    """Return a traceback whose lines all begin with a prefix."""
    lines = ("Traceback (most recent call last):", f'  File "{file}", line 12, in run', "    x()")
    return [prefix + line for line in (*lines, error)]


def lose_peers(prefix: str = "[rank{}]: ", ranks: Sequence[int] = (0, 1, 3)) -> list[str]:
    """Return what the ranks print that lost a peer."""
    lines: list[str] = []
    for rank in ranks:
        lines += trace(PEER, prefix.format(rank), f"{SITE}/torch/distributed/distributed_c10d.py")
    return lines


def chain(prefix: str, sentence: str) -> list[str]:
    """Return what Python prints between the tracebacks of one failure."""
    return [prefix, f"{prefix}{sentence}:", prefix]


CAUSED = "The above exception was the direct cause of the following exception"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FULL = "OSError: [Errno 28] No space left on device: '/ckpt/a.pt'"
ROOT = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-29_00:00:00",
    "  host      : n1",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : 1 (pid: 123)",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
)
GROUP = (
    "  + Exception Group Traceback (most recent call last):",
    '  |   File "/home/u/train.py", line 9, in main',
    "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
    "  +-+---------------- 1 ----------------",
    "    | Traceback (most recent call last):",
    '    |   File "/home/u/data.py", line 3, in read',
    "    | MemoryError",
    "    +------------------------------------",
)
BOX = (
    "╭──────────── Traceback (most recent call last) ─────────────╮",
    "│ /home/u/train.py:12 in main                                 │",
    "│ ❱ 12   raise ValueError('bad')                              │",
    "╰────────────────────────────────────────────────────────────╯",
    "ValueError: bad",
)
JAX_FATAL = (
    "0: F1129 17:42:48.594200 77 client.h:77] Terminating process because the JAX distributed"
    " service detected fatal errors. This most likely indicates that another task died"
)
LIMIT = "safetensors_rust.SafetensorError: I/O error: File too large (os error 27)"
POOL = (
    "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated"
    " abruptly while the future was running or pending."
)
BARRIER = "RuntimeError: Rank 2 failed to pass monitoredBarrier in 10000 ms"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"

PREFIXES = (
    FailureLog("open mpi", CODE, 2, [*trace("KeyError: 'x'", "[1,2]<stderr>:"),
               *lose_peers("[1,{}]<stderr>:")], ()),
    FailureLog("hydra", CODE, 2, [*trace("KeyError: 'x'", "[2] "), *lose_peers("[{}] ")], ()),
    FailureLog("pdsh", CODE, 2, [*trace("KeyError: 'x'", "worker-1: [rank2]: "),
               *lose_peers("worker-0: [rank{}]: ")], ()),
    FailureLog("times", CODE, 2,
               [*(f"2026-11-29T01:02:03.{number} [rank2]: {line}" for number, line in
                  enumerate(trace("KeyError: 'x'", ""))),
                *lose_peers("2026-11-29T01:02:04 [rank{}]: ")], ()),
    FailureLog("tee and hook", CODE, 2, [*trace("KeyError: 'x'", "[default2]:[rank2]: "),
               *lose_peers("[default{0}]:[rank{0}]: "), *ROOT], ()),
    FailureLog("label and hook", frozenset({"memory"}), 2, [*trace("MemoryError", "2: [rank2]: "),
               *lose_peers("{0}: [rank{0}]: ")]),
    FailureLog("exception group", frozenset({"memory"}), 2, [*GROUP, *lose_peers()]),
    FailureLog("rich", CODE, 2, [*(f"[rank2]: {line}" for line in BOX), *lose_peers()]),
    FailureLog("progress bar", CODE, 2,
               [f"Epoch 1: 45%|###  | 45/100 [00:10<00:12]{trace('ValueError: bad')[0]}",
                *trace("ValueError: bad")[1:], *lose_peers()]),
    FailureLog("words about another rank", CODE, 2,
               [*trace("ValueError: Rank 0 sent a batch of 7 rows", "2: "), *lose_peers("{}: ")]),
)  # fmt: skip
CONSEQUENCES = (
    FailureLog("reset before the cause", CODE, 2,
               [*STEPS, *trace(RESET, "[rank0]: "), *trace("ValueError: bad")], ((2, 1), (0, 1))),
    FailureLog("reset by a killed rank", OUTSIDE, 2,
               [*STEPS, *trace(RESET, "[rank0]: ")], ((2, KILLED), (0, 1))),
    FailureLog("end of a pipe of a killed rank", OUTSIDE, 2,
               [*STEPS, *trace("EOFError", "[rank0]: ")], ((2, KILLED), (0, 1))),
    FailureLog("a JAX task that lost another", CODE, 2,
               [*trace("jax.errors.JaxRuntimeError: UNAVAILABLE: Connection reset by peer", "0: "),
                *trace("ValueError: bad", "2: ")], ((2, 1), (0, 1))),
    FailureLog("a JAX service that lost a task", OUTSIDE, 2, [*STEPS, JAX_FATAL],
               ((2, KILLED), (0, 134))),
    FailureLog("a barrier that names who is missing", frozenset({"program", "unknown"}), 2,
               [*STEPS, *trace(BARRIER, "[rank0]: ")], ((0, 1),)),
)  # fmt: skip
CAUGHT = (
    FailureLog("memory, then a kill", OUTSIDE, 2,
               [*trace(OOM, ""), "retrying with batch size 8", *STEPS, *lose_peers()],
               ((2, KILLED), (0, 1))),
    FailureLog("memory, then an exception", CODE, 2,
               [*trace(OOM, ""), *STEPS, *trace("KeyError: 'x'"), *lose_peers()]),
    FailureLog("a warning of memory, then an exception", CODE, 2,
               ["WARNING: CUDA out of memory, reducing the batch size", *STEPS,
                *trace("KeyError: 'x'"), *lose_peers()]),
    FailureLog("a full cache, then an exception", CODE, 2,
               ["no cache: [Errno 28] No space left on device: '/tmp/c'", *STEPS,
                *trace("ValueError: bad"), *lose_peers()]),
    FailureLog("an exception of a thread is not caught", frozenset({"storage"}), 2,
               ["Exception in thread Thread-3 (save):", *trace(FULL, ""), *STEPS,
                *trace("RuntimeError: the checkpoint failed"), *lose_peers()]),
    FailureLog("a printed cause right before its consequence", frozenset({"storage"}), 2,
               [*STEPS, *trace(FULL, ""), *trace("RuntimeError: the checkpoint failed"),
                *lose_peers()]),
    FailureLog("a cause that is wrapped", frozenset({"storage"}), 2,
               [*trace(FULL), *chain("[rank2]: ", CAUSED), *trace("RuntimeError: no checkpoint"),
                *lose_peers()]),
)  # fmt: skip
CLASSES = (
    FailureLog("rust's allocator", frozenset({"memory"}), 2,
               ["2: memory allocation of 80000000000 bytes failed",
                *lose_peers("{0}: [rank{0}]: ")], ((2, 134),)),
    FailureLog("arrow's memory", frozenset({"memory"}), 2,
               [*trace("pyarrow.lib.ArrowMemoryError: malloc of size 8 failed"), *lose_peers()]),
    FailureLog("XLA's allocator", frozenset({"memory"}), 2,
               trace("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request")),
    FailureLog("no batch fits", frozenset({"memory"}), 2,
               trace("RuntimeError: No executable batch size found, reached zero.")),
    FailureLog("a full database", frozenset({"storage"}), 2,
               trace("sqlite3.OperationalError: database or disk is full")),
    FailureLog("a limit of a file's size", frozenset({"storage"}), 2, trace(LIMIT)),
    FailureLog("the signal of that limit", frozenset({"storage"}), 2,
               [*STEPS, *lose_peers()], ((2, TOO_LARGE),)),
    FailureLog("a lock that is not had", frozenset({"storage"}), 2,
               trace("filelock._error.Timeout: The file lock '/fsx/c' could not be acquired.")),
    FailureLog("a pool of processes", frozenset({"data"}), 2,
               trace(POOL, file="/home/u/feed.py")),
)  # fmt: skip
