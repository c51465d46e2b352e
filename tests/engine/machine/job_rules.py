"""What happens to jobs in the model-based machine: by users, by supervisors, by themselves."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from hpctl.daemon.kinds import KINDS
from hpctl.jobs.kind import JOBS
from hpctl.vocabulary.job_recovery import JobRecoveryPhase, JobReport, RequestedAction
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.world import Defect, World
from tests.fakes.slurmctld import Job

assert JOBS in KINDS, "the rules rest on the recoveries of jobs"

SAVES = 'hpctl:{"save_signal": "USR1"}'
SUPERVISED = 'hpctl:{"spares": 1}'
COMMENTS = ("", SAVES, SAVES, SUPERVISED, SUPERVISED)
ACTIONS = {
    RequestedAction.NONE: RunAction.STEP,
    RequestedAction.REQUEUE: RunAction.REQUEUE,
    RequestedAction.HOLD: RunAction.HOLD,
}

which = st.integers(0, 15)
few = st.integers(1, 3)
then = st.sampled_from((0.0, 0.5, 3.0, 30.0))


class JobRules(RuleBasedStateMachine):
    """The part of the machine that is about jobs."""

    world: World
    daemon: Daemon

    def pass_time(self, seconds: float) -> None:
        self.world.passes(seconds)
        self.daemon.run()

    @rule(
        size=st.integers(1, 3),
        runtime=st.sampled_from((60.0, 1000.0, 50_000.0, 50_000.0)),
        requeue=st.sampled_from((True, True, True, False)),
        comment=st.sampled_from(COMMENTS),
        after=then,
    )
    def user_submits(self, size, runtime, requeue, comment, after):
        self.submit(size, runtime, requeue, comment)
        self.pass_time(after)

    def submit(self, size: int, runtime: float, requeue: bool, comment: str) -> None:
        self.world.slurm.submit(
            size, runtime, requeue=requeue, comment=comment, no_kill=comment == SUPERVISED
        )

    @precondition(lambda self: bool(self._asked()))
    @rule(
        number=which,
        wish=st.sampled_from(
            (
                RequestedAction.NONE,
                RequestedAction.NONE,
                RequestedAction.REQUEUE,
                RequestedAction.HOLD,
            )
        ),
        kind=st.sampled_from((TroubleKind.HANG, TroubleKind.CRASH, TroubleKind.NODE)),
        after_s=st.sampled_from((0.0, 0.0, 40.0)),
        behind=st.sampled_from((0, 0, 0, 1)),
        after=then,
    )
    def supervisor_tells(self, number, wish, kind, after_s, behind, after):
        """A word of a job's supervisor; of its former run, where it is late."""
        jobs = self._asked()
        job = jobs[number % len(jobs)]
        trouble = Trouble(kind, self.world.clock.now(), f"a {kind}", f"{kind} {number}")
        run = max(job.restarts - behind, 0)
        self.daemon.tell(
            JobReport(job.id, run, trouble, ACTIONS[wish], "so it is", wish, (), after_s)
        )
        self.pass_time(after)

    @precondition(lambda self: bool(self._asked()))
    @rule(number=which, after=then)
    def job_requeues_itself(self, number: int, after: float) -> None:
        jobs = [j for j in self._asked() if j.requeue]
        if jobs:
            self.world.slurm.requeue_unchecked(jobs[number % len(jobs)])
        self.pass_time(after)

    def _asked(self) -> list[Job]:
        """The jobs that run and that registered with hpctl."""
        return [j for j in self.world.slurm.jobs.values() if j.running and j.comment]

    @precondition(lambda self: bool(self.world.slurm.jobs))
    @rule(number=which, how=st.sampled_from(("fails", "completes", "cancelled", "released")))
    def job_changes(self, number: int, how: str) -> None:
        slurm = self.world.slurm
        hurt = set(self.daemon.loop.state.open_jobs)
        jobs = [j for j in slurm.jobs.values() if number % 2 or not hurt or j.id in hurt]
        job = jobs[number % len(jobs)]
        if how == "completes":
            slurm.fail_job(job, "COMPLETED")
        else:
            end = {"fails": slurm.fail_job, "cancelled": slurm.cancel, "released": slurm.release}
            end[how](job)
        self.daemon.run()

    @precondition(lambda self: bool(self._watched()))
    @rule(
        wish=st.sampled_from(
            (
                RequestedAction.NONE,
                RequestedAction.NONE,
                RequestedAction.REQUEUE,
                RequestedAction.HOLD,
            )
        ),
        after=then,
    )
    def supervisor_answers_for_a_lost_node(self, wish: RequestedAction, after: float) -> None:
        self._tell_watched(wish)
        self.pass_time(after)

    def _tell_watched(self, wish: RequestedAction) -> None:
        for job in self._watched():
            trouble = Trouble(TroubleKind.NODE, self.world.clock.now(), "a node is gone", "node")
            self.daemon.tell(
                JobReport(job.id, job.restarts, trouble, ACTIONS[wish], "so it is", wish)
            )

    def _watched(self) -> list[Job]:
        """The jobs whose own supervisors are to go on without a node."""
        state, jobs = self.daemon.loop.state, self.world.slurm.jobs
        watched = [
            i
            for i, r in state.open_jobs.items()
            if state.jobs[r].phase is JobRecoveryPhase.WATCHING
        ]
        return [jobs[i] for i in watched if jobs[i].running]

    @precondition(lambda self: bool(self._supervised()))
    @rule(
        node=which,
        code=st.sampled_from(("79", "48")),
        after=st.sampled_from((3.0, 12.0)),
        answers=st.booleans(),
    )
    def hardware_fails_under_a_supervised_job(self, node, code, after, answers):
        """On a node that is not the one of its batch script; its supervisor may go on at once."""
        victims = [n for j in self._supervised() for n in j.nodes if n != j.batch_host]
        self.world.breaks(victims[node % len(victims)], Defect(code))
        self.pass_time(after)
        if answers:
            for _ in range(3):  # closed, set DOWN, taken away
                self.pass_time(1.0)
            self._tell_watched(RequestedAction.NONE)
            self.pass_time(0.5)

    def _supervised(self) -> list[Job]:
        """Those that can go on without a node."""
        jobs = self.world.slurm.jobs.values()
        return [j for j in jobs if j.running and j.no_kill and set(j.nodes) - {j.batch_host}]
