"""One part in processes of its own: `python -m tests.gpu.part NAME --folder F --scratch S ...`.

This process only watches. It starts itself once more (`--worker`), adopts what the worker's
programs leave behind, ends the worker at its limit, and kills whatever is left. So nothing of a
part outlives it, and a worker that hangs in the driver costs its own limit alone.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from tests.gpu.context import OUTCOME, Context, NotRun
from tests.gpu.plan import load_part
from tests.gpu.processes import (
    adopt_orphans,
    collect_zombies,
    end_with_parent,
    kill_descendants,
    list_descendants,
)
from tests.gpu.stand_ins import kernel_log, prepare_environment

GRACE_S = 5.0
"""How long a worker may clean up after SIGTERM (stop a sandbox) before it is killed, and how long
what it leaves may take to end."""
END = "end.json"


class TimeUp(BaseException):
    """The part has reached its limit: its `finally` blocks have the grace time."""


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line of a part's process."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.part")
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--grace-s", type=float, default=GRACE_S)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--worker", action="store_true")
    return parser.parse_args(words)


def watch(words: list[str], options: argparse.Namespace) -> None:
    """Run the worker, bounded, and write how it ended."""
    adopt_orphans()
    end_with_parent()
    asked_to_end = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked_to_end
        asked_to_end = True

    signal.signal(signal.SIGTERM, ask)
    # Here already: the loader reads its path only when a process starts.
    environment = prepare_environment(options.scratch, dry=options.dry)
    began = time.monotonic()
    with (options.folder / "output.txt").open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.part", *words, "--worker"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    code: int | None = None
    told = killed = False
    while code is None:
        code = collect_zombies().get(worker.pid)
        over_s = time.monotonic() - began - options.limit_s
        if (over_s > 0 or asked_to_end) and not told:
            told = True
            grace_ends = time.monotonic() + options.grace_s
            os.kill(worker.pid, signal.SIGTERM)
        if told and not killed and time.monotonic() > grace_ends:
            killed = True
            os.kill(worker.pid, signal.SIGKILL)
        time.sleep(0.02)
    left_running = sorted(_wait_for_descendants(options.grace_s).values())
    not_killed = sorted(kill_descendants().values())
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {
        "took_s": round(time.monotonic() - began, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "code": code,
        "at_limit": told,
        "left_running": left_running,
        "not_killed": not_killed,
    }
    (options.folder / END).write_text(json.dumps(row))


def _wait_for_descendants(seconds: float) -> dict[int, str]:
    """Return what still runs below this process after so long: what is about to end, as a child
    that the agent has let go, needs a moment on a busy machine."""
    until = time.monotonic() + seconds
    while True:
        found = list_descendants(os.getpid())
        if not found or time.monotonic() > until:
            return found
        collect_zombies()
        time.sleep(0.02)


def work(options: argparse.Namespace) -> None:
    """Run the part itself and write what became of it."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise TimeUp

    signal.signal(signal.SIGTERM, stop)
    end_with_parent(signal.SIGKILL)
    state, why = "ran", ""
    try:
        part = load_part(options.name)
        context = Context(
            name=options.name,
            folder=options.folder,
            scratch=options.scratch,
            dry=options.dry,
            until=time.monotonic() + options.limit_s,
            environment=dict(os.environ),
            kmsg=kernel_log(options.scratch, dry=options.dry),
        )
        part.run(context)
    except NotRun as reason:
        state, why = "not run", str(reason)
    except TimeUp:
        state, why = "killed at its limit", traceback.format_exc(limit=-4)
    except BaseException:  # noqa: BLE001  the page shows it, and the next part runs
        state, why = "raised", traceback.format_exc()
    outcome = options.folder / OUTCOME
    outcome.write_text(json.dumps({"state": state, "why": why}))
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that hangs in the driver must not keep the process.
    os._exit(0)


def main(words: list[str]) -> None:
    """Run one part, or (`--worker`) do its work."""
    options = parse(words)
    if options.worker:
        work(options)
    else:
        watch(words, options)


if __name__ == "__main__":
    main(sys.argv[1:])
