"""constraints.txt fits the requirements of pyproject.toml; `make constraints` writes it."""

import importlib.metadata
from email.message import Message

import pytest
from packaging.requirements import Requirement

from tools import constraints

PINS = """\
# A comment.
click==8.5.1  # hpctl
httptools==0.9.0; python_version >= "3.12"  # uvicorn
uvicorn==0.54.0  # hpctl
"""
REQUIREMENTS = [Requirement("click>=8.1,<9"), Requirement("uvicorn>=0.30,<1")]


def test_the_constraints_of_this_tree_fit_its_requirements():
    constraints.read_file()


def test_a_direct_requirement_of_each_kind_is_checked():
    names = {requirement.name for requirement in constraints.list_direct()}
    assert {"boto3", "apprise", "py-spy", "psycopg", "moto", "pytest", "ruff", "torch"} <= names
    assert names.isdisjoint(constraints.PROJECTS)


def test_pins_that_fit_are_accepted():
    constraints.check_pins(constraints.parse_pins(PINS), REQUIREMENTS)


@pytest.mark.parametrize(
    ("requirements", "why"),
    [
        (["click>=8.6", "uvicorn>=0.30"], "click>=8.6 does not allow 8.5.1"),
        (["click>=8.1", "uvicorn", "rich>=13.7"], "rich>=13.7 has no pin"),
        (["uvicorn"], "click is required by hpctl no longer"),
    ],
)
def test_a_changed_requirement_makes_the_pins_stale(requirements, why):
    with pytest.raises(constraints.Stale, match=why):
        constraints.check_pins(
            constraints.parse_pins(PINS), [Requirement(line) for line in requirements]
        )


def test_a_pin_whose_parent_has_none_is_stale():
    pins = constraints.parse_pins(PINS)
    del pins["uvicorn"]
    with pytest.raises(constraints.Stale, match="httptools is required by uvicorn no longer"):
        constraints.check_pins(pins, REQUIREMENTS[:1])


@pytest.mark.parametrize(
    "line", ["click>=8.1", "click==8.5.1", "click==8.5.1  # rich", "--extra-index-url x"]
)
def test_a_line_of_another_form_is_refused(line):
    with pytest.raises(constraints.Stale, match="not a line"):
        constraints.parse_pins(f"{PINS}{line}\n")


def test_the_environment_is_pinned_through_what_it_requires(monkeypatch):
    monkeypatch.setattr(constraints, "EXTRAS", ("floor",))
    pins = constraints.pin_environment()
    assert pins["botocore"].parent == "boto3"
    assert pins["pytest"].parent == "hpctl"
    assert str(pins["boto3"].version) == importlib.metadata.version("boto3")
    assert "ruff" not in pins
    assert constraints.parse_pins(constraints.format_pins(pins, "3.11")) == pins


def test_a_pin_leaves_out_what_depends_on_the_index(monkeypatch):
    monkeypatch.setattr(constraints, "list_direct", lambda: [Requirement("click")])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "8.5.1+cpu")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    monkeypatch.setattr(constraints, "find_least_python", lambda name: "3.10")
    assert str(constraints.pin_environment()["click"].version) == "8.5.1"


def test_a_python_that_a_version_does_not_run_on_has_no_pin_of_it(tmp_path):
    constraints.write_selections(constraints.parse_pins(PINS), tmp_path)
    texts = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert texts.keys() == set(constraints.PYTHONS)
    assert texts["3.10"] == texts["3.11"] == "click==8.5.1\nuvicorn==0.54.0\n"
    assert texts["3.13"] == "click==8.5.1\nhttptools==0.9.0\nuvicorn==0.54.0\n"


@pytest.mark.parametrize(
    ("line", "least"),
    [(">=3.8", "3.10"), (">3.11.2", "3.11"), (">=3.12,<4", "3.12"), (None, "3.10")],
)
def test_the_lowest_python_is_the_first_that_a_distribution_allows(monkeypatch, line, least):
    metadata = Message()
    if line:
        metadata["Requires-Python"] = line
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)
    assert constraints.find_least_python("click") == least
