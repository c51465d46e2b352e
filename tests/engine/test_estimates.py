"""When a recovery is over: the median of those like it, else the policy's deadlines."""

from datetime import timedelta

from hpctl.engine.estimates import ENOUGH, RecoveryTimeEstimator
from hpctl.engine.journal.events import Event, JobRecoveryOpened
from hpctl.engine.world import World
from hpctl.vocabulary.identity import JobAttempt, JobId, RecoveryId
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from tests.cli import worlds

J = RecoveryId("j-0pen")


def ended(number: int, took_s: float) -> list[Event]:
    """A recovery of an hour ago: a second to stop, and so long from the queue to running."""
    rid, begin = RecoveryId(f"j-{number}"), -3600.0 - number
    return [
        JobRecoveryOpened(
            worlds.at(begin), rid, JobAttempt(JobId(number), worlds.SUBMIT, 0), "", (), "x"
        ),
        worlds.seen(rid, "stop_wanted", begin, "it cannot go on"),
        worlds.seen(rid, "queued", begin + 1, "queued"),
        worlds.seen(rid, "started", begin + 2, "started"),
        worlds.seen(rid, "running_seen", begin + 1 + took_s, "runs"),
        worlds.seen(rid, "proved", begin + 100 + took_s, "ran"),
    ]


def opened(*moves: Event, **change: object) -> list[Event]:
    """A recovery that began 10 s before now."""
    attempt = JobAttempt(JobId(9), worlds.SUBMIT, 0)
    return [
        JobRecoveryOpened(worlds.at(80), J, attempt, "", (), "x", **change),  # type: ignore[arg-type]
        worlds.seen(J, "stop_wanted", 80, "it cannot go on"),
        worlds.seen(J, "queued", 80, "queued"),
        *moves,
    ]


def of(w: World):
    return RecoveryTimeEstimator(w).estimate_job_restart_time(w.state.jobs[J])


def test_estimate_shows_the_median_of_recoveries_in_the_same_phase() -> None:
    past = [ended(n, took_s) for n, took_s in enumerate((20.0, 30.0, 400.0), 1)]
    w = worlds.world(*past, opened())
    found = of(w)
    assert found is not None
    assert (found.at, found.measured) == (worlds.at(80 + 30), 3)
    assert found.text(w.now) == "about 20 s"
    assert found.basis == "the median of 3 recoveries"


def test_too_few_recoveries_or_a_median_that_has_passed_leave_the_bound() -> None:
    policy = RecoveryPolicy(mode=OperatingMode.OWN)
    bound = worlds.at(80) + timedelta(
        seconds=policy.job.release_deadline_s + policy.job.start_deadline_s
    )
    few = [ended(n, 30.0) for n in range(1, ENOUGH)]
    fast = [ended(n, 5.0) for n in range(1, ENOUGH + 1)]
    for past in (few, fast):
        w = worlds.world(*past, opened())
        found = of(w)
        assert found is not None
        assert (found.at, found.measured) == (bound, 0)
        assert found.text(w.now) == "at most 2 d"


def test_a_backoff_is_waited_for_first_and_measures_nothing() -> None:
    past = [ended(n, 30.0) for n in range(1, ENOUGH + 1)]
    w = worlds.world(*past, opened(start_at=worlds.at(200)))
    found = of(w)
    assert found is not None
    assert found.at == worlds.at(200 + 30)
    assert found.measured == ENOUGH


def test_estimate_is_empty_for_running_held_and_observed_recoveries() -> None:
    runs = worlds.seen(J, "running_seen", 85, "runs")
    assert of(worlds.world(opened(runs))) is None
    assert of(worlds.world(opened(), policy=RecoveryPolicy(mode=OperatingMode.OBSERVE))) is None
    slurm = worlds.slurm()
    held = worlds.SlurmJob(9, "PENDING", worlds.SUBMIT, 1, reason="JobHeldUser")
    held_world = worlds.world(opened(), slurm=worlds.replace(slurm, jobs={JobId(9): held}))
    assert of(held_world) is None


def test_a_bound_that_has_passed_is_none() -> None:
    late = worlds.world(opened(), now=worlds.at(80 + 10 * 86400))
    assert of(late) is None


def test_estimate_of_a_node_uses_only_recoveries_with_the_same_remedy() -> None:
    past = []
    for number in (31, 32, 33):
        rid, generation = RecoveryId(f"n-{number}"), worlds.gen(number)
        past += [
            worlds.node_opened(rid, generation, -900.0),
            worlds.seen(rid, "cordon_seen", -899, "drained"),
            worlds.seen(rid, "jobs_gone", -890, "gone"),
            worlds.seen(rid, "nothing_to_remedy", -800, "healthy"),
            worlds.seen(rid, "return_seen", -600, "back"),
        ]
    w = worlds.world(past, worlds.troubled())
    rec = w.state.nodes[RecoveryId("n-44444444")]
    found = RecoveryTimeEstimator(w).estimate_node_return_time(rec)
    assert found is not None
    assert (found.at, found.measured) == (rec.since + timedelta(seconds=290), 3)
    replaced = worlds.replace(rec, ladder=rec.ladder[1:])
    assert RecoveryTimeEstimator(w).estimate_node_return_time(replaced) is None
