"""What `hpctl run` makes of its options, before there is a job."""

import pytest
from click.testing import CliRunner

from hpctl.cli.main import cli

pytestmark = pytest.mark.integration


def test_log_rules_are_a_preset_or_a_file_also_in_this_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_JOBID", "HPCTL_POLICY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "rules.yaml").write_text("- {name: bad, logPattern: '('}\n")

    def said(rules: str) -> str:
        result = CliRunner().invoke(cli, ["run", "--log-rules", rules, "--", "true"])
        return f"{result.exception} {result.output}"

    assert "0.logPattern (line 1)" in said("rules.yaml"), "it was read"
    assert "hpctl has no preset of log rules with the name 'rulse.yaml'" in said("rulse.yaml")
    (tmp_path / "rules.yaml").write_text("- {name: good, logPattern: 'loss is nan', kind: nan}\n")
    for right in ("rules.yaml", "./rules.yaml", "megatron"):
        assert "hpctl run was not started in a Slurm job" in said(right)
