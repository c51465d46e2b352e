"""The policy and the log rules that a job brings are read when it is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.errors import HpctlError
from hpctl.jobs import submit_context
from hpctl.jobs.sbatch_options import hpctl_options, read

RULES = "rules:\n- {name: loss, logPattern: 'loss (\\d+)', metricThreshold: 2, operator: gt}\n"


def compact(tmp_path: Path, directives: str, **environment: str) -> dict[str, object]:
    script = read("job.sh", f"#!/bin/sh\n#HPCTL {directives}\n")
    return submit_context.job_policy(
        hpctl_options({}, script.own, str(tmp_path)), environment, str(tmp_path)
    )


def test_a_file_of_the_submitter(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("restarts: 3\n'on': {hang: hold}\nspares: 1\n")
    said = {"restarts": 3, "on": {"hang": {"ladder": ["hold"]}}, "spares": 1}
    assert compact(tmp_path, "--policy p.yaml") == said
    assert compact(tmp_path, f"--policy {tmp_path}/p.yaml") == said


def test_a_name_of_the_clusters(tmp_path: Path) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "named/careful.yaml").write_text("restarts: 1\n")
    where = str(tmp_path / "named")
    assert compact(tmp_path, "--policy careful", HPCTL_POLICIES=where) == {"restarts": 1}
    with pytest.raises(HpctlError) as caught:
        compact(tmp_path, "--policy brave", HPCTL_POLICIES=where)
    assert "no policy of that name" in str(caught.value)
    assert caught.value.hint == "There are careful."


def test_rules_go_into_the_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RULES)
    (tmp_path / "p.yaml").write_text("log_rules: nemo\nrestarts: 2\n")
    got = compact(tmp_path, "--policy p.yaml --log-rules megatron --log-rules mine.yaml")
    assert got == {"restarts": 2, "log_rules": ["megatron", f"{tmp_path}/mine.yaml"]}


@pytest.mark.parametrize(
    ("directive", "text", "message"),
    [
        ("--policy p.yaml", "restart: 3\nspares: x\n", "2 problem(s)"),
        ("--policy ./none.yaml", "", "cannot be read"),
        ("--log-rules megaton", "", "no preset is called 'megaton'"),
        ("--log-rules p.yaml", "rules: []\n", "holds no list of rules"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, directive: str, text: str, message: str
) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(HpctlError) as caught:
        compact(tmp_path, directive)
    assert str(caught.value).startswith("job.sh:2: --")
    assert message in str(caught.value)
    assert caught.value.hint
