"""The step's output: followed where it is a file, passed on where it is not."""

import os
import time
from typing import Any

from hpctl.jobs.logs.engine import LogRuleVerdict
from hpctl.jobs.logs.rules import parse_log_rules
from hpctl.jobs.run.output import SrunOutputReader
from hpctl.jobs.run.srun import SrunLine, SrunTaskEnd
from tests.waiting import until

CRASH = b"Traceback\nsrun: error: n2: task 3: Exited with exit code 5\n"
RULES = parse_log_rules("- {name: bad loss, logPattern: 'loss (\\S+)', kind: nan}\n")


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[SrunLine] = []
        self.verdicts: list[LogRuleVerdict] = []
        self.notes: list[Any] = []
        self.timeouts = 0

    def handle_srun_line(self, line: SrunLine) -> None:
        self.lines.append(line)

    def handle_rule_verdict(self, verdict: LogRuleVerdict) -> None:
        self.verdicts.append(verdict)

    def handle_progress_note(self, note: Any) -> None:
        self.notes.append(note)

    def handle_collective_timeout(self) -> None:
        self.timeouts += 1


def test_file_is_followed_from_its_end_without_a_gap(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"srun: error: n1: task 0: Exited with exit code 9\n")
    listener = Heard()
    seen, verdicts = listener.lines, listener.verdicts
    with log.open("ab", buffering=0) as file:
        output = SrunOutputReader(RULES, listener, fds=(file.fileno(),) * 2)
        assert output.begin() == (file.fileno(), file.fileno())
        output.close_output_descriptors()
        file.write(b"hpctl: attempt 1 loss nan\nloss nan\n" + CRASH)
        until(lambda: bool(seen))
        heard = output.settle()
    assert [(end.node, end.code) for end in heard.ends] == [("n2", 5)]
    assert heard.tail.list_lines() == ["loss nan", *CRASH.decode().splitlines()]
    assert [verdict.rule for verdict in verdicts] == ["bad loss"]


def test_each_attempt_is_read_separately(tmp_path):
    with (tmp_path / "log").open("ab", buffering=0) as file:
        output = SrunOutputReader(None, Heard(), fds=(file.fileno(),) * 2)
        output.begin()
        file.write(CRASH)
        assert len(output.settle().ends) == 1
        output.begin()
        assert output.settle().ends == []


def test_a_pipe_gets_every_byte(tmp_path):
    read, write = os.pipe()
    listener = Heard()
    seen = listener.lines
    output = SrunOutputReader(None, listener, fds=(write, write))
    out, err = output.begin()
    assert write not in (out, err)
    os.write(out, b"half a line")
    os.write(err, CRASH)
    output.close_output_descriptors()
    heard = output.settle()
    os.close(write)
    got = b""
    while block := os.read(read, 65536):
        got += block
    os.close(read)
    assert sorted(got) == sorted(b"half a line" + CRASH)
    assert any(isinstance(line, SrunTaskEnd) and line.code == 5 for line in seen)
    assert heard.ends[0].rank == 3


class Clock:
    """In the place of the module `time`: each sleep of the follower is `pace` seconds long."""

    def __init__(self) -> None:
        self.wall, self.now, self.pace, self.looks = 1e9, 0.0, 0.1, 0

    def time(self) -> float:
        return self.wall + self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        self.now += self.pace
        self.looks += 1
        time.sleep(0.001)


def test_a_clock_that_is_set_or_a_job_that_is_suspended_is_no_hang(tmp_path, monkeypatch):
    clock, listener = Clock(), Heard()
    verdicts = listener.verdicts
    monkeypatch.setattr("hpctl.jobs.run.output.time", clock)
    rule = parse_log_rules("- {name: start, logPattern: step, expectedStartCutOffInSeconds: 60}\n")
    with (tmp_path / "log").open("ab", buffering=0) as file:
        output = SrunOutputReader(rule, listener, fds=(file.fileno(),) * 2)
        output.begin()
        for jump in ("wall", "now"):
            setattr(clock, jump, getattr(clock, jump) + 7200.0)
            seen = clock.looks
            until(lambda seen=seen: clock.looks > seen + 5)
            assert verdicts == []
        clock.pace = 1.0
        until(lambda: bool(verdicts))
    assert verdicts[0].what == "hang"
    assert verdicts[0].at > 1e9 + 2 * 7200, "by the wall clock"


def test_progress_in_the_log_is_passed_on(tmp_path):
    listener = Heard()
    noted = listener.notes
    with (tmp_path / "log").open("ab", buffering=0) as file:
        output = SrunOutputReader(None, listener, fds=(file.fileno(),) * 2)
        output.begin()
        file.write(
            b"other words\n3: hpctl-progress step=12 loss=0.3\nhpctl: hpctl-progress step=9\n"
        )
        output.settle()
    assert [(note.step, note.loss, note.rank) for note in noted] == [(12, 0.3, 3)]


def test_the_tail_of_new_ranks_has_no_line_of_those_before(tmp_path):
    """An exception of ranks that were restarted in their step explains nothing of the new ones."""
    with (tmp_path / "log").open("ab", buffering=0) as file:
        output = SrunOutputReader(None, Heard(), fds=(file.fileno(),) * 2)
        output.begin()
        file.write(b"ValueError: bad\n")
        output.settle()
        assert output.copy_rank_output_tail() == ["ValueError: bad"]
        output.renew()
        file.write(b"step 1\n")
        assert output.settle().tail.list_lines() == ["ValueError: bad", "step 1"]
    assert output.copy_rank_output_tail() == ["step 1"]
