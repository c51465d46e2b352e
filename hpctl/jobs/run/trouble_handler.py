"""What is done about a trouble: decided, recorded, logged and reported; and how a run is left."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from hpctl.checkpoints.run_records import FailureHandled
from hpctl.jobs.decide import PastJobFailure, RestartResources, decide_job_failure_action
from hpctl.jobs.run.allocation import AllocationState, NodeFitness
from hpctl.jobs.run.history import JobHistory
from hpctl.jobs.run.settings import RunSettings
from hpctl.jobs.run.srun import StepLauncher
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.run_policy import (
    CERTAIN,
    RESTARTS,
    STOPS,
    RunAction,
    RunActionDecision,
    RunPolicy,
)
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire.job_report_client import WHOLE_FAILOVER_S, JobReportReply, send_job_report

PAUSES = (1.0, 4.0, 10.0, 15.0)
"""Seconds between attempts to report to the daemon what was done: all within the 60 s for which it
leaves a job that has lost a node to its supervisor (`job.supervisor_grace_s`)."""


class RunFailureHandler:
    """One job's troubles. Only `request_daemon_requeue_or_hold`, `end` and `leave` wait."""

    def __init__(
        self,
        given: RunSettings,
        allocation: AllocationState,
        history: JobHistory,
        launcher: StepLauncher,
        say: Callable[[str], None],
    ) -> None:
        self._given, self._allocation, self._history = given, allocation, history
        self._launcher, self._say = launcher, say
        self._unaffected: set[NodeName] = set()
        self._lost: set[NodeName] = set()
        self._sending = threading.Lock()
        self._left = False

    def report_run_start(
        self, progress: int | None, learned: Callable[[JobReportReply], object]
    ) -> None:
        """Report that the run starts, and from which checkpoint's step. Does not wait."""
        self._send_report_in_background(
            JobReport(self._given.job, self._given.restart, progress=progress), learned
        )

    def answer(  # noqa: PLR0913 -- what is special about the trouble, by keyword
        self,
        attempt: int,
        trouble: Trouble,
        fit: NodeFitness,
        *,
        running: bool = False,
        stuck: bool = False,
        inside: Callable[[Trouble, float], str] | None = None,
    ) -> RunActionDecision:
        """Return what `decide` says. `running`: the step's ranks live. `stuck`: this allocation can
        have no further step. `inside` has a launcher restart the ranks in their step, after so many
        seconds to save, and returns why it does not."""
        means = RestartResources(
            process=inside is not None,
            step=self._allocation.alive and not stuck,
            nodes=len(fit.healthy),
            wanted=self._given.wanted,
            requeue=self._allocation.recoverable,
            names=fit.healthy,
            healed=tuple(sorted(self._allocation.healed)),
            alive=running,
        )
        policy, past = self._given.policy, self._history.past
        answer = decide_job_failure_action(policy, past, trouble, means, datetime.now(UTC))
        if answer.action is RunAction.PROCESS and inside is not None:
            refused = inside(trouble, answer.save_first_s)
            if refused:
                self._say(f"the ranks are not restarted in their step: {refused}")
                answer = decide_job_failure_action(
                    policy, past, trouble, replace(means, process=False), datetime.now(UTC)
                )
        said = f"{trouble.kind} -> {answer.action}: {answer.why.removeprefix('hpctl: ')}"
        if answer.action in (*RESTARTS, *STOPS):
            # What the agents say of the nodes is known to the daemon only.
            verdict = build_run_failure_verdict(
                trouble, past, {}, policy, datetime.now(UTC), answer.action
            )
            said += f" ({verdict.text})"
        self._say(said)
        self._record_failed_run_attempt(attempt, trouble, answer)
        if answer.action not in (RunAction.REQUEUE, RunAction.END, RunAction.HOLD):
            # Those three are reported when the step has ended: two as requests, END as the last.
            self._send_report_in_background(
                JobReport.of(self._given.job, self._given.restart, trouble, answer)
            )
        return answer

    def record_launcher_restart(self, attempt: int, trouble: Trouble) -> None:
        """Record a trouble that the launcher inside the step has treated already."""
        answer = RunActionDecision(RunAction.PROCESS, "its ranks were restarted inside the step")
        self._say(f"{trouble.kind} -> {answer.action}: {trouble.why}")
        self._record_failed_run_attempt(attempt, trouble, answer)
        self._send_report_in_background(
            JobReport.of(self._given.job, self._given.restart, trouble, answer)
        )

    def report_unused_node_loss(self, gone: Sequence[NodeName]) -> None:
        """Report that the allocation lost these nodes, and the step that runs has none of them: a
        spare, say.

        The daemon watches a job from the loss of a node until its supervisor reports, and requeues
        it where none comes.
        """
        fresh = [node for node in gone if node not in self._unaffected]
        if not fresh:
            return
        self._unaffected.update(fresh)
        why = f"the job lost {fold_hostlist(fresh)}, where no rank of this step runs: it runs on"
        if not self._lost.issuperset(fresh):
            self._say(why)
        # Where one was trouble before, the daemon may have received that before it began to watch.
        self._send_report_in_background(JobReport(self._given.job, self._given.restart, why=why))

    def request_daemon_requeue_or_hold(
        self, trouble: Trouble | None, answer: RunActionDecision
    ) -> bool:
        """Ask the daemon for the requeue or the hold; whether it will act."""
        wish = RequestedAction.HOLD if answer.action is RunAction.HOLD else RequestedAction.REQUEUE
        reply = self._send_final_run_report(trouble, answer, wish)
        acts = reply is not None and reply.ok and reply.acts
        self._say(
            f"the daemon was asked for a {wish}" if acts else _describe_missing_daemon_action(reply)
        )
        return acts

    def end(self, trouble: Trouble | None, answer: RunActionDecision) -> None:
        """Report that the run is given up. Without the report the daemon, which sees the job end,
        would decide by its own policy whether it is restarted."""
        self._send_final_run_report(trouble, answer, RequestedAction.NONE)

    def _send_final_run_report(
        self, trouble: Trouble | None, answer: RunActionDecision, wish: RequestedAction
    ) -> JobReportReply | None:
        """Send the last report of this run, and wait for its answer."""
        report = JobReport(
            self._given.job, self._given.restart, trouble, answer.action, answer.why, wish,
            answer.exclude, answer.after_s, trouble.progress if trouble else None,
        )  # fmt: skip
        self._left = True
        with self._sending:
            return send_job_report(report, failover_s=WHOLE_FAILOVER_S)

    def leave(self, answer: RunActionDecision) -> bool:
        """Have Slurm requeue or hold this job; False where it does not.

        The step has ended, so that no rank still writes. Never sent for a job that is already
        ending: a requeue of a COMPLETING job crashes slurmctld.
        """
        now = self._allocation.allocation if self._allocation.poll_job_state() else None
        if now is None or not self._allocation.alive:
            return False
        command_id, job = now.command_id, now.job
        if answer.action is RunAction.HOLD:
            comment = f"{job.comment} | {answer.why}".removeprefix(" | ")
            self._launcher.scontrol("update", f"JobId={command_id}", f"Comment={comment}")
        verb = "requeuehold" if answer.action is RunAction.HOLD else "requeue"
        ran = self._launcher.scontrol(verb, command_id)
        if not ran.ok and ran.code < 0:
            return True  # the requeue ended its own messenger: it belongs to this job
        if not ran.ok:
            self._say(f"{answer.action} was refused: {ran.message}")
        return ran.ok

    def _record_failed_run_attempt(
        self, attempt: int, trouble: Trouble, answer: RunActionDecision
    ) -> None:
        self._history.add(FailureHandled(attempt, trouble, answer.action, answer.why))
        if trouble.node is not None:
            self._allocation.healed.discard(trouble.node)
        if trouble.kind is TroubleKind.NODE and trouble.node is not None:
            self._lost.add(trouble.node)
        if self._given.policy.notify and answer.action is not RunAction.NONE:
            document = msgspec.json.encode({"trouble": trouble, "answer": answer})
            self._launcher.notify(self._given.policy.notify, document)

    def _send_report_in_background(
        self, report: JobReport, learned: Callable[[JobReportReply], object] = lambda _: None
    ) -> None:
        """Report to the daemon in a separate thread: it may take two seconds, or be just away."""
        work = partial(retry_supervisor_report, report, self._send_report, learned=learned)
        threading.Thread(target=work, name="tell", daemon=True).start()

    def _send_report(self, report: JobReport) -> JobReportReply | None:
        """Send a report, never after the last one: the daemon takes a later one for the end of a
        wish."""
        with self._sending:
            return JobReportReply(ok=False) if self._left else send_job_report(report)


def retry_supervisor_report(
    report: JobReport,
    say: Callable[[JobReport], JobReportReply | None] = send_job_report,
    sleep: Callable[[float], object] = time.sleep,
    learned: Callable[[JobReportReply], object] = lambda _: None,
) -> None:
    """Report again where no head node accepted it: a word that is lost costs a run that is well."""
    for pause in (*PAUSES, None):
        reply = say(report)
        if reply is not None and not reply.again:
            learned(reply)
            return
        if pause is not None:
            sleep(pause)


def find_nodes_with_recent_job_failures(
    past: Sequence[PastJobFailure], policy: RunPolicy, now: datetime
) -> set[NodeName]:
    """Return nodes that have proved bad for this job lately: taken last, should Slurm give them
    again."""
    offenders = set()
    for trouble in (one.trouble for one in past):
        lately = (now - trouble.at).total_seconds() < policy.window_s
        if trouble.node is not None and trouble.kind in CERTAIN and lately:
            offenders.add(trouble.node)
    return offenders


def _describe_missing_daemon_action(reply: JobReportReply | None) -> str:
    if reply is None:
        return "no daemon was reached: using scontrol"
    return f"the daemon does not act ({reply.text}): by Slurm's own means"
