"""Rules: the operator's block as it is, hpctl's own keys, and every error at once."""

from pathlib import Path

import pytest

from hpctl.jobs.logs.rules import InvalidLogRulesError, parse_log_rules
from tests.tables import beside

pytestmark = pytest.mark.integration

CASES = beside(__file__, "rules_cases.yaml")

OPERATOR = Path(__file__).with_name("operator_block.yaml").read_text()


def indented(text: str, spaces: int) -> str:
    return "".join(" " * spaces + line for line in text.splitlines(keepends=True))


def test_the_operators_block_is_read_as_it_is() -> None:
    start, hang, slow = parse_log_rules(OPERATOR).rules
    assert (start.expectedStartCutOffInSeconds, start.judges) == (120, None)
    assert hang.expectedRecurringFrequencyInSeconds == 300
    assert hang.stopPattern == ".*Training done.*"
    assert (slow.metricThreshold, slow.operator, slow.points) == (80, "lteq", 25)
    assert slow.judges == "threshold"


def test_the_block_is_found_where_the_job_has_it_and_a_bare_list_too() -> None:
    whole = "kind: HyperPodPyTorchJob\nspec:\n  nprocPerNode: '8'\n  runPolicy:\n"
    whole += "    cleanPodPolicy: None\n" + indented(OPERATOR, 4)
    assert parse_log_rules(whole) == parse_log_rules(OPERATOR)
    assert parse_log_rules(
        OPERATOR.replace("logMonitoringConfiguration:", "rules:")
    ) == parse_log_rules(OPERATOR)
    assert parse_log_rules(OPERATOR.replace("logMonitoringConfiguration:", "")) == parse_log_rules(
        OPERATOR
    )


def test_the_example_in_the_documentation_is_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "logs.md").read_text()
    assert len(parse_log_rules(page.split("```yaml\n")[1].split("```")[0]).rules) == 4


def test_all_errors_are_listed_with_place_and_nearest_word() -> None:
    text = r"""rules:
  - name: one
    logPatern: x
    kind: nan
  - name: two
    logPattern: '(a)\1'
    operator: gte
    metricThreshold: 1
  - name: one
    logPattern: 'loss'
    kind: spike
  - logPattern: '(?=x)'
"""
    with pytest.raises(InvalidLogRulesError) as caught:
        parse_log_rules(text, "r.yaml")
    message = caught.value.problems
    assert "rules.0.logPatern (line 3): no such key; did you mean 'logPattern'?" in message
    assert "rules.0.logPattern (line 2): is required" in message
    assert any("rules.1.logPattern (line 6): " in s and "linear time" in s for s in message)
    assert any("operator" in s and "did you mean 'gteq'?" in s for s in message)
    assert "rules.2.name (line 9): another rule has the name 'one' already" in message
    assert any("rules.2 (line 9)" in s and "put it in (...)" in s for s in message)
    assert "rules.3.name (line 12): is required" in message
    assert str(caught.value).startswith("r.yaml: ")


@pytest.mark.parametrize(("keys", "says"), CASES["rules"])
def test_rules_that_make_no_sense_are_refused(keys: str, says: str) -> None:
    with pytest.raises(InvalidLogRulesError, match=says):
        parse_log_rules(f"[{{name: r, logPattern: 'loss: (.*)', {keys}}}]")


@pytest.mark.parametrize(("text", "says"), [*CASES["files"], ("[" * 5000, ".")])
def test_files_that_are_no_rules_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidLogRulesError, match=says):
        parse_log_rules(text)
