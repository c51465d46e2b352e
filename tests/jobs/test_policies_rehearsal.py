"""Made-up runs: where the run is after each event, and that the answers are `decide`'s own."""

import re
from pathlib import Path

import pytest
import yaml

from hpctl.jobs.rehearsal import (
    InvalidPolicyScenarioError,
    SimulatedEvent,
    count_simulated_restarts,
    parse_policy_scenario,
    simulate_policy_scenario,
)
from hpctl.vocabulary.policy_file import merge_run_policy_files
from hpctl.vocabulary.policy_file import parse_run_policy_yaml as policy_of

CASES = yaml.safe_load(Path(__file__).with_name("policy_cases.yaml").read_text())


def play_text(text: str, policy: str = "") -> tuple[SimulatedEvent, ...]:
    return simulate_policy_scenario(
        merge_run_policy_files([policy_of(policy)]), parse_policy_scenario(text)
    )


@pytest.mark.parametrize("case", CASES["played"].values(), ids=CASES["played"])
def test_where_the_run_is_after_each_event(case):
    answers = play_text(case["scenario"], case.get("policy", ""))
    assert [[p.action, p.nodes] for p in answers] == case["answers"]
    for number, why in case.get("whys", {}).items():
        assert re.search(why, answers[number].why)
    assert list(answers[-1].exclude) == case.get("excluded at last", [])
    assert count_simulated_restarts(answers) == case["restarts"]


def test_events_come_in_the_order_of_their_times_and_repeat() -> None:
    text = "nodes: 1\nevents: [{at: 1m, kind: slow, repeat: 3}, {at: 90s, kind: spike}]"
    assert [(p.at_s, p.event) for p in play_text(text)] == [
        (60, "slow"), (90, "spike"), (120, "slow"), (180, "slow"),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), CASES["scenarios"])
def test_scenarios_that_make_no_sense(text: str, problem: str) -> None:
    with pytest.raises(InvalidPolicyScenarioError, match=problem):
        parse_policy_scenario(text)
