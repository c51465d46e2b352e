"""CUDA programs that fault: what the kernel prints, NVML's events, and what hpctl makes of both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.kernel_lines import KernelLines

TITLE = "CUDA programs that fault"
LIMIT_S = 75
DRY_LIMIT_S = 60
SIDE_BY_SIDE = False  # It takes all memory of the GPU.
NEEDS = frozenset({"gpu"})

SOURCE = Path(__file__).parents[1] / "programs/crash.cu"
TORCH_PROGRAM = Path(__file__).parents[1] / "training/death_program.py"
TORCH_MODES = ("illegal", "misaligned", "assert", "trap")
"""What torch, which compiles kernels by NVRTC, can do where there is no nvcc."""
MODES = ("illegal", "null", "misaligned", "assert", "recursion", "shared", "trap", "oom", "spin")
ONE_LIMIT_S, TORCH_LIMIT_S = 12.0, 25.0
"""Of one program. An import of torch and its CUDA context took 10 s on an H200."""
DRY_APART_S = 0.7
DRIVER_LINE = re.compile(r"nvidia|NVRM|Xid", re.IGNORECASE)


def run(context: Context) -> None:
    """Run one faulting program after another.

    Raises NotRun without a compiler of CUDA, be it nvcc or torch's.
    """
    from tests.gpu.kernel_lines import KernelLines, head, judge

    lines = KernelLines(context.kmsg)
    lines.start()
    programs = {} if context.dry else _find_programs(context)
    lines.wait_until_quiet()
    boot = [head(record) for record in lines.since(0) if DRIVER_LINE.search(record)]
    context.keep("kmsg-boot-driver.txt", "".join(f"{record}\n" for record in boot[:150]))
    context.record("boot_judged", judge(boot))
    context.record("kernel_log", {"records": len(lines), "lost": lines.lost, "why": lines.trouble})
    before = len(lines)
    with _Events() as events:
        for mode in programs or MODES:
            if context.left_s() < ONE_LIMIT_S + 5:
                context.say(f"{mode}: no time left")
                continue
            _run_one(context, mode, programs.get(mode), lines, events)
    _judge_all(context, lines.since(before))


def _find_programs(context: Context) -> dict[str, list[str]]:
    """Return the command of each mode: of crash.cu, without nvcc of a program that uses torch."""
    from tests.gpu.context import NotRun
    from tests.gpu.needs import find_missing

    missing = find_missing({"nvcc"}, dry=False)
    if not missing:
        program = str(_compile(context))
        return {mode: [program, mode] for mode in MODES}
    if find_missing({"torch"}, dry=False):
        raise NotRun(missing)
    context.say(f"{missing}: torch compiles the kernels of {', '.join(TORCH_MODES)}")
    return {mode: [sys.executable, str(TORCH_PROGRAM), mode, "cuda"] for mode in TORCH_MODES}


def _compile(context: Context) -> Path:
    from tests.gpu.context import NotRun

    program = context.scratch / "crash"
    for architecture in ("native", "sm_90"):
        words = ["nvcc", f"-arch={architecture}", "-O1", "-o", program, SOURCE]
        done = context.run(words, 45)
        context.record(f"nvcc_{architecture}", {"code": done.code, "s": done.took_s})
        if done.code == 0 and "default arch" not in done.err:
            return program
    raise NotRun(f"nvcc does not compile crash.cu: {done.err[-500:]}")


class _Events:
    """NVML's events as the agent hears them, from a Client of its own."""

    def __init__(self) -> None:
        from hpctl.detection.nvml.client import NvmlClient

        self.rows: list[dict[str, Any]] = []
        self._client = NvmlClient(1.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> _Events:
        self._client.wait(20)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        self._client.close()

    def _listen(self) -> None:
        import msgspec

        while not self._stop.wait(0.05):
            for event in self._client.events():
                row = {"now": time.monotonic(), "event": msgspec.to_builtins(event)}
                self.rows.append(row)


def _run_one(
    context: Context, mode: str, command: list[str] | None, lines: KernelLines, events: _Events
) -> None:
    from tests.gpu.kernel_lines import head, judge

    count, event_count, began = len(lines), len(events.rows), time.monotonic()
    said, code = _play(context, mode) if command is None else _start(context, mode, command)
    lines.wait_until_quiet()
    records = lines.since(count)
    heard = [{**row, "now": round(row["now"] - began, 3)} for row in events.rows[event_count:]]
    row = {
        "program": mode,
        "said": said[:40],
        "kmsg": [[at, head(record)] for at, record in lines.timed_since(count, began)][:120],
        "judged": judge(records)[:120],
        "nvml_events": heard,
        "exit": code,
        "took_s": round(time.monotonic() - began, 2),
    }
    context.record(mode, row)
    findings = [finding for judged in row["judged"] for finding in judged["findings"]]
    unknown = [
        judged["raw"]
        for judged in row["judged"]
        if not judged["findings"] and "Xid" in judged["raw"]
    ]
    codes = [f"{finding['check']} {finding.get('code', '')}" for finding in findings]
    xids = [row["event"].get("data") for row in heard]
    context.say(f"{mode}: exit code {code}, findings {codes or 'none'}, NVML events {xids}")
    for line in unknown:
        context.say(f"{mode}: an Xid line without a finding: {line}")


def _start(context: Context, mode: str, command: list[str]) -> tuple[list[str], int | None]:
    """Run the program; one that spins is killed when it runs."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=context.environment,
        start_new_session=True,
    )
    said: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            said.append(raw.decode(errors="replace").rstrip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    limit_s = TORCH_LIMIT_S if str(TORCH_PROGRAM) in command else ONE_LIMIT_S
    if mode == "spin":
        end = time.monotonic() + 8.0
        while time.monotonic() < end and not any(line.startswith("launch") for line in said):
            time.sleep(0.05)
        limit_s = 0.5
    code: int | None
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        try:
            code = process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
    reader.join(1.0)
    return said, code


def _play(context: Context, mode: str) -> tuple[list[str], int | None]:
    """Write what the kernel printed on the recorded machine, and raise its events."""
    from tests.gpu.recordings import read_json
    from tests.gpu.stand_ins import stand_in_gpu

    recorded = next(row for row in read_json("crashes.json") if row["program"] == mode)
    with context.kmsg.open("a") as log:
        for _, record in recorded["kmsg"]:
            log.write(f"{record}\n")
    for row in recorded["nvml_events"]:
        # The agent takes the same event within a second for one; the real ones were further apart.
        time.sleep(DRY_APART_S)
        stand_in_gpu(context.scratch).event(0, xid=row["event"]["data"])
    return recorded["said"], recorded["exit"]


def _judge_all(context: Context, records: list[str]) -> None:
    from tests.gpu.kernel_lines import head, triage

    context.keep("kmsg-crashes.txt", "".join(f"{head(record)}\n" for record in records))
    rows = _read_rows(context)
    context.keep_json("crashes.json", rows)
    views = triage(context, records, "crashes")
    context.record("triage", views)
    verdicts = {(view["code"], view["condition"], view["remedy"]) for view in views}
    for code, condition, remedy in sorted(verdicts):
        context.say(f"triage of code {code}: node {condition}, remedy {remedy}")
    check = context.hpctl(
        "agent", "check", "--json", "--only", "kernel", "--kmsg", str(context.kmsg)
    )
    context.record("agent_check_after", {"code": check.code, "out": check.out[-5000:]})
    context.say(f"agent check of the kernel's log after the crashes: exit code {check.code}")


def _read_rows(context: Context) -> list[Any]:
    from tests.gpu.context import FACTS
    from tests.gpu.runner import read_facts

    facts = read_facts(context.folder / FACTS)
    return [facts[mode] for mode in MODES if mode in facts]
