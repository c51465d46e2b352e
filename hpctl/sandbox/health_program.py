"""The sandbox's HealthCheckProgram: slurmd asks the agent of its node, every minute.

All nodes of a sandbox share one slurm.conf and one file system. slurmd names the node in
SLURMD_NODENAME, so one script finds the socket of each node's agent.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from hpctl.clusters.bundle import find_slurm_plugin_directory
from hpctl.sandbox.spec import SandboxSpec

INTERVAL_S = 60
_BUILD_S = 60


def find_health_check_script(spec: SandboxSpec) -> Path | None:
    """Return where the script is; None where no HealthCheckProgram is wanted.

    A slurm.conf text of the caller's that names one is left alone, and without agents there is no
    verdict.
    """
    if not spec.health_check or not spec.agents or "HealthCheckProgram" in spec.slurm_conf:
        return None
    return Path(spec.state) / "hpctl/slurm/health_check.sh"


def render_health_check_slurm_conf_lines(spec: SandboxSpec) -> str:
    """Return the lines of slurm.conf."""
    program = find_health_check_script(spec)
    if program is None:
        return ""
    return f"HealthCheckProgram={program}\nHealthCheckInterval={INTERVAL_S}\n"


def install_health_check_program(spec: SandboxSpec) -> None:
    """Write the script, and build what it runs where a compiler is here.

    Without one, or with one that fails, the script of slurm_plugins/ runs the command instead.
    """
    program = find_health_check_script(spec)
    if program is None:
        return
    own = program.parent / "verdict"
    own.mkdir(parents=True, exist_ok=True)
    shutil.copy(find_slurm_plugin_directory() / "health_check.sh", own)
    command = own / "hpctl"
    _write_health_check_script(command, f'exec {shlex.quote(sys.executable)} -m hpctl "$@"')
    nodes = shlex.quote(str(Path(spec.state) / "nodes"))
    _write_health_check_script(
        program,
        f'export HPCTL_AGENT_SOCKET={nodes}/"$SLURMD_NODENAME"/agent.sock',
        f"export HPCTL={shlex.quote(str(command))}",
        f'exec {shlex.quote(str(own))}/health_check.sh "$@"',
    )
    _compile_health_verdict_program(own / "hpctl_verdict")


def _write_health_check_script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def _compile_health_verdict_program(program: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        return
    source = str(find_slurm_plugin_directory() / "hpctl_verdict.c")
    try:
        subprocess.run(
            [compiler, "-std=gnu11", "-O2", "-o", str(program), source],
            check=True,
            capture_output=True,
            timeout=_BUILD_S,
        )
    except (OSError, subprocess.SubprocessError):
        program.unlink(missing_ok=True)
