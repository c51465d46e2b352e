"""An instance's first process: what systemd and HyperPod's agents are on the real thing.

    python -m hpctl.sandbox.init PLAN.json

Starts munged, runs the lifecycle script, starts slurmd and the agent, as the plan says, and
then only reaps. It is a child subreaper, so everything that ever runs on the instance, jobs
included, stays below it: killing the instance is killing this tree. Standard output carries
one JSON line a step for the supervisor; end of file on standard input means that the
supervisor died, and so does the instance; with `wait` the boot starts at the first line there,
when the supervisor has made the network. Standard library only: it must start in milliseconds.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hpctl.sandbox.logs import read_last_log_lines
from hpctl.sandbox.proctree import become_subreaper, is_port_listening, kill_descendants

STEP_TIMEOUT_S = 30.0


class InstanceBootError(Exception):
    """A step of the boot failed. The text says which step and why; `log` is its log, if any."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def main(plan: dict[str, Any]) -> int:
    """Boot by the plan, then live until the supervisor is gone."""
    become_subreaper()
    if plan["wait"] and not os.read(0, 64):
        return 1
    try:
        if "munged" in plan:
            _start_munged(plan)
        _run_lifecycle_script(plan)
        if "slurmd" in plan:
            _start_slurmd(plan)
    except InstanceBootError as error:
        _print_boot_message({"failed": str(error), "log": error.log})
        kill_descendants(os.getpid())
        return 1
    agent = NodeAgentSupervisor(plan)
    agent.start()
    _print_boot_message({"ready": True})
    _supervise_node_agent(agent)
    kill_descendants(os.getpid())
    return 0


def _print_boot_message(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _start_boot_process(
    command: list[str], log: str, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    with Path(log).open("ab") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd="/",
            start_new_session=True,
        )


def _wait_for_process_ready(
    what: str, process: subprocess.Popen[bytes], log: str, there: Any
) -> None:
    """Wait until `there()`; InstanceBootError when the process ends first or time runs out."""
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not there():
        if process.poll() is not None:
            how = f"ended with code {process.returncode}"
        elif time.monotonic() > deadline:
            how = f"did not start within {STEP_TIMEOUT_S:.0f} s"
        else:
            time.sleep(0.02)
            continue
        raise InstanceBootError(f"{what} {how}: {read_last_log_lines(Path(log))}", log)


def _start_munged(plan: dict[str, Any]) -> None:
    step = plan["munged"]
    Path(step["socket"]).unlink(missing_ok=True)
    process = _start_boot_process(step["command"], step["log"])
    _wait_for_process_ready("munged", process, step["log"], Path(step["socket"]).exists)


def _run_lifecycle_script(plan: dict[str, Any]) -> None:
    step = plan.get("lifecycle")
    if not step:
        return
    _print_boot_message({"lifecycle": step["script"]})
    name = f"Lifecycle script {step['script']}"
    log = step["log"]
    try:
        with Path(log).open("wb") as sink:
            process = subprocess.Popen(
                step["command"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **step["env"]},
                cwd=step["cwd"],
            )
    except OSError as error:
        raise InstanceBootError(f"{name} cannot be run: {error.strerror}") from None
    try:
        code = process.wait(step["timeout"])
    except subprocess.TimeoutExpired:
        last = read_last_log_lines(Path(log), 1)
        raise InstanceBootError(
            f"{name} still ran after {step['timeout']:.0f} s: {last}", log
        ) from None
    if code != 0:
        raise InstanceBootError(
            f"{name} exited with code {code}: {read_last_log_lines(Path(log), 1)}", log
        )


def _start_slurmd(plan: dict[str, Any]) -> None:
    step = plan["slurmd"]
    process = _start_boot_process(step["command"], step["log"])
    Path(step["pidfile"]).write_text(str(process.pid))
    _wait_for_process_ready("slurmd", process, step["log"], lambda: is_port_listening(step["port"]))


class NodeAgentSupervisor:
    """The node agent, started again when it ends, as its systemd unit does: 1 s, 2 s, ... 60 s."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._step = plan.get("agent")
        self._process: subprocess.Popen[bytes] | None = None
        self._delay = 1.0
        self._due = float("inf")

    def start(self) -> None:
        """Start it and note its pid."""
        if not self._step:
            return
        self._process = _start_boot_process(
            self._step["command"], self._step["log"], self._step["env"]
        )
        Path(self._step["pidfile"]).write_text(str(self._process.pid))
        self._due = float("inf")

    def look(self, gone: set[int]) -> float:
        """Start it again where that is due; seconds until the next look."""
        now = time.monotonic()
        if self._process is not None and self._process.pid in gone:
            self._process = None
            self._due = now + self._delay
            self._delay = min(self._delay * 2, 60.0)
        if self._due <= now:
            self.start()
        return max(0.0, self._due - now) if self._due != float("inf") else 3600.0


def _supervise_node_agent(agent: NodeAgentSupervisor) -> None:
    """Reap, and keep the agent running, until standard input ends."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        wait = agent.look(_reap_children())
        ready, _, _ = select.select([0, wake_read], [], [], wait)
        if 0 in ready and not os.read(0, 64):
            return
        if wake_read in ready:
            os.read(wake_read, 4096)


def _reap_children() -> set[int]:
    gone: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return gone
        if pid == 0:
            return gone
        gone.add(pid)


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
