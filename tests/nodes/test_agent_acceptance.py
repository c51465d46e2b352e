"""The agent's pick-up of results: what a job left is told, and nothing that anybody else wrote."""

import os
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.nodes.acceptance.result import KEPT, MAX_FILE, MAX_FILES, AcceptanceResultInbox
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import DeviceVerdict, NodeHealth
from tests.fakes.values import T0 as NOON
from tests.fakes.values import Clock

NAME = "n-12ab34cd-1"


@pytest.fixture
def watch():
    return Clock()


@pytest.fixture
def inbox(tmp_path: Path, watch) -> AcceptanceResultInbox:
    found = AcceptanceResultInbox(tmp_path, watch.now)
    found.prepare()
    return found


def body(name: str = NAME, minutes: float = -1, **changes) -> bytes:
    ended = (NOON + timedelta(minutes=minutes)).timestamp()
    row = {"test": "gemm", "status": "Failed", "remedy": "replace", "reason": "GPU 3 is slow"}
    row |= {"figures": {"tflops": 71.5}} | changes
    skipped = {"test": "efa", "status": "Skipped"}
    whole = {"id": name, "level": "quick", "started": ended - 40, "finished": ended}
    return msgspec.json.encode({**whole, "results": [row, skipped]})


def put(tmp_path: Path, raw: bytes, name: str = NAME) -> Path:
    path = tmp_path / "acceptance" / f"{name}.json"
    path.write_bytes(raw)
    path.chmod(0o644)
    return path


def test_a_result_is_reported_as_findings_once_and_for_a_while(tmp_path, inbox, watch):
    assert not inbox.look()
    path = put(tmp_path, body())
    assert inbox.look()
    assert not inbox.look()
    gemm, efa, summary = inbox.findings()
    assert (gemm.check, gemm.verdict, gemm.code) == (
        "acceptance.gemm",
        DeviceVerdict.FAIL,
        "replace",
    )
    assert (gemm.device, gemm.detail) == (NAME, "GPU 3 is slow")
    assert msgspec.json.decode(gemm.evidence) == {"tflops": 71.5}
    assert (efa.verdict, summary.check) == (DeviceVerdict.UNKNOWN, "acceptance.run")
    watch.at += KEPT
    assert inbox.look()
    assert (inbox.findings(), path.exists()) == ((), False)


def test_a_failed_test_makes_no_node_ill_but_for_who_asked_for_it(tmp_path, inbox):
    put(tmp_path, body())
    inbox.look()
    health = NodeHealth(NodeGeneration("n1", "i-1", "b"), NOON, inbox.findings())
    assert assess_health(health, build_fault_rules(), NOON).condition is NodeCondition.HEALTHY


def test_only_the_newest_are_reported(tmp_path, inbox):
    for number in range(MAX_FILES + 2):
        put(tmp_path, body(f"n-1-{number}", -number - 1), f"n-1-{number}")
    inbox.look()
    assert {f.device for f in inbox.findings()} == {f"n-1-{n}" for n in range(MAX_FILES)}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"{" * 5000, b" " * (MAX_FILE + 1), body("n-other-1"), body(minutes=-60),
        body(minutes=60), body(status="Well"), body(remedy="shell"), body(test="../x"),
        body(figures={f"f{i}": 1.0 for i in range(200)}), body().replace(b"71.5", b"1e999"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_deleted_and_not_reported(tmp_path, inbox, raw):
    path = put(tmp_path, raw)
    inbox.look()
    assert inbox.findings() == ()
    assert not path.exists()


def test_what_a_terminal_obeys_is_not_reported(tmp_path, inbox):
    put(tmp_path, body(reason="\x1b[2J"))
    inbox.look()
    assert all(f.detail.isprintable() for f in inbox.findings())


def test_no_other_users_file_is_believed(tmp_path, inbox, monkeypatch):
    target = tmp_path / "elsewhere.json"
    target.write_bytes(body())
    folder = tmp_path / "acceptance"
    (folder / f"{NAME}.json").symlink_to(target)
    os.link(target, folder / "n-2-1.json")
    os.mkfifo(folder / "n-3-1.json")
    put(tmp_path, body("n-4-1"), "n-4-1").chmod(0o666)
    (folder / ".n-5-1.json").write_bytes(body())
    (folder / "n-6-1.json").mkdir()
    inbox.look()
    assert inbox.findings() == ()
    assert target.exists()
    path = put(tmp_path, body("n-7-1"), "n-7-1")
    monkeypatch.setattr(
        "hpctl.nodes.acceptance.result.list_trusted_head_node_uids",
        lambda: {path.stat().st_uid + 1},
    )
    inbox.look()
    assert inbox.findings() == ()
