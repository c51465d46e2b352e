"""Waiting for a job's last end."""

import itertools
import time

import pytest

from hpctl.client import (
    ClientError,
    CommandNotFoundError,
    JobNotFoundError,
    WaitTimeoutError,
    wait,
    waiting,
)
from hpctl.client.slurm_queue import QueuedJob, parse_exit_status, read_queued_jobs
from hpctl.client.waiting import LONGEST_S, SETTLE_S, FinalJobStateReader
from tests.client.stub import Programs, queued
from tests.client.test_calls import EXPLAINED

FAILED = QueuedJob("7", "FAILED", 3, 0, 1, "NonZeroExitCode")
HELD = QueuedJob("7", "PENDING", None, 0, 1, "JobHeldUser")
NOTHING = {"jobs": [], "holds": []}


def recovery(phase: str, *, ended: bool, shown: str = "7", opened: str = "2026-11-28T06:00:00Z"):
    return {"shown": shown, "phase": phase, "ended": ended, "opened": opened}


def judged(job: QueuedJob, answer, *, after: float = 0.0) -> dict[str, str]:
    """What is said of a job now, and after a while of silence."""
    now = itertools.chain([0.0, 0.0], itertools.repeat(after))
    ends = FinalJobStateReader(lambda: answer, lambda: next(now))
    first = ends.find_final_states([job])
    return ends.find_final_states([job]) if after else first


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_what_hpctl_never_starts_again_is_last_without_asking(state):
    def refuse():
        raise AssertionError("hpctl was asked")

    assert FinalJobStateReader(refuse).find_final_states([QueuedJob("7", state, 0, 0, 0, "")]) == {
        "7": state
    }


def test_a_run_under_recovery_is_waited_for_however_long_it_takes():
    answer = {"jobs": [recovery("starting", ended=False)], "holds": []}
    assert judged(FAILED, answer, after=10 * SETTLE_S) == {}


def test_the_daemon_that_leaves_a_job_ended_says_so():
    assert judged(FAILED, {"jobs": [], "holds": [{"shown": "7", "gate": "ended"}]}) == {
        "7": "FAILED"
    }
    assert judged(FAILED, {"jobs": [], "holds": [{"shown": "8", "gate": "ended"}]}) == {}
    assert judged(FAILED, {"jobs": [], "holds": [{"shown": "7", "gate": "paused"}]}) == {}


def test_else_an_end_is_last_after_a_while():
    assert judged(FAILED, NOTHING) == {}
    assert judged(FAILED, NOTHING, after=SETTLE_S - 1) == {}
    assert judged(FAILED, NOTHING, after=SETTLE_S) == {"7": "FAILED"}


def test_the_while_begins_again_with_each_run():
    times = iter([0.0, 0.0, SETTLE_S, SETTLE_S])
    ends = FinalJobStateReader(lambda: NOTHING, lambda: next(times))
    assert ends.find_final_states([FAILED]) == {}
    assert ends.find_final_states([QueuedJob("7", "FAILED", 3, 0, 2, "")]) == {}


def test_without_a_daemon_an_end_is_last_after_a_while():
    def silent():
        raise ClientError("no daemon")

    times = iter([0.0, 0.0, SETTLE_S, SETTLE_S])
    ends = FinalJobStateReader(silent, lambda: next(times))
    assert ends.find_final_states([FAILED]) == {}
    assert ends.find_final_states([FAILED]) == {"7": "FAILED"}


def test_a_job_that_hpctl_holds_is_distinguished_from_one_that_its_owner_holds():
    old = recovery("resumed", ended=True, opened="2026-11-27T06:00:00Z")
    held = recovery("held", ended=True)
    assert judged(HELD, {"jobs": [old, held], "holds": []}) == {"7": "HELD"}
    assert judged(HELD, NOTHING, after=10 * SETTLE_S) == {}
    assert (
        judged(
            HELD, {"jobs": [{**old, "phase": "held"}, {**held, "phase": "resumed"}], "holds": []}
        )
        == {}
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("768", (3, 0)), ("9", (0, 9)), ("3:0", (3, 0)), ("0:15", (0, 15)), ("", (0, 0))],
)
def test_both_spellings_of_an_exit(text, expected):
    assert parse_exit_status(text) == expected


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    monkeypatch.setattr(waiting, "FIRST_S", 0.01)
    monkeypatch.setattr(waiting, "LONGEST_S", 0.02)
    return Programs(tmp_path, monkeypatch)


def test_read_jobs_asks_once_for_all_and_leaves_out_what_is_unknown(programs):
    lines = [queued("7", "RUNNING"), queued("8_0", "FAILED", 256), queued("8_1", "PENDING")]
    programs.squeue.say("".join(lines))
    programs.sacct.say("9|CANCELLED by 0|0:15\n")
    found = read_queued_jobs(["7", "8_0", "9", "10"])
    assert sorted(found) == ["7", "8_0", "9"]
    assert found["8_0"].exit_code == 1
    assert (found["9"].state, found["9"].signal) == ("CANCELLED", 15)
    assert [call.rpartition(" ")[2] for call in programs.squeue.calls] == ["--jobs=10,7,8,9"]


def test_wait_returns_state_exit_code_and_cause(programs):
    programs.squeue.say(queued("7", "OUT_OF_MEMORY", 9, 2))
    programs.hpctl.say({**EXPLAINED, "jobs": [], "holds": [{"shown": "7", "gate": "ended"}]})
    end = wait(7, timeout=60)
    assert (end.state, end.exit_code, end.signal, end.restarts) == ("OUT_OF_MEMORY", 0, 9, 2)
    assert (end.cause, end.todo, end.ok) == ("rank 1: ValueError", "nothing", False)


def test_wait_of_a_completed_job_asks_hpctl_nothing(programs):
    programs.squeue.say(queued("7", "COMPLETED"))
    assert wait("7").ok
    assert programs.hpctl.calls == []


def test_a_timeout_says_the_state_and_leaves_the_job(programs):
    programs.squeue.say(queued("7", "RUNNING"))
    with pytest.raises(WaitTimeoutError, match="its state is RUNNING") as caught:
        wait(7, timeout=0.05)
    assert isinstance(caught.value, TimeoutError)


def test_a_controller_that_is_away_for_a_while_is_waited_for(programs, monkeypatch):
    programs.squeue.say("", "slurm_load_jobs error: Unable to contact slurm controller", 1)
    with pytest.raises(WaitTimeoutError, match="its state is not known"):
        wait(7, timeout=0.05)
    monkeypatch.setattr(waiting, "_SILENCE_S", 0.0)
    with pytest.raises(ClientError, match="Unable to contact"):
        wait(7, timeout=60)


def test_a_machine_without_slurm_is_reported_at_once(programs, monkeypatch):
    monkeypatch.setenv("HPCTL_SLURM_BIN", "/nowhere")
    with pytest.raises(CommandNotFoundError, match="no squeue in /nowhere"):
        wait(7, timeout=60)


def test_a_job_that_slurm_does_not_know(programs):
    programs.squeue.say("", "slurm_load_jobs error: Invalid job id specified", 1)
    with pytest.raises(JobNotFoundError, match="wait for each task"):
        wait(7)


def test_pauses_grow_to_a_quarter_of_a_minute(programs, monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_S", 2.0)
    monkeypatch.setattr(waiting, "LONGEST_S", LONGEST_S)
    pauses: list[float] = []

    class Clock:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def sleep(for_s: float) -> None:
            pauses.append(for_s)
            if len(pauses) == 8:
                programs.squeue.say(queued("7", "COMPLETED"))

    programs.squeue.say(queued("7", "RUNNING"))
    monkeypatch.setattr(waiting, "time", Clock)
    wait(7)
    assert pauses[0] == 2.0
    assert pauses == sorted(pauses)
    assert pauses[-2:] == [15.0, 15.0]
