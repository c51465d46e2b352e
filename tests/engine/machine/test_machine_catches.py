"""The promises can be broken: each test breaks hpctl on purpose, and the oracle must see it."""

import pytest
from msgspec.structs import replace

from hpctl.engine import gates, node_deadlines, observe, plan, remedies, view
from hpctl.engine.execute import StepExecutor
from hpctl.engine.kinds import DueRecoveryStep
from hpctl.jobs import advance, kind, run_cases
from hpctl.jobs import plan as jobs_plan
from hpctl.nodes import advance as nodes_advance
from hpctl.nodes import facts
from hpctl.vocabulary.job_recovery import (
    JobRecoveryPhase,
    JobRecoverySignal,
    JobReport,
    RequestedAction,
)
from hpctl.vocabulary.recovery import RecoveryPhaseMove
from hpctl.vocabulary.registration import JobRegistration
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.engine.machine.daemon import calm_down
from tests.engine.machine.oracle import Violation
from tests.engine.machine.scenario import VARIANTS, Story, Variant
from tests.engine.machine.world import Defect

pytestmark = pytest.mark.slow

ASKED = 'hpctl:{"ckpt":"/ckpt"}'
DIES = Variant("dies", Defect("79", reboot_cures=False, kills=True))


def _crash_everywhere(variant: Variant, seconds: float = 0.0) -> None:
    for number in range(1, 60):
        story = Story(replace(variant, restart_s=seconds))
        story.daemon.boundary.arm(number, True)
        story.play()


def test_the_unbroken_code_passes_where_the_broken_is_caught():
    _crash_everywhere(VARIANTS[0])


def test_addressing_by_todays_instance_is_caught(monkeypatch):
    """The node's name is resolved when the call is made, as a tool that thinks in nodes does."""

    def by_name(self, batch):
        world = self._provider.world
        node = world.names[0]
        ids = [world.provider.instance_of(node) for _ in batch]
        call = getattr(self._provider, str(batch[0].do.kind))
        return {d.do.target: o for d, o in zip(batch, call(ids).values(), strict=True)}

    monkeypatch.setattr(StepExecutor, "send_instance_orders", by_name)
    story = Story(Variant("second", second_actor_s=4.0))
    with pytest.raises(Violation, match=r"promise [345]"):
        _late_replace(story)


def _late_replace(story: Story) -> None:
    """The service replaces the node; a tool that lags behind replaces it again."""
    story.pass_time(1.0)
    story.world.breaks(story.sick()[0], story.variant.defect)
    story.pass_time(0.5)
    rec = next(iter(story.daemon.loop.state.nodes.values()))
    story.world.provider.start_unrequested_recovery(rec.generation.instance)
    story.world.passes(120.0)
    executor = story.daemon.loop.executor
    executor.run([DueRecoveryStep(rec.id, _replace_of(rec.generation.instance))])
    story.oracle.on_flaws(executor.flaws())


def _replace_of(instance: str):
    from hpctl.vocabulary.recovery import StepKind, StepStartDecision

    return StepStartDecision(StepKind.REPLACE, instance, 1)


def test_acting_before_writing_down_is_caught(monkeypatch):
    def unwritten(self, batch, call):
        return call(batch)

    monkeypatch.setattr(StepExecutor, "run_step", unwritten)
    with pytest.raises(Violation, match="promise 3: drain n1 was not written down"):
        Story(VARIANTS[0]).play()


def test_starting_from_an_empty_journal_is_caught():
    story = Story(VARIANTS[0])
    story.pass_time(1.0)
    story.world.breaks(story.sick()[0], story.variant.defect)
    story.pass_time(0.5)
    story.daemon.journal.events = list
    story.daemon.start()
    with pytest.raises(Violation, match=r"promise 3: .* is forgotten"):
        story.oracle.check()


def test_missing_gates_are_caught(monkeypatch):
    monkeypatch.setattr(plan, "GATES", ())
    with pytest.raises(Violation, match="promise 2"):
        Story(Variant("many", nodes=5)).play()


def test_a_missing_drain_budget_is_caught(monkeypatch):
    left = tuple(g for g in gates.GATES if g.name not in ("drain_budget", "correlated"))
    monkeypatch.setattr(plan, "GATES", left)
    with pytest.raises(Violation, match=r"promise 2: .* are open"):
        Story(Variant("many", nodes=5)).play()


def test_a_missing_budget_of_remedies_is_caught(monkeypatch):
    monkeypatch.setattr(remedies, "REMEDY_GATES", ())
    monkeypatch.setattr(remedies, "find_mass_event_recoveries", lambda *_: {})
    with pytest.raises(Violation, match=r"promise 2: .* are remedied"):
        Story(Variant("many", nodes=3)).play()


def test_ignoring_who_owns_the_node_is_caught(monkeypatch):
    monkeypatch.setattr(nodes_advance, "detect_operator_takeover", lambda _: None)
    story = Story(VARIANTS[0])
    story.pass_time(1.0)
    story.world.away("cloud", 30.0)
    story.world.breaks(story.sick()[0], story.variant.defect)
    story.pass_time(0.5)
    story.pass_time(2.0)
    story.world.slurm.operator(story.sick()[0], drain="mine now")
    with pytest.raises(Violation, match="promise 1"):
        story.continues(100.0)


def test_acting_on_stale_facts_is_caught(monkeypatch):
    for module in (gates, facts, view):
        monkeypatch.setattr(module, "is_timestamp_fresh", lambda *_: True)
    monkeypatch.setattr(
        observe, "PlanningView", lambda **k: view.PlanningView(**{**k, "current": True})
    )
    story = Story(VARIANTS[0])
    story.pass_time(1.0)
    story.world.away("slurm", 500.0)
    story.pass_time(100.0)
    story.world.breaks(story.sick()[0], story.variant.defect)
    with pytest.raises(Violation, match="promise 5"):
        story.pass_time(1.0)


def test_requeueing_a_completing_job_is_caught(monkeypatch):
    phases = advance.PHASES
    real = phases[JobRecoveryPhase.STOPPING]

    def blind(c):
        job = c.facts.job and replace(c.facts.job, flags=frozenset())
        return real(replace(c, facts=replace(c.facts, job=job)))

    monkeypatch.setitem(phases, JobRecoveryPhase.STOPPING, blind)
    with pytest.raises(Violation, match="promise 8: requeue of job 1, seen COMPLETING"):
        Story(DIES).play()


def test_a_missing_deadline_is_caught(monkeypatch):
    monkeypatch.setattr(node_deadlines, "find_node_phase_timeout_s", lambda rec, policy: 1e9)
    story = Story(VARIANTS[0])
    story.world.provider.no_capacity(1)
    story.world.provider.throttle(0)
    with pytest.raises(Violation, match="promise 7"):
        story.play()
    calm_down(story.world, story.daemon)
    with pytest.raises(Violation, match="promise 7"):
        story.oracle.ended_well()


def _job_of_a_story(comment, *, no_kill=False):
    story = Story(VARIANTS[0])
    story.oracle.policy = story.daemon.policy
    slurm = story.world.slurm
    job = slurm.jobs[slurm.submit(3, 50_000.0, comment=comment, no_kill=no_kill)]
    story.pass_time(1.0)
    assert job.running
    return story, job


def _crashes(story: Story, job) -> None:
    story.world.slurm.fail_job(job)
    story.pass_time(3.0)


def test_unregistered_job_is_not_touched(monkeypatch):
    story, job = _job_of_a_story("my own words")
    _crashes(story, job)
    assert job.state == "FAILED"
    monkeypatch.setattr(jobs_plan, "parse_registration_comment", lambda _: JobRegistration())
    with pytest.raises(Violation, match=r"promise 8: .* of 2, never asked for"):
        story.pass_time(3.0)


def test_a_run_that_is_well_and_treated_is_caught(monkeypatch):
    story, _job = _job_of_a_story(ASKED)
    monkeypatch.setattr(run_cases, "has_lost_batch_script", lambda *_: True)
    with pytest.raises(Violation, match=r"promise 8: .* which runs and is well"):
        story.pass_time(3.0)


def test_a_backoff_that_is_forgotten_is_caught(monkeypatch):
    story, job = _job_of_a_story(ASKED)
    monkeypatch.setattr(advance, "compute_remaining_backoff_s", lambda *_: 0.0)
    trouble = Trouble(TroubleKind.HANG, story.world.clock.now(), "it hangs", "hang")
    report = JobReport(job.id, 0, trouble, RunAction.REQUEUE, "", RequestedAction.REQUEUE, (), 60.0)
    story.daemon.tell(report)

    def wait() -> None:
        for _ in range(8):
            story.pass_time(1.0)

    with pytest.raises(Violation, match=r"promise 8: .* s too soon"):
        wait()


def test_a_supervised_job_that_is_stopped_too_soon_is_caught(monkeypatch):
    story, job = _job_of_a_story('hpctl:{"spares":1}', no_kill=True)

    def at_once(_) -> RecoveryPhaseMove:
        return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, "impatient")

    monkeypatch.setitem(advance.PHASES, JobRecoveryPhase.WATCHING, at_once)
    victim = next(n for n in job.nodes if n != job.batch_host)
    story.world.breaks(victim, Defect("79", reboot_cures=False))
    with pytest.raises(Violation, match=r"promise 8: requeue of job 2, running on .* all open"):
        story.continues(20.0)


def test_a_forgotten_job_is_caught(monkeypatch):
    def no_jobs(*_):
        return [], []

    monkeypatch.setattr(kind, "plan_fault_affected_job_recoveries", no_jobs)
    with pytest.raises(Violation, match=r"promise 8: job 1, hit at .* is lost"):
        Story(DIES).play()
