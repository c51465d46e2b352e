"""Runs the steps of a node: what is done is left alone, what fails is tried again.

Each try is a separate process: one that hangs is killed, and one that crashes takes no other with
it. A user who kills the runner finds, when it runs again, that it continues where it was, for what
counts is not what it wrote down but what each step finds on the machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lifecycle import state
from lifecycle.config import Config
from lifecycle.failure import Failure
from lifecycle.mounting import take_fsx_found
from lifecycle.node import Node
from lifecycle.state import States
from lifecycle.steps import STEPS, Step, find

BACKOFF_S = 2.0
BACKOFF_MAX_S = 60.0
LOCK_S = 900.0
"""How long to wait for another run on this node, or for a step that outlived its runner."""


def now() -> str:
    """Return the time as every line and state file has it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Log:
    """Lines on standard output, which HyperPod sends to CloudWatch, and in a file of the node."""

    def __init__(self, node: str, path: Path) -> None:
        self.node = node
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", errors="replace")

    def say(self, text: str, step: str = "") -> None:
        """One line with its time, node and step."""
        where = "node={}{}".format(self.node, " step=" + step if step else "")
        self._line(f"{now()} {where}: {text}")

    def last(self, text: str) -> None:
        """The line that sums a run up."""
        self._line("hpctl lifecycle: " + text)

    def _line(self, line: str) -> None:
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()


def digest(bundle: Path) -> str:
    """Return which bundle this is: the digest of its MANIFEST, which has that of every file."""
    try:
        return hashlib.sha256((bundle / "MANIFEST").read_bytes()).hexdigest()
    except OSError:
        return ""


class Runner:
    """One run of all steps on one node."""

    def __init__(self, node: Node, log: Log, backoff: float = BACKOFF_S) -> None:
        self.node = node
        self.log = log
        self.backoff = backoff
        self.states = States(node.machine.path(state.DIRECTORY))
        self.digest = digest(node.bundle)
        self.warnings: list[str] = []

    def run(self) -> int:
        """Run all steps in order; return the exit code. A required step that fails ends the run."""
        self.states.directory.mkdir(parents=True, exist_ok=True)
        with (self.states.directory / "lock").open("w") as lock:
            self._lock(lock)
            return self._steps(lock)

    def _lock(self, lock: Any) -> None:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    raise Failure(f"another run has not ended in {LOCK_S:.0f} s") from None
                time.sleep(0.1)
            else:
                return

    def _steps(self, lock: Any) -> int:
        node, began = self.node, time.monotonic()
        self._note_run("running", "")
        self.log.say(
            "role={} group={} instance={} mode={} bundle={}".format(
                node.role, node.group, node.instance_id, node.mode, self.digest[:12] or "unsigned"
            )
        )
        if node.guess:
            self.log.say(node.guess)
        did = 0
        for step in STEPS:
            weight = node.config.weight(step.name, step.weight)
            failed = self._step(step, weight, lock)
            take_fsx_found(node)
            if failed is None:
                did += 1
            elif failed and weight == "required":
                self._note_run("failed", f"{step.name}: {failed}")
                tries = self.states.read(step.name).get("tries", 1)
                self.log.last(
                    "FAILED step={} node={} after {} {}: {}".format(
                        step.name, node.name, tries, "try" if tries == 1 else "tries", failed
                    )
                )
                return 1
            elif failed:
                self.warnings.append(step.name)
        missing = self._missing()
        self._note_run("done", missing)
        warned = " warnings=" + ",".join(self.warnings) if self.warnings else ""
        took = time.monotonic() - began
        # A node without monitoring is not in order, whatever config.json says of the step. It
        # stays in the cluster all the same: jobs can run on it.
        how = "INCOMPLETE" if missing else "OK"
        summary = f"node={node.name} role={node.role} steps={did}{warned} in {took:.1f} s"
        self.log.last(f"{how} {summary}" + (": " + missing if missing else ""))
        return 0

    def _missing(self) -> str:
        """Return why this node has no hpctl, and the fix; empty where it has."""
        known = self.states.read("hpctl")
        if "hpctl" in self.warnings:
            return "hpctl is not installed: " + str(known.get("why", ""))
        if known.get("state") == state.DONE or find("hpctl").module.present(self.node):
            return ""
        why = known.get("why", "")
        if known.get("state") == state.OFF:
            why = "config.json turns the step off: delete hpctl from its steps"
        return f"no hpctl on this node: {why}"

    def _note_run(self, what: str, why: str) -> None:
        self.states.write(
            "run",
            state=what,
            why=why,
            at=now(),
            node=self.node.name,
            role=self.node.role,
            group=self.node.group,
            instance_id=self.node.instance_id,
            mode=self.node.mode,
            bundle=self.digest,
            warnings=self.warnings,
        )

    def _step(self, step: Step, weight: str, lock: Any) -> str | None:
        """Do one step: None when it is done, "" when it does not apply, else why it failed."""
        order = STEPS.index(step)
        known = {"step": step.name, "order": order, "weight": weight, "started": now()}
        if weight == "off":
            self.states.write(step.name, state=state.OFF, why="config.json", tries=0, **known)
            return ""
        absent = self._absent(step)
        if absent:
            self.states.write(step.name, state=state.NOT_APPLICABLE, why=absent, tries=0, **known)
            self.log.say("not here: " + absent, step.name)
            return ""
        return self._tries(step, weight, known, lock)

    def _absent(self, step: Step) -> str:
        """Return why a step does not concern this node; a question that goes wrong is the
        step's."""
        try:
            here = step.module.applies(self.node)
        except (Failure, OSError):
            return ""
        return "" if here else str(here) or "not for this node"

    def _tries(self, step: Step, weight: str, known: dict[str, Any], lock: Any) -> str | None:
        began, why, tries = time.monotonic(), "", 0
        while True:
            self.states.write(step.name, state=state.RUNNING, why=why, tries=tries, **known)
            code, reason = self._try(step, lock)
            took = round(time.monotonic() - began, 2)
            if code in (Try.ALREADY, Try.DID):
                break
            tries, why = tries + 1, reason
            if tries >= step.tries:
                self.states.write(
                    step.name, state=state.FAILED, why=why, tries=tries, seconds=took, **known
                )
                self.log.say(
                    "{}: {}".format("failed" if weight == "required" else "WARNING", why), step.name
                )
                return why
            wait = min(self.backoff * 2 ** (tries - 1), BACKOFF_MAX_S)
            self.log.say(f"try {tries} failed, again in {wait:.0f} s: {why}", step.name)
            time.sleep(wait)
        did = code == Try.DID
        self.states.write(
            step.name, state=state.DONE, why="", tries=tries + did, seconds=took, **known
        )
        self.log.say(f"done in {took:.1f} s" if did else "already done", step.name)
        return None

    def _try(self, step: Step, lock: Any) -> tuple[int, str]:
        """Try once in a separate process: return its exit code, and its last line."""
        command = [sys.executable, "-IBu", str(Path(__file__).parent), "step", step.name]
        # The lock goes with it: should this runner be killed, the next one waits for the step.
        process = subprocess.Popen(
            [
                *command,
                "--mode",
                self.node.mode,
                "--bundle",
                str(self.node.bundle),
                "--root",
                str(self.node.machine.root),
                "--ip",
                self.node.address,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )
        lines: list[str] = []
        reader = threading.Thread(
            target=self._read, args=(process.stdout, step, lines), daemon=True
        )
        reader.start()
        try:
            code = process.wait(step.timeout_s)
        except subprocess.TimeoutExpired:
            last = ": " + lines[-1] if lines else ""
            return Try.FAILED, f"took more than {step.timeout_s:.0f} s{last}"
        finally:
            if process.returncode not in (Try.DID, Try.ALREADY):
                _kill(process)
        reader.join(5)
        if code < 0:
            return Try.FAILED, f"was killed by signal {-code}"
        return code, lines[-1] if lines else f"exit code {code}"

    def _read(self, out: Any, step: Step, lines: list[str]) -> None:
        for raw in iter(out.readline, b""):
            line = raw.decode(errors="replace").rstrip()
            if line:
                lines[:] = [*lines[-50:], line[:500]]
                self.log.say(line[:2000], step.name)


class Try:
    """How a step's process ends."""

    DID = 0
    FAILED = 1
    ALREADY = 10


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a step with all that it started. What hangs in the kernel is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


def waits(config: Config, real: bool) -> float:
    """Return how long a failing run stays, so that its log reaches CloudWatch before the instance
    goes."""
    return float(config["failure_wait_s"]) if real else 0.0
