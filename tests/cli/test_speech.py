"""What is said of files: what can never happen, what does not exist, and times as people write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpctl.cli import explain
from hpctl.cli.main import cli
from hpctl.config import load
from hpctl.jobs.checkpoints import search
from hpctl.jobs.job_comment import JobRegistration
from tests.fakes.values import slurm_job


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words), prog_name="hpctl")
    text = result.stdout
    return result.exit_code, text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("on: {hang: [step, step, step, step, requeue]}", "step, requeue is never reached"),
        ("on: {hang: {ladder: [step, step, requeue], max: 2}}", "on.hang.max: 2 holds the job"),
        ("on: {nan: [step, step, step]}", "reached only when the signature changes"),
    ],
)
def test_a_policy_that_promises_what_never_happens_is_told(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    code, out = run("policy", "check", str(path))
    assert code == 0
    assert said in " ".join(out.split())


@pytest.mark.parametrize("text", ["", "on: {nan: {ladder: [step], hold_same: false, max: 3}}"])
def test_a_policy_that_can_happen_is_fine(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    code, out = run("policy", "check", str(path))
    assert code == 0
    assert "".join(out.split()).endswith("policy.yaml:fine")


def test_a_rule_that_does_not_exist_is_refused_by_config_check(tmp_path: Path) -> None:
    path = tmp_path / "hpctl.yaml"
    path.write_text("catalogue: {xid-790: {ladder: [reboot]}}\n")
    code, out = run("config", "check", str(path), "--json")
    assert code == 1
    (problem,) = json.loads(out)["problems"]
    assert "no rule 'xid-790'" in problem
    assert "did you mean" in problem


def test_config_takes_times_as_policies_do_and_speaks_of_lists(tmp_path: Path) -> None:
    path = tmp_path / "hpctl.yaml"
    path.write_text("node: {remedy_after_s: 10m}\n")
    assert load(path).node.remedy_after_s == 600
    path.write_text("partitions: dev\n")
    code, out = run("config", "check", str(path), "--json")
    assert code == 1
    assert "should be a list" in json.loads(out)["problems"][0]


@pytest.mark.parametrize(
    ("asks", "owner", "looks"),
    [(0, 1666, False), (0, None, False), (0, 0, True), (1666, 1666, True)],
)
def test_root_opens_no_checkpoint_of_a_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asks: int, owner: int | None, looks: bool
) -> None:
    opened: list[Path] = []

    def look(place: Path) -> None:
        opened.append(place)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(search, "last_complete", look)
    monkeypatch.setattr(os, "geteuid", lambda: asks)
    said = explain.checkpoint_text(JobRegistration(ckpt=str(tmp_path)), slurm_job(uid=owner))
    assert (opened == [tmp_path]) is looks
    assert ("hpctl checkpoint last" in said) is not looks
