"""`hpctl policy`: what is wrong with its files, what can never happen, and who said what."""

import json

import pytest

from hpctl.jobs.policy_command import show
from hpctl.toolkit import output
from hpctl.vocabulary.run_policy import DEFAULTS
from tests.fakes import command_line

pytestmark = pytest.mark.integration


def run(*args, width=100):
    return command_line.run("policy", *args, width=width)


def test_a_run_that_is_held_or_ends_is_a_problem(tmp_path):
    hold = tmp_path / "hold.yaml"
    hold.write_text("on: {nan: hold}\n")
    story = tmp_path / "story.yaml"
    story.write_text("nodes: 2\nevents: [{at: 5m, kind: nan, progress: 1, repeat: 2}]\n")
    result = run("test", "--scenario", story)
    assert result.exit_code == 1
    assert "left to end: the same nan 2 times without progress: nan" in result.stdout
    held = run("test", hold, "--scenario", story)
    assert held.exit_code == 1
    assert "held: hpctl: nan\n" in held.stdout
    story.write_text("nodes: 2\nevents: [{at: 5m, kind: nan}, {at: 6m, kind: nan}]\n")
    lenient = tmp_path / "lenient.yaml"
    lenient.write_text("same_signature: 3\n")
    assert run("test", lenient, "--scenario", story).exit_code == 0
    strict = tmp_path / "strict.yaml"
    strict.write_text("restarts: 0\n")
    assert run("test", lenient, strict, "--scenario", story).exit_code == 1


def test_check_tells_every_file(tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("restarts: 3\n")
    bad.write_text("restart: 3\non: {crash: setp}\n")
    assert run("check", good).stdout == f"{good}: fine\n"
    result = run("check", good, bad)
    assert result.exit_code == 1
    assert f"{bad}: 2 problem(s)" in result.stdout, result.stdout
    assert "  restart (line 1): no such key; did you mean 'restarts'?" in result.stdout
    document = json.loads(run("check", good, bad, tmp_path / "none", "--json").stdout)
    assert [len(f["problems"]) for f in document["files"]] == [0, 2, 1]
    good.write_text(run("example").stdout)
    assert run("check", good).exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("on: {hang: [step, step, step, step, requeue]}", "step, requeue is never reached"),
        ("on: {hang: {ladder: [step, step, requeue], max: 2}}", "on.hang.max: 2 stops the job"),
        ("on: {nan: [step, step, step]}", "reached only when the signature changes"),
        ("on: {nan: {ladder: [step], hold_same: false, max: 3}}", "policy.yaml: fine"),
    ],
)
def test_policy_with_an_unreachable_promise_raises_a_warning(tmp_path, text, said):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    result = run("check", path, width=300)
    assert (result.exit_code, said in result.stdout) == (0, True), result.stdout


def test_show_names_the_file_that_says_so(head, tmp_path):
    with head.config.open("a") as config:
        config.write(
            "run_policy: {restarts: 5, on: {hang: {exclude: 3}}}\n"
            "run_policies: {gpu: {window_s: 2h, backoff: {cap_s: 60}}}\n"
        )
    own = tmp_path / "own.yaml"
    own.write_text("nodes: 6-8\non: {hang: [step, hold]}\n")
    result = head.run("policy", "show", "--partition", "gpu", str(own), "--json")
    assert result.exit_code == 0, result.output
    keys = {k["key"]: (k["value"], k["source"]) for k in json.loads(result.stdout)["keys"]}
    assert keys["restarts"] == ("5", "cluster")
    assert keys["window_s"] == ("7200", "partition gpu")
    assert keys["backoff.cap_s"] == ("60", "partition gpu")
    assert keys["backoff.first_s"] == ("30", "default")
    assert keys["nodes"] == ("6 8", str(own))
    assert keys["on.hang.ladder"] == ("step hold", str(own))
    assert keys["on.hang.exclude"] == ("3", "cluster")
    assert keys["on.nan.ladder"][1] == "default"
    assert {k.split(".")[1] for k in keys if k.startswith("on.")} == set(map(str, DEFAULTS))
    assert "partition gpu" in head.run("policy", "show", "--partition", "gpu").stdout


def test_show_works_without_the_head_nodes_configuration(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCTL_CONFIG", raising=False)
    monkeypatch.setattr(output, "DEFAULT_CONFIG", str(tmp_path / "none.yaml"))
    monkeypatch.setattr(show.params[2], "default", str(tmp_path / "none.yaml"))
    own = tmp_path / "own.yaml"
    own.write_text("restarts: 5\n")
    result = run("show", own, "--json")
    assert result.exit_code == 0, result.output
    keys = {k["key"]: (k["value"], k["source"]) for k in json.loads(result.stdout)["keys"]}
    assert (keys["restarts"], keys["window_s"]) == (("5", str(own)), ("86400", "default"))
    assert "the cluster's and the partition's policy are not counted in" in result.stderr
    own.write_text("restrts: 5\n")
    assert run("show", own).exit_code == 2


def test_a_rule_that_does_not_exist_is_refused_by_config_check(tmp_path):
    path = tmp_path / "hpctl.yaml"
    path.write_text("catalogue: {xid-790: {ladder: [reboot]}}\n")
    result = command_line.run("config", "check", path, "--json")
    (problem,) = json.loads(result.stdout)["problems"]
    assert (result.exit_code, "no rule 'xid-790'" in problem) == (1, True)
    assert "did you mean" in problem
