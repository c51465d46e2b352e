"""The story of a recovery: complete, in order, and the same live as afterwards."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.timeline import (
    RecoveryTimelineLineKind,
    build_recovery_timeline,
    find_next_awaited_event,
    make_journal_event_line,
)
from hpctl.vocabulary import job_recovery, node_recovery
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import RecoveryTransitionRecord, StepKind
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.cli.worlds import at, healed, node_opened, seen, step, troubled, world

pytestmark = pytest.mark.integration

N, J = "n-11111111", "j-22222222"


@pytest.mark.parametrize("rid", [N, J])
def test_a_story_has_every_step_and_move_in_the_order_of_time(rid: str) -> None:
    state = world(healed()).state
    rec = state.nodes.get(rid) or state.jobs[rid]
    story = build_recovery_timeline(rec, state)
    assert len(story) == 1 + len(rec.steps) + len(rec.trail)
    assert [line.at for line in story] == sorted(line.at for line in story)
    assert all(line.text.endswith((".", "!", "?")) for line in story)
    assert (story[0].mark, story[-1].mark) == (
        RecoveryTimelineLineKind.DECIDED,
        RecoveryTimelineLineKind.DONE,
    )


def test_the_live_narration_tells_every_event_once_and_no_plain_acceptance() -> None:
    state, messages = EngineState(), []
    events = [*healed(), *troubled()]
    for event in events:
        state.fold(event)
        messages.append(make_journal_event_line(event, state))
    accepted = [e for e in events if getattr(e, "outcome", None) == Outcome.accepted()]
    assert sum(line is None for line in messages) == len(accepted)
    texts = [line.text for line in messages if line is not None]
    assert "Draining ip-10-1-0-2." in texts
    assert any("rejected, to be retried (completing)" in text for text in texts)
    # Moves are worded the same as in the story told afterwards.
    afterwards = {line.text for line in build_recovery_timeline(state.nodes[N], state)}
    assert "Resumed ip-10-1-0-2: slurmctld shows the node in service." in texts
    assert "Resumed ip-10-1-0-2: slurmctld shows the node in service." in afterwards


def test_every_open_phase_names_what_it_waits_for_until_when_and_what_otherwise() -> None:
    node = replay_events([node_opened("n-1", healed()[1].generation, 0)]).nodes["n-1"]
    for phase in node_recovery.NodeRecoveryPhase:
        next_ = find_next_awaited_event(
            replace(node, phase=phase), RecoveryPolicy(mode=OperatingMode.OWN)
        )
        assert next_.what
        assert (next_.until is None) == (phase in node_recovery.ENDS)
    job = world(healed()).state.jobs[J]
    for job_phase in job_recovery.JobRecoveryPhase:
        next_ = find_next_awaited_event(
            replace(job, phase=job_phase), RecoveryPolicy(mode=OperatingMode.OWN)
        )
        assert next_.what
        assert (next_.until is None) == (job_phase in job_recovery.ENDS)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (TroubleKind.DISK_FULL, "the job's owner to make room and run `scontrol release 7`"),
        (
            TroubleKind.NAN,
            "the job's owner to run `scontrol release 7`, or `hpctl resume 7 --from-step N`",
        ),
        (TroubleKind.NO_PROGRESS, "the job's owner to run `scontrol release 7`"),
    ],
)
def test_the_owner_of_a_held_job_reads_what_fits_its_trouble(kind, advice) -> None:
    job = replace(
        world(healed()).state.jobs[J],
        phase=job_recovery.JobRecoveryPhase.HELD,
        trouble=Trouble(kind, at(0), "why"),
        known_as="7",
    )
    assert find_next_awaited_event(job, RecoveryPolicy()).what == advice


@pytest.mark.parametrize(
    ("why", "awaited"),
    [
        (
            job_recovery.REQUEUED_BEFORE_PROOF,
            "Slurm to start the job; `squeue -j 7` prints what it waits for",
        ),
        ("it failed", "the job's owner to read its log and run `scontrol requeue 7`"),
    ],
)
def test_a_job_in_the_queue_asks_nothing_of_its_owner(why: str, awaited: str) -> None:
    phase, signal = job_recovery.JobRecoveryPhase.GAVE_UP, job_recovery.JobRecoverySignal
    last = RecoveryTransitionRecord(at(9), signal.FAILED_AGAIN, phase, why)
    job = world(healed()).state.jobs[J]
    ended = replace(job, phase=phase, trail=(last,), steps=(), known_as="7")
    assert find_next_awaited_event(ended, RecoveryPolicy()).what == awaited


def test_what_is_awaited_is_reported_with_who_does_it_and_until_when() -> None:
    nodes = world(troubled()).state.nodes
    escalated, four = nodes["n-66666666"], nodes["n-44444444"]
    assert "hpctl undrain ip-10-1-0-6" in find_next_awaited_event(escalated, RecoveryPolicy()).what
    fresh, own = replace(four, steps=()), RecoveryPolicy(mode=OperatingMode.OWN)
    assert (
        "HyperPod" in find_next_awaited_event(fresh, RecoveryPolicy(mode=OperatingMode.ASSIST)).what
    )
    waits = find_next_awaited_event(fresh, own).what
    assert waits.startswith("the correlation window until 12:02:00 UTC")
    assert waits.endswith("reboot instance i-00000000000000004")
    asked = find_next_awaited_event(replace(fresh, by="carol"), own).what
    assert asked.startswith("SageMaker to accept the order")


def test_a_fault_that_comes_again_is_trouble() -> None:
    rid, opened = "n-9", node_opened("n-9", healed()[1].generation, 0)
    events = [
        opened,
        *step(rid, StepKind.DRAIN, "ip-10-1-0-2", 1, Outcome.accepted()),
        seen(rid, "cordon_seen", 2, "drained"),
        seen(rid, "jobs_gone", 3, ""),
        seen(rid, "nothing_to_remedy", 4, ""),
        seen(rid, "fault_again", 5, "still faulty: xid-79"),
    ]
    rec = replay_events(events).nodes[rid]
    assert build_recovery_timeline(rec, EngineState())[-1].mark is RecoveryTimelineLineKind.TROUBLE
    assert (rec.rung, build_recovery_timeline(rec, EngineState())[-1].at) == (1, at(5))
