"""A rank that begins its program again inside its own process, by NVIDIA's in-process restart.

`python in_process.py script.py ... | -m module ...`, in the program's own interpreter, which has
torch and nvidia-resiliency-ext and need not have hpctl. Where the program raises on any rank, all
ranks abort their collectives and start it again at once: without a new interpreter, its imports
and its CUDA context. Rank 0 has hpctl look for the newest complete checkpoint, and finds a port
for the program's store, which must not meet the last one's keys.

A rank that ends, a CUDA error that stays, and the MOST-th exception end all ranks: the launcher
then starts new processes, as without this. So does a rank that does not come to the restart within
GATHER_S: gloo cannot abort a collective, and no library interrupts a system call, so the others
would wait until the run counts as hung.
"""

import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from datetime import timedelta
from importlib import import_module
from typing import Any

MOST = 3
"""Programs that are begun in one process. What fails more often may lie in the process."""
STOP = 93
"""The exit code after which hpctl starts nothing again."""
FOREVER = timedelta(days=365)
"""hpctl finds hangs: to load a checkpoint may take longer than any limit of the wrapper's."""
SOON = timedelta(seconds=0.25)
GATHER_S = 20.0
"""Seconds from an exception until all ranks are there. With new processes the run would have begun
by then: 1.4 s in the processes and 10.6 s with new ones, measured with CUDA on an H200."""
PLACE_S = 3600


def print_in_process_log_line(text: str) -> None:
    """Print a line into the job's log."""
    print(f"hpctl in-process: {text}", file=sys.stderr, flush=True)


def find_resume_checkpoint(iteration: int, began: bool) -> str:
    """Ask hpctl where to resume, "" for the beginning. Raises OSError where there is no such place.

    `began`: the job began with nothing.
    """
    if not os.environ.get("HPCTL_CHECKPOINT_DIR"):
        return os.environ.get("HPCTL_RESUME_FROM", "")
    command = [os.environ["HPCTL_PYTHON"], "-m", "hpctl.checkpoints.resume"]
    command += [str(iteration), "empty" if began else "resumed"]
    env = {**os.environ, "PYTHONSAFEPATH": "1"}  # what lies where the job runs is no part of hpctl
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PLACE_S, check=False, env=env
    )
    answer = done.stdout.strip()
    if done.returncode:
        raise OSError(answer or f"hpctl ended with exit code {done.returncode}")
    return answer


class RestartWatchdogTimer:
    """Ends this process where the other ranks do not come to a restart in time."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Give the other ranks GATHER_S seconds from now."""
        self._timer = threading.Timer(GATHER_S, self._exit_process)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Note that all ranks are there."""
        if self._timer is not None:
            self._timer.cancel()

    @staticmethod
    def _exit_process() -> None:
        print_in_process_log_line(
            f"a rank does not come to the restart within {GATHER_S:.0f} s: new processes start"
        )
        sys.stdout.flush()
        os._exit(1)


def exchange_rank_start_parameters(store: Any, state: Any, began: bool) -> dict[str, Any]:
    """Return what rank 0 says of this beginning: `resume`, `port`, `error`."""
    key = f"hpctl-{state.iteration}"
    if state.rank == 0:
        with socket.create_server(("", 0)) as free:
            found = {"resume": "", "port": free.getsockname()[1], "error": ""}
        try:
            first = os.environ.get("HPCTL_RESUME_FROM", "")
            found["resume"] = (
                find_resume_checkpoint(state.iteration, began) if state.iteration else first
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            found["error"] = str(error)
        store.set(key, json.dumps(found))
    store.wait([key], timedelta(seconds=PLACE_S))
    answer: dict[str, Any] = json.loads(store.get(key))
    return answer


def prepare_user_program_start(store: Any, state: Any, began: bool) -> None:
    """Prepare, before each start of the program, what it finds in its environment."""
    answer = exchange_rank_start_parameters(store, state, began)
    if answer["error"]:
        if state.rank == 0:
            print_in_process_log_line(f"nothing to resume from: {answer['error']}")
        sys.exit(STOP)
    os.environ["MASTER_PORT"] = str(answer["port"])
    os.environ.pop("HPCTL_RESUME_FROM", None)
    if answer["resume"]:
        os.environ["HPCTL_RESUME_FROM"] = answer["resume"]
    if state.iteration and state.rank == 0:
        whence = answer["resume"] or "the beginning"
        print_in_process_log_line(f"restart {state.iteration} in the same processes, from {whence}")


def run_user_program(arguments: list[str], gathering: RestartWatchdogTimer) -> None:
    """Run it as Python would. An exit with 0 is an end as any other; with another code the process
    ends at once, for the wrapper would wait for ranks that wait for this one."""
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            if not isinstance(end.code, int):
                print(end.code, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
    except Exception as error:
        # Its frames hold the model, and that the process group: others wait for its sockets.
        traceback.print_exc()
        gathering.start()
        traceback.clear_frames(error.__traceback__)
        gc.collect()
        raise


def make_in_process_restart_wrapper(
    inprocess: Any, gathering: RestartWatchdogTimer, *, cuda: bool
) -> Any:
    """Make NVIDIA's wrapper for this rank."""
    began = not os.environ.get("HPCTL_RESUME_FROM")
    stores: list[Any] = []

    class RankTcpStore(inprocess.store.TCPStore):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            stores.append(self)

    class InProcessRestartInitializer(inprocess.initialize.Initialize):  # type: ignore[misc]
        def __call__(self, state: Any) -> Any:
            gathering.end()
            prepare_user_program_start(stores[-1], state, began)
            return state

    # A smaller world is for the launchers: they restart all ranks.
    world = os.environ["WORLD_SIZE"]
    limit = inprocess.initialize.RetryController(
        max_iterations=MOST, min_world_size=json.loads(world)
    )
    return inprocess.Wrapper(
        store_factory=RankTcpStore,
        store_kwargs={"port": json.loads(os.environ["MASTER_PORT"])},
        initialize=inprocess.Compose(InProcessRestartInitializer(), limit),
        health_check=inprocess.health_check.CudaHealthCheck() if cuda else None,
        monitor_thread_interval=SOON,
        last_call_wait=SOON,
        soft_timeout=FOREVER,
        hard_timeout=2 * FOREVER,
        barrier_timeout=3 * FOREVER,
        completion_timeout=3 * FOREVER,
    )


def main(arguments: list[str]) -> int:
    """Run until the program has ended on all ranks."""
    # Else its C++ warns of every quarter of a second in which no rank has failed.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", "logging not initialized")
    try:
        torch = import_module("torch")
        inprocess = import_module("nvidia_resiliency_ext.inprocess")
    except ImportError as error:
        print_in_process_log_line(
            f"{sys.executable}: {error}. pip install nvidia-resiliency-ext, or omit --in-process"
        )
        return STOP
    gathering = RestartWatchdogTimer()
    restarting = make_in_process_restart_wrapper(
        inprocess, gathering, cuda=torch.cuda.is_available()
    )
    # No arguments: the wrapper looks at their annotations, and trips over those of today.
    restarting(lambda: run_user_program(arguments, gathering))()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
