"""The agent's file and settings: defaults, what it finds out, one error a mistake."""

import sys

import pytest

from hpctl.detection import config
from hpctl.detection import settings as detection_settings
from hpctl.faults.table import HealthCheckSpec, HealthCheckThreshold
from hpctl.toolkit.errors import HpctlError
from hpctl.wire.heads import DEFAULT_PORT, HeadNodeAddress
from tests.process import run_text

SPECS = (
    HealthCheckSpec(
        "host.disk", "", "", every_s=60, limits={"full": HealthCheckThreshold(95, "%", "")}
    ),
    HealthCheckSpec("host.clock", "", "", every_s=60),
)


def written(tmp_path, text):
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n"])
def test_everything_has_a_default(tmp_path, text: str) -> None:
    assert config.load_agent_config(written(tmp_path, text), SPECS) == config.AgentConfig()
    assert config.load_agent_config(None, SPECS) == config.AgentConfig()


def test_what_a_site_sets_is_applied(tmp_path) -> None:
    text = """
    expected: {instance_type: p5.48xlarge, gpus: 8}
    checks:
      host.disk: {every_s: 30, gone_s: 5, limits: {full: 97}}
      host.clock: {enabled: false}
    budget: {cpu_percent: 1}
    """
    settings = config.load_agent_config(written(tmp_path, text), SPECS)
    assert (settings.expected.gpus, settings.budget.memory_mb) == (8, 40)
    ((spec, limits),) = config.select_enabled_checks(settings, SPECS)
    assert (spec.name, spec.every_s, limits, spec.gone_s) == ("host.disk", 30, {"full": 97}, 5)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (
            "checks: {host.dsik: {}}",
            "checks.host.dsik (line 1): no such check; did you mean 'host.disk'?",
        ),
        (
            "checks:\n  host.disk: {limits: {ful: 3}}",
            "checks.host.disk.limits.ful (line 2): no such limit; did you mean 'full'?",
        ),
        (
            "checks: {host.disk: {limits: {full: high}}}",
            "checks.host.disk.limits.full (line 1): should be a number (given 'high')",
        ),
        ("checks: {host.disk: {every_s: 0}}", "checks.host.disk.every_s (line 1): should be"),
        ("expcted: {}", "expcted (line 1): no such key; did you mean 'expected'?"),
        ("expected: {gpus: -1}", "expected.gpus (line 1): should be"),
        ("- a\n- b", "holds a list, not a mapping of keys"),
        ("a: [", "not YAML"),
        ("\x80", "not YAML"),
        ("budget: {cpu_percent: 0}", "budget.cpu_percent (line 1): should be greater than 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, text: str, output: str) -> None:
    with pytest.raises(HpctlError) as caught:
        config.load_agent_config(written(tmp_path, text), SPECS)
    reported = f"{caught.value} {caught.value.hint}"
    assert "agent.yaml" in reported
    assert output in reported


def test_all_that_is_wrong_is_named_at_once(tmp_path) -> None:
    text = "expected: {gpus: x}\nbudget: {cpu_percent: 0, memory: 1}\n"
    text += "checks: {host.disk: {evry_s: 1}}"
    with pytest.raises(config.AgentConfigError) as caught:
        config.load_agent_config(written(tmp_path, text), SPECS)
    assert [line.partition(" (line")[0] for line in caught.value.problems] == [
        "expected.gpus", "budget.cpu_percent", "budget.memory", "checks.host.disk.evry_s",
    ]  # fmt: skip


def test_a_file_that_was_named_must_be_there(tmp_path) -> None:
    with pytest.raises(HpctlError, match="No such file"):
        config.load_agent_config(tmp_path / "none.yaml", SPECS)


@pytest.mark.parametrize(
    ("url", "head"),
    [
        ("http://head:9000", HeadNodeAddress("head", 9000)),
        ("http://head", HeadNodeAddress("head", DEFAULT_PORT)),
        ("10.0.0.1:8470/", HeadNodeAddress("10.0.0.1", 8470)),
        ("http://[::1]:80", HeadNodeAddress("::1", 80)),
    ],
)
def test_a_heads_url(url: str, head: HeadNodeAddress) -> None:
    assert HeadNodeAddress.parse(url) == head


@pytest.mark.parametrize("url", ["https://head:1", "http://head/x", "http://", "http://h:x", ""])
def test_what_is_no_heads_url(url: str) -> None:
    with pytest.raises(HpctlError, match="URL"):
        HeadNodeAddress.parse(url)


@pytest.mark.parametrize(
    ("tag", "instance"),
    [("i-0123456789abcdef0\n", "i-0123456789abcdef0"), ("Not Specified\n", "n1"), (None, "n1")],
)
def test_the_instance_id_is_the_firmwares(tmp_path, tag: str | None, instance: str) -> None:
    path = tmp_path / "board_asset_tag"
    if tag is not None:
        path.write_text(tag)
    assert detection_settings.read_local_ec2_instance_id("n1", path) == instance


def test_the_boot_id(tmp_path) -> None:
    assert (
        detection_settings.read_local_boot_id()
        == detection_settings.BOOT_ID_FILE.read_text().strip()
    )
    (tmp_path / "empty").write_text("\n")
    for path in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(HpctlError, match="boot id"):
            detection_settings.read_local_boot_id(path)


def test_the_agent_stays_away_from_what_is_heavy() -> None:
    heavy = ("pydantic", "sqlalchemy", "boto3", "rich", "starlette", "uvicorn", "asyncio", "yaml")
    program = (
        "import sys, hpctl.cli.agent, hpctl.detection.service\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    assert run_text([sys.executable, "-c", program], check=True).stdout.strip() == "[]"
