"""The spool: what an agent still knows after it was killed."""

from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.agent.send import Recalled, Spool
from hpctl.core.compat import UTC
from hpctl.core.model import BootId, Clears, Finding, InstanceId, NodeName, Report, Verdict

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
FINDING = Finding("kernel.xid", Verdict.FAIL, NOON, NOON, "0000:c1:00.0", "79", evidence="line")
REPORT = Report(NodeName("n1"), InstanceId("i-1"), BootId("b-1"), 4, NOON, NOON, (FINDING,))


NEXT_BOOT = replace(REPORT, boot=BootId("b-2"))


def test_an_empty_spool_knows_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "none")
    assert spool.recall(REPORT.generation) == Recalled()


@pytest.mark.parametrize("acked", [True, False])
def test_the_same_boot_gets_its_findings_and_start_back(tmp_path: Path, acked: bool) -> None:
    Spool(tmp_path / "spool").save(REPORT, acked=acked)
    spool = Spool(tmp_path / "spool")
    assert spool.recall(REPORT.generation) == Recalled((FINDING,), NOON)


def test_what_nobody_heard_before_a_reboot_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Spool(tmp_path).save(REPORT, acked=False)
    assert Spool(tmp_path).recall(NEXT_BOOT.generation) == Recalled(agent_start=NOON)
    assert "kernel.xid line" in caplog.text


def test_what_was_heard_before_a_reboot_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Spool(tmp_path).save(REPORT, acked=True)
    assert Spool(tmp_path).recall(NEXT_BOOT.generation) == Recalled(agent_start=NOON)
    assert caplog.text == ""


OPERATOR = replace(FINDING, code="edac", clears=Clears.OPERATOR)


def test_what_no_boot_clears_is_told_after_the_boot_where_nobody_heard_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = replace(REPORT, findings=(FINDING, OPERATOR))
    Spool(tmp_path).save(report, acked=False)
    assert Spool(tmp_path).recall(NEXT_BOOT.generation) == Recalled((OPERATOR,), NOON)
    assert caplog.text.count("not heard before this boot") == 1
    replaced = replace(NEXT_BOOT, instance=InstanceId("i-2"))
    assert Spool(tmp_path).recall(replaced.generation) == Recalled(agent_start=NOON)


def test_what_no_boot_clears_and_was_heard_is_the_head_nodes_to_keep(tmp_path: Path) -> None:
    Spool(tmp_path).save(replace(REPORT, findings=(OPERATOR,)), acked=True)
    assert Spool(tmp_path).recall(NEXT_BOOT.generation) == Recalled(agent_start=NOON)


@pytest.mark.parametrize(
    "damage",
    [b"", b"\0" * 50, b'{"acked":true,"body":"{}"}', b"[]", b'{"acked":true,"body":"\xff"}'],
)
def test_a_damaged_state_is_set_aside(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state.json").write_bytes(damage)
    spool = Spool(tmp_path)
    assert spool.recall(REPORT.generation) == Recalled()
    assert (tmp_path / "state.bad").read_bytes() == damage
    assert "set aside" in caplog.text
    spool.save(REPORT, acked=False)
    assert Spool(tmp_path).recall(REPORT.generation).findings == (FINDING,)


def test_a_crash_while_saving_leaves_the_state_before(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.save(REPORT, acked=True)
    (tmp_path / "state.tmp").write_bytes(b'{"acked":fal')
    assert Spool(tmp_path).recall(REPORT.generation).findings == (FINDING,)


def test_a_disk_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "spool")
    spool.save(REPORT, acked=False)
    spool.save(REPORT, acked=False)
    assert caplog.text.count("cannot be written") == 1
