"""A cluster with Slurm's power saving, whose programs stop and boot nodes of the sandbox."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.daemon.chaos import Chaos, cluster
from tests.live import until

# slurmctld gives its programs no environment to find anything by.
_PROGRAM: Final = f"""#!{sys.executable}
import subprocess, sys
from pathlib import Path
from hpctl.sandbox.api import Sandbox
nodes = subprocess.run(
    ["scontrol", "show", "hostnames", sys.argv[1]],
    capture_output=True, text=True, check=True,
    env={{"PATH": "/usr/bin:/bin", "SLURM_CONF": "{{base}}/s/etc/slurm.conf"}},
).stdout.split()
with Path("{{base}}/power.log").open("a") as log:
    for node in nodes:
        log.write("KIND " + node + chr(10))
sandbox = Sandbox("chaos", state_dir="{{base}}/s")
if not Path("{{base}}/no-power").exists():
    for node in nodes:
        sandbox.inject(node, "KIND")
"""
FILES: Final = {
    "suspend.py": _PROGRAM.replace("KIND", "kill-node"),
    "resume.py": _PROGRAM.replace("KIND", "boot-node"),
}


_CONF: Final = """SuspendProgram={base}/suspend.py
ResumeProgram={base}/resume.py
SuspendTime=100000
SuspendTimeout=1
ResumeTimeout=60
SlurmctldParameters=power_save_interval=1,power_save_min_interval=0
"""


def power_cluster(more: str = "", **settings: Any) -> AbstractContextManager[Chaos]:
    """Return a cluster with power saving; see `cluster`. `more` are lines of slurm.conf."""
    return cluster(files=FILES, slurm_conf=_CONF + more, **settings)


@contextmanager
def power_settings(live: Chaos, **settings: object) -> Iterator[None]:
    """Have slurmctld run with other settings of power saving for a while."""
    conf = Path(live.sandbox.spec.layout.slurm_conf)
    text = conf.read_text()
    names = tuple(f"{name}=" for name in settings)
    kept = [line for line in text.splitlines() if not line.startswith(names)]
    conf.write_text("\n".join([*kept, *(f"{k}={v}" for k, v in settings.items())]) + "\n")
    live.sandbox.scontrol("reconfigure")
    try:
        yield
    finally:
        conf.write_text(text)
        live.sandbox.scontrol("reconfigure")


def power_down(live: Chaos, *nodes: str) -> None:
    """Have Slurm power nodes down because they are idle, and wait until they are.

    Not by State=POWER_DOWN, which lifts a drain.
    """
    others = ",".join(node for node in live.sandbox.nodes if node not in nodes)
    with power_settings(live, SuspendTime=1, SuspendExcNodes=others):
        until(lambda: all(is_down(live, node) for node in nodes), 60, f"{nodes} are powered down")


def order_power_down(live: Chaos, node: str) -> None:
    """Have Slurm power a node down that runs no slurmd, and wait until it is.

    No reconfigure is involved, unlike in `power_down`: 24.11 restarts slurmctld for one, and a node
    that does not register again is UNKNOWN until it is set DOWN, which no job starts.
    """
    live.sandbox.scontrol("update", f"NodeName={node}", "State=POWER_DOWN")
    until(lambda: is_down(live, node), 60, f"{node} is powered down")


def power_up(live: Chaos) -> None:
    """Have Slurm start every node that it has powered down, as an administrator may."""
    down = [node for node in live.sandbox.nodes if is_down(live, node)]
    live.sandbox.scontrol("update", f"NodeName={','.join(down)}", "State=POWER_UP")
    until(lambda: all_up(live), 60, "every node is in service again")


def all_up(live: Chaos) -> bool:
    """Whether every node is in service with nothing on it, and runs."""
    nodes = live.scheduler.view().nodes.values()
    stopped = any(is_down(live, name) for name in live.sandbox.nodes)
    return live.all_idle() and not stopped and not any(node.is_powering_up for node in nodes)


@contextmanager
def idle_programs(live: Chaos) -> Iterator[None]:
    """Have Slurm's programs stop and start nothing for a while."""
    path = live.sandbox.state_dir.parent / "no-power"
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def is_down(live: Chaos, node: str) -> bool:
    """Whether Slurm has powered the node down, or hides it as it does a node in the cloud."""
    known = live.scheduler.view().nodes.get(node)  # type: ignore[call-overload]
    return known is None or "POWERED_DOWN" in known.flags


def power_calls(live: Chaos, kind: str, node: str) -> int:
    """Return how often Slurm has asked for `kill-node` or `boot-node` of a node."""
    path = live.sandbox.state_dir.parent / "power.log"
    return path.read_text().splitlines().count(f"{kind} {node}") if path.exists() else 0
