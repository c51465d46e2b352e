"""`hpctl doctor` compares where the head and the agents keep evidence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from hpctl.detection.service import is_check_from_non_agent_source
from hpctl.engine.config import Config
from hpctl.nodes.evidence import check
from hpctl.nodes.evidence.check import check_evidence_destinations, compare_evidence_destinations
from hpctl.vocabulary.evidence import PLACE_CHECK
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.policy import EvidenceCollectionPolicy
from tests.agent_process import AgentProcess
from tests.fakes.values import at, finding, generation
from tests.s3 import BUCKET, s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]

PLACE = "/fsx/hpctl/evidence"


@dataclass
class Heard:
    """What is read of the world here."""

    health: Mapping[str, NodeHealth]


def health(place: str, minutes_ago: float = 0.0) -> NodeHealth:
    found = [finding()]
    if place:
        found.append(Finding(PLACE_CHECK, DeviceVerdict.OK, at(0), at(0), detail=place))
    return NodeHealth(generation(), at(-minutes_ago * 60), tuple(found))


def compare(place: str, **nodes: str) -> list[tuple[str, str, str]]:
    heard = {name: health(where) for name, where in nodes.items()}
    return [
        (view.verdict, view.what, view.fix) for view in compare_evidence_destinations(place, heard)
    ]


def test_agents_that_name_the_heads_place_are_in_order():
    ((verdict, what, _),) = compare(PLACE, n1=PLACE, n2=PLACE)
    assert (verdict, what) == ("ok", f"{PLACE}, as the agents of 2 nodes have it")


def test_agents_without_a_place_are_named_with_what_to_write():
    ((verdict, what, fix),) = compare(PLACE, n1="", n2="", n3=PLACE)
    assert verdict == "warn"
    assert what.startswith("the agents of n[1-2] name no evidence.directory")
    assert f"directory: {PLACE}" in fix
    assert "/etc/hpctl/agent.yaml" in fix
    assert "restart hpctl-agent" in fix


def test_agents_with_another_place_are_named_with_both():
    ((verdict, what, fix),) = compare(PLACE, n1="s3://b/x", n2=PLACE)
    assert (verdict, "the agents of n1 name s3://b/x" in what, PLACE in what) == (
        "warn",
        True,
        True,
    )
    assert f"directory: {PLACE}" in fix


def test_a_head_without_a_place_is_the_one_to_change():
    ((verdict, what, fix),) = compare("", n1=PLACE, n2="")
    assert (verdict, "this configuration names nothing" in what) == ("warn", True)
    assert "systemctl reload hpctl-daemon" in fix
    assert compare("", n1="") == []


def test_agents_that_are_silent_are_not_judged(monkeypatch):
    heard = {"n1": health("", minutes_ago=60), "n2": health(PLACE)}
    monkeypatch.setattr(check, "read_world_once", lambda *_: Heard(heard))
    config = Config(evidence=EvidenceCollectionPolicy(directory=PLACE))
    assert [view.verdict for view in check_evidence_destinations(config, at(0))] == ["ok"]


@pytest.mark.integration
def test_a_bucket_that_the_head_cannot_read_is_a_failure(monkeypatch, s3):
    monkeypatch.setattr(check, "read_world_once", lambda *_: Heard({}))
    config = Config(evidence=EvidenceCollectionPolicy(directory="s3://no-such-bucket/x"))
    (view,) = check_evidence_destinations(config, at(0))
    assert (view.verdict, "there is no bucket no-such-bucket" in view.what) == ("fail", True)
    config = Config(evidence=EvidenceCollectionPolicy(directory=f"s3://{BUCKET}/x"))
    assert list(check_evidence_destinations(config, at(0))) == []


@pytest.mark.integration
def test_an_agent_names_its_place_in_each_report(tmp_path):
    process = AgentProcess(tmp_path, "http://127.0.0.1:1", tmp_path / "no-munge")
    config = tmp_path / "agent.yaml"
    settings = json.loads(config.read_text())
    for directory, times, code in ((PLACE, 1, 48), ("s3://bucket/x", 1, 63), ("", 0, 79)):
        config.write_text(json.dumps({**settings, "evidence": {"directory": directory}}))
        process.start()
        try:
            process.xid(code)  # what makes it save its report
            process.wait_for_spool(f'\\"{code}\\"')
        finally:
            process.end()
        said = (tmp_path / "spool/state.json").read_text()
        # Of the place that a former agent named, nothing is left.
        assert said.count(PLACE_CHECK) == times
        assert directory in said


def test_what_a_place_was_is_not_recalled():
    assert is_check_from_non_agent_source(PLACE_CHECK)
