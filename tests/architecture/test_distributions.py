"""What is installed where: the wheel of the nodes, and the sandbox's own."""

import zipfile
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.architecture.source import ROOT

SANDBOX = ROOT / "hpctl/sandbox"


def list_wheel(project: Path) -> set[str]:
    """Return the paths of the files that the wheel of a project holds."""
    builder = WheelBuilder(str(project))
    data = builder.get_default_build_data()
    builder.set_build_data_defaults(data)
    with builder.config.set_build_data(data):
        return {file.distribution_path for file in builder.recurse_included_files()}


def list_shared(project: Path) -> set[str]:
    """Return the paths below the environment's own directory that the wheel of a project fills."""
    builder = WheelBuilder(str(project))
    shared = builder.recurse_explicit_files(builder.config.shared_data)
    return {file.distribution_path for file in shared}


def test_the_wheel_of_the_nodes_does_not_hold_the_sandbox():
    files = list_wheel(ROOT)
    assert "hpctl/cli/main.py" in files
    assert [file for file in files if "sandbox" in file] == []


def test_the_wheel_of_the_sandbox_holds_it_and_nothing_else():
    files = list_wheel(SANDBOX)
    tracked = {
        str(path.relative_to(ROOT))
        for path in SANDBOX.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "pyproject.toml"
    }
    assert files == tracked


def test_the_two_have_one_version():
    assert f"hpctl=={version('hpctl')}" in requires("hpctl-sandbox")
    assert f"hpctl-sandbox=={version('hpctl-sandbox')}; extra == 'sandbox'" in requires("hpctl")


@pytest.mark.parametrize("project", [".", "hpctl/client", "hpctl/sandbox"])
def test_each_wheel_holds_license_and_notice(project, tmp_path):
    (wheel,) = WheelBuilder(str(ROOT / project)).build(directory=str(tmp_path))
    with zipfile.ZipFile(wheel) as packed:
        held = {Path(name).name: name for name in packed.namelist() if ".dist-info/" in name}
        for name in ("LICENSE", "NOTICE"):
            assert packed.read(held[name]) == (ROOT / name).read_bytes()
