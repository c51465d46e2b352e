"""The configuration file: every error at once, with its place and a near miss."""

import pytest

from hpctl.engine.adapters import open_journal_writer
from hpctl.engine.config import (
    Config,
    ConfigError,
    format_example_config,
    parse_config,
    read_config_file,
)
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.policy_file import merge_run_policy_files
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.trouble import TroubleKind

BAD = """\
mode: ownn
node:
  step_retires_s: 3
  cordon_deadline_s: -1
foo: 1
catalogue:
  xid-79:
    ladder: [replcae]
cluster: {provider: sagemaker}
run_policies:
  gpu: {on: {hang: {excude: 3}}}
"""


def test_the_example_is_valid_and_all_defaults_which_are_the_policy_s_own() -> None:
    assert (parse_config(format_example_config()), Config().policy()) == (
        Config(),
        RecoveryPolicy(),
    )


def test_every_problem_at_once_with_its_line_and_a_near_miss() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(BAD, "hpctl.yaml")
    problems = "\n".join(caught.value.problems)
    assert "mode (line 1)" in problems
    assert "node.step_retires_s (line 3): no such key; did you mean 'step_retry_s'?" in problems
    assert "node.cordon_deadline_s (line 4)" in problems
    assert "foo (line 5): no such key" in problems
    assert "catalogue.xid-79.ladder.0 (line 8)" in problems
    assert "name is needed for provider sagemaker" in problems
    excude = "run_policies.gpu.on.hang.excude (line 11): no such key; did you mean 'exclude'?"
    assert excude in problems


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mode: own\n", "mode own reboots and replaces: it needs a cluster.provider"),
        ("- a\n- b\n", "holds a list, not a mapping"),
        ("mode: [\n", "not YAML"),
        ("database_url: db.example/hpctl\n", "database_url is no URL"),
        ("database_url: postgresql://h:port/x\n", "database_url is no URL"),
        ("intake: {listen: 'a:99999'}\n", "ports end at 65535"),
        ("intake: {listen: nowhere}\n", "intake.listen (line 1)"),
        ("partitions: dev\n", "should be a list"),
        ("acceptance: {floors: {NVIDIA H200: {hbm_gbs: -1}}}\n", "NVIDIA H200.hbm_gbs (line 1)"),
        ("acceptance: {floors: {NVIDIA H200: 600}}\n", "floors.NVIDIA H200 (line 1)"),
    ],
)
def test_one_problem(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match="problem") as caught:
        parse_config(text)
    assert says in str(caught.value)


def test_floors_of_a_site_reach_the_policy() -> None:
    text = "acceptance: {floors: {NVIDIA H200: {bf16_tflops: 600}, p5en.48xlarge: {h2d_gbs: 0}}}\n"
    floors = parse_config(text).policy().acceptance.floors
    assert floors == {"NVIDIA H200": {"bf16_tflops": 600.0}, "p5en.48xlarge": {"h2d_gbs": 0.0}}


def test_an_empty_file_observes_and_durations_may_have_units() -> None:
    assert parse_config("").mode is OperatingMode.OBSERVE
    assert parse_config("node: {remedy_after_s: 10m}\n").node.remedy_after_s == 600


def test_files_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config_file(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config_file(tmp_path / "binary.yaml")


def test_a_state_directory_with_odd_characters_is_still_one_path(tmp_path) -> None:
    odd = tmp_path / "50% of it"
    odd.mkdir()
    open_journal_writer(parse_config(f"state_dir: {str(odd)!r}\n")).close()
    assert (odd / "journal.db").exists()


POLICIES = """\
run_policy:
  restarts: 5
  on: {hang: {exclude: 3}}
run_policies:
  gpu: {restarts: 7, on: {nan: hold}}
"""


def test_recovery_policies_of_the_cluster_and_of_its_partitions() -> None:
    config = parse_config(POLICIES)
    gpu, other = (
        merge_run_policy_files(config.list_run_policy_layers(name)) for name in ("gpu", "other")
    )
    assert (gpu.restarts, other.restarts) == (7, 5)
    assert gpu.treatment(TroubleKind.HANG).exclude == other.treatment(TroubleKind.HANG).exclude == 3
    assert gpu.treatment(TroubleKind.NAN).ladder == (RunAction.HOLD,)
    assert merge_run_policy_files(Config().list_run_policy_layers("any")) == RunPolicy()
