"""Which lines about HealthCheckProgram a controller's slurm.conf gets at birth."""

from pathlib import Path

import pytest

from hpctl.cli.install_layout import open_machine_at_root
from hpctl.cli.install_steps import make_lifecycle_script_node
from tests.cli.install.test_cli import write

OURS = "HealthCheckProgram=/opt/hpctl/slurm/health_check.sh\n"
EVERY = "HealthCheckInterval=60\n"


def give_birth(root: Path, lines: str, role: str = "head", wanted: bool = True) -> str:
    """Run the step of Slurm's plugins; return what slurm.conf says about health checks then."""
    machine = open_machine_at_root(root)
    from lifecycle.steps import slurm_plugins

    conf = root / "etc/slurm/slurm.conf"
    write(conf, f"ClusterName=x\n{lines}")
    node = make_lifecycle_script_node(machine, role)
    node.config["hpctl"]["health_check"] = wanted
    slurm_plugins.run(node)
    assert slurm_plugins.done(node)
    once = conf.read_text()
    slurm_plugins.run(node)
    assert conf.read_text() == once, "a second run adds nothing"
    return "".join(line + "\n" for line in once.splitlines() if line.startswith("HealthCheck"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", OURS + EVERY),
        (OURS, OURS + EVERY),
        ("HealthCheckInterval=300\n", "HealthCheckInterval=300\n" + OURS),
        ("HealthCheckProgram=/usr/sbin/nhc\n", "HealthCheckProgram=/usr/sbin/nhc\n"),
    ],
)
def test_a_controller_names_our_program_where_the_site_names_none(tmp_path, lines, expected):
    assert give_birth(tmp_path, lines) == expected


def test_a_node_and_a_cluster_that_does_not_want_it_get_no_line(tmp_path):
    assert give_birth(tmp_path / "node", "", role="node") == ""
    assert give_birth(tmp_path / "head", "", wanted=False) == ""


def test_an_installation_of_one_node_after_the_other_adds_no_line(tmp_path):
    """slurm.conf would name a file that the other nodes do not have."""
    node = make_lifecycle_script_node(open_machine_at_root(tmp_path), "head")
    assert node.config["hpctl"]["health_check"] is False
