"""What is remembered of a job, and what survives a crash of the one who writes it."""

from datetime import datetime, timedelta

from hpctl.checkpoints.run_records import (
    MOST_SAVES,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    FailureHandled,
)
from hpctl.jobs.run import history as run_history
from hpctl.jobs.run.history import JobHistory
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
TROUBLE = Trouble(TroubleKind.NODE, AT, "node n2 is lost", signature="node lost", node="n2")
START = AttemptStarted(1, 0, AT, "n[1-2]", "/ck/step-7", 7)
TREATED = FailureHandled(1, TROUBLE, RunAction.STEP, "go on")
END = AttemptEnded(1, AT + timedelta(seconds=75), 137, "node n2 is lost -> step")


def test_what_was_added_is_read_back(tmp_path) -> None:
    path = tmp_path / "deep" / "run-7.jsonl"
    first = JobHistory.open(path)
    for record in (START, TREATED, END):
        first.add(record)
    again = JobHistory.open(path)
    assert again.records == [START, TREATED, END]
    assert [(past.trouble, past.action) for past in again.past] == [(TROUBLE, RunAction.STEP)]
    assert again.attempts == 1
    assert not again.broken


def test_every_torn_last_line_is_passed_over_and_written_after(tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    history = JobHistory.open(path)
    history.add(START)
    whole = path.read_bytes()
    history.add(TREATED)
    both = path.read_bytes()
    for cut in range(len(whole), len(both)):
        path.write_bytes(both[:cut])
        torn = JobHistory.open(path)
        assert torn.records in ([START], [START, TREATED])
        torn.add(END)
        assert JobHistory.open(path).records == [*torn.records]


def test_a_checkpoint_directory_that_is_not_mounted_is_not_made(tmp_path) -> None:
    away = tmp_path / "mount" / "ck"
    history = JobHistory.open(away / ".hpctl" / "run.jsonl")
    history.add(START)
    assert history.broken
    assert not away.parent.exists()
    away.mkdir(parents=True)
    history.add(TREATED)
    assert (away / ".hpctl" / "run.jsonl").exists()
    JobHistory.open(tmp_path / "a" / "b" / "run.jsonl", parents=True).add(START)
    assert (tmp_path / "a" / "b" / "run.jsonl").exists()


def test_the_table_tells_each_attempt() -> None:
    unfinished = AttemptStarted(2, 1, AT + timedelta(minutes=2), "n[1,3]")
    lines = run_history.format_attempts_table([START, TREATED, END, unfinished])
    assert len(lines) == 3
    assert all(line.startswith("hpctl: ") for line in lines)
    assert "1 min 15 s" in lines[1]
    assert "step-7" in lines[1]
    assert lines[1].endswith("node n2 is lost -> step")
    assert "the beginning" in lines[2]
    assert "no end was recorded" in lines[2]


def test_of_what_saves_took_the_first_of_each_attempt_are_kept(tmp_path) -> None:
    history = JobHistory.open(tmp_path / "run-7.jsonl")
    history.record_checkpoint_save_durations(1, AT, [4.0, 5.0])
    history.record_checkpoint_save_durations(1, AT, [6.0] * 99)
    history.record_checkpoint_save_durations(2, AT, [7.0])
    again = JobHistory.open(tmp_path / "run-7.jsonl")
    assert again.records[:2] == [CheckpointSaved(1, AT, 4.0), CheckpointSaved(1, AT, 5.0)]
    assert (len(again.records), again.past) == (MOST_SAVES + 1, [])


def test_the_end_of_a_run_that_had_to_end_is_named_by_the_next() -> None:
    asked = AttemptEnded(2, AT, 143, run_history.ASKED_TO_END)
    history = JobHistory(None, [START, END, AttemptStarted(2, 0, AT, "n[1-2]"), asked])
    history.add(AttemptStarted(3, 1, AT, "n[1-2]", "/ck/step-9", 9))
    history.correct_attempt_end_reason(0, "its node n2: GPU fell off the bus")
    history.correct_attempt_end_reason(1, "of nothing that is known")
    rows = run_history.format_attempts_table(history.records)
    assert rows[1].endswith("node n2 is lost -> step")
    assert rows[2].endswith("it was asked to end: its node n2: GPU fell off the bus")
    assert rows[3].endswith("no end was recorded: the supervisor was lost")
