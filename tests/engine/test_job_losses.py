"""What faults took from a job: one count for the report, the page and `top`."""

import pytest
from msgspec.structs import replace

from hpctl.engine.job_losses import (
    find_job_downtime,
    find_job_interruption_times,
    group_recoveries_by_job,
)
from hpctl.engine.world import World
from hpctl.vocabulary.identity import JobId, RecoveryId
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.slurm_facts import Tres
from tests.cli import worlds


def with_gpus(w: World, each: int) -> World:
    assert w.slurm is not None
    has = Tres(gres=(("gpu", each),))
    nodes = {name: replace(node, has=has) for name, node in w.slurm.nodes.items()}
    return replace(w, slurm=replace(w.slurm, nodes=nodes))


def test_job_losses_count_from_the_trouble_until_it_runs_again() -> None:
    w = worlds.world(worlds.healed(), worlds.troubled())
    healed = w.state.jobs[RecoveryId("j-22222222")]
    assert find_job_interruption_times(healed, w.now) == (worlds.at(0.22), worlds.at(1.6))
    hung = w.state.jobs[RecoveryId("j-77777777")]
    assert find_job_interruption_times(hung, w.now) == (worlds.at(71.5), w.now)


def test_a_recovery_that_was_canceled_before_it_stopped_the_job_took_nothing() -> None:
    w = worlds.world(worlds.troubled())
    begun = replace(w.state.jobs[RecoveryId("j-55555555")], phase=JobRecoveryPhase.CANCELLED)
    begin, end = find_job_interruption_times(begun, w.now)
    assert begin == end
    again = w.state.jobs[RecoveryId("j-55555555")].on("running_seen", worlds.at(80), "runs")
    gone = replace(again, phase=JobRecoveryPhase.CANCELLED)
    assert find_job_interruption_times(gone, w.now) == (worlds.at(60.3), worlds.at(80))


def test_losses_are_gpu_hours_of_the_nodes_that_a_job_has_or_had() -> None:
    w = with_gpus(worlds.world(worlds.healed(), worlds.troubled()), 8)
    assert w.slurm is not None
    hits = group_recoveries_by_job(w)
    running = find_job_downtime(w, w.slurm.jobs[JobId(4242)], hits[JobId(4242)], w.now)
    assert running.gpus == 16
    assert running.gpu_hours == pytest.approx(1.38 * 16 / 3600)
    waiting = find_job_downtime(w, None, hits[JobId(4545)], worlds.at(71.5 + 3600))
    assert (waiting.gpus, waiting.redone) == (16, 200)
    assert waiting.text == "16.0"
    assert running.text == "<0.1"
    assert find_job_downtime(w, None, [], w.now).text == ""


def test_the_losses_of_another_user_s_job_of_this_number_are_left_out() -> None:
    w = worlds.world(worlds.healed())
    assert w.slurm is not None
    mallory = replace(w.slurm.jobs[JobId(4242)], user="mallory")
    other = replace(w, slurm=replace(w.slurm, jobs={mallory.id: mallory}))
    assert JobId(4242) in group_recoveries_by_job(w)
    assert JobId(4242) not in group_recoveries_by_job(other)
