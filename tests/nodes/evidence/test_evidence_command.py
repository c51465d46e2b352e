"""`hpctl evidence`: what it lists, checks, copies and writes for a support case."""

import hashlib
import json
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpctl.engine.config import ClusterSection, Config
from hpctl.engine.journal.events import SignalSeen
from hpctl.engine.journal.state import EngineState
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.world import World
from hpctl.nodes.evidence import command, daemon
from hpctl.nodes.evidence.daemon import EvidenceRetention
from hpctl.service.notify.decide import make_event_notice
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.evidence import describe_archive_size_and_digest
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.policy import EvidenceCollectionPolicy
from hpctl.vocabulary.recovery import RecoveryTransitionRecord
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.cli.test_json_contract import holds
from tests.clusters.bed import CLUSTER
from tests.fakes.values import OWN, Clock, at
from tests.nodes.evidence.test_cloudwatch import PaperAccount
from tests.nodes.evidence.test_decide_evidence import empty
from tests.nodes.evidence.test_store import keep, member, pack


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two recoveries: the first kept evidence in `tmp_path`, the second could not."""
    body = pack(member())
    kept = keep(tmp_path, body)
    digest = hashlib.sha256(body).hexdigest()
    why = f"{kept.path}, {describe_archive_size_and_digest(len(body), digest)}"
    first = RecoveryTransitionRecord(
        at(9), NodeRecoverySignal.EVIDENCE_KEPT, NodeRecoveryPhase.VACATED, why
    )
    second = RecoveryTransitionRecord(
        at(8),
        NodeRecoverySignal.NO_EVIDENCE,
        NodeRecoveryPhase.VACATED,
        "its agent does not answer",
    )
    recoveries = [empty(1, trail=(first,)), empty(2, trail=(second,)), empty(3)]
    state = EngineState(nodes={r.id: r for r in recoveries})
    seen = World(at(60), OWN, state, "train")
    monkeypatch.setattr(command, "read_world_once", lambda *_, **__: seen)
    config = Config(cluster=ClusterSection(name="train", region="us-east-1"))
    monkeypatch.setattr(command.config_loading, "load_config", lambda _: config)
    return seen


def run(*words, code=0):
    result = CliRunner().invoke(command.evidence, words, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_the_list_names_each_archive_or_why_there_is_none(world, tmp_path):
    found = json.loads(run("list", "--json"))["evidence"]
    assert [(row["recovery"], row["state"]) for row in found] == [("n-1", "kept"), ("n-2", "none")]
    assert found[0]["path"] == str(tmp_path / "n-1.tar.gz")
    assert found[1]["why"] == "its agent does not answer"
    assert "its agent does not answer" in " ".join(run("list").split())


def test_an_archive_is_shown_by_recovery_or_node_and_a_changed_one_is_not(world, tmp_path):
    assert "dmesg.txt  3 bytes" in run("show", "n-1")
    assert run("show", "n1") == run("show", "n-1")
    assert "Nothing was kept: its agent does not answer." in run("show", "n-2", code=1)
    (tmp_path / "n-1.tar.gz").write_bytes(b"something else")
    assert "cannot be used" in run("show", "n-1", code=1)


def test_a_copy_is_made_of_what_the_node_reported_alone(world, tmp_path):
    (tmp_path / "to").mkdir()
    assert run("fetch", "n-1", "--to", str(tmp_path / "to")).strip().endswith("/to/n-1.tar.gz")
    (tmp_path / "n-1.tar.gz").write_bytes(b"something else")
    (tmp_path / "other").mkdir()
    with pytest.raises(command.HpctlError, match="bytes"):
        run("fetch", "n-1", "--to", str(tmp_path / "other"))
    with pytest.raises(command.HpctlError, match="n-9"):
        run("show", "n-9")


@pytest.fixture
def account(world, monkeypatch):
    """CloudWatch with a stream of the second recovery's instance."""
    paper = PaperAccount()
    paper.write(
        f"/aws/sagemaker/Clusters/{CLUSTER}/{paper.id}", "LifecycleConfig/workers/i-n2", "born"
    )
    monkeypatch.setattr(command, "make_aws_client_for_command", lambda *_: paper)
    return paper


def test_of_a_node_that_kept_nothing_cloudwatch_is_fetched(account, tmp_path):
    place = _make(tmp_path)
    assert run("fetch", "n-2", "--to", str(place)).strip() == f"{place}/n-2-cloudwatch.tar.gz"
    (place / "n-2-cloudwatch.tar.gz").unlink()
    account.broken = ServiceUnavailable("logs:GetLogEvents: denied", "allow it")
    why = "no evidence was kept for n-2: its agent does not answer; logs:GetLogEvents: denied"
    with pytest.raises(command.HpctlError, match=why) as caught:
        run("fetch", "n-2", "--to", str(place))
    assert caught.value.hint == "allow it"
    assert not any(place.iterdir())


def test_both_are_fetched_where_both_are_wanted(account, world, tmp_path):
    group = f"/aws/sagemaker/Clusters/{CLUSTER}/{account.id}"
    account.write(group, "LifecycleConfig/workers/i-n1", "born")
    place = _make(tmp_path)
    said = json.loads(run("fetch", "n-1", "--to", str(place), "--cloudwatch", "--json"))
    assert sorted(p.name for p in place.iterdir()) == ["n-1-cloudwatch.tar.gz", "n-1.tar.gz"]
    assert (said["path"], said["cloudwatch"]) == (
        f"{place}/n-1.tar.gz", f"{place}/n-1-cloudwatch.tar.gz",
    )  # fmt: skip


def test_without_a_cloud_nothing_is_asked_of_cloudwatch(world, tmp_path, monkeypatch):
    config = Config(cluster=ClusterSection(provider="none"))
    monkeypatch.setattr(command.config_loading, "load_config", lambda _: config)
    with pytest.raises(command.HpctlError, match=r"for n-2: its agent does not answer$"):
        run("fetch", "n-2", "--to", str(tmp_path))


def test_a_case_has_the_instance_the_fault_the_times_and_the_file(world, tmp_path):
    text = run("case", "n-1")
    for part in (
        "Cluster: train", "Region: us-east-1", "Instance: i-n1", "GPU fell off the bus",
        "2026-03-01 12:00:00 UTC", str(tmp_path / "n-1.tar.gz"), "SHA-256",
        "LifecycleConfig/GROUP/i-n1",
    ):  # fmt: skip
        assert part in text
    assert "No logs of the node were kept: its agent does not answer." in run("case", "n-2")


def test_what_is_printed_is_what_is_documented(world, tmp_path):
    holds("evidence-list", run("list", "--json"))
    holds("evidence-show", run("show", "n-1", "--json"))
    holds("evidence-fetch", run("fetch", "n-1", "--to", str(_make(tmp_path)), "--json"))
    holds("evidence-case", run("case", "n-1", "--json"))


def _make(tmp_path):
    place = tmp_path / "fetched"
    place.mkdir()
    return place


def test_a_notice_of_the_end_names_the_archive(world, tmp_path):
    rec = world.state.nodes["n-1"]
    ended = rec.on(NodeRecoverySignal.NEEDS_HUMAN, at(70), "it is refused")
    world.state.nodes["n-1"] = ended
    event = SignalSeen(at(70), ended.id, NodeRecoverySignal.NEEDS_HUMAN, "it is refused")
    notice = make_event_notice(event, world.state, SchedulerView(at(70), {}, {}), OWN)
    assert f"Evidence: {tmp_path / 'n-1.tar.gz'}" in notice.what


def test_the_daemon_deletes_what_is_old_and_survives_a_directory_that_is_gone(tmp_path, caplog):
    archive = keep(tmp_path, pack(member()))
    policy = replace(OWN, evidence=EvidenceCollectionPolicy(directory=str(tmp_path), keep_days=1))
    live = Mock(spec=LiveConfig, policy=policy)
    clock = Clock()
    retention = EvidenceRetention(live, clock)
    changed = (tmp_path / "n-1.tar.gz").stat().st_mtime
    clock.at = at(0).fromtimestamp(changed + 86000, at(0).tzinfo)
    retention.look()
    assert (tmp_path / "n-1.tar.gz").exists(), archive
    clock.at = at(0).fromtimestamp(changed + 86500, at(0).tzinfo)
    retention.look()
    assert not (tmp_path / "n-1.tar.gz").exists()
    live.policy = replace(OWN, evidence=EvidenceCollectionPolicy(directory=str(tmp_path / "gone")))
    for _ in range(2):
        retention.look()
    assert caplog.text.count("old evidence cannot be deleted") == 1
    assert daemon.EVERY_S >= 60
