"""The sandbox's HealthCheckProgram: each node's slurmd gets the verdict of that node's agent."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.sandbox.health_program import (
    find_health_check_script,
    install_health_check_program,
    render_health_check_slurm_conf_lines,
)
from hpctl.sandbox.packages import SandboxPrograms
from hpctl.sandbox.slurmconf import render_slurm_conf
from hpctl.sandbox.spec import SandboxPorts, SandboxSpec
from tests.detection.test_outside_local import Node
from tests.process import run_text

pytestmark = pytest.mark.integration


PORTS = SandboxPorts(slurmctld=1, intake=2, emulator=3, moto=4, metrics=5, slurmd=6)
PROGRAMS = SandboxPrograms({}, (22, 5, 8))


@pytest.fixture
def spec(tmp_path) -> SandboxSpec:
    return SandboxSpec(name="x", id="1", state=str(tmp_path), ports=PORTS, health_check=True)


def run_program(spec: SandboxSpec, node: str) -> str:
    program = find_health_check_script(spec)
    assert program is not None
    environment = {"SLURMD_NODENAME": node, "PATH": os.environ["PATH"]}
    done = run_text([str(program)], env=environment)
    assert done.returncode == 0
    return done.stdout.strip()


@pytest.mark.parametrize("path", [os.environ["PATH"], "/nowhere"])
def test_it_asks_the_agent_of_the_node_that_slurmd_names(spec, monkeypatch, path):
    """With a compiler and without."""
    monkeypatch.setenv("PATH", path)
    install_health_check_program(spec)
    monkeypatch.undo()
    place = Path(spec.state) / "nodes/n1"
    place.mkdir(parents=True)
    node = Node(place / "agent.sock")
    try:
        assert run_program(spec, "n1").endswith("n1 is healthy")
        assert "healthy" not in run_program(spec, "n2"), "it has no agent here"
    finally:
        node.server.stop()


def test_slurm_conf_names_it_only_where_nothing_else_does(spec):
    own = replace(spec, health_check=False)
    other = replace(spec, slurm_conf="HealthCheckProgram=/bin/true\n")
    silent = replace(spec, agents=False)
    assert [render_health_check_slurm_conf_lines(one) for one in (own, other, silent)] == [
        "",
        "",
        "",
    ]
    program = f"{spec.state}/hpctl/slurm/health_check.sh"
    lines = f"HealthCheckProgram={program}\nHealthCheckInterval=60\n"
    assert render_health_check_slurm_conf_lines(spec) == lines
    conf = render_slurm_conf(spec, PROGRAMS, Path("/munge"), {})
    assert lines in conf
    assert "HealthCheck" not in render_slurm_conf(own, PROGRAMS, Path("/munge"), {})
