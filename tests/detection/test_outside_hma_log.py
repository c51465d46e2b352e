"""Following HyperPod's health agent: files that rotate, a journal with forgers, restarts."""

import json
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.detection.changes import NullFindingChangeListener
from hpctl.detection.outside import trust
from hpctl.detection.outside.hma_log import (
    JOURNALCTL,
    MAX_LINE,
    UNIT,
    HealthAgentJournal,
    HealthAgentLogFile,
    Source,
)
from hpctl.detection.outside.hma_watch import MAX_KEPT, HealthAgentLogWatcher
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.process import ended, run_text
from tests.waiting import until

pytestmark = pytest.mark.integration

BOOTED = datetime(2026, 7, 20, tzinfo=UTC)


def dcgm(xid: int, minute: int = 0) -> str:
    return json.dumps(
        {
            "level": "info", "ts": f"2026-07-20T22:{minute:02}:17Z",
            "msg": "DCGM Policy Violation found ", "condition: ": "XID Error",
            "data: ": {"ErrNum": xid}, "HealthMonitoringAgentDetectionEvent": "HealthEvent",
        }
    )  # fmt: skip


class Log:
    """A log file and what is made of it."""

    def __init__(self, path):
        self.path = path
        path.touch(mode=0o644)
        self.changes = 0
        self.source = HealthAgentLogFile(path)
        self.watch = HealthAgentLogWatcher(self.source, BOOTED, self)

    def handle_finding_change(self) -> None:
        self.changes += 1

    def write(self, *lines: str, end: str = "\n") -> None:
        with self.path.open("a") as file:
            file.write("\n".join(lines) + end)

    def found(self, turns: int = 4) -> dict[str, Finding]:
        for _ in range(turns):
            self.watch.turn(0.0)
        return {f"{f.check}-{f.code}": f for f in self.watch.findings()}


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "hma.log")
    yield log
    log.source.close()


def test_a_detection_is_a_finding_once_and_counted_after(log):
    log.write("starting", dcgm(79, 1), dcgm(79, 2), dcgm(94, 3))
    found = log.found()
    assert set(found) == {"hma.xid-79", "hma.xid-94"}
    assert found["hma.xid-79"].count == 2
    assert found["hma.xid-79"].first == datetime(2026, 7, 20, 22, 1, 17, tzinfo=UTC)
    assert found["hma.xid-79"].last == datetime(2026, 7, 20, 22, 2, 17, tzinfo=UTC)
    assert log.changes == 2


def test_another_boot_s_detections_no_longer_count(log):
    log.write(dcgm(79).replace("2026-07-20T", "2026-07-19T"), dcgm(94))
    assert set(log.found()) == {"hma.xid-94"}


def test_rotation_loses_nothing_and_says_nothing_twice(log):
    log.write(dcgm(1, 1))
    assert set(log.found()) == {"hma.xid-1"}
    log.write(dcgm(2, 2))
    log.path.rename(log.path.with_suffix(".1"))
    with log.path.with_suffix(".1").open("a") as file:
        file.write(dcgm(3, 3) + "\n")
    log.path.touch(mode=0o644)
    log.write(dcgm(4, 4), dcgm(1, 5))
    found = log.found()
    assert set(found) == {f"hma.xid-{n}" for n in (1, 2, 3, 4)}
    assert found["hma.xid-1"].count == 2
    log.path.write_text(dcgm(5, 6) + "\n")
    assert "hma.xid-5" in log.found(), "cut off and begun again, as copytruncate does"


def test_whatever_is_malformed_is_one_unknown_finding(log):
    log.write(dcgm(79)[:-20], '{"msg": "NPD caught', "x" * (3 * MAX_LINE), dcgm(94), "\0\xff\n")
    found = log.found(12)
    assert set(found) == {"hma.log-malformed", "hma.xid-94"}
    trouble = found["hma.log-malformed"]
    assert (trouble.verdict, trouble.count) == (DeviceVerdict.UNKNOWN, 3)
    assert "not JSON" in trouble.detail
    assert trouble.evidence.startswith('{"level": "info"')


def test_a_storm_of_distinct_detections_is_bounded(log):
    log.write(*(dcgm(number) for number in range(500)))
    found = log.found(20)
    assert (len(found), found["hma.log-too_many"].count) == (MAX_KEPT + 1, 500 - MAX_KEPT)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_not_believed(log, mode):
    log.write(dcgm(79))
    log.path.chmod(mode)
    found = log.found()
    assert set(found) == {"hma.log-untrusted"}
    assert "can be written by others than its owner" in found["hma.log-untrusted"].detail


def test_nor_another_user_s_nor_a_link(log, monkeypatch):
    log.write(dcgm(79))
    link = log.path.with_name("link.log")
    link.symlink_to(log.path)
    with pytest.raises(ServiceUnavailable):
        HealthAgentLogFile(link).read(0)
    monkeypatch.setattr(trust, "list_trusted_owner_uids", lambda: frozenset({os.geteuid() + 1}))
    assert set(log.found()) == {"hma.log-untrusted"}


def entry(message, uid: str = "0", unit: str = UNIT, minute: int = 5) -> str:
    at = datetime(2026, 7, 20, 22, minute, tzinfo=UTC).timestamp()
    fields = {"MESSAGE": message, "_UID": uid, "_SYSTEMD_UNIT": unit}
    return json.dumps({"__CURSOR": "s=1", "__REALTIME_TIMESTAMP": f"{at * 1e6:.0f}", **fields})


class Journal:
    """A stand-in for journalctl --follow: it prints a file's lines, then waits or ends."""

    def __init__(self, place):
        self.lines = place / "entries"
        self.starts = place / "starts"
        self.pid = place / "pid"
        program = place / "journalctl"
        program.write_text(
            f"#!/bin/sh\necho x >> {self.starts}\necho $$ > {self.pid}\ncat {self.lines}\n"
            f"[ -e {place}/ends ] && exit 1\nexec sleep 60\n"
        )
        program.chmod(0o755)
        (place / UNIT).touch()
        self.source: Source = HealthAgentJournal([str(program)], UNIT, [str(place)])
        self.watch = HealthAgentLogWatcher(self.source, BOOTED, NullFindingChangeListener())

    def says(self, *entries: str) -> None:
        self.lines.write_text("".join(f"{text}\n" for text in entries))


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path)
    yield journal
    journal.source.close()


def test_the_unit_s_own_lines_are_followed_and_forgers_are_not(journal):
    as_bytes = list(dcgm(94).encode())
    journal.says(
        entry("Started."), entry(dcgm(79)), entry(as_bytes), entry(dcgm(11), uid="1000"),
        entry(dcgm(12), unit="user@1000.service"), entry(None), "no JSON at all",
        entry(dcgm(13)).replace('"_UID": "0", ', ""),
    )  # fmt: skip
    until(lambda: journal.watch.turn(0.1) and len(journal.watch.findings()) == 2)
    assert {f.code for f in journal.watch.findings()} == {"79", "94"}


def test_a_journal_that_ends_is_opened_again_and_says_nothing_twice(journal, tmp_path):
    journal.says(entry(dcgm(79, 1)), entry(dcgm(79, 2)))
    (tmp_path / "ends").touch()
    turns = [journal.watch.turn(2.0) for _ in range(4)]
    assert turns == [True, False, True, False]
    (found,) = journal.watch.findings()
    assert found.count == 2
    assert journal.starts.read_text().count("x") == 2


def test_no_child_is_left_behind(journal):
    journal.says(entry(dcgm(79)))
    journal.watch.start()
    until(lambda: len(journal.watch.findings()) == 1)
    child = int(journal.pid.read_text())
    assert Path(f"/proc/{child}").exists()
    journal.watch.stop()
    until(lambda: ended(child))


def test_a_machine_without_the_unit_starts_no_child(tmp_path):
    source = HealthAgentJournal([sys.executable], UNIT, [str(tmp_path)])
    with pytest.raises(ServiceUnavailable, match="no service sagemaker-health-monitoring-agent"):
        source.read(0.0)
    (tmp_path / UNIT).touch()
    with pytest.raises(ServiceUnavailable, match="no-such-journalctl is not installed"):
        HealthAgentJournal(["no-such-journalctl"], UNIT, [str(tmp_path)]).read(0.0)


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="systemd is not installed")
def test_the_real_journalctl_knows_the_options():
    args = [word for word in JOURNALCTL if word not in ("--follow", "--boot")]
    done = run_text(args)
    assert (done.returncode, done.stderr) in ((0, ""), (1, ""))


def test_a_line_that_is_too_long_takes_no_other_with_it(log):
    log.write(dcgm(1), "x" * (2 * MAX_LINE), dcgm(2))
    assert set(log.found(8)) == {"hma.xid-1", "hma.xid-2", "hma.log-too_long"}
