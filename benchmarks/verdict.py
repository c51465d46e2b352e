"""What slurmd pays for a HealthCheckProgram that prints the agent's verdict: time and forks.

The programs run in turn. The answering side is the agent's own socket server with a healthy node.
The rival has NHC's shape in its least form: bash, one check of one file system by `df`, and neither
NHC's watchdog nor its functions. NHC itself is measured where it is installed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from benchmarks.agent_rivals import NHC, find
from benchmarks.table import Outcome, Row, median, seconds_of
from hpctl.detection.outside.local_server import AgentSocketServer
from hpctl.detection.outside.node_verdict import NodeVerdict, compute_node_verdict
from hpctl.detection.outside.reported import ReportedFindingTable
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName

RUNS, SLOW_RUNS = 200, 20
TIME_BAR_MS, FORK_BAR = 20.0, 1.0
PLUGINS = Path(__file__).parents[1] / "slurm_plugins"
NODE = NodeGeneration(NodeName("n1"), InstanceId("i-1"), BootId("b-1"))
OURS, FULL, PYTHON = "health_check.sh", "hpctl agent verdict", "python -I -S, socket only"
LEAST, REAL = "bash, one df", "NHC, one check"
SHAPE = """#!/bin/bash
read -r _ _ _ free _ < <(df -kP / | tail -n 1)
[[ $free -gt 1000 ]] || { echo "ERROR: nhc: Health check failed: / has $free kB free"; exit 1; }
"""
ASK = """import _socket, sys
link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
link.settimeout(2)
link.connect(sys.argv[1])
link.send(b'{"op":"line"}\\n')
print(link.recv(1024).decode())
"""


def run() -> Outcome:
    """Build the program, serve a verdict, and run every program in turn."""
    outcome = Outcome("verdict")
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        directory = Path(name)
        server = AgentSocketServer(
            directory / "agent.sock", ReportedFindingTable(NODE.boot), _judge_node
        )
        server.start()
        try:
            commands = _prepare(directory, outcome)
            taken = _time_in_turn(commands, {"HPCTL_AGENT_SOCKET": str(directory / "agent.sock")})
            forks = _count_all_forks(commands, directory, outcome)
        finally:
            server.stop()
    rivals = [name for name in (LEAST, REAL) if name in commands]
    outcome.rows = [
        Row("HealthCheckProgram, wall", taken[OURS], "ms", name, taken[name], TIME_BAR_MS)
        for name in rivals
    ]
    outcome.rows += [
        Row("the same in Python with a socket and no more", taken[PYTHON], "ms", OURS, taken[OURS]),
        Row("the same by `hpctl agent verdict`", taken[FULL], "ms", OURS, taken[OURS]),
    ]
    outcome.rows += [
        Row("HealthCheckProgram, forks", forks[OURS], "", name, forks[name], FORK_BAR)
        for name in rivals
        if forks
    ]
    outcome.notes.append(f"medians of {RUNS} runs in turn, of {SLOW_RUNS} of the command")
    outcome.notes.append("slurmd's own fork of the program is not in the forks")
    return outcome


def _judge_node() -> NodeVerdict:
    now = datetime.now(UTC)
    return compute_node_verdict(NODE, (), now, build_fault_rules(), now)


def _prepare(directory: Path, outcome: Outcome) -> dict[str, list[str]]:
    """The commands by name, with their files in the directory."""
    script, program = directory / "health_check.sh", directory / "hpctl_verdict"
    shutil.copy(PLUGINS / "health_check.sh", script)
    source = PLUGINS / "hpctl_verdict.c"
    subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True, timeout=60)
    least = directory / "least.sh"
    least.write_text(SHAPE)
    least.chmod(0o755)
    commands = {
        OURS: [str(script)],
        LEAST: [str(least)],
        PYTHON: [sys.executable, "-I", "-S", "-c", ASK, str(directory / "agent.sock")],
        FULL: [str(Path(sys.executable).with_name("hpctl")), "agent", "verdict"],
    }
    if (nhc := find(NHC)) is None:
        outcome.notes.append("NHC IS NOT INSTALLED: its least form stands for it (HPCTL_BENCH_NHC)")
        return commands
    conf = directory / "nhc.conf"
    conf.write_text("* || check_fs_free / 1%\n")
    settings = ("MARK_OFFLINE=0", "DETACHED_MODE=0", "NHC_RM=")
    log = str(directory / "nhc.log")
    commands[REAL] = [nhc, "-c", str(conf), "-l", log, *settings]
    return commands


def _time_in_turn(
    commands: Mapping[str, Sequence[str]], extra: Mapping[str, str]
) -> dict[str, float]:
    """The median wall time of each command in ms."""
    environment = {**os.environ, **extra}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(RUNS):
        for name, command in commands.items():
            if name != FULL or turn < SLOW_RUNS:
                taken[name] += seconds_of(partial(_run, command, environment), 1)
    return {name: 1e3 * median(values) for name, values in taken.items()}


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises CalledProcessError: a program that fails is quick, and no figure."""
    subprocess.run(
        command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _count_all_forks(
    commands: Mapping[str, Sequence[str]], directory: Path, outcome: Outcome
) -> dict[str, float]:
    """The processes that each command starts, by strace; none where it is not installed."""
    if shutil.which("strace") is None:
        outcome.notes.append("STRACE IS NOT INSTALLED: forks are not counted")
        return {}
    environment = {**os.environ, "HPCTL_AGENT_SOCKET": str(directory / "agent.sock")}
    found = {}
    for name, command in commands.items():
        trace = directory / "trace"
        calls = "trace=clone,clone3,fork,vfork"
        _run(["strace", "-f", "-qq", "-e", calls, "-o", str(trace), *command], environment)
        lines = trace.read_text().splitlines()
        found[name] = float(sum("CLONE_THREAD" not in line and " = " in line for line in lines))
    return found
