"""hpctl's plugins for Slurm: `--resilient` (SPANK), the epilog that wakes the daemon, a prolog, and
a health check.

Scripts lie at one path on every node. Lines go into a controller's slurm.conf only where they are
not set: a site's own Prolog, EpilogSlurmctld or SchedulerParameters stays, and `hpctl doctor`
says what is missing there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.node import Node
from lifecycle.slurm_files import add_line, program, value

SCRIPTS = "/opt/hpctl/slurm"
PLUGIN = "/opt/hpctl/slurm/hpctl_spank.so"
VERDICT = "/opt/hpctl/slurm/hpctl_verdict"
"""What health_check.sh runs; where it is missing, that script runs the command instead."""
FILES = {
    "epilog_slurmctld.sh": 0o755,
    "prolog.sh": 0o755,
    "health_check.sh": 0o755,
    "hpctl_verdict.c": 0o644,
}
"""Installed in SCRIPTS, with their modes; the source tells which one VERDICT was built from."""


def _sources(node: Node) -> Path:
    """In a bundle beside the scripts, in hpctl's source tree beside their folder."""
    inside = node.bundle / "slurm_plugins"
    return inside if inside.is_dir() else node.bundle.parent / "slurm_plugins"


def applies(node: Node) -> Any:
    """Return whether Slurm is, and these are."""
    if not any(node.machine.path(at).is_dir() for at in ("/opt/slurm", "/etc/slurm")):
        return No(f"no Slurm below {node.machine.root}")
    return _sources(node).is_dir() or No("no slurm_plugins in this bundle")


def _health_lines(node: Node) -> list[tuple[str, str]]:
    """Return the lines that have slurmd print the agent's verdict; none where a site has its own.

    An interval without the program does nothing, and stays the site's where it has one.
    """
    conf = node.slurm_etc / "slurm.conf"
    wanted = f"{SCRIPTS}/health_check.sh"
    if not node.config["hpctl"]["health_check"] or not conf.is_file():
        return []
    if value(conf, "HealthCheckProgram") not in (None, wanted):
        return []
    return [("HealthCheckProgram", wanted), ("HealthCheckInterval", "60")]


def _lines(node: Node) -> list[tuple[str, str]]:
    if node.role != "controller":
        return []
    # slurmctld looks for jobs to start at once. By default a drain before a restart counts as a
    # look, and the restarted job waits up to 3 s for the next.
    options = "batch_sched_delay=0"
    lines = [("EpilogSlurmctld", f"{SCRIPTS}/epilog_slurmctld.sh")]
    if node.config["hpctl"]["prolog"]:
        # Without it a job whose Prolog fails is held.
        options += ",nohold_on_prolog_fail"
        lines.append(("Prolog", f"{SCRIPTS}/prolog.sh"))
    return [*lines, ("SchedulerParameters", options), *_health_lines(node)]


def _compiles(node: Node) -> bool:
    """Return whether the plugin can be built: it needs a compiler and the headers of this very
    Slurm."""
    headers = ("/opt/slurm/include", "/usr/include", "/usr/local/include")
    found = any(node.machine.path(at).joinpath("slurm/spank.h").is_file() for at in headers)
    return found and shutil.which("cc") is not None


def done(node: Node) -> bool:
    """Scripts, lines and, where it can be built, the plugin are there."""
    machine, conf = node.machine, node.slurm_etc / "slurm.conf"
    for name in FILES:
        path = machine.path(SCRIPTS) / name
        if not path.is_file() or path.read_text() != (_sources(node) / name).read_text():
            return False
    if conf.is_file() and any(value(conf, key) is None for key, _ in _lines(node)):
        return False
    if not _compiles(node):
        return True
    plugstack = node.slurm_etc / "plugstack.conf"
    named = not conf.is_file() or (plugstack.is_file() and PLUGIN in plugstack.read_text())
    return machine.path(PLUGIN).is_file() and machine.path(VERDICT).is_file() and named


def _build_verdict(node: Node) -> None:
    """Build VERDICT where there is a compiler. A failure costs speed and nothing else."""
    program, source = node.machine.path(VERDICT), _sources(node) / "hpctl_verdict.c"
    part = program.with_name(f"{program.name}.new")
    program.unlink(missing_ok=True)
    if shutil.which("cc") is None:
        print("no compiler here: health_check.sh runs `hpctl agent verdict`, which takes 0.3 s")
        return
    try:
        node.machine.run("cc", "-std=gnu11", "-O2", "-o", str(part), str(source), timeout=60)
        part.replace(program)
    except Failure as error:
        print(f"health_check.sh runs `hpctl agent verdict`, which takes 0.3 s: {error}")


def run(node: Node) -> None:
    """Install them; a running slurmctld reads its files again."""
    machine, conf = node.machine, node.slurm_etc / "slurm.conf"
    for name, mode in FILES.items():
        machine.install(_sources(node) / name, machine.path(SCRIPTS) / name, mode)
    _build_verdict(node)
    if _compiles(node):
        env = {
            "HPCTL_SPANK": str(machine.path(PLUGIN)),
            "HPCTL_PLUGINS": str(_sources(node)),
            "SLURM_ETC": str(node.slurm_etc),
        }
        print(machine.run("sh", str(node.bundle / "install_spank.sh"), env=env, timeout=240))
    else:
        print("no compiler or no slurm/spank.h here: no --resilient on this node")
    if not conf.is_file():
        return
    changed = False
    for key, path in _lines(node):
        if value(conf, key) is None:
            changed |= add_line(node, conf, f"{key}={path}")
    if changed and machine.running and machine.up("slurmctld.service"):
        machine.run(program("scontrol"), "reconfigure", timeout=60)
