"""Who may import what. The layers are import-linter contracts, which `make static` holds."""

import sys

import pytest

from tests.architecture.source import ROOT, imports, python_files
from tests.process import run_text

# The libraries that open a door to the world, and the only places that may open it.
DOORS = {
    "boto3": ("hpctl/sagemaker", "hpctl/sandbox"),
    "botocore": ("hpctl/sagemaker", "hpctl/sandbox"),
    "pyslurm": ("hpctl/slurm/pyslurm.py",),
    "pynvml": ("hpctl/detection/nvml/child.py",),
    "moto": ("hpctl/sandbox",),
}

# Slow to load, and none of them is needed to print a help text.
HEAVY = (
    "asyncio", "boto3", "botocore", "moto", "msgspec", "numpy", "prometheus_client", "pydantic",
    "rich", "sqlalchemy", "starlette", "tenacity", "uvicorn", "yaml",
)  # fmt: skip


@pytest.mark.parametrize("library", DOORS)
def test_a_door_to_the_world_is_opened_in_one_place(library: str) -> None:
    trespassers = [
        f"{path}:{line}"
        for path in python_files("hpctl")
        if not any(path.is_relative_to(place) for place in DOORS[library])
        for line, name in imports(path)
        if name.split(".")[0] == library
    ]
    assert trespassers == []


@pytest.mark.parametrize("action", ["", "m.cli(['--help'], standalone_mode=False)"])
def test_the_program_and_its_help_load_nothing_heavy(action: str) -> None:
    code = (
        "import sys, hpctl.cli.main as m\n"
        f"{action}\n"
        f"print('loaded:', *sorted(set({HEAVY}) & set(sys.modules)))"
    )
    result = run_text([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert result.stdout.splitlines()[-1].strip() == "loaded:"
