"""`hpctl journal` on every database: what is wrong is named; copies are whole, and are put back."""

import json
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpctl.engine.journal.events import HoldLifted
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.toolkit import output
from tests.cli import worlds
from tests.fakes.command_line import run

pytestmark = [pytest.mark.integration, pytest.mark.contract]

LEASE = (
    "INSERT INTO hpctl_lease (id, epoch, until, host, pid, version, mode, started, heartbeat,"
    " last_cycle_s, trouble) VALUES (1, 5, :until, 'head-1', 7, '1', 'own', 1, 1, 0, '')"
)


class Journal:
    """A journal with open and ended recoveries, and the configuration that names it."""

    def __init__(self, bed, directory):
        self.bed, self.file = bed, directory / "backup.db"
        self.store = bed.open()
        self.store.append([*worlds.healed(), *worlds.troubled()])
        self.store.record(list(worlds.health().values()))
        self.store.store_last_heard_times(dict.fromkeys(worlds.health(), worlds.NOW))
        self.store.ask("pause", "", "ann", worlds.NOW)
        self.config = self.named(bed.url, directory)

    @staticmethod
    def named(url: str, directory: Path) -> Path:
        config = directory / f"hpctl-{len(list(directory.iterdir()))}.yaml"
        config.write_text(json.dumps({"state_dir": str(directory), "database_url": url}))
        return config

    def run(self, *args, config: Path | None = None, stdin: str = ""):
        return run("journal", *args, "--config", config or self.config, stdin=stdin)

    def json(self, *args, config: Path | None = None):
        result = self.run(*args, "--json", config=config)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)


@pytest.fixture
def journal(database, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "get_current_utc_time", lambda: worlds.NOW)
    return Journal(database, tmp_path)


@pytest.fixture
def in_file(sqlite, tmp_path):
    return Journal(sqlite, tmp_path)


def lift(number: int) -> HoldLifted:
    return HoldLifted(worlds.at(80 + number), f"n{number}")


def test_a_journal_that_is_whole_is_counted_and_replayed(journal):
    shown = journal.json("check")
    events = len([*worlds.healed(), *worlds.troubled()])
    assert (shown["ok"], shown["rows"]["events"], shown["rows"]["requests"]) == (True, events, 1)
    assert shown["open_recoveries"] == 3
    assert datetime.fromisoformat(shown["newest"].replace("Z", "+00:00")) == worlds.at(75)


@pytest.mark.parametrize(
    ("tampering", "table", "row", "why"),
    [
        ("UPDATE hpctl_events SET payload = '{' WHERE seq = 3", "events", "3", "cannot be read"),
        ("UPDATE hpctl_events SET kind = 'New' WHERE seq = 4", "events", "4", "unknown kind"),
        ("DELETE FROM hpctl_events WHERE seq = 2", "events", "3", "never opened"),
        ("DELETE FROM hpctl_audit WHERE seq = 1", "audit", "2", "does not follow"),
        ("UPDATE hpctl_agents SET findings = '[' WHERE node = :node", "agents", None, "findings"),
        ("UPDATE hpctl_heard SET times = '[]'", "heard", "1", "last heard"),
        ("UPDATE hpctl_requests SET at = 1e300", "requests", "1", "request 1"),
        ("UPDATE hpctl_meta SET value = '99' WHERE name = 'schema'", "meta", "", "version 99"),
    ],
)  # fmt: skip
def test_the_first_row_that_is_wrong_is_named_with_its_fix(in_file, tampering, table, row, why):
    journal = in_file
    journal.store.append([worlds.troubled()[-1]])
    (node, *_) = worlds.health()
    journal.bed.execute(tampering, **({"node": node} if ":node" in tampering else {}))
    result = journal.run("check", "--json")
    assert (result.exit_code, type(result.exception)) == (1, SystemExit), result.exception
    problem = json.loads(result.stdout)["problem"]
    assert problem["table"] == f"hpctl_{table}"
    assert problem["row"] == (node if row is None else row)
    assert why in problem["why"]
    assert problem["fix"]
    assert "DAMAGED" in journal.run("check").stdout


def test_a_copy_of_a_journal_that_is_written_is_of_one_moment(journal):
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            journal.store.append([lift(0), lift(1)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        shown = journal.json("backup", journal.file)
    finally:
        ended.set()
        writer.join()
    assert shown["ok"]
    assert shown["rows"]["events"] % 2 == len([*worlds.healed(), *worlds.troubled()]) % 2
    assert (journal.file.stat().st_mode & 0o777, list(journal.file.parent.glob("*.part"))) == (
        0o600,
        [],
    )
    assert journal.json("check", journal.file)["digest"] == shown["digest"]
    again = journal.run("backup", journal.file)
    assert (again.exit_code, "exists already" in str(again.exception)) == (1, True)


def test_a_backup_is_put_back_and_fences_who_wrote_before(journal, tmp_path):
    store = journal.store
    assert store.retire(lambda e: worlds.NOW if e == lift(3) else None) == 0
    store.append([lift(3)])
    assert store.retire(lambda e: worlds.NOW if e == lift(3) else None) == 1
    before = journal.json("backup", journal.file)
    journal.bed.execute(LEASE, until=worlds.NOW.timestamp() + 9)
    store.append([lift(1), lift(2)])
    held = journal.run("restore", journal.file, "--yes")
    assert (held.exit_code, "head-1 (pid 7) holds" in str(held.exception)) == (1, True)
    journal.bed.execute("UPDATE hpctl_lease SET until = 1")
    journal.store.record_standby_heartbeat(
        DaemonIdentity("head-2", 7, "1", "own", "b:1"), 1, worlds.NOW
    )
    held = journal.run("restore", journal.file, "--yes")
    assert "standby daemon on head-2 follows it" in str(held.exception)
    journal.store.delete_standby("b:1")
    shown = journal.json("restore", journal.file, "--dry-run")
    assert (shown["done"], shown["lost"]) == (False, 2)
    assert journal.json("check")["digest"] != before["digest"]
    assert journal.run("restore", journal.file, stdin="n\n").exit_code == 1
    assert journal.json("restore", journal.file, "--yes")["done"]
    after = journal.json("check")
    assert (after["digest"], after["rows"]["past"]) == (before["digest"], 1)
    (epoch,) = epochs(journal)
    assert epoch == 6, "whoever led before can write no more"
    # The number of the event that is in the past is not given again.
    store.append([lift(4)])
    assert journal.json("check")["ok"]
    other = journal.named(f"sqlite:///{tmp_path}/other.db", tmp_path)
    shown = journal.json("restore", journal.file, "--dry-run", config=other)
    assert (shown["events"], (tmp_path / "other.db").exists()) == (0, False)
    journal.run("restore", journal.file, "--yes", config=other)
    assert journal.json("check", config=other)["digest"] == before["digest"]
    fresh = JournalStore(f"sqlite:///{tmp_path}/other.db")
    fresh.append([lift(4)])
    fresh.close()
    assert journal.json("check", config=other)["ok"]


def epochs(journal: Journal) -> list[int]:
    from sqlalchemy import text

    from hpctl.engine.journal.database import make_database_engine

    engine = make_database_engine(journal.bed.url)
    try:
        with engine.connect() as c:
            return list(c.execute(text("SELECT epoch FROM hpctl_lease")).scalars())
    finally:
        engine.dispose()


def test_restore_refuses_another_journal_and_a_broken_file(journal, tmp_path):
    other = JournalStore(f"sqlite:///{tmp_path}/other.db")
    other.append([lift(7)])
    other.close()
    refused = journal.run("restore", tmp_path / "other.db", "--yes")
    assert (refused.exit_code, "the backup is of another journal" in str(refused.exception)) == (
        1,
        True,
    )
    for content in (b"", b"SQLite format 3\0 no", b"hello"):
        journal.file.write_bytes(content)
        refused = journal.run("restore", journal.file, "--yes")
        assert (refused.exit_code, "not a backup" in str(refused.exception)) == (1, True)
    assert journal.json("check")["ok"]


def test_events_are_exported_a_line_each(journal):
    lines = [json.loads(line) for line in journal.run("export").stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[1]["kind"] == "NodeRecoveryOpened"
    assert lines[1]["event"]["recovery"] == "n-11111111"
    own = journal.run("export", "--recovery", "n-11111111").stdout.splitlines()
    assert {json.loads(line)["event"]["recovery"] for line in own} == {"n-11111111"}
    late = journal.run("export", "--since", (worlds.NOW - timedelta(seconds=18)).isoformat())
    assert 0 < len(late.stdout.splitlines()) < len(lines)
