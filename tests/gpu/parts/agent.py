"""The agent as a service on the real GPU: what it says and uses, idle, under load and after."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context, Ran
    from tests.gpu.usage import Program

TITLE = "The agent, idle and under load"
LIMIT_S = 90
DRY_LIMIT_S = 60
SIDE_BY_SIDE = False
NEEDS = frozenset({"gpu", "torch"})

LOAD = Path(__file__).parents[1] / "programs/load.py"
SETTLED_S = 8.0
"""The agent's start (imports, the driver's first answers) does not belong to the idle figures."""
IDLE_S, LOAD_S = 15.0, 16.0


def run(context: Context) -> None:
    """Start the agent, measure it idle, then with a GPU that multiplies, then with its user
    killed."""
    from tests.gpu.usage import Program, measure
    from tests.process import free_port

    port = free_port()
    agent = Program(_agent_command(context, port), context.environment)
    try:
        time.sleep(1.0 if context.dry else SETTLED_S)
        idle = measure(agent.pid, 2.0 if context.dry else IDLE_S)
        _tell_usage(context, "idle", idle)
        _check(context, "idle")
        _look_under_load(context, agent)
        _keep_metrics(context, port)
    finally:
        code = agent.end()
        context.record("agent_log", agent.text[-200:])
        context.say(f"the agent ended with code {code}")


def _agent_command(context: Context, port: int) -> list[str]:
    # Nobody listens on port 9: what the agent would report is on its own metrics page.
    return [
        *(sys.executable, "-m", "hpctl", "agent", "run", "-v"),
        *("--head", "http://127.0.0.1:9", "--node", "gpu1"),
        *("--instance-id", "i-0123456789abcdef0"),
        *("--kmsg", str(context.kmsg)),
        *("--spool", str(context.scratch / "spool")),
        *("--socket", str(context.scratch / "agent.sock")),
        *("--metrics", f"127.0.0.1:{port}"),
    ]


def _tell_usage(context: Context, label: str, usage: dict[str, Any]) -> None:
    context.record(f"usage_{label}", usage)
    shares = [
        f"{each['name'].split('hpctl')[-1]!r}: {each['cpu_percent']} %, "
        f"{each['kib'].get('rss', 0) >> 10} MiB ({each['kib'].get('own', 0) >> 10} of its own)"
        for each in usage["processes"]
    ]
    context.say(f"agent and child, {label}: {'; '.join(shares)}")


def _check(context: Context, label: str, *only: str) -> dict[str, Any]:
    """Run `hpctl agent check` and keep what it says; {} if it says nothing."""
    words = [word for name in only for word in ("--only", name)]
    done = context.hpctl(
        "agent", "check", "--json", "--kmsg", str(context.kmsg), *words, limit_s=40
    )
    try:
        checks = json.loads(done.out)["checks"]
    except (ValueError, KeyError):
        context.say(f"agent check, {label}: exit code {done.code}, no JSON: {done.err[-300:]}")
        return {}
    if not only:
        context.keep_json(f"agent-check-{label}.json", [_shorten_check(row) for row in checks])
    _tell_check(context, label, done, checks)
    return {row["check"]: row for row in checks}


def _shorten_check(row: dict[str, Any]) -> dict[str, Any]:
    keys = ("verdict", "code", "device", "detail", "evidence", "count")
    findings = [{key: finding.get(key) for key in keys} for finding in row["findings"][:12]]
    why = row["why"] if row["state"] in ("absent", "unknown") else ""
    return {"check": row["check"], "state": row["state"], "why": why, "findings": findings}


def _tell_check(context: Context, label: str, done: Ran, checks: list[dict[str, Any]]) -> None:
    states: dict[str, int] = {}
    for row in checks:
        states[row["state"]] = states.get(row["state"], 0) + 1
    context.say(f"agent check, {label}: exit code {done.code} after {done.took_s} s, {states}")
    for row in checks:
        if row["state"] in ("warn", "fail", "unknown"):
            found = [f"{f['code']} {f['detail']} {f['evidence']}" for f in row["findings"][:3]]
            context.say(f"{row['check']} {row['state']}: {row['why']} {'; '.join(found)}")


def _look_under_load(context: Context, agent: Program) -> None:
    from tests.gpu.usage import Program

    seconds = 4.0 if context.dry else LOAD_S
    pretend = ["--pretend"] if context.dry else []
    load = Program([sys.executable, LOAD, str(seconds), *pretend], context.environment)
    try:
        ready = load.wait_for("ready", 40)
        if ready is None:
            context.say(f"the load did not start: {load.text[-5:]}")
            return
        context.record("load", ready)
        _watch_load(context, agent, load, seconds)
        _kill_holder(context, load)
    finally:
        load.end(signal.SIGKILL)


def _watch_load(context: Context, agent: Program, load: Program, seconds: float) -> None:
    from tests.gpu.nvml_trace import begin_sweep
    from tests.gpu.smi import compare_with_smi
    from tests.gpu.stand_ins import stand_in_gpu
    from tests.gpu.usage import measure

    if context.dry:
        processes = f"{load.pid}:5000000000"
        stand_in_gpu(context.scratch).set(0, nvmlDeviceGetComputeRunningProcesses_v3=processes)
    usage = measure(agent.pid, seconds / 2)
    _tell_usage(context, "load", usage)
    sweep = begin_sweep()
    compare_with_smi(context, sweep, "load")
    context.keep("smi-plain-load.txt", context.run(["nvidia-smi"], 10).out)
    gpu = sweep.read()["gpus"][0]
    holders = [process for process in gpu.get("processes") or [] if process["pid"] == load.pid]
    context.record("holder_under_load", holders)
    context.say(
        f"under load: {gpu.get('utilization')} %, {gpu.get('sm_clock_mhz')} MHz, "
        f"{(gpu.get('power_mw') or 0) / 1000:.0f} W, {gpu.get('temperature_c')} C; "
        f"the load in NVML's list: {holders or 'NO'}"
    )
    _check(context, "load")
    done = load.wait_for("done", seconds + 10)
    context.record("load_done", done)


def _kill_holder(context: Context, load: Program) -> None:
    """Kill the process that holds the GPU's memory; record when NVML no longer lists it."""
    from tests.gpu.nvml_trace import read_holders
    from tests.gpu.stand_ins import stand_in_gpu

    before = read_holders()
    os.kill(load.pid, signal.SIGKILL)
    killed = time.monotonic()
    if context.dry:
        stand_in_gpu(context.scratch).set(0, nvmlDeviceGetComputeRunningProcesses_v3="")
    seen = [{"s": 0.0, **before}]
    while time.monotonic() - killed < 4.0:
        now = read_holders()
        if now != {key: seen[-1][key] for key in now}:
            seen.append({"s": round(time.monotonic() - killed, 3), **now})
        if load.pid not in now["pids"]:
            break
        time.sleep(0.02)
    load.end(signal.SIGKILL)
    context.record("holder_killed", seen)
    is_free = load.pid not in seen[-1]["pids"]
    context.say(
        f"holder killed: {'gone from NVML after ' + str(seen[-1]['s']) + ' s' if is_free else seen}"
    )
    _check(context, "after the kill", "gpu.processes")


def _keep_metrics(context: Context, port: int) -> None:
    text = ""
    url = f"http://127.0.0.1:{port}/metrics"
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    context.keep("agent-metrics.txt", text)
    context.say(f"the agent's metrics: {len(text.splitlines())} lines")
