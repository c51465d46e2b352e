"""The files by which strangers join: they name what exists."""

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
CHECK_SUBJECT = ROOT / "tools/check-subject"


def list_rooms() -> set[str]:
    """Return the rooms of the tree, as CODEOWNERS names them."""
    packages = (ROOT / "hpctl").glob("*/__init__.py")
    return {f"/hpctl/{path.parent.name}/" for path in packages}


def test_each_room_has_an_owner_and_each_row_a_place():
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    places = {row[0] for row in rows}
    assert list_rooms() <= places
    for place, *owners in rows:
        assert place == "*" or (ROOT / place.strip("/")).exists(), place
        assert owners
        assert all(owner.startswith("@") for owner in owners)


@pytest.mark.parametrize("name", ["ci.yml", "nightly.yml"])
def test_workflows_call_make(name):
    workflow = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [step["run"].split()[1] for step in steps if step.get("run", "").startswith("make ")]
    assert called
    assert set(called) <= TARGETS


@pytest.mark.parametrize(
    "path",
    [".github/dependabot.yml", ".pre-commit-config.yaml", *sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")
    )],
)  # fmt: skip
def test_configuration_is_yaml(path):
    assert isinstance(yaml.safe_load((ROOT / path).read_text()), dict)


def test_the_devcontainer_sets_up_by_make():
    made = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert made["postCreateCommand"] == "make setup"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "AGENTS.md"])
def test_pages_name_targets_and_files_that_exist(name):
    text = (ROOT / name).read_text()
    named = set(re.findall(r"`make ([a-z-]+)`", text))
    assert named
    assert named <= TARGETS
    for path in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / path).exists(), path


def list_required(name: str, known: set[str]) -> set[str]:
    """Return a distribution and all that it requires here, by their normalized names."""
    name = canonicalize_name(name)
    if name not in known:
        known.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                list_required(requirement.name, known)
    return known


def read_license(name: str) -> str:
    """Return the SPDX expression that a distribution states; empty for another form."""
    expression = importlib.metadata.metadata(name).get("License-Expression")
    return expression or ""


def test_notice_names_every_library_that_a_package_holds_with_its_license():
    notice = (ROOT / "NOTICE").read_text()
    named = {
        canonicalize_name(name): license.replace(" or ", " OR ").replace(" and ", " AND ")
        for name, license in re.findall(r"([A-Za-z0-9.-]+)\s\(([^)]+)\)", notice)
    }
    required = list_required("hpctl", set()) - {"hpctl"}
    assert len(required) > 20
    assert required - set(named) == set()
    wrong = {
        name: stated
        for name in required
        if (stated := read_license(name)) and named[name].partition(",")[0] != stated
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("subject", "good"),
    [
        ("jobs: hold a run whose disk is full", True),
        ("slurm, nodes: read a reservation once", True),
        ("Merge branch 'x'", True),
        ("jobs: hold a run whose disk is full.", False),
        ("Jobs: hold a run", False),
        ("hold a run", False),
        ("jobs: " + "x" * 70, False),
        ("", False),
    ],
)
def test_a_subject_is_checked(tmp_path, subject, good):
    (tmp_path / "message").write_text(f"{subject}\n\nWhy.\n")
    done = subprocess.run(
        [str(CHECK_SUBJECT), str(tmp_path / "message")],
        check=False, timeout=30, capture_output=True,
    )  # fmt: skip
    assert (done.returncode == 0) == good, done.stderr


RECORDS = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
STATUS = re.compile(
    r"Status: (?:accepted|superseded by \[\d{4}\]\((?P<by>[^)]+)\)).*\b\d{4}-\d\d-\d\d"
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name[:4])
def test_a_decision_has_its_number_once_and_a_status_with_a_date(record):
    title, empty, status, *_ = record.read_text().splitlines()
    assert title.startswith(f"# {record.name[:4]}: ")
    assert empty == ""
    found = STATUS.match(status)
    assert found, status
    if found["by"]:
        assert (record.parent / found["by"]).exists()
    assert len(list(record.parent.glob(f"{record.name[:4]}-*"))) == 1
