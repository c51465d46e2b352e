"""`hpctl install --slurm` puts the health check on a node, and says what slurm.conf sets."""

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.install.test_cli import run, write
from tests.process import run_text

pytestmark = pytest.mark.integration

PLUGINS = "opt/hpctl/slurm"


@pytest.fixture
def root(tmp_path) -> Path:
    write(tmp_path / "etc/slurm/slurm.conf", "ClusterName=x\n")
    return tmp_path


def install(root: Path) -> str:
    result = run(root, "install", "node", "--head", "http://head:8470", "--slurm")
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_program_is_built_and_the_script_runs_it(root):
    install(root)
    environment = {"HPCTL_AGENT_SOCKET": str(root / "none"), "PATH": ""}
    done = run_text([str(root / PLUGINS / "health_check.sh"), "--exit-code"], env=environment)
    assert done.returncode == 2
    assert done.stdout == f"hpctl: no verdict: No such file or directory at {root}/none\n"
    assert "HealthCheckProgram" not in (root / "etc/slurm/slurm.conf").read_text()


def test_a_newer_source_is_built_again(root):
    install(root)
    source, program = (root / PLUGINS / name for name in ("hpctl_verdict.c", "hpctl_verdict"))
    source.write_text("an older release's\n")
    program.write_text("an older release's\n")
    install(root)
    assert "int main" in source.read_text()
    assert program.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("compiler", [None, "#!/bin/sh\nexit 1\n"])
def test_without_a_compiler_that_works_an_older_program_goes(root, monkeypatch, compiler):
    tools = root / "tools"
    tools.mkdir()
    for name in ("sh", "id", "sed", "cat", "mkdir", "mv", "rm", "env", "uname"):
        (tools / name).symlink_to(shutil.which(name) or "")
    if compiler:
        (tools / "cc").write_text(compiler)
        (tools / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    # A node without Slurm's headers: --resilient is not built there in any case.
    monkeypatch.setattr("lifecycle.steps.slurm_plugins._compiles", lambda node: False)
    write(root / PLUGINS / "hpctl_verdict", "an older release's\n")
    install(root)
    assert not (root / PLUGINS / "hpctl_verdict").exists()
    assert os.access(root / PLUGINS / "health_check.sh", os.X_OK)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "HealthCheckProgram is not set (/opt/hpctl/slurm/health_check.sh can be)"),
        (
            "HealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\n",
            "HealthCheckProgram=/usr/sbin/nhc, every 300 s",
        ),
        ("HealthCheckProgram=/usr/sbin/nhc\n", "HealthCheckProgram=/usr/sbin/nhc, every 0 s"),
    ],
)
def test_install_says_whether_and_how_it_is_set(root, lines, said):
    write(root / "etc/slurm/slurm.conf", f"ClusterName=x\n{lines}")
    assert said in install(root)


def test_uninstall_takes_the_program_out_of_slurm_conf(root):
    install(root)
    own = "ClusterName=x\nHealthCheckInterval=60\n"
    program = "HealthCheckProgram=/opt/hpctl/slurm/health_check.sh\n"
    write(root / "etc/slurm/slurm.conf", own + program)
    assert run(root, "uninstall", "--yes").exit_code == 0
    assert (root / "etc/slurm/slurm.conf").read_text() == own
    assert not (root / PLUGINS).exists()
