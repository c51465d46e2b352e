"""The agent's NVML child killed, and stopped: what the agent says then, and when it is back."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctl.detection.nvml.client import NvmlClient
    from tests.gpu.context import Context

TITLE = "The NVML child killed and stopped"
LIMIT_S = 50
DRY_LIMIT_S = 60
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu"})

DEADLINE_S, DRY_DEADLINE_S = 10.0, 1.0
"""A call is hung after two of these: the agent's default, and what a dry run waits for."""


def run(context: Context) -> None:
    """Kill one child in its sweeps and stop another between them, at the same time."""
    logging.basicConfig(level=logging.INFO)
    found: dict[str, Any] = {}
    jobs = {"kill": _kill, "stop_between": _stop}
    threads = [
        threading.Thread(target=_note, args=(found, name, job, context), daemon=True)
        for name, job in jobs.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context.keep_json("child-killed-and-stopped.json", found)
    context.record("found", found)
    killed, stopped = found["kill"], found["stop_between"]
    context.say(f"killed: the next child answers after {killed.get('back_after_s')} s")
    said = sorted({step["newest"] for step in stopped.get("stopped", [])})
    context.say(f"stopped for {stopped.get('stopped_s')} s: {said}")
    is_blamed = any("DriverHung" in text for text in said)
    context.say(f"the driver is {'BLAMED' if is_blamed else 'not blamed'} for a stopped child")
    context.say(f"continued: back after {stopped.get('back_after_s')} s")
    errors = [each["error"] for each in found.values() if "error" in each]
    if errors:
        raise RuntimeError("; ".join(errors))


def _note(
    found: dict[str, Any], name: str, job: Callable[[Context], Any], context: Context
) -> None:
    try:
        found[name] = job(context)
    except Exception as error:  # noqa: BLE001  what the other finds counts all the same
        found[name] = {"error": repr(error)}


def _kill(context: Context) -> dict[str, Any]:
    from hpctl.detection.nvml.client import NvmlClient

    client = NvmlClient(0.05)
    try:
        client.wait(20)
        pid = client.child_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        seen, is_back = _watch(client, killed, 15.0, lambda at: at > killed)
        back_after_s = round(time.monotonic() - killed, 2) if is_back else None
        return {"seen": seen, "back_after_s": back_after_s}
    finally:
        client.close()


def _stop(context: Context) -> dict[str, Any]:
    from hpctl.detection.nvml.client import NvmlClient

    deadline_s = DRY_DEADLINE_S if context.dry else DEADLINE_S
    client = NvmlClient(0.5 if context.dry else 5.0, deadline_s)
    try:
        client.wait(20)
        pid = client.child_pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            seen, _ = _watch(client, stopped, 3.0 * deadline_s, lambda at: False)
        finally:
            os.kill(pid, signal.SIGCONT)
        resumed = time.monotonic()
        again, is_back = _watch(client, resumed, 10.0, lambda at: at > resumed)
        return {
            "stopped": seen,
            "stopped_s": round(resumed - stopped, 1),
            "continued": again,
            "back_after_s": round(time.monotonic() - resumed, 2) if is_back else None,
            "same_child": client.child_pid() == pid,
        }
    finally:
        client.close()


def _watch(
    client: NvmlClient, began: float, limit_s: float, is_over: Callable[[float], bool]
) -> tuple[list[dict[str, Any]], bool]:
    """Return what `newest` says each time that it changes, and whether `is_over` came true."""
    seen: list[dict[str, Any]] = []
    last: object = None
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        at = 0.0
        try:
            at = client.newest().at
            text = "ok"
        except Exception as error:  # noqa: BLE001  what it raises is what is recorded
            text = f"{type(error).__name__}: {error}"
        state = ("".join(c for c in text if not c.isdigit()), client.child_pid())
        if state != last:
            last = state
            row = {"t": round(time.monotonic() - began, 2), "newest": text, "child": state[1]}
            seen.append(row)
        if is_over(at):
            return seen, True
        time.sleep(0.05)
    return seen, False
