"""A process that has imported one library and forks writers and loaders from itself.

Importing a library takes seconds, and each kill needs a fresh process. Requests and answers are
lines of JSON on stdin and on the descriptor that stdout was; what the library prints goes to
stderr. `python -m tests.checkpoints.proof.server LIBRARY ANNOUNCE_FD`.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.checkpoints.proof.library import Library, Run

LOAD_LIMIT_S = 60


def main() -> None:
    name, announce = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # each library warns of what a CPU lacks
    _no_shared_locks()
    from tests.checkpoints.proof.writers import make

    library = make(name)
    gc.collect()
    gc.freeze()  # else the first collection in each child would copy every page
    print(json.dumps({"ready": True, "ranks": library.ranks}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(library, request, announce)), file=answers)


def _no_shared_locks() -> None:
    """Give progress bars a lock of each process's own, and no thread.

    tqdm's is shared between a process and its children: one that is killed while it holds it, in
    the middle of a save say, would stop all that come after it.
    """
    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        tqdm.monitor_interval = 0
        tqdm.set_lock(threading.RLock())


def _answer(library: Library, request, announce: int) -> dict[str, Any]:
    if request["do"] == "write":
        return {"pids": _start(library, request, announce)}
    if request["do"] == "reap":
        return {"statuses": [os.waitpid(pid, 0)[1] for pid in request["pids"]]}
    return _load(library, Path(request["path"]), Path(request["meeting"]))


def _start(library: Library, request, announce: int) -> list[int]:
    pids: list[int] = []
    for rank in range(library.ranks):
        run = Run(
            root=Path(request["root"]), first=request["first"], attempt=request["attempt"],
            seed=request["seed"],
            resume=Path(request["resume"]) if request["resume"] else None,
            rank=rank, announce=announce, meeting=Path(request["meeting"]),
        )  # fmt: skip
        pids.append(_fork(lambda run=run: library.write(run), pids[0] if pids else 0))
    return pids


def _fork(action: Callable[[], None], group: int) -> int:
    """A child in the process group `group` (0: one of its own), which ends after `action`."""
    pid = os.fork()
    if pid:
        os.setpgid(pid, group or pid)
        return pid
    code = 1
    try:
        os.setpgid(0, group)
        action()
        code = 0
    except BaseException:  # noqa: BLE001 -- what ends a child, whatever it is, goes to the log
        traceback.print_exc()
    finally:
        os._exit(code)


def _load(library: Library, path: Path, meeting: Path) -> dict[str, Any]:
    pids, ends = [], []
    for rank in range(library.ranks):
        end, other = os.pipe()
        pids.append(_fork(lambda r=rank, w=other: _tell(library, path, r, meeting, w), 0))
        os.close(other)
        ends.append(end)
    values: list[float] = []
    error = None
    for end, pid in zip(ends, pids, strict=True):
        with os.fdopen(end) as stream:
            answer = json.loads(stream.read() or '{"error": "the loader died"}')
        os.waitpid(pid, 0)
        values += answer.get("values", [])
        error = error or answer.get("error")
    return {"error": error} if error else {"values": values}


def _tell(library: Library, path: Path, rank: int, meeting: Path, end: int) -> None:
    signal.alarm(LOAD_LIMIT_S)
    try:
        answer: dict[str, Any] = {"values": list(library.load(path, rank, meeting))}
    except BaseException as error:  # noqa: BLE001 -- Megatron even calls sys.exit
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    os.write(end, json.dumps(answer).encode())


if __name__ == "__main__":
    main()
