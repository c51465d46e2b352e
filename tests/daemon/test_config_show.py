"""`hpctl config show`: every value of the configuration, and where it comes from."""

import json

import pytest

from tests.fakes.command_line import run

pytestmark = pytest.mark.integration

TEXT = """\
mode: own
cluster: {provider: sagemaker, name: llm-prod}
database_url: postgresql://hpctl:secret@db.example/hpctl
budgets:
  per_hour: 3
  open_min: 2
catalogue:
  xid-79:
    ladder: [reboot]
    settle_s: 4
run_policy:
  restarts: 3
  on: {nan: {ladder: [requeue]}}
"""


@pytest.fixture
def shown(tmp_path):
    """The keys that are shown, each with its value and source; by what is asked for."""
    file = tmp_path / "hpctl.yaml"
    file.write_text(TEXT)

    def show(*words: str) -> dict[str, tuple[object, str]]:
        result = run("config", "show", *words, "--json", "--config", file)
        assert result.exit_code == 0, result.output
        keys = json.loads(result.stdout)["keys"]
        return {one["key"]: (one["value"], one["source"].replace(f"{file}:", "")) for one in keys}

    return show


def test_each_value_names_its_line_or_the_default(shown):
    found = shown()
    assert found["mode"] == ("own", "1")
    assert found["cluster.name"] == ("llm-prod", "2")
    assert found["cluster.region"] == (None, "default")
    assert found["budgets.per_hour"] == (3, "5")
    assert found["budgets.open_min"] == (2, "6"), "a line that says the default is a line"
    assert found["budgets.drain_min"][1] == "default"
    assert found["catalogue.xid-79.ladder"] == (["reboot"], "9")
    assert found["run_policy.restarts"] == (3, "12")
    assert found["run_policy.on.nan.ladder"] == (["requeue"], "13")


def test_a_password_is_not_shown(shown):
    assert shown("database_url") == {
        "database_url": ("postgresql://hpctl:***@db.example/hpctl", "3")
    }


def test_config_show_lists_only_changed_or_requested_keys(shown):
    assert {source for _, source in shown("--changed").values()} == {
        "1", "2", "3", "5", "6", "9", "10", "12", "13",
    }  # fmt: skip
    assert set(shown("mode", "cluster.name")) == {"mode", "cluster.name"}
    assert set(shown("budgets", "--changed")) == {"budgets.per_hour", "budgets.open_min"}


def test_values_are_in_effect(tmp_path):
    """What an alias and a merge key bring along has the line that they name."""
    file = tmp_path / "hpctl.yaml"
    file.write_text(
        "catalogue:\n  xid-79: &patient\n    ladder: [reboot]\n  xid-48:\n    <<: *patient\n"
        "    settle_s: 4\n"
    )
    keys = json.loads(run("config", "show", "catalogue", "--json", "--config", file).stdout)["keys"]
    sources = {one["key"]: one["source"] for one in keys}
    assert sources["catalogue.xid-48.ladder"] == f"{file}:3"
    assert sources["catalogue.xid-48.settle_s"] == f"{file}:6"


def test_a_key_that_is_none_and_a_broken_file_are_said(tmp_path):
    file = tmp_path / "hpctl.yaml"
    file.write_text("mode: observe\n")
    wrong = run("config", "show", "budget", "--config", file)
    assert "did you mean budgets" in wrong.exception.hint
    file.write_text("modus: own\n")
    broken = run("config", "show", "--config", file)
    assert "modus (line 1): no such key" in str(broken.exception)
