"""What SIGHUP changes in a daemon that runs."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from hpctl.daemon.configuration_audit import ConfigurationChangeRecorder
from hpctl.daemon.reload import NEEDS_RESTART, ConfigReload
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config, read_config_file
from hpctl.engine.journal.events import ConfigurationTaken
from hpctl.engine.journal.state import EngineState
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.observe import ClusterObserver, ObserverSources
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.slurm_facts import SlurmJob
from tests.fakes.values import T0, Clock


class Memory:
    """A journal in memory; an append fails while the disk is full."""

    def __init__(self) -> None:
        self.state, self.full = EngineState(), False

    def append(self, events: list[Any]) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        for event in events:
            self.state.fold(event)


class Head:
    """A reload with all that it changes, on a configuration file that a test writes."""

    def __init__(self, place, *, leads: bool = True) -> None:
        self.path = place / "hpctl.yaml"
        self.write("")
        self.live = LiveConfig(read_config_file(self.path))
        self.memory, self.page = Memory(), Mock()
        memory: Any = self.memory
        self.audit = ConfigurationChangeRecorder(self.path, self.live, memory, Clock(T0))
        leadership = Mock(spec=Leadership, leads=leads)
        self.reload = ConfigReload(self.path, self.live, leadership, self.audit, (self.page,))

    def write(self, text: str) -> None:
        self.path.write_text(f"state_dir: {self.path.parent}/state\n{text}\n")

    def reloads(self, text: str) -> str:
        """The trouble after a reload of this text."""
        self.write(text)
        self.reload.run()
        return self.reload.trouble

    def audited(self) -> dict[str, str]:
        """The settings in the journal, after what is due was written."""
        self.audit.write_configuration_if_requested()
        taken: ConfigurationTaken | None = self.memory.state.configuration
        return dict(taken.settings) if taken else {}


@pytest.fixture
def head(tmp_path) -> Head:
    return Head(tmp_path)


def test_the_kill_switch_is_where_the_file_says_after_a_reload(head, tmp_path):
    """An operator who creates it in an emergency has read the configuration, not the process."""
    before, after = tmp_path / "STOP", tmp_path / "HALT"
    assert not head.reloads(f"kill_switch: {before}")
    nothing: Any = SimpleNamespace(view=lambda: CloudProviderView(T0), snapshot=dict)
    sources = ObserverSources(nothing, CloudPoller(nothing, lambda: None, 30), nothing)
    observer = ClusterObserver(sources, head.live, Clock(T0))
    assert not head.reloads(f"kill_switch: {after}")
    before.touch()
    assert observer.find_kill_switch_reason() == ""
    after.touch()
    assert str(after) in observer.find_kill_switch_reason()
    after.unlink()
    after.symlink_to(after)
    assert "cannot be seen" in observer.find_kill_switch_reason()


@pytest.mark.parametrize("text", ["modee: own", "mode: own", "catalogue: {no-such-rule: {}}", "["])
def test_a_file_with_an_error_leaves_the_last_good_configuration(head, text):
    assert not head.reloads("mode: assist")
    good = head.live.config
    assert head.reloads(text).startswith("configuration not reloaded: ")
    assert head.live.config is good
    assert head.page.reload.call_count == 1
    assert head.reloads("mode: observe") == ""


def test_a_configuration_that_cannot_be_written_down_is_not_taken(head, monkeypatch):
    good = head.live.config
    monkeypatch.setattr(
        Config, "list_non_default_settings", Mock(side_effect=OSError(28, "No space left"))
    )
    assert "No space left" in head.reloads("mode: assist")
    assert head.live.config is good


def test_a_full_disk_puts_the_audit_off(head):
    assert not head.reloads("mode: assist")
    head.memory.full = True
    with pytest.raises(OSError, match="No space left"):
        head.audit.write_configuration_if_requested()
    head.memory.full = False
    assert head.audited()["mode"] == '"assist"'


def test_a_reload_takes_rules_policy_and_run_policies(head):
    registered = SlurmJob(JobId(7), "RUNNING", T0, comment='hpctl:{"ckpt":"/nowhere"}')
    before = head.live.run_policies.find_job_policy(registered)
    text = "mode: assist\nages: {silent_s: 777}\nrun_policy: {hang_floor_s: 5}"
    assert not head.reloads(text)
    assert head.live.policy.mode is OperatingMode.ASSIST
    assert head.live.rules.silent_after.total_seconds() == 777
    after = head.live.run_policies.find_job_policy(registered)
    assert before.policy.hang_floor_s != after.policy.hang_floor_s == 5
    head.page.reload.assert_called_once_with()


@pytest.mark.parametrize(("leads", "settings"), [(True, '"assist"'), (False, None)])
def test_a_leader_writes_the_configuration_down(leads, settings, tmp_path):
    head = Head(tmp_path, leads=leads)
    assert not head.reloads("mode: assist")
    assert head.audited().get("mode") == settings


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("cluster", "cluster: {name: ml}"),
        ("slurm", "slurm: {adapter: cli}"),
        ("intake", "intake: {listen: '127.0.0.1:9999'}"),
        ("alerts", "alerts: {keep_s: 60}"),
        ("metrics", "metrics: {agent_port: 9999}"),
        ("notify", "notify: {per_hour: 7}"),
        ("page", "page: {listen: 'unix:/run/hpctl/page.sock'}"),
    ],
)
def test_settings_read_only_at_start_wait_for_a_restart(head, section, text):
    assert head.reloads(text) == f"restart to change: {section}"
    assert section in NEEDS_RESTART
