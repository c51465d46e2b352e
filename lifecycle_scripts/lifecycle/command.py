"""The runner's commands: `run` (all steps), `step` (one try of one), `check` (the settings)."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path

from lifecycle import config, runner
from lifecycle.accounts import parse
from lifecycle.failure import Failure
from lifecycle.machine import Machine
from lifecycle.mounting import take_fsx_found
from lifecycle.node import Node, discover
from lifecycle.steps import STEPS, find

BUNDLE = Path(__file__).resolve().parent.parent
LOG = "/var/log/hpctl/lifecycle.log"
NAMES = [step.name for step in STEPS]


def main(arguments: list[str]) -> int:
    """Do what the arguments name; the exit code."""
    parser = argparse.ArgumentParser(prog="lifecycle")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="all steps of this node")
    run.add_argument("mode", choices=["OnCreate", "OnInitComplete"])
    step = commands.add_parser("step", help="one try of one step")
    step.add_argument("name", choices=NAMES)
    step.add_argument("--mode", required=True)
    check = commands.add_parser("check", help="print what is wrong with a bundle's settings")
    for command in (run, step, check):
        command.add_argument("--bundle", type=Path, default=BUNDLE)
        command.add_argument("--root", default=os.environ.get("HPCTL_LIFECYCLE_ROOT") or "/")
        command.add_argument("--ip", default=os.environ.get("HPCTL_LIFECYCLE_IP"))
    options = parser.parse_args(arguments)
    os.umask(0o022)
    if options.command == "run":
        return _run(options)
    if options.command == "check":
        return _check(options.bundle)
    return _step(options)


def _node(options: argparse.Namespace) -> Node:
    settings = config.load(options.bundle / "config.json", NAMES)
    machine = Machine(options.root)
    node = discover(options.mode, options.bundle, machine, settings, options.ip)
    take_fsx_found(node)
    return node


def _run(options: argparse.Namespace) -> int:
    machine, log = Machine(options.root), None
    wait = 60.0 if machine.real else 0.0
    try:
        log = runner.Log(socket.gethostname(), machine.path(LOG))
        node = _node(options)
        log.node = node.name
        wait = runner.waits(node.config, machine.real)
        backoff = float(os.environ.get("HPCTL_LIFECYCLE_BACKOFF_S") or runner.BACKOFF_S)
        code = runner.Runner(node, log, backoff).run()
    except (Failure, OSError) as failure:
        name = log.node if log else socket.gethostname()
        _last(log, f"FAILED step=node node={name} after 1 try: {failure}")
        code = 1
    if code:
        time.sleep(wait)
    return code


def _last(log: runner.Log | None, text: str) -> None:
    if log:
        log.last(text)
    else:
        print("hpctl lifecycle: " + text, flush=True)


def _step(options: argparse.Namespace) -> int:
    """Try once: the exit code says what became of it, its last line why."""
    try:
        node, step = _node(options), find(options.name)
        # Asked once more for its own message, where the runner got none.
        step.module.applies(node)
        if step.module.done(node):
            return runner.Try.ALREADY
        step.module.run(node)
        if not step.module.done(node):
            raise Failure("ran, and has not reached what it is for")
    except (Failure, OSError) as failure:
        print(str(failure), flush=True)
        return runner.Try.FAILED
    except Exception as error:  # noqa: BLE001 -- a bug in a step is reported as every failure is
        traceback.print_exc(file=sys.stdout)
        print(f"{type(error).__name__}: {error}", flush=True)
        return runner.Try.FAILED
    return runner.Try.DID


def _check(bundle: Path) -> int:
    """Print the problems of a bundle's settings and users as a JSON list."""
    problems: list[str] = []
    try:
        settings = config.load(bundle / "config.json", NAMES)
        parse(bundle / settings["users"]["file"])
    except Failure as failure:
        problems.append(str(failure))
    print(json.dumps(problems))
    return 0
