"""A site's own checks, run for real: what they print, how they misbehave, who may write them."""

import json
import os
import time
from pathlib import Path

import pytest

from hpctl.detection.check import CheckedMachine, CheckObservation, CheckResultUnknownError
from hpctl.detection.outside import plugin_child, plugins
from hpctl.detection.outside.plugins import CheckPlugin, PluginDirectoryCheck, load_check_plugins
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict
from tests.process import ended
from tests.waiting import LONGER_AND_LONGER, until

pytestmark = pytest.mark.integration

MACHINE = CheckedMachine()


@pytest.fixture
def checks_d(tmp_path) -> Path:
    place = tmp_path / "checks.d"
    place.mkdir(mode=0o755)
    return place


def put(place: Path, name: str, body: str, mode: int = 0o755) -> Path:
    path = place / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def printing(document, describe: str = "") -> str:
    text = json.dumps(document)
    return f"[ \"$1\" = --describe ] && {{ echo '{describe}'; exit; }}\ncat <<'E'\n{text}\nE"


def load(place: Path) -> tuple[list[CheckPlugin], PluginDirectoryCheck]:
    *found, directory = load_check_plugins(place)
    assert isinstance(directory, PluginDirectoryCheck)
    return [check for check in found if isinstance(check, CheckPlugin)], directory


def seen(check) -> list[CheckObservation]:
    return list(check.judge(check.gather(MACHINE), None, {}))


def refused(directory: PluginDirectoryCheck) -> dict[str, str]:
    return {Path(o.device).name: o.detail for o in seen(directory)}


def test_a_plugin_is_a_check_that_says_what_it_sees(checks_d):
    finding = {
        "code": "low_space", "verdict": "warn", "device": "/scratch", "detail": "97 % used",
        "evidence": "df says so", "job": "77", "clears": "boot",
    }  # fmt: skip
    put(checks_d, "disk-space.sh", printing({"findings": [finding, {"verdict": "ok"}, {}]}))
    (plugin,), directory = load(checks_d)
    assert (plugin.spec.name, plugin.spec.every_s, plugin.spec.seen) == (
        "plugin.disk.space", 60.0, (1, 1)
    )  # fmt: skip
    assert (plugin.spec.clears, plugin.spec.gone_s) == (ClearCondition.GONE, 180.0)
    assert seen(plugin) == [
        CheckObservation(
            "low_space",
            "/scratch",
            DeviceVerdict.WARN,
            "97 % used",
            "df says so",
            "77",
            ClearCondition.BOOT,
        ),
        CheckObservation(""),
    ]
    assert seen(directory) == []


def test_it_describes_itself(checks_d):
    describe = (
        '{"what": "scratch", "every_s": 300, "timeout_s": 2.5, "seen": [2, 3],'
        ' "clears": "boot", "gone_s": 90, "grace_s": 120}'
    )
    put(checks_d, "scratch", printing({"findings": []}, describe))
    ((plugin,), _) = load(checks_d)
    spec = plugin.spec
    assert (spec.what, spec.every_s, spec.seen, spec.clears) == ("scratch", 300, (2, 3), "boot")
    assert (spec.gone_s, spec.grace_s, plugin.timeout_s) == (90, 120, 2.5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo all is well", "prints no JSON but 'all is well'; print {\"findings\": []}"),
        ("printf ''", "prints nothing; print"),
        ('echo \'{"findings": [{"cod": "x"}]}\'', "unknown field `cod` - at `$.findings[0]`"),
        ('echo \'{"findings": [{"verdict": "bad"}]}\'', "at `$.findings[0].verdict`"),
        ("echo '{\"findings\": {}}'", "at `$.findings`"),
        ('echo \'{"findings": [{"gone_s": 0}]}\'', "at `$.findings[0].gone_s`"),
        ("echo broken >&2; exit 3", "ended with exit code 3, not 0: broken"),
        ("kill -SEGV $$", "ended with signal 11"),
        ("sleep 600", "was not done within 0.4 s and is killed"),
        ("yes hello", "prints more than 65536 bytes and is killed"),
        ("yes hello >&2", "prints more than 65536 bytes and is killed"),
    ],
)
def test_one_that_misbehaves_cannot_tell_and_says_why(checks_d, body, says):
    timeout_s = 0.4 if body == "sleep 600" else 20
    describe = f'[ "$1" = --describe ] && {{ echo \'{{"timeout_s": {timeout_s}}}\'; exit; }}\n'
    put(checks_d, "odd", describe + body)
    ((plugin,), _) = load(checks_d)
    begun = time.monotonic()
    with pytest.raises(CheckResultUnknownError) as caught:
        plugin.gather(MACHINE)
    assert says in str(caught.value)
    assert str(caught.value).startswith("odd ")
    assert len(str(caught.value)) <= 256
    assert time.monotonic() - begun < 40


def test_its_whole_family_dies_with_its_deadline(checks_d, tmp_path):
    pid = tmp_path / "pid"
    body = f"sleep 610 & echo $! > {pid}; wait"
    for timeout_s in LONGER_AND_LONGER:
        describe = f'[ "$1" = --describe ] && {{ echo \'{{"timeout_s": {timeout_s}}}\'; exit; }}\n'
        put(checks_d, "family", describe + body)
        ((plugin,), _) = load(checks_d)
        with pytest.raises(CheckResultUnknownError, match="not done within"):
            plugin.gather(MACHINE)
        if pid.exists() and pid.read_text():
            break
    assert ended(int(pid.read_text()))


def test_a_grandchild_that_keeps_the_output_open_delays_nothing(checks_d, tmp_path):
    body = f"sleep 620 & echo $! > {tmp_path}/pid; echo '{{\"findings\": []}}'"
    put(checks_d, "leaves", f'[ "$1" = --describe ] && exit\n{body}')
    ((plugin,), _) = load(checks_d)
    begun = time.monotonic()
    assert seen(plugin) == []
    assert time.monotonic() - begun < 60
    assert ended(int((tmp_path / "pid").read_text()))


def test_one_that_cannot_be_killed_is_not_run_twice(checks_d, monkeypatch):
    describe = '[ "$1" = --describe ] && { echo \'{"timeout_s": 0.2}\'; exit; }\n'
    put(checks_d, "stuck", describe + "exec sleep 63")
    ((plugin,), _) = load(checks_d)
    kill = os.killpg
    groups: list[int] = []
    monkeypatch.setattr(plugin_child, "END_S", 0.1)
    monkeypatch.setattr(plugins.os, "killpg", lambda group, number: groups.append(group))
    with pytest.raises(CheckResultUnknownError, match="not done within"):
        plugin.gather(MACHINE)
    with pytest.raises(CheckResultUnknownError, match="still hangs from an earlier run"):
        plugin.gather(MACHINE)
    assert len(groups) == 1
    kill(groups[0], 9)
    until(lambda: ended(groups[0]))
    monkeypatch.setattr(plugins.os, "killpg", kill)
    with pytest.raises(CheckResultUnknownError, match="not done within"):
        plugin.gather(MACHINE)


def test_its_surroundings_are_plain(checks_d, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for plugins")
    body = (
        '[ "$1" = --describe ] && exit\n'
        'echo "{\\"findings\\": [{\\"detail\\": \\"$(pwd) $LC_ALL$AWS_SECRET_ACCESS_KEY\\"}]}"'
    )
    put(checks_d, "env", body)
    ((plugin,), _) = load(checks_d)
    assert [o.detail for o in seen(plugin)] == ["/ C"]


def test_what_others_can_write_is_never_run(checks_d, tmp_path):
    proof = tmp_path / "was-run"
    body = f"touch {proof}; echo '{{\"findings\": []}}'"
    put(checks_d, "open", body, mode=0o757)
    put(checks_d, "group", body, mode=0o775)
    put(checks_d, "plain", body, mode=0o644)
    (checks_d / "link").symlink_to(put(tmp_path, "elsewhere", body))
    os.mkfifo(checks_d / "fifo")
    (checks_d / "README.md").write_text("not a check")
    (checks_d / ".hidden").write_text("nor this")
    (checks_d / "sub").mkdir()
    found, directory = load(checks_d)
    assert found == []
    reported = refused(directory)
    assert "can be written by others than its owner: copy it there, chown root" in reported["open"]
    assert "can be written by others" in reported["group"]
    assert "is not executable: chmod 0755" in reported["plain"]
    assert "is a symbolic link" in reported["link"]
    assert "is no regular file" in reported["fifo"]
    assert set(reported) == {"open", "group", "plain", "link", "fifo"}
    assert not proof.exists()


@pytest.mark.parametrize("above", [False, True])
def test_nothing_in_a_directory_that_others_can_change_is_run(tmp_path, above):
    parent = tmp_path / "parent"
    place = parent / "checks.d"
    place.mkdir(parents=True)
    put(place, "good", printing({"findings": []}))
    (parent if above else place).chmod(0o777)
    found, directory = load(place)
    assert found == []
    (why,) = refused(directory).values()
    assert "can be written by others than its owner: chown root and chmod go-w" in why
    (parent if above else place).chmod(0o755)
    assert "restart the agent to run it" in refused(directory)["good"]


def test_a_plugin_that_was_swapped_while_the_agent_runs_is_not_run(checks_d):
    path = put(checks_d, "good", printing({"findings": []}))
    ((plugin,), directory) = load(checks_d)
    assert seen(plugin) == []
    path.chmod(0o777)
    with pytest.raises(CheckResultUnknownError, match="can be written by others"):
        plugin.gather(MACHINE)
    put(checks_d, "fresh", printing({"findings": []}))
    assert refused(directory) == {"fresh": "is new or was corrected: restart the agent to run it"}


def test_two_of_one_name_and_a_name_that_no_finding_can_have(checks_d):
    for name in ("a-b.sh", "a.b.py", "Größe", "9lives"):
        put(checks_d, name, printing({"findings": []}))
    found, directory = load(checks_d)
    assert [plugin.spec.name for plugin in found] == ["plugin.a.b"]
    reported = refused(directory)
    assert "a-b.sh are both plugin.a.b: rename one" in reported["a.b.py"]
    assert "a letter first: rename it" in reported["9lives"]
    assert "small letters" in reported["Größe"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo hello", "--describe: prints no JSON but 'hello'"),
        ("exit 2", "--describe ended with exit code 2, not 0"),
        ("echo '{\"every_s\": 1}'", "--describe: its JSON is not as it must be"),
        ("echo '{\"evry_s\": 60}'", "unknown field `evry_s`"),
        ("echo '{\"seen\": [3, 2]}'", "at `$.seen`"),
    ],
)
def test_one_that_describes_itself_badly_is_refused(checks_d, body, says):
    put(checks_d, "odd", body)
    found, directory = load(checks_d)
    assert found == []
    assert says in refused(directory)["odd"]


def test_those_that_hang_at_describe_are_asked_at_the_same_time(checks_d, monkeypatch):
    monkeypatch.setattr(plugins, "DESCRIBE_S", 2.0)
    for number in range(8):
        put(checks_d, f"hang{number}", "exec sleep 640")
    put(checks_d, "well", printing({"findings": []}))
    begun = time.monotonic()
    found, directory = load(checks_d)
    assert time.monotonic() - begun < 8 * 2.0
    assert [plugin.path.name for plugin in found] == ["well"]
    assert all("not done within 2 s" in why for why in refused(directory).values())


DCGM = '[ "$1" = --describe ] && { echo \'{"format": "dcgm-health"}\'; exit; }\n'


def test_a_plugin_prints_in_the_form_of_the_tool_that_it_runs(checks_d):
    document = '{"body": {"Overall Health": {"value": "Failure"}}}'
    put(checks_d, "dcgm", f"{DCGM}echo '{document}'")
    ((plugin,), _) = load(checks_d)
    found = [("overall", DeviceVerdict.FAIL, "Overall Health is Failure")]
    assert [(o.code, o.verdict, o.detail) for o in seen(plugin)] == found


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo Error: Health watches not enabled.; exit 1", "dcgm dcgmi ended with exit code 1"),
        ("echo '{\"findings\": []}'", "dcgm prints JSON without a body"),
        ("kill -KILL $$", "dcgm was ended by signal 9"),
        ("yes", "dcgm prints more than 65536 bytes"),
        ("head -c 900 /dev/urandom", "dcgm prints no JSON object"),
    ],
)
def test_a_tool_that_breaks_costs_one_reading(checks_d, body, says):
    put(checks_d, "dcgm", DCGM + body)
    put(checks_d, "well", printing({"findings": [{"code": "x"}]}))
    found, _ = load(checks_d)
    dcgm, well = found
    with pytest.raises(CheckResultUnknownError) as caught:
        dcgm.gather(MACHINE)
    assert str(caught.value).startswith(says)
    assert [o.code for o in seen(well)] == ["x"]


def test_a_format_that_hpctl_does_not_know_is_refused_at_the_start(checks_d):
    put(checks_d, "odd", 'echo \'{"format": "nagios"}\'')
    found, directory = load(checks_d)
    assert found == []
    assert "--describe: its JSON is not as it must be" in refused(directory)["odd"]
