"""Policy files: what they say, what is wrong with them, and how they add up."""

import json
from pathlib import Path

import pytest
import yaml

from hpctl.vocabulary.policy_file import (
    PolicyFileError,
    format_example_policy_file,
    merge_run_policy_files,
    parse_run_policy_json,
    parse_run_policy_yaml,
    read_run_policy_file,
)
from hpctl.vocabulary.run_policy import DEFAULTS, RestartBackoff, RunAction, RunPolicy
from hpctl.vocabulary.trouble import TroubleKind

CASES = yaml.safe_load(Path(__file__).with_name("policy_cases.yaml").read_text())

FULL = """
restarts: 5
window_s: 12h
nodes: 6-8
backoff: {first_s: 10s}
on:
  hang: {ladder: [step, requeue, hold], backoff: true, exclude: 3}
  nan: hold
  spike: [notify, step]
log_rules: megatron
notify: [/usr/bin/logger, -t, hpctl]
"""


def test_a_file_says_only_what_is_set() -> None:
    policy = merge_run_policy_files([parse_run_policy_yaml(FULL)])
    assert (policy.restarts, policy.window_s, policy.nodes) == (5, 43200, (6, 8))
    assert policy.backoff == RestartBackoff(first_s=10)
    assert policy.treatment(TroubleKind.HANG).ladder == (
        RunAction.STEP,
        RunAction.REQUEUE,
        RunAction.HOLD,
    )
    assert policy.treatment(TroubleKind.NAN).ladder == (RunAction.HOLD,)
    assert policy.treatment(TroubleKind.NAN).hold_same
    assert policy.treatment(TroubleKind.SPIKE).ladder == (RunAction.NOTIFY, RunAction.STEP)
    assert policy.treatment(TroubleKind.CRASH) == DEFAULTS[TroubleKind.CRASH]
    assert policy.log_rules == ("megatron",)
    assert policy.without_progress == RunPolicy().without_progress


def test_compact_is_small_json_that_reads_back() -> None:
    file = parse_run_policy_yaml(FULL)
    assert (
        parse_run_policy_json(json.loads(json.dumps(file.compact()))),
        parse_run_policy_yaml("").compact(),
    ) == (file, {})
    assert parse_run_policy_yaml("on: {hang: hold}").compact() == {
        "on": {"hang": {"ladder": ["hold"]}}
    }


def test_later_files_win_key_by_key() -> None:
    cluster = parse_run_policy_yaml("restarts: 5\nbackoff: {first_s: 10}\non: {hang: {exclude: 4}}")
    policy = merge_run_policy_files(
        [cluster, parse_run_policy_yaml("backoff: {cap_s: 60}\non: {hang: [step, hold]}")]
    )
    assert (policy.restarts, policy.backoff) == (5, RestartBackoff(first_s=10, cap_s=60))
    assert policy.treatment(TroubleKind.HANG).exclude == 4
    assert policy.treatment(TroubleKind.HANG).ladder == (RunAction.STEP, RunAction.HOLD)


@pytest.mark.parametrize(
    ("key", "text", "meant"),
    [
        *(("nodes", text, (6, 8)) for text in ("6-8", "[6, 8]")),
        ("nodes", "8", (8, 8)),
        *(("window_s", text, 600) for text in ("600", "600s", "10m")),
        ("window_s", "'1.5 h'", 5400),
        ("window_s", "2d", 172800),
    ],
)
def test_policy_accepts_each_form_of_a_value(key: str, text: str, meant) -> None:
    assert getattr(merge_run_policy_files([parse_run_policy_yaml(f"{key}: {text}")]), key) == meant


def test_every_error_at_once_with_its_line_and_a_near_miss(tmp_path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "restart: 3\nwindow_s: soon\nnodes: 8-6\non:\n  hagn: {ladder: [step]}\n"
        "  crash: {lader: [step], exclude: -1}\n  cuda: {ladder: [hold, step]}\n"
        "  nan: [setp]\n  final: requeue\nlog_rules: [megatorn]\nfinal_exit_codes: 300\n"
        "backoff:\n  factor: .nan\n"
    )
    with pytest.raises(PolicyFileError) as caught:
        read_run_policy_file(path)
    kinds = "node, crash, gpu_memory, host_memory, cuda, network, hang, nan, "
    assert [p.replace(kinds, "... ") for p in caught.value.problems] == [
        "restart (line 1): no such key; did you mean 'restarts'?",
        "window_s (line 2): is no time: write seconds, or 30s, 10m, 2h, 1d (given 'soon')",
        "nodes (line 3): goes from the least to the most nodes, and the least is 1 (given '8-6')",
        "on.hagn (line 5): should be one of ... spike, slow, upload, storage, disk_full,"
        " corruption, no_progress, preempted, time_limit, killed, final (given 'hagn'); did you"
        " mean 'hang'?",
        "on.crash.lader (line 6): no such key; did you mean 'ladder'?",
        "on.crash.exclude (line 6): should be greater than or equal to 0 (given -1)",
        "on.cuda.ladder (line 7): goes from the gentlest on: step cannot follow hold",
        "on.nan.ladder.0 (line 8): should be one of none, notify, process, step, requeue, end, hold"
        " (given 'setp'); did you mean 'step'?",
        "log_rules (line 10): 'megatorn' is no preset and no absolute path; did you mean"
        " 'megatron'?",
        "final_exit_codes.0 (line 11): should be less than or equal to 255 (given 300)",
        "backoff.factor (line 13): should be a finite number (given nan)",
    ]


@pytest.mark.parametrize(("text", "problem"), CASES["problems"])
def test_other_problems(text: str, problem: str) -> None:
    with pytest.raises(PolicyFileError, match=problem):
        parse_run_policy_yaml(text)


def test_the_example_is_every_key_at_its_default() -> None:
    file = parse_run_policy_yaml(format_example_policy_file())
    assert (
        merge_run_policy_files([file]) == merge_run_policy_files([])
        or merge_run_policy_files([file]).treatments
    )
    assert file.compact().keys() >= set(file.__struct_fields__) - {"nodes"}
    policy = merge_run_policy_files([file])
    for kind in TroubleKind:
        assert policy.treatment(kind) == DEFAULTS[kind]
    for name in file.__struct_fields__:
        if name != "on":
            assert getattr(policy, name) == getattr(RunPolicy(), name)


def test_aliases_of_aliases_take_no_time() -> None:
    text = "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40)
    )
    with pytest.raises(PolicyFileError, match="40 problem"):
        parse_run_policy_yaml(text)
    with pytest.raises(PolicyFileError):
        parse_run_policy_yaml("a: &a [*a]")
