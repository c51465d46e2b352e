"""`hpctl events`: every event one line, what comes is followed, and nobody's words break a line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpctl.engine.journal.events import GateBlocked, HoldLifted
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import RuleId
from tests.cli import worlds
from tests.fakes.command_line import Head

pytestmark = pytest.mark.integration


def test_events_are_reported_in_order_in_the_words_of_explain(history: Head) -> None:
    lines = history.run("events", "n-11111111", width=200).stdout.splitlines()
    story = history.run("explain", "n-11111111", width=200).stdout
    assert lines[0].startswith("2026-11-21 12:00:00  GPU has fallen off the bus; opened recovery")
    assert lines[-1].endswith("Resumed ip-10-1-0-2: slurmctld shows the node in service.")
    assert all(line[21:] in story for line in lines if "Remedy" in line or "rejoined" in line)
    assert history.run("events", "n-11111111").stdout == history.run("events", "ip-10-1-0-2").stdout


def test_since_and_json(history: Head) -> None:
    rows = [json.loads(row) for row in history.run("events", "--json").stdout.splitlines()]
    late = [
        json.loads(r) for r in history.run("events", "--json", "--since", "60s").stdout.splitlines()
    ]
    assert late == [row for row in rows if row["at"] >= "2026-11-21T12:00:30Z"] != rows
    assert [row["seq"] for row in rows] == sorted({row["seq"] for row in rows})
    assert {row["schema"] for row in rows} == {"hpctl.event/1"}
    assert "Daemon 0.1.0 started on head-1, mode own." in {row["text"] for row in rows}


def test_no_events_are_distinguished_from_a_wrong_name(history: Head) -> None:
    result = history.run("events", "ip-10-1-0-7")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "hpctl: no event\n")
    with pytest.raises(HpctlError, match="ip-10-1-0-99"):
        raise history.run("events", "ip-10-1-0-99").exception or AssertionError


def test_what_a_stranger_wrote_stays_on_its_line(head: Head) -> None:
    head.write([GateBlocked(worlds.at(1), "n1", "g", "a\nb\x1b[2J\u202ec", RuleId("x"))])
    assert head.run("events").stdout.splitlines()[-1].endswith("a b\ufffd[2J\ufffdc.")


@contextmanager
def following(head: Head, *args: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "hpctl", "events", "--follow", *args]
    env = {**os.environ, "HPCTL_CONFIG": str(head.config)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_comes_is_followed_until_the_reader_leaves_or_ctrl_c(history: Head) -> None:
    since = ("--since", "2026-11-21T12:01:14Z")
    with following(history, *since) as one, following(history, *since) as other:
        for process in (one, other):
            assert "carol requested approve" in process.stdout.readline()  # type: ignore[union-attr]
        store = history.store()
        store.append([HoldLifted(worlds.at(100), "ip-10-1-0-5")])
        store.close()
        for process in (one, other):
            assert "No longer blocked: ip-10-1-0-5" in process.stdout.readline()  # type: ignore[union-attr]
        one.send_signal(signal.SIGINT)
        other.stdout.close()  # type: ignore[union-attr]
        for process in (one, other):
            assert process.wait(60) == 0
            assert process.stderr.read() == ""  # type: ignore[union-attr]
