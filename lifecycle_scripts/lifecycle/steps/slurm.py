"""Slurm's daemon for this node's role: slurmctld on controllers, slurmd on all others.

OnCreate starts it. With OnInitComplete the AMI has, and this step only waits until it runs.
"""

from __future__ import annotations

import time
from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.node import Node
from lifecycle.slurm_files import last_words, program, wait_for_conf

DROP_IN = "/etc/systemd/system/slurmd.service.d/hpctl.conf"
AMI_S = 180.0
ANSWER_S = 120.0
"""How long a daemon may take until it answers: slurmd alone looks a minute for a missing file."""


def _unit(node: Node) -> str:
    return "slurmctld.service" if node.role == "controller" else "slurmd.service"


def _other(node: Node) -> str:
    return "slurmd.service" if node.role == "controller" else "slurmctld.service"


def _drop_in(node: Node) -> str:
    return (
        "# Written by hpctl at the node's birth: where a configless slurmd asks for slurm.conf.\n"
        "[Service]\n"
        'Environment="SLURMD_OPTIONS=--conf-server {}"\n'.format(",".join(node.controllers))
    )


def applies(node: Node) -> Any:
    """Return whether Slurm's units are."""
    needs = node.machine.needs("systemd")
    if not needs:
        return needs
    return node.machine.has_unit(_unit(node)) or No(f"no {_unit(node)} on this machine")


def _wants_drop_in(node: Node) -> bool:
    """Older AMIs leave a place for the controller in slurmd's unit, newer ones fill it."""
    text = node.machine.unit_text("slurmd.service") or ""
    return node.role != "controller" and "--conf-server" not in text


def done(node: Node) -> bool:
    """Return whether the right daemon is enabled and runs, the other one cannot."""
    machine = node.machine
    if node.mode != "OnCreate":
        return machine.up(_unit(node))
    if _wants_drop_in(node):
        path = machine.path(DROP_IN)
        if not path.exists() or path.read_text() != _drop_in(node):
            return False
    return not machine.has_unit(_other(node)) and _up(node) and _answers(node)


def _up(node: Node) -> bool:
    """Return whether the daemon runs. A login node's may end: older AMIs name none in
    slurm.conf."""
    if node.role == "login":
        return node.machine.works("systemctl", "is-enabled", "--quiet", _unit(node))
    return node.machine.up(_unit(node))


def _answers(node: Node) -> bool:
    """Return whether the node's own daemon does its work; true where systemd runs none.

    systemd calls slurmd active as soon as it is started, and it may end a minute later over its
    configuration.
    """
    if not node.machine.running:
        return True
    if node.role == "compute":
        return node.machine.works(program("scontrol"), "show", "slurmd", timeout=30)
    output = node.machine.run(program("scontrol"), "ping", timeout=30, ok=(0, 1))
    # A ping is content with any controller that answers. Where none is called as this node is, so
    # are we.
    own = [line for line in output.splitlines() if f" {node.name} " in line] or output.splitlines()
    return any(line.endswith(" UP") for line in own)


def run(node: Node) -> None:
    """Mask the other daemon first: slurmd deletes a controller's slurm.conf when it starts."""
    machine = node.machine
    if node.mode != "OnCreate":
        deadline = time.monotonic() + AMI_S
        while not machine.up(_unit(node)):
            if time.monotonic() > deadline:
                raise Failure(
                    f"the AMI has not started {_unit(node)}: {last_words(node, _unit(node))}"
                )
            time.sleep(2)
        return
    if not node.controllers:
        raise Failure("neither resource_config.json nor config.json names a controller")
    machine.mask(_other(node))
    if node.role == "controller":
        wait_for_conf(node)
        machine.start(_unit(node))
        _wait_for_answer(node)
        return
    changed = False
    if _wants_drop_in(node):
        if "SLURMD_OPTIONS" not in (machine.unit_text("slurmd.service") or ""):
            raise Failure("slurmd.service takes no SLURMD_OPTIONS and names no --conf-server")
        changed = machine.write(machine.path(DROP_IN), _drop_in(node))
    machine.start(_unit(node), again=changed)
    _wait_for_answer(node)


def _wait_for_answer(node: Node) -> None:
    deadline, unit = time.monotonic() + ANSWER_S, _unit(node)
    while not _answers(node):
        up = _up(node)
        if not up or time.monotonic() > deadline:
            what = "runs and does not answer" if up else "has ended"
            raise Failure(f"{unit} {what}: {last_words(node, _unit(node))}")
        time.sleep(0.5)
