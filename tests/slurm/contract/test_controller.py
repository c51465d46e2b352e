"""What every Scheduler promises when slurmctld is away: no lie, no exception, bounded time."""

import socket
import threading
import time

import pytest

from hpctl.slurm.pyslurm import PySlurmScheduler
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.outcome import NOT_LEADING, Outcome, OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason
from tests.slurm.contract.beds import job_of, node_of

pytestmark = [pytest.mark.integration, pytest.mark.contract]

MINE = format_hpctl_node_reason("r1", "xid 79")
BOUND_S = 45.0


def orders(bed):
    """Every order on one node and one running job."""
    node = bed.nodes[0]
    job = bed.submit()
    bed.until("running", lambda: job_of(bed, job).running)
    attempt = job_of(bed, job).attempt
    to = bed.scheduler
    return [
        ("drain", lambda: to.drain({node: MINE})[node]),
        ("down", lambda: to.down({node: MINE})[node]),
        ("resume_nodes", lambda: to.resume_nodes({node: "r1"})[node]),
        ("requeue", lambda: to.requeue(attempt)),
        ("start_pending_job", lambda: to.start_pending_job(job, [])),
        ("signal", lambda: to.signal(attempt, "USR1")),
        ("hold", lambda: to.hold(job, "why")),
    ]


def test_a_daemon_that_no_longer_leads_sends_nothing(real, monkeypatch):
    """Each order is kept back after the look at Slurm, and Slurm stays as it was."""
    todo, node = orders(real), real.nodes[0]
    monkeypatch.setattr(real.scheduler, "may_act", lambda: False)
    before = node_of(real, node)
    sent = {name: order() for name, order in todo}
    kept = {name for name, answer in sent.items() if answer == NOT_LEADING}
    # The others have nothing to do: the node is not closed, the job runs.
    assert kept == sent.keys() - {"down", "resume_nodes", "start_pending_job", "hold"}
    assert node_of(real, node).reason == before.reason


def test_the_active_controller_is_named(real):
    assert real.scheduler.find_active_controller() == socket.gethostname()
    real.stop_controller()
    try:
        assert real.scheduler.find_active_controller() == ""
    finally:
        real.start_controller()


def test_without_a_controller_a_read_fails_and_an_order_is_refused_for_now(bed):
    todo = orders(bed)
    bed.stop_controller()
    try:
        began = time.monotonic()
        with pytest.raises(ServiceUnavailable) as caught:
            bed.scheduler.view()
        assert time.monotonic() - began < BOUND_S
        assert caught.value.hint
        answers = at_once(todo)
    finally:
        bed.start_controller()
    assert {(o.kind, o.transient) for o in answers.values()} == {(OutcomeKind.REJECTED, True)}
    bed.until("back", lambda: not node_of(bed, bed.nodes[0]).drained, 30)


def test_a_frozen_controller_is_not_believed_to_have_done_anything(real):
    todo = orders(real)
    real.sandbox.signal_service("slurmctld", "SIGSTOP")
    try:
        if isinstance(real.scheduler, PySlurmScheduler):
            assert real.scheduler.explain_why_pyslurm_is_unusable() == "", (
                "whom a daemon that starts now would pass over"
            )
        with pytest.raises(ServiceUnavailable):
            real.scheduler.view()
        answers = at_once(todo)
    finally:
        real.sandbox.signal_service("slurmctld", "SIGCONT")
    for name, answer in answers.items():
        assert answer.kind is not OutcomeKind.ACCEPTED, name
        assert answer.kind is OutcomeKind.AMBIGUOUS or answer.transient, name
    real.until("back", lambda: real.scheduler.view().nodes, 30)


def test_an_order_that_was_sent_to_a_frozen_controller_is_ambiguous(real, monkeypatch):
    """Frozen between the look and the order: it may be carried out when it thaws."""
    from hpctl.slurm import rules

    node, drain = real.nodes[0], rules.find_drain_outcome_without_sending

    def freeze(seen, why: str) -> Outcome | None:
        real.sandbox.signal_service("slurmctld", "SIGSTOP")
        return drain(seen, why)

    monkeypatch.setattr(rules, "find_drain_outcome_without_sending", freeze)
    try:
        outcome = real.scheduler.drain({node: MINE})[node]
    finally:
        real.sandbox.signal_service("slurmctld", "SIGCONT")
    assert outcome.kind is OutcomeKind.AMBIGUOUS
    real.until("thawed", lambda: real.scheduler.view().nodes, 30)


def at_once(todo):
    """Give all orders side by side: each may take Slurm's ten seconds."""
    answers: dict[str, Outcome] = {}

    def give(name, order):
        answers[name] = order()

    began = time.monotonic()
    threads = [threading.Thread(target=give, args=pair) for pair in todo]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S * 3)
    assert len(answers) == len(todo)
    assert time.monotonic() - began < BOUND_S * 3
    return answers


def test_a_controller_that_is_busy_still_answers_in_shape(real):
    """Views while others submit and cancel: every one is whole."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            job = real.submit(options=["--hold"])
            real.cancel(job)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert set(real.scheduler.view().nodes) == set(real.nodes)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
