"""The loop: launch a step, attend to it until it ends or must be ended, ask what is done, do it.

Everything that happens comes through one queue: srun's end, what its output says, log rules, the
ranks' progress, signals. Only this thread decides anything.
"""

import signal
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from types import FrameType

from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints.marks import CheckpointMark, write_checkpoint_mark_file
from hpctl.checkpoints.resume import NoCompleteCheckpointError, ResumePoint, find_resume_point
from hpctl.checkpoints.run_records import AttemptEnded, AttemptStarted
from hpctl.jobs.decide import is_restart_on_more_nodes_worthwhile
from hpctl.jobs.run import ending, history, trouble_handler
from hpctl.jobs.run.allocation import (
    AllocationQueries,
    AllocationState,
    NodeFitness,
    NoSuchJobError,
    choose_step_nodes,
)
from hpctl.jobs.run.history import JobHistory
from hpctl.jobs.run.settings import RunSettings
from hpctl.jobs.run.srun import ENDING, RunningStep, SrunTaskEnd, StepLauncher
from hpctl.jobs.run.steps import (
    ClusterPolicyReceivedEvent,
    PreviousRunEndReceivedEvent,
    SignalReceivedEvent,
    StepEndedEvent,
    StepRunner,
    SupervisorEventQueue,
)
from hpctl.jobs.run.trouble_handler import RunFailureHandler
from hpctl.jobs.run_failure import diagnose_run_failure
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.policy_file import parse_run_policy_json
from hpctl.vocabulary.run_policy import RunAction, RunActionDecision, RunPolicy
from hpctl.vocabulary.trouble import STOP_EXIT_CODE, Trouble, TroubleKind
from hpctl.wire.job_report_client import JobReportReply, describe_previous_run_end

INFINITE = float("inf")


class StepTimers:
    """When something is due. Seconds of the monotonic clock."""

    POLL_S = 30.0
    """How often slurmctld is asked about the job while all is well: one RPC, twice a minute."""
    CREATED_S = 3.0
    """After which a step should have been created."""
    GROW_S = 60.0
    """How often a smaller run looks for a newer checkpoint and for room."""
    LIMIT_S = 30.0
    """Seconds of the time limit left for the requeue, in addition to the time to save."""

    def __init__(self, given: RunSettings) -> None:
        self._given = given
        self._due: dict[str, float] = {}
        self._ended = 0.0
        self._limit_reported = False
        self._saved = ResumePoint(judged=False)
        self._trained = False
        self.restart_s: float | None = None
        """From the end of a step to the first training step of the next, as measured last."""

    def began(self, step: RunningStep, resume: ResumePoint) -> None:
        """Note that a step was launched."""
        self._saved, self._trained = resume, False
        seconds = {"poll": self.POLL_S, "grow": self.GROW_S, "create": self.CREATED_S}
        self._due = {name: step.began + after for name, after in seconds.items()}

    def record_step_end_time(self) -> None:
        """Note that it is over."""
        self._ended = time.monotonic()

    def schedule_step_kill(self, seconds: float) -> None:
        """End the step in so many seconds, if not before."""
        self._due["kill"] = min(self._due.get("kill", INFINITE), time.monotonic() + seconds)

    def wait_s(self, most: float) -> float:
        """Return how long the loop may wait for an event, so that it is not late."""
        return max(0.0, min(most, self._due.get("kill", INFINITE) - time.monotonic()))

    def due(self, name: str, again_s: float = 0.0) -> bool:
        """Return whether it is time: once, or not again for so many seconds."""
        if time.monotonic() < self._due.get(name, INFINITE):
            return False
        self._due[name] = time.monotonic() + (again_s or INFINITE)
        return True

    def add_checkpoint_step_to_failure(self, trouble: Trouble) -> Trouble:
        """Return a trouble that names the newest complete checkpoint."""
        if trouble.progress is not None:
            return trouble
        return replace(trouble, progress=self._given.find_newest_checkpoint().step)

    def is_step_growth_check_due(self, trained: int | None) -> bool:
        """Return whether a newer checkpoint is there, looked for occasionally. `trained`: the last
        training step that the ranks reported."""
        if not self._trained and trained is not None:
            self._trained = True
            self.restart_s = time.monotonic() - self._ended if self._ended else None
        if not self.due("grow", self.GROW_S):
            return False
        found = self._given.find_newest_checkpoint()
        fresh = found.path is not None and found != self._saved
        self._saved = found
        return fresh

    def find_time_limit_failure(self, allocation: AllocationState, now: datetime) -> Trouble | None:
        """Return the trouble of a near time limit: once, and only where a save is worth it."""
        left = allocation.left_s(now)
        if self._limit_reported or self._given.directory is None or left is None:
            return None
        whole = allocation.total_time_limit_s or float("inf")
        if left > min(self._given.policy.save_grace_s + self.LIMIT_S, whole / 4):
            return None
        self._limit_reported = True
        why = f"{left:.0f} s are left of the time limit"
        return Trouble(TroubleKind.TIME_LIMIT, now, why, signature="time limit")


UNLIMITED_S = 86400.0
"""How long a job without a time limit is taken to run on: a day."""
START_S = 120.0
"""What a restart is taken to cost until one was measured."""
REQUEUE_S = 125.0
"""What a requeue costs beyond that: Slurm's own 121 s and the scheduler's round."""


class StepGrowthCapacity(Struct, frozen=True):
    """What could be had. `have` nodes run now; `inside` are the healthy ones of the allocation.

    `idle` are those idle in the partition, `missing` how many the allocation has lost since the
    job began. `left_s` is until the time limit, None for none. `restart_s` was measured, from the
    end of a step to the first training step of the next; None: not yet.
    """

    have: int
    inside: int
    idle: int = 0
    missing: int = 0
    left_s: float | None = None
    restart_s: float | None = None


def plan_step_growth(
    policy: RunPolicy, wanted: int, room: StepGrowthCapacity
) -> RunActionDecision | None:
    """Return what to do at the next checkpoint, None for nothing.

    A larger step where the allocation has nodes again; else a requeue where as many as it lost
    are idle outside, which costs Slurm's delay too. Each only where it pays (`grow_gain`).
    """
    left = UNLIMITED_S if room.left_s is None else room.left_s
    cost = START_S if room.restart_s is None else room.restart_s
    could = min(room.inside, wanted)
    if is_restart_on_more_nodes_worthwhile(policy, room.have, could, left, cost):
        why = f"{could} nodes again instead of {room.have}: worth a restart of {cost:.0f} s"
        return RunActionDecision(RunAction.STEP, why, size=could)
    enough = 0 < room.missing <= room.idle
    if enough and is_restart_on_more_nodes_worthwhile(
        policy, room.have, wanted, left, cost + REQUEUE_S
    ):
        why = (
            f"{room.idle} idle nodes outside: {wanted} instead of {room.have} are worth a requeue"
            f" of {cost + REQUEUE_S:.0f} s"
        )
        return RunActionDecision(RunAction.REQUEUE, why)
    return None


TICK_S = 0.5
CRASH_GRACE_S = 0.7
"""From the first rank that ended badly to SIGKILL for the others: time for their last lines."""
LAST_S = 10.0
"""Of the time limit, what is kept from a save for ending the step and asking for a requeue."""
REFUSED_S, MOST_REFUSALS = 3.0, 20
NO_GRES, MOST_NO_GRES = "Invalid generic resource", 4
"""An allocation that nodes were taken out of can lose the GRES of those that are left (Slurm 22.05:
`scontrol show job -d` says `GRES=` of them). No step of it is created ever after."""
LOOK_S = 30.0
"""How old a look at the nodes may be that answers a trouble of a running step."""
CLOCKS_NS = 2_000_000_000
"""By so much the clock of a file system may be behind this node's."""
LEAVE_S = 60.0
"""How long the daemon has to end this run, before the supervisor asks Slurm itself."""
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
ENDS_STEP = (RunAction.STEP, RunAction.REQUEUE, RunAction.END, RunAction.HOLD)
"""The answers for which a step that runs is ended."""


class StepAttemptOutcome(Struct, frozen=True):
    """What became of an attempt. Without an answer the run is over."""

    code: int
    why: str
    trouble: Trouble | None = None
    answer: RunActionDecision | None = None


class StepSupervisor:
    """One job's steps, from the first to the last of this run."""

    def __init__(
        self,
        given: RunSettings,
        launcher: StepLauncher,
        classify: ending.Classify,
        write: Callable[[str], None],
    ) -> None:
        self.given, self.classify, self.write = given, classify, write
        self.events = SupervisorEventQueue()
        self.asked = 0
        """The signal that asked to end; it may not have been passed on yet."""
        questions = AllocationQueries(given.job, launcher.runner)
        self.allocation = AllocationState(questions, self.say, given.restart, lambda: self.asked)
        self.allocation.suspect(dict.fromkeys(given.suspects, "failed the preflight tests"))
        self.history = JobHistory.open(given.history, parents=given.directory is None)
        self.steps = StepRunner(given, launcher, self.events, self.say)
        self.handler = RunFailureHandler(given, self.allocation, self.history, launcher, self.say)
        self.timers = StepTimers(given)
        self.avoid = trouble_handler.find_nodes_with_recent_job_failures(
            self.history.past, given.policy, _get_utc_now()
        )
        self.before: tuple[NodeName, ...] = ()
        self.refusals = 0

    def run(self) -> int:
        """Launch steps until the run is over. Return the exit code."""
        for number in FORWARDED:
            signal.signal(number, self._handle_signal)
        answer: RunActionDecision | None = None
        try:
            while True:
                step = self._launch_step(answer)
                outcome = self._supervise_step(step) if isinstance(step, RunningStep) else step
                answer = outcome.answer
                if isinstance(step, RunningStep):
                    self._record_attempt_end(step, outcome)
                if answer is None or answer.action is not RunAction.STEP:
                    return self._execute_run_end_action(outcome)
                if not self.steps.pause(answer.after_s):
                    return outcome.code
        except NoCompleteCheckpointError as error:
            self.say(f"{error}. {error.hint}")
            return STOP_EXIT_CODE
        except NoSuchJobError as error:
            self.say(f"{error}, so nothing is started: {error.hint}")
            return 1
        finally:
            self._print_attempts_summary()

    def _launch_step(self, answer: RunActionDecision | None) -> RunningStep | StepAttemptOutcome:
        """Start the next step; an Outcome where there are too few nodes for one."""
        resume = self.steps.find_checkpoint_at_step_end(answer) or find_resume_point(
            self.given.resume_checkpoint_locations
        )
        fit = self.allocation.look()
        if self.asked:
            self.say(f"{signal.Signals(self.asked).name} asked to end: no step is started")
            return StepAttemptOutcome(128 + self.asked, history.ASKED_TO_END)
        if not self.allocation.alive:
            return self._end_run_without_new_step(1)
        size = answer.size if answer and answer.size else min(self.given.wanted, len(fit.healthy))
        exclude = answer.exclude if answer else ()
        self.avoid = (self.avoid - self.allocation.healed) | set(exclude)
        leaves = self.allocation.leaves() if self.before and size < len(fit.healthy) else None
        nodes = choose_step_nodes(fit.healthy, size, self.before, self.avoid, exclude, leaves)
        if len(nodes) < max(1, min(size, self.given.least)) or size < self.given.least:
            return self._handle_too_few_nodes(fit, len(nodes))
        attempt, now = self.history.attempts + 1, _get_utc_now()
        spare = len(fit.healthy) - len(nodes)
        self.write(history.format_attempt_start_line(now, attempt, nodes, spare, resume.path))
        if resume.unknown:
            self.say(resume.unknown)
        if resume.unproven:
            self.say(f"unproven of {resume.path}: {resume.unproven}")
        if resume.skip:
            self.say(f"HPCTL_SKIP={resume.skip}: the program leaves out these batches")
        place = fold_hostlist(nodes)
        self.history.add(
            AttemptStarted(attempt, self.given.restart, now, place, resume.path, resume.step)
        )
        if not self.before:
            self.handler.report_run_start(resume.step, self._apply_daemon_reply)
        self.before = nodes
        step = self.steps.start(attempt, nodes, resume, self.allocation.hosts(nodes))
        self.timers.began(step, resume)
        self._print_nonfatal_problems()
        return step

    def _supervise_step(self, step: RunningStep) -> StepAttemptOutcome:
        """Attend to a step; where the supervisor itself fails, leave it untouched to its end."""
        try:
            return self._run_step_event_loop(step)
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not end a run that is well
            self.say(f"hpctl run failed; the step continues without it: {error!r}")
            for number in FORWARDED:
                signal.signal(number, lambda number, _: step.process.send_signal(number))
            code = step.process.wait()
            return StepAttemptOutcome(code if code >= 0 else 128 - code, "ended unsupervised")

    def _run_step_event_loop(self, step: RunningStep) -> StepAttemptOutcome:
        """Attend to the step until it is over."""
        while True:
            event = self.events.next(self.timers.wait_s(TICK_S))
            outcome = self._handle_supervisor_event(step, event)
            if outcome is not None:
                return outcome
            for each in self.steps.take_rank_restart_failures():
                self.handler.record_launcher_restart(step.attempt, each)
            found = self.steps.ranks.look()
            if found is not None:
                self.events.put(found)
            self.history.record_checkpoint_save_durations(
                step.attempt, _get_utc_now(), self.steps.ranks.saves()
            )
            if self.timers.due("kill"):
                code, lost = self.steps.stop(step)
                return self.handle_unexpected_step_end(step, code, lost)
            outcome = self._run_periodic_checks(step)
            if outcome is not None:
                return outcome

    def _handle_supervisor_event(
        self, step: RunningStep, event: object
    ) -> StepAttemptOutcome | None:
        """Act on one event; return the outcome where it ends the step."""
        match event:
            case StepEndedEvent(step=ended, code=code) if ended is step:
                return self.handle_unexpected_step_end(step, code, {})
            case SrunTaskEnd(code=code) if (
                code != 0 and not self.given.srun.should_continue_on_bad_exit
            ):
                self.timers.schedule_step_kill(CRASH_GRACE_S)
            case Trouble() as trouble:
                return self._handle_step_failure(step, trouble)
            case ClusterPolicyReceivedEvent(layers=layers):
                self.given.configure(layers)
                self.steps.ranks.configure(self.given.policy)
            case PreviousRunEndReceivedEvent(why=why):
                self._log_previous_run_end(why)
            case SignalReceivedEvent(number=number):
                self.steps.forward_signal(step, number)
                if self.steps.asked_to_end:
                    self.timers.schedule_step_kill(self.given.policy.save_grace_s)
        return None

    def handle_unexpected_step_end(
        self, step: RunningStep, code: int, lost: dict[NodeName, str]
    ) -> StepAttemptOutcome:
        """Handle a step that ended without the supervisor: what its end means, and what is done
        about it."""
        self.allocation.suspect(lost)
        fit = self.allocation.look()
        if code != 0:
            lost = lost | self.allocation.lost(step.nodes, fit)
        evidence = self.steps.evidence(code, lost, self.allocation.gpus)
        code = ending.choose_run_exit_code(evidence, self.given.policy)
        if self.steps.asked_to_end or self.asked:
            return StepAttemptOutcome(code, history.ASKED_TO_END)
        if not self.allocation.alive:
            return self._end_run_without_new_step(code)
        again = self._handle_uncreated_step(step, evidence, fit)
        if again is not None:
            return again
        trouble = ending.diagnose_step_end(
            evidence, self.given.policy, _get_utc_now(), self.classify
        )
        if trouble is None:
            more = f", and then ended with {code}" if code else ""
            return StepAttemptOutcome(code, f"done{more}")
        facts = self.steps.facts(evidence, step.nodes)
        trouble = diagnose_run_failure(trouble, facts, self.steps.collect_timeout_evidence)
        if trouble.kind is TroubleKind.NODE and trouble.node is not None and not lost:
            self.allocation.suspect({trouble.node: trouble.why})
            fit = self.allocation.look()
        answer = self.handler.answer(step.attempt, trouble, fit)
        return StepAttemptOutcome(code or 1, trouble.why, trouble, answer)

    def _handle_uncreated_step(
        self, step: RunningStep, evidence: ending.StepEndEvidence, fit: NodeFitness
    ) -> StepAttemptOutcome | None:
        """Handle that Slurm refused to create the step, as it may while it still accounts for the
        last one, or has just been restarted. That is no trouble of the program's: try again, for a
        while; then it is the allocation's, and another one is needed."""
        refused = next((each for each in evidence.failed if each.node is None), None)
        if refused is None or evidence.code == 0 or evidence.ends:
            self.refusals = 0
            return None
        self.refusals += 1
        why = f"srun could not create the step: {refused.text}"
        if self.refusals > (MOST_NO_GRES if NO_GRES in refused.text else MOST_REFUSALS):
            why = f"Slurm no longer creates steps in this allocation: {refused.text}"
            trouble = Trouble(
                TroubleKind.NODE, _get_utc_now(), why, "no step", progress=evidence.after.step
            )
            answer = self.handler.answer(step.attempt, trouble, fit, stuck=True)
            return StepAttemptOutcome(evidence.code or 1, why, trouble, answer)
        self.say(f"{why} -> again in {REFUSED_S:g} s")
        answer = RunActionDecision(RunAction.STEP, why, after_s=REFUSED_S, size=len(step.nodes))
        return StepAttemptOutcome(evidence.code, why, None, answer)

    def _handle_step_failure(
        self, step: RunningStep, trouble: Trouble
    ) -> StepAttemptOutcome | None:
        """Handle trouble with a step that runs. None: it continues."""
        trouble = self.timers.add_checkpoint_step_to_failure(trouble)
        # Rules may fire often, and most of what they see lets the step run on.
        fit = self.allocation.look(LOOK_S)
        if self.asked:
            return None  # it is being ended, or will be as soon as the signal is taken in
        inside = partial(self._restart_ranks, step) if self._can_restart_ranks(step, fit) else None
        answer = self.handler.answer(step.attempt, trouble, fit, running=True, inside=inside)
        if answer.action not in ENDS_STEP:
            return None
        self._mark_corrupted_checkpoints(trouble)
        left = self.allocation.left_s(_get_utc_now())
        most = answer.save_first_s if left is None else min(answer.save_first_s, left - LAST_S)
        self.steps.save_first(step, most)
        code, lost = self.steps.stop(step)
        if self.steps.asked_to_end:
            return StepAttemptOutcome(code, history.ASKED_TO_END)
        if lost:
            # Only now it shows that a node is gone: that is the trouble, and what is to be done.
            self.allocation.suspect(lost)
            node, why = next(iter(lost.items()))
            reason = f"node {node} is lost: {why}"
            trouble = replace(
                trouble, kind=TroubleKind.NODE, node=node, signature="node lost", why=reason
            )
            answer = self.handler.answer(step.attempt, trouble, self.allocation.look())
        return StepAttemptOutcome(code or 1, trouble.why, trouble, answer)

    def _restart_ranks(self, step: RunningStep, trouble: Trouble, save_s: float) -> str:
        """Have the launcher restart the ranks; why it does not, "" where it does."""
        self._mark_corrupted_checkpoints(trouble)
        return self.steps.restart_ranks(step, trouble, save_s)

    def _mark_corrupted_checkpoints(self, trouble: Trouble) -> None:
        """Exclude from resuming what was saved at or after the first step whose loss is no
        number."""
        directory = self.given.directory
        progress = self.steps.ranks.progress
        if trouble.kind is not TroubleKind.NAN or trouble.step is None:
            return
        if directory is None or progress is None:
            return
        since_ns = int(progress.finite_at.timestamp() * 1e9) - CLOCKS_NS
        mark = CheckpointMark(
            poisoned=True,
            first=trouble.step,
            by="hpctl run",
            at=_get_utc_now(),
            why=trouble.why,
            until_start=True,
            since_ns=since_ns,
        )
        try:
            write_checkpoint_mark_file(directory, mark)
        except OSError as error:
            self.say(f"{directory} takes no mark: {error.strerror or error}")
            return
        self.say(
            f"checkpoints saved at or after step {trouble.step} are passed over: {trouble.why}"
        )

    def _can_restart_ranks(self, step: RunningStep, fit: NodeFitness) -> bool:
        """Return whether a launcher is in the step that could restart its ranks: all its nodes
        live."""
        return self.given.restart_method.has_launcher and set(step.nodes) <= set(fit.healthy)

    def _run_periodic_checks(self, step: RunningStep) -> StepAttemptOutcome | None:
        """Check what needs only an occasional look: the job itself, its time limit, room to
        grow."""
        if self.timers.due("create") and self.steps.cancel_blocked_step(step):
            why = "Slurm still holds the last step, whose end it missed: the next one overlaps it"
            self.say(why)
            return StepAttemptOutcome(
                1, why, None, RunActionDecision(RunAction.STEP, why, size=len(step.nodes))
            )
        if self.timers.due("poll", StepTimers.POLL_S) and self.allocation.poll_job_state():
            if self.allocation.other or self.allocation.list_nodes_removed_from_job(step.nodes):
                # srun should have ended long ago.
                self.timers.schedule_step_kill(0)
            else:
                self.handler.report_unused_node_loss(
                    self.allocation.list_nodes_removed_from_job(self.given.allocated)
                )
        trouble = self.timers.find_time_limit_failure(self.allocation, _get_utc_now())
        if trouble is not None:
            self.events.put(trouble)
        if len(step.nodes) < self.given.wanted and self.timers.is_step_growth_check_due(
            self.steps.ranks.step
        ):
            return self._restart_step_on_more_nodes(step)
        return None

    def _restart_step_on_more_nodes(self, step: RunningStep) -> StepAttemptOutcome | None:
        """Grow a smaller run that has just saved, where it pays to stop here and continue with more
        nodes."""
        fit = self.allocation.look()
        room = StepGrowthCapacity(
            have=len(step.nodes),
            inside=len(set(fit.healthy) - (self.avoid - self.allocation.healed)),
            idle=self.allocation.count_idle_nodes(),
            missing=len(self.given.allocated) - len(fit.healthy),
            left_s=self.allocation.left_s(_get_utc_now()),
            restart_s=self.timers.restart_s,
        )
        if self.asked:
            return None
        answer = plan_step_growth(self.given.policy, self.given.wanted, room)
        if answer is None:
            return None
        self.say(f"a new checkpoint is there, and {answer.why} -> {answer.action}")
        code, lost = self.steps.stop(step)
        self.allocation.suspect(lost)
        return StepAttemptOutcome(code, answer.why, None, answer)

    def _handle_too_few_nodes(self, fit: NodeFitness, found: int) -> StepAttemptOutcome:
        unfit = "; ".join(f"{node}: {why}" for node, why in list(fit.unfit.items())[:4])
        trouble = Trouble(
            kind=TroubleKind.NODE,
            at=_get_utc_now(),
            why=f"{found} healthy nodes are left of {len(self.given.allocated)},"
            f" and a step needs {self.given.least}" + (f" ({unfit})" if unfit else ""),
            signature="too few nodes",
            node=next(iter(fit.unfit), None),
        )
        answer = self.handler.answer(self.history.attempts, trouble, fit)
        return StepAttemptOutcome(1, trouble.why, trouble, answer)

    def _end_run_without_new_step(self, code: int) -> StepAttemptOutcome:
        """End the run, because no step can be launched any longer."""
        if self.allocation.other:
            self.say(self.allocation.other)
        return StepAttemptOutcome(code, self.allocation.over)

    def _execute_run_end_action(self, outcome: StepAttemptOutcome) -> int:
        """Leave the run: it is over, or continues elsewhere."""
        answer = outcome.answer
        if answer is not None and answer.action is RunAction.END:
            self.handler.end(outcome.trouble, answer)
            return outcome.code or 1
        if answer is None or answer.action not in (RunAction.REQUEUE, RunAction.HOLD):
            return outcome.code
        if not self.allocation.recoverable:
            self.say(f"no {answer.action}: the job has --no-requeue, or is no batch job")
            return outcome.code or 1
        if self.allocation.poll_job_state() and self.allocation.other:
            return self._end_run_without_new_step(outcome.code or 1).code
        taken = self.handler.request_daemon_requeue_or_hold(
            outcome.trouble, answer
        ) and not self.steps.pause(LEAVE_S)
        if not taken and not self.steps.asked_to_end and self.handler.leave(answer):
            self.steps.pause(LEAVE_S)
        return outcome.code or 1

    def _record_attempt_end(self, step: RunningStep, outcome: StepAttemptOutcome) -> None:
        done = f" -> {outcome.answer.action}" if outcome.answer else ""
        self.history.add(
            AttemptEnded(step.attempt, _get_utc_now(), outcome.code, outcome.why + done)
        )
        self.timers.record_step_end_time()

    def _log_previous_run_end(self, why: str) -> None:
        """Say why the run before this one ended. It was asked to end and did not learn why."""
        last = self.history.last_attempt_start
        place = "starting from the beginning"
        if last is not None and last.resume is not None:
            place = f"resuming from {last.resume if last.step is None else f'step {last.step}'}"
        self.say(describe_previous_run_end(self.given.restart, why, place))
        self.history.correct_attempt_end_reason(self.given.restart - 1, why)

    def _apply_daemon_reply(self, reply: JobReportReply) -> None:
        """Learn from the daemon's reply the recovery policies below the job's own, and why the run
        before this one ended. Runs in a separate thread."""
        if reply.former and self.given.restart:
            self.events.put(PreviousRunEndReceivedEvent(reply.former))
        try:
            layers = [parse_run_policy_json(keys) for keys in reply.run_policy]
        except ValueError as error:  # an hpctl of another release
            self.say(f"the cluster's recovery policy is not used: {error}")
            return
        if layers:
            self.events.put(ClusterPolicyReceivedEvent(tuple(layers)))

    def _print_attempts_summary(self) -> None:
        for line in (
            history.format_attempts_table(self.history.records) if self.history.attempts else ()
        ):
            self.write(line)

    def _print_nonfatal_problems(self) -> None:
        """Print what does not work, and is not needed to continue."""
        for problem in (self.history.pop_problem(), self.steps.ranks.pop_problem()):
            if problem:
                self.say(problem)

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        if number in ENDING:
            self.asked = number
        self.events.put(SignalReceivedEvent(number))

    def say(self, text: str) -> None:
        """Print one line into the job's log."""
        self.write(history.format_supervisor_log_line(_get_utc_now(), text))


def _get_utc_now() -> datetime:
    return datetime.now(UTC)
