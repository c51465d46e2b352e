"""The agent's own figure of what it uses, against what /proc tells another process of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from benchmarks.agent_process import cost, read

PROGRAM = """
import json, subprocess, sys, threading, time
from hpctl.agent import budget

budget.WINDOW_S = 2.0
watched = budget.Budget([1])
kept = bytearray(b"x") * 20_000_000

def busy():
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass

print("ready", flush=True)
sys.stdin.readline()
watched.look(time.monotonic())
begun = time.monotonic()
threads = [threading.Thread(target=busy) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
work = "import time\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-c", work], check=True, timeout=60)
while time.monotonic() < begun + budget.WINDOW_S:
    time.sleep(0.05)
watched.look(time.monotonic())
print(json.dumps([watched.cpu_percent, watched.memory_mb]), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_its_own_figures_agree_with_proc() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = read(process.pid)
        print(file=process.stdin, flush=True)
        cpu_percent, memory_mb = json.loads(process.stdout.readline())
        after = read(process.pid)
        print(file=process.stdin, flush=True)
    told = cost(before, after)
    # Both threads, of 0.3 s each, and not the program that it ran.
    assert after.own_s - before.own_s > 0.55
    assert after.children_s - before.children_s > 0.25
    assert cpu_percent == pytest.approx(told.own_s_per_hour / 36, rel=0.2)
    assert memory_mb == pytest.approx(told.resident_mb, rel=0.2)
    assert memory_mb > 20


def test_a_sleeping_process_uses_nothing() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            before = read(process.pid)
            time.sleep(0.3)
            quiet = cost(before, read(process.pid))
        finally:
            process.kill()
    assert quiet.s_per_hour == 0
    assert quiet.wakeups_per_s < 10
    assert 0 < quiet.resident_mb <= quiet.peak_mb < 20
