"""Requests: written down, answered by whoever consumes them, or left queued. Nothing else acts."""

import fcntl
import json
import os
import resource
import threading
from contextlib import contextmanager

import pytest

from hpctl.engine import request_client
from hpctl.engine.instance_resolver import match_instances_to_nodes_once
from hpctl.engine.journal.state import replay_events
from hpctl.engine.view import PlanningView
from hpctl.engine.wake import DaemonLoopWaker
from hpctl.nodes import orders_command
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from tests.cli import worlds
from tests.fakes.engine import take

pytestmark = pytest.mark.integration


@contextmanager
def consumer(head):
    """Take requests as the daemon does: woken through the FIFO, decided by the core."""
    waker, stop = DaemonLoopWaker(head.dir), threading.Event()

    def serve() -> None:
        while not stop.is_set():
            waker.wait(20)
            store = head.store()
            for request in store.requests():
                state = replay_events(store.events())
                cloud, joined = match_instances_to_nodes_once(worlds.cloud(), worlds.slurm())
                view = PlanningView(
                    worlds.slurm(), cloud, worlds.health(), {}, state, joined.instances
                )
                store.append(
                    take(request, view, RecoveryPolicy(mode=OperatingMode.OWN), worlds.NOW)
                )
            store.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        waker.poke()
        thread.join(60)
        waker.close()


def test_a_daemon_with_many_connections_is_woken(head):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waker = DaemonLoopWaker(head.dir)
    low = waker._fd
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    try:
        waker._fd = fcntl.fcntl(low, fcntl.F_DUPFD, 1024)
        waker.poke()
        assert waker.has_pending_wakeup()
        assert waker.wait(60)
        assert not waker.has_pending_wakeup()
        waker.close()
    finally:
        os.close(low)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def answered(history):
    with consumer(history):
        yield history


def asked(head):
    store = head.store()
    try:
        return [(r.verb, r.target) for r in store.requests()]
    finally:
        store.close()


def test_pause_wakes_the_daemon_and_prints_its_answer(answered):
    result = answered.run("pause")
    assert result.exit_code == 0
    assert result.stdout == "pause: paused: nothing new is opened and no step is taken\n"
    assert "waiting for the daemon" in result.stderr
    assert "Paused" in answered.run("status").stdout
    lifted = answered.run("unpause")
    assert (lifted.exit_code, lifted.stdout) == (0, "unpause: the pause is lifted\n")
    assert "Paused" not in answered.run("status").stdout


def test_resume_without_a_job_lifts_a_pause_and_names_unpause(answered):
    assert answered.run("pause").exit_code == 0
    result = answered.run("resume")
    assert (result.exit_code, result.stdout) == (0, "unpause: the pause is lifted\n")
    assert "the command is now `hpctl unpause`" in result.stderr
    assert "Paused" not in answered.run("status").stdout


def test_a_refusal_is_exit_code_one(answered):
    result = answered.run("undrain", "ip-10-1-0-7")
    assert result.exit_code == 1
    assert "not drained by hpctl (Reason 'cable swap [dc3]')" in result.stdout


def test_what_is_asked_for_is_named_as_the_daemon_names_it(history):
    """A recovery by its id, its node or its job; what is held by its target."""
    cancelled = [
        ("n-44444444", "n-44444444"),
        ("ip-10-1-0-4", "n-44444444"),
        ("4343", "j-55555555"),
    ]
    for name, _ in cancelled:
        assert history.run("cancel", name, "--no-wait").exit_code == 0
    assert history.run("approve", "ip-10-1-0-5", "--no-wait").exit_code == 0
    found = [("cancel", recovery) for _, recovery in cancelled]
    assert asked(history) == [*found, ("approve", "ip-10-1-0-5")]


def test_without_a_daemon_the_request_stays_queued(history, monkeypatch):
    monkeypatch.setattr("hpctl.engine.request_client.ANSWER_S", 0.2)
    result = history.run("pause")
    assert result.exit_code == 3
    assert "queued as request 1" in result.stdout
    assert asked(history) == [("pause", "")]
    assert history.run("pause", "--no-wait").exit_code == 0
    assert asked(history) == [("pause", "")] * 2
    monkeypatch.setattr("hpctl.engine.request_client.ANSWER_S", 5.0)
    with consumer(history):
        assert history.run("unpause").exit_code == 0
    assert asked(history) == []  # the daemon that came took the queued ones too


def test_replace_after_yes_opens_a_recovery(answered):
    result = answered.run("replace", "ip-10-1-0-3", stdin="y\n")
    assert result.exit_code == 0
    assert "recovery n-" in result.stdout


class Watched:
    """What a watch would find, or Ctrl-C."""

    found: tuple[NodeRecovery, ...] = ()
    interrupted = False

    def __init__(self, nodes, ports):
        assert nodes == ["ip-10-1-0-3"]

    def follow(self):
        if self.interrupted:
            raise KeyboardInterrupt
        return [*self.found]


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(orders_command, "NodeOrderWatch", Watched)
    return lambda **what: [monkeypatch.setattr(Watched, *item) for item in what.items()]


def test_an_order_that_is_followed_ends_with_how_each_recovery_ended(answered, watched):
    state = replay_events([*worlds.healed(), *worlds.troubled()])
    back, escalated = state.nodes["n-11111111"], state.nodes["n-66666666"]
    order = ("replace", "ip-10-1-0-3", "--yes", "--follow")
    watched(found=(back,))
    fine = answered.run(*order)
    assert (fine.exit_code, "Back in service" in fine.stdout) == (0, True), fine.stdout
    assert "recovery n-" in fine.stdout
    answered.run("cancel", "ip-10-1-0-3")
    watched(found=(escalated,))
    bad = answered.run(*order, "--json")
    (row,), (recovery,) = (json.loads(bad.stdout)[key] for key in ("requests", "recoveries"))
    assert (bad.exit_code, row["ok"], recovery["phase"]) == (1, True, "escalated")
    answered.run("cancel", "ip-10-1-0-3")
    watched(interrupted=True)
    left = answered.run(*order)
    assert (left.exit_code, "the daemon continues" in left.stderr) == (130, True)


def test_an_order_is_not_followed_where_it_is_refused_or_not_asked_for(answered, watched):
    watched(interrupted=True)
    refused = answered.run("replace", "ip-10-1-0-4", "--yes", "--follow")
    assert (refused.exit_code, "treats ip-10-1-0-4 already" in refused.stdout) == (1, True)
    assert answered.run("reboot", "ip-10-1-0-2", "--yes", "--no-follow").exit_code == 0
    assert answered.run("reboot", "ip-10-1-0-3", "--yes").exit_code == 0, "no terminal"
    assert answered.run("reboot", "ip-10-1-0-1", "--yes", "--no-wait").exit_code == 0
    both = answered.run("reboot", "ip-10-1-0-1", "--yes", "--no-wait", "--follow")
    assert both.exit_code == 2


def test_a_dry_run_asks_for_nothing_and_says_what_the_daemon_would_say(history):
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


def test_root_behind_sudo_is_the_person_and_others_cannot_pretend(monkeypatch):
    monkeypatch.setenv("SUDO_USER", "carol")
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert request_client.find_invoking_user() == "carol"
    monkeypatch.setattr("os.getuid", lambda: 65534)
    assert request_client.find_invoking_user() == "nobody"


def test_who_may_not_write_reads_so_and_nothing_is_created(head, monkeypatch):
    assert type(head.run("pause").exception) is ServiceUnavailable
    assert not (head.dir / "journal.db").exists()
    head.write(worlds.healed())
    monkeypatch.setattr("os.access", lambda path, mode: False)
    refused = head.run("pause")
    assert type(refused.exception) is ServiceUnavailable
    assert "daemon does not answer" in str(refused.exception)
    assert "sudo" in refused.exception.hint


def test_names_complete_from_the_journal(history, monkeypatch):
    def complete(line: str) -> set[str]:
        with monkeypatch.context() as shell:
            shell.setenv("_HPCTL_COMPLETE", "bash_complete")
            shell.setenv("COMP_WORDS", line)
            shell.setenv("COMP_CWORD", str(len(line.split()) - 1))
            ran = history.run()
        return {row.partition(",")[2] for row in ran.stdout.split()}

    assert complete("hpctl nodes ip-10-1-0-4") == {"ip-10-1-0-4"}
    assert complete("hpctl cancel n-") == {"n-44444444"}
    assert complete("hpctl approve ip") == {"ip-10-1-0-5"}
    assert complete("hpctl resume 4") == complete("hpctl stacks 4") >= {"4242", "4545"}
    assert complete("hpctl resume ip") == set(), "nodes are no jobs"
    assert complete("hpctl explain j-") == {"j-22222222", "j-55555555", "j-77777777"}
    assert complete("hpctl cluster describe llm-p") == {"llm-prod"}
    long = "ip-10-1-0-250.us-west-2.compute.internal"
    assert complete("hpctl cluster replace ip-10-1-0-25") == {"ip-10-1-0-250", long}
    assert complete("hpctl cluster replace i-0bead") == {"i-0bead000000000001"}
    for text in ("nodes", "events llm-prod", "software-update", "health-check"):
        assert complete(f"hpctl cluster {text} --group work") == {"worker-group-1"}
    history.config.write_text("nonsense: [")
    assert complete("hpctl nodes ip") == set()
