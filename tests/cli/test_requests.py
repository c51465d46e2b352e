"""Requests: written down, answered by whoever consumes them, or left queued. Nothing else acts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpctl.cli import ask
from hpctl.clusters.joining import joined_now
from hpctl.core.journal import replay
from hpctl.core.policy import Mode, Policy
from hpctl.core.requests import take
from hpctl.core.view import View
from hpctl.daemon.wake import Waker
from hpctl.errors import Unavailable
from tests.cli import worlds
from tests.cli.conftest import Head


@contextmanager
def consumer(head: Head) -> Iterator[None]:
    """Take requests as the daemon does: woken through the FIFO, decided by the core."""
    waker, stop = Waker(head.dir), threading.Event()

    def serve() -> None:
        while not stop.is_set():
            waker.wait(20)
            store = head.store()
            for request in store.requests():
                state = replay(store.events())
                cloud, joined = joined_now(worlds.cloud(), worlds.slurm())
                view = View(worlds.slurm(), cloud, worlds.health(), {}, state, joined.instances)
                store.append(take(request, view, Policy(mode=Mode.OWN), worlds.NOW))
            store.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        waker.poke()
        thread.join(10)
        waker.close()


@pytest.fixture
def answered(history: Head) -> Iterator[Head]:
    with consumer(history):
        yield history


def asked(head: Head) -> list[tuple[str, str]]:
    store = head.store()
    try:
        return [(r.verb, r.target) for r in store.requests()]
    finally:
        store.close()


def test_pause_wakes_the_daemon_and_prints_its_answer(answered: Head) -> None:
    started = time.monotonic()
    result = answered.run("pause")
    assert result.exit_code == 0
    assert result.stdout == "pause: paused: nothing new is opened and no step is taken\n"
    assert "waiting for the daemon" in result.stderr
    assert time.monotonic() - started < 4  # woken, not polled
    assert "paused" in answered.run("status").stdout
    assert answered.run("resume").exit_code == 0


def test_a_refusal_is_exit_code_one(answered: Head) -> None:
    result = answered.run("return", "ip-10-1-0-7")
    assert result.exit_code == 1
    assert "not drained by hpctl (Reason 'cable swap [dc3]')" in result.stdout


def test_approve_waves_the_gate_that_holds(answered: Head) -> None:
    result = answered.run("approve", "ip-10-1-0-5", "--json")
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)["requests"]
    assert (row["answered"], row["ok"]) == (True, True)
    assert row["answer"] == "approved for 1 h; budget is waved"


def test_a_gate_that_no_approval_lifts_is_not_asked_for(history: Head) -> None:
    result = history.run("approve", "4444")
    assert result.exit_code == 1
    assert "no approval lifts the gate not_recoverable" in result.stderr
    assert asked(history) == []


@pytest.mark.parametrize("name", ["n-44444444", "ip-10-1-0-4"])
def test_cancel_takes_a_recovery_or_its_node(answered: Head, name: str) -> None:
    result = answered.run("cancel", name)
    assert result.exit_code == 0
    assert "n-44444444 cancelled; ip-10-1-0-4 stays drained" in result.stdout


def test_cancel_takes_a_job(answered: Head) -> None:
    assert "j-55555555 cancelled" in answered.run("cancel", "4343").stdout


def test_cancelling_what_has_ended_is_a_usage_error(history: Head) -> None:
    result = history.run("cancel", "n-11111111")
    assert result.exit_code == 2
    assert "has ended already (returned)" in result.stderr


def test_without_a_daemon_the_request_stays_queued(
    history: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpctl.cli.requests.ANSWER_S", 0.2)
    result = history.run("pause")
    assert result.exit_code == 3
    assert "queued as request 1" in result.stdout
    assert asked(history) == [("pause", "")]
    monkeypatch.setattr("hpctl.cli.requests.ANSWER_S", 5.0)
    with consumer(history):
        assert history.run("resume").exit_code == 0
    assert asked(history) == []  # the daemon that came took the queued one too


def test_no_wait_queues_and_leaves(history: Head) -> None:
    started = time.monotonic()
    assert history.run("pause", "--no-wait").exit_code == 0
    assert time.monotonic() - started < 4
    assert asked(history) == [("pause", "")]


def test_replace_shows_the_jobs_and_asks_first(history: Head) -> None:
    result = history.run("replace", "ip-10-1-0-3", stdin="n\n")
    assert result.exit_code == 1
    assert "job 4242 (train, alice) is RUNNING on 2 node(s): is waited for" in result.stderr
    assert "replace 1 node(s)?" in result.stderr
    assert asked(history) == []


def test_replace_after_yes_opens_a_recovery(answered: Head) -> None:
    result = answered.run("replace", "ip-10-1-0-3", stdin="y\n")
    assert result.exit_code == 0
    assert "recovery n-" in result.stdout


def test_a_dry_run_asks_for_nothing_and_says_what_the_daemon_would_say(history: Head) -> None:
    fine = history.run("reboot", "ip-10-1-0-3", "--dry-run")
    assert fine.stdout.endswith("\nDry run: nothing was done.\n")
    assert fine.exit_code == 0
    assert "reboot instance i-00000000000000003" in fine.stdout
    busy = history.run("replace", "ip-10-1-0-4", "--dry-run", "--json")
    assert busy.exit_code == 1
    (shown,) = json.loads(busy.stdout)["previews"]
    assert shown["open_recovery"] == "n-44444444"
    assert "treats ip-10-1-0-4 already" in shown["answer"]
    foreign = history.run("replace", "ip-10-1-0-7", "--dry-run")
    assert foreign.exit_code == 1
    assert "the daemon would refuse now: held by foreign_drain" in foreign.stdout
    stuck = history.run("replace", "ip-10-1-0-5", "--now", "--dry-run")
    assert "job 4444 (notebook, dan) is RUNNING on 1 node(s): CANNOT be run again" in stuck.stdout
    stays = history.run("replace", "ip-10-1-0-5", "--dry-run")
    assert "job 4444 (notebook, dan) is RUNNING on 1 node(s): is waited for" in stays.stdout
    assert asked(history) == []


def test_nothing_is_destroyed_blindly(history: Head) -> None:
    history.slurm = None
    result = history.run("replace", "ip-10-1-0-3", "--yes")
    assert result.exit_code == 3
    assert "what runs on the nodes is unknown" in result.stderr
    assert asked(history) == []


def test_root_behind_sudo_is_the_person_and_others_cannot_pretend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUDO_USER", "carol")
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert ask.invoking_user() == "carol"
    monkeypatch.setattr("os.getuid", lambda: 65534)
    assert ask.invoking_user() == "nobody"


def test_who_may_not_write_is_told_so_and_nothing_is_created(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = head.run("pause")
    assert type(nothing.exception) is Unavailable
    assert not (head.dir / "journal.db").exists()
    head.write(worlds.healed())
    monkeypatch.setattr("os.access", lambda path, mode: False)
    refused = head.run("pause")
    assert type(refused.exception) is Unavailable
    assert "no daemon answers" in str(refused.exception)
    assert "sudo" in refused.exception.hint


def test_names_complete_from_the_journal(history: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(words: str, last: str) -> list[str]:
        line = f"hpctl {words} {last}"
        env = {"_HPCTL_COMPLETE": "bash_complete", "COMP_WORDS": line}
        env["COMP_CWORD"] = str(len(line.split()) - (1 if last else 0))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        said = history.run()
        for name in env:
            monkeypatch.delenv(name)
        return [row.partition(",")[2] for row in said.stdout.split()]

    assert complete("nodes", "ip-10-1-0-4") == ["ip-10-1-0-4"]
    assert complete("cancel", "n-") == ["n-44444444"]
    assert complete("approve", "ip") == ["ip-10-1-0-5"]
    assert set(complete("explain", "j-")) == {"j-22222222", "j-55555555", "j-77777777"}
    history.config.write_text("nonsense: [")
    assert complete("nodes", "ip") == []
