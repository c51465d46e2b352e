"""Sandboxes of the parts: a real Slurm whose nodes share the machine's GPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctl.sandbox.api import Sandbox
    from tests.gpu.context import Context, Ran

EAGER = "SchedulerParameters=batch_sched_delay=0\n"
"""What `hpctl doctor` advises: a startable job waits no 3 s for slurmctld to look."""


@contextmanager
def sandbox(context: Context, name: str, **settings: Any) -> Iterator[Sandbox]:
    """Start a sandbox and end it; record how long each took, and its logs where it fails."""
    from hpctl.sandbox.api import Sandbox

    settings = {"daemon": True, "mode": "own", "slurm_conf": EAGER, **settings}
    box = Sandbox(name, state_dir=context.scratch / "box", **settings)
    began = time.monotonic()
    try:
        box.up()
        up_s = round(time.monotonic() - began, 2)
        context.record("up_s", up_s)
        context.say(f"the sandbox is up after {up_s} s")
        yield box
    except BaseException:
        _record_logs(context, box)
        raise
    finally:
        began = time.monotonic()
        box.down()
        context.record("down_s", round(time.monotonic() - began, 2))


def _record_logs(context: Context, box: Sandbox) -> None:
    logs = {
        str(path.relative_to(box.state_dir)): path.read_text(errors="replace")[-2000:]
        for path in box.log_files()
        if path.is_file() and path.stat().st_size
    }
    context.record("sandbox_logs", logs)


def run_in(
    box: Sandbox, *words: str, limit_s: float = 30.0, environment: Mapping[str, str] | None = None
) -> Ran:
    """Run a command on a sandbox's head node; never raises for how it ends."""
    import subprocess

    from hpctl.toolkit.errors import HpctlError
    from tests.gpu.context import Ran

    began = time.monotonic()
    try:
        done = box.run(list(words), check=False, timeout=limit_s, env=dict(environment or {}))
    except (subprocess.TimeoutExpired, HpctlError) as error:
        return Ran(None, "", str(error), round(time.monotonic() - began, 2))
    took_s = round(time.monotonic() - began, 2)
    return Ran(done.returncode, done.stdout, done.stderr, took_s)


def hpctl_in(box: Sandbox, *words: str, limit_s: float = 30.0) -> Ran:
    """Run `hpctl` on a sandbox's head node."""
    return run_in(box, sys.executable, "-m", "hpctl", *words, limit_s=limit_s)


def wait_for(find: Callable[[], Any], limit_s: float, every_s: float = 0.1) -> Any:
    """Return what `find` finds as soon as it finds anything; its last answer at the limit."""
    end = time.monotonic() + limit_s
    while True:
        found = find()
        if found or time.monotonic() > end:
            return found
        time.sleep(every_s)
