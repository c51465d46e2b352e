"""One step at a time: start it, end it, and what was reported of it meanwhile.

What happens comes through one queue: threads and signal handlers put in, only the loop takes out.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints import files
from hpctl.checkpoints.resume import ResumePoint, find_baseline_resume_point_of_step
from hpctl.jobs import elastic
from hpctl.jobs.elastic import SECRET, controller
from hpctl.jobs.elastic.wire import send_controller_request
from hpctl.jobs.hangs.ras_judge import HangWithRasEvidence, JobRankResolver
from hpctl.jobs.hangs.stacks import diagnose_hang_from_step_stacks
from hpctl.jobs.logs.engine import LogRuleVerdict
from hpctl.jobs.restart import RestartMethod
from hpctl.jobs.run.ending import StepEndEvidence
from hpctl.jobs.run.flight import build_flight_recorder_environment, delete_old_flight_dumps
from hpctl.jobs.run.output import RankProgressListener, SrunOutputReader
from hpctl.jobs.run.progress import TrackedRankProgress
from hpctl.jobs.run.progress_notes import ProgressNote
from hpctl.jobs.run.settings import RunSettings
from hpctl.jobs.run.srun import (
    ENDING,
    RunningStep,
    SrunCommand,
    SrunLine,
    StepLauncher,
    build_step_arguments,
    restrict_srun_to_step_nodes,
)
from hpctl.jobs.run.timeouts import CollectiveTimeoutEvidence, CollectiveTimeoutInvestigation
from hpctl.jobs.run_failure import FailedRunContext, diagnose_run_hang
from hpctl.slurm.step_environment import make_step_environment
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.user_files import is_own_file
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.policy_file import RunPolicyFile
from hpctl.vocabulary.run_policy import RunActionDecision, RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

LOOK_S = 2.0
"""How often the account is read."""
ASK_S = 5.0
"""How long the launcher has to answer that it restarts the ranks."""


def wrap_srun_command_with_launcher(
    srun: SrunCommand, way: RestartMethod, count: int, policy: RunPolicy, path: Path | None
) -> tuple[SrunCommand, Mapping[str, str]]:
    """Return the srun command with a launcher before the command, and what its environment needs.

    `count`: ranks of a node, 0 for as many as GPUs.
    """
    codes = (*policy.final_exit_codes, *policy.corruption_exit_codes)
    command = elastic.build_rank_launcher_command(
        srun.command, count, in_process=way is RestartMethod.IN_PROCESS, final_exit_codes=codes
    )
    # One task a node would else be bound to one task's share of its cores.
    bind = () if "cpu-bind" in srun.given else ("--cpu-bind=none",)
    srun = replace(srun, options=(*srun.options, *bind), command=tuple(command))
    return srun, elastic.build_rank_launcher_environment(path)


@dataclass
class RankGroupRecordReader:
    """A reader that follows one step's account. Never raises: without one the exit code must do."""

    path: Path | None
    secret: str = field(default="", repr=False)
    """What the launchers of this step know."""
    _reported: set[int] = field(default_factory=set)
    _next: float = 0.0
    _generation: int = 0
    _turned: bool = False

    def ask(self, host: str, why: str) -> str:
        """Have the launcher on the step's first node, `host`, restart all ranks. Why it does not;
        empty where it does."""
        record = self._read_record_file()
        if record is None or record.verdict != "running" or not record.generations:
            return "the launcher has not begun, or has ended"
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        request = (host, record.run_id, self.secret, f"restart: {why}")
        threading.Thread(
            target=lambda: answers.put(_send_rank_restart_request(*request)), daemon=True
        ).start()
        try:
            answer = answers.get(timeout=ASK_S)
        except queue.Empty:
            answer = f"the launcher on {host} did not answer within {ASK_S:g} s"
        if answer != "ok":
            return answer.removeprefix("no: ")
        # It was reported already why that generation ended.
        self._reported.add(record.generations[-1].number)
        return ""

    def poll_rank_restart_flag(self) -> bool:
        """Return whether new ranks have been started in the step since this was asked last."""
        turned, self._turned = self._turned, False
        return turned

    def restarts(self) -> list[Trouble]:
        """Return the troubles that the launcher has answered with a restart since the last look."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + LOOK_S
        record = self._read_record_file()
        if record is None:
            return []
        running = max((each.number for each in record.generations), default=0)
        self._turned = self._turned or running > self._generation
        self._generation = running
        found = []
        for each in record.generations:
            if each.number < running and each.number not in self._reported:
                self._reported.add(each.number)
                trouble = controller.find_generation_failure(each)
                found += [trouble] if trouble is not None else []
        return found

    def find_last_generation_failure(self) -> Trouble | None:
        """Return what ended the last generation, where it ended badly."""
        record = self._read_record_file()
        return (
            controller.find_generation_failure(record.generations[-1])
            if record and record.generations
            else None
        )

    def _read_record_file(self) -> controller.RankGroupRecord | None:
        if self.path is None:
            return None
        try:
            return controller.read_rank_group_record(self.path)
        except (OSError, HpctlError):
            return None


def _send_rank_restart_request(host: str, run_id: str, secret: str, line: str) -> str:
    try:
        return send_controller_request(host, run_id, secret, line)
    except ServiceUnavailable as error:
        return str(error)


RULE_KINDS = {
    "hang": TroubleKind.HANG,
    "nan": TroubleKind.NAN,
    "spike": TroubleKind.SPIKE,
    "slow": TroubleKind.SLOW,
    # A number past its threshold: the training operator calls that SLOW.
    "threshold": TroubleKind.SLOW,
    "upload": TroubleKind.UPLOAD,
}
"""`seen` is none of these: the line is there, which the user wants in the log."""


def make_log_rule_failure(verdict: LogRuleVerdict) -> Trouble | None:
    """Return the trouble that a rule saw; None where the rule only reports a line."""
    kind = RULE_KINDS.get(verdict.what)
    if kind is None:
        return None
    return Trouble(
        kind=kind,
        at=datetime.fromtimestamp(verdict.at, UTC),
        why=f"log rule {verdict.rule!r}: {verdict.why}",
        signature=f"{verdict.what} {verdict.rule}",
        evidence=verdict.line,
    )


class StepEndedEvent(Struct, frozen=True):
    """srun is gone. `code` is the shell's."""

    step: RunningStep
    code: int


class SignalReceivedEvent(Struct, frozen=True):
    """A signal reached the supervisor."""

    number: int


class ClusterPolicyReceivedEvent(Struct, frozen=True):
    """The head node named the recovery policies that the job's own goes over."""

    layers: tuple[RunPolicyFile, ...]


class PreviousRunEndReceivedEvent(Struct, frozen=True):
    """The head node named why the job's run before this one ended."""

    why: str


Event = (
    StepEndedEvent
    | SignalReceivedEvent
    | SrunLine
    | Trouble
    | ClusterPolicyReceivedEvent
    | PreviousRunEndReceivedEvent
)


class SupervisorEventQueue:
    """The queue. `put` may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.put = self._queue.put

    def next(self, seconds: float) -> Event | None:
        """Return the next event, None where there is none for so long."""
        try:
            return self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None

    def forget(self) -> None:
        """Drop what still came from the step before. What is for the run stays."""
        kept = []
        while (event := self.next(0)) is not None:
            kept += (
                [event]
                if isinstance(event, SignalReceivedEvent | ClusterPolicyReceivedEvent)
                else []
            )
        for event in kept:
            self.put(event)


KILL_S = 0.5
"""From SIGKILL until nodes whose tasks have not ended are asked whether they are there at all."""
PROBE_S, SURE_S = 1.5, 6.0
"""How long such a node has to start a task; and how long where several have not."""
SEVERAL = 3
DYING_S = 30.0
"""How long ranks on a node that is there may take to die: much memory is freed slowly."""
AGAIN_S = 3.0
"""After which they get another SIGKILL: the first may not have reached a busy node's stepd."""
SAVE_LOOK_S = 1.0
WITHDRAW_S = 2.0


class StepRunner:
    """The steps of a run: starts and ends them, and keeps what was reported of each."""

    def __init__(
        self,
        given: RunSettings,
        launcher: StepLauncher,
        events: SupervisorEventQueue,
        say: Callable[[str], None],
    ) -> None:
        self._given, self._launcher, self._events, self._say = given, launcher, events, say
        self.ranks = RankProgressListener(
            given.policy, given.ras, events.put, self._add_awaited_ranks_to_hang
        )
        self._timeouts = CollectiveTimeoutInvestigation(
            given.ras,
            lambda nodes: diagnose_hang_from_step_stacks(given.job, nodes, launcher.runner.bin_dir),
        )
        listener = _StepOutputListener(events, say, self.ranks, self._timeouts)
        self._output = SrunOutputReader(given.rules, listener, also=given.logs)
        self.asked_to_end = False
        self._nodes: tuple[NodeName, ...] = ()
        self._attempt = 0
        self._overlap = False
        self._resume = ResumePoint(judged=False)
        self._after: ResumePoint | None = None
        self._earlier: set[int] = set()
        self._account: RankGroupRecordReader | None = None
        self._first = ""
        self._again = given.restart > 0

    def start(
        self,
        attempt: int,
        nodes: tuple[NodeName, ...],
        resume: ResumePoint,
        hosts: Mapping[str, NodeName],
    ) -> RunningStep:
        """Launch a step on just these nodes. Raises HpctlError where srun cannot be started."""
        given = self._given
        self._again = self._again or attempt > 1
        self._attempt = attempt
        # The last lines of the step before are not this one's.
        self._output.settle()
        self._events.forget()
        self._resume = find_baseline_resume_point_of_step(resume, given.directory, given.files)
        srun, exported = given.srun, self._build_step_environment(attempt, resume, hosts)
        if given.restart_method.has_launcher:
            path = given.account(attempt)
            srun, more = wrap_srun_command_with_launcher(
                srun, given.restart_method, given.tasks or 0, given.policy, path
            )
            self._account = RankGroupRecordReader(path, more[SECRET])
            self._first = next((host for host, name in hosts.items() if name == nodes[0]), nodes[0])
            exported |= more
        env = make_step_environment(given.environ, nodes, given.allocated)
        env.pop("HPCTL_RESUME_FROM", None)
        env.pop("HPCTL_SKIP", None)
        line = build_step_arguments(
            restrict_srun_to_step_nodes(srun, nodes),
            given.tasks_per_node,
            nodes,
            overlap=self._overlap,
        )
        sinks = self._output.begin()
        world = (given.tasks or 0) * len(nodes)
        self._nodes = nodes
        self._timeouts.begin(nodes, hosts, given.flight(attempt), world)
        try:
            return self._launcher.start(
                attempt, nodes, line, env | exported, sinks, self._handle_step_end
            )
        finally:
            self._output.close_output_descriptors()

    def take_rank_restart_failures(self) -> list[Trouble]:
        """Return the troubles that a launcher inside the step has answered with new ranks since the
        last look."""
        if self._account is None:
            return []
        troubles = self._account.restarts()
        if self._account.poll_rank_restart_flag():
            self._discard_rank_reports()
        return troubles

    def restart_ranks(self, step: RunningStep, trouble: Trouble, save_first_s: float) -> str:
        """Have the launchers inside the step restart all ranks; return why they do not, empty where
        they do."""
        if self._account is None:
            return "the step has no launcher"
        self.save_first(step, save_first_s)
        refused = self._account.ask(self._first, trouble.why)
        if not refused:
            self._discard_rank_reports()
        return refused

    def _discard_rank_reports(self) -> None:
        """Discard what the old ranks reported: the new ones may take as long as a first start."""
        self.ranks.renew()
        self._output.renew()
        self._timeouts.renew()
        delete_old_flight_dumps(self._given.history, self._attempt)

    def cancel_blocked_step(self, step: RunningStep) -> bool:
        """Return whether Slurm holds this step back for the last one; if so, it is withdrawn, and
        the next one will overlap it."""
        if self._overlap or not self._earlier:
            return False
        if not self._launcher.is_step_blocked(step, self._earlier):
            return False
        self._overlap = True
        self._launcher.cancel_uncreated_step(step)
        if self.await_step_end(step, WITHDRAW_S) is None:
            self._launcher.kill_srun_of_step(step)
            self.await_step_end(step, WITHDRAW_S)
        return True

    def stop(self, step: RunningStep) -> tuple[int, dict[NodeName, str]]:
        """End a step now. Its code, and the nodes that are gone, or whose ranks do not die."""
        self._launcher.kill(step)
        code = self.await_step_end(step, KILL_S)
        if code is not None:
            return code, {}
        gone = self._find_unreachable_nodes(step)
        limit, again = time.monotonic() + DYING_S, time.monotonic() + AGAIN_S
        while set(self._list_nodes_without_task_end(step)) - set(gone) and time.monotonic() < limit:
            code = self.await_step_end(step, 0.2)
            if code is not None:
                return code, {}
            if time.monotonic() >= again:
                self._launcher.kill(step)
                again = time.monotonic() + AGAIN_S
        why = f"its ranks did not end within {DYING_S:g} s of SIGKILL"
        lost = dict.fromkeys(self._list_nodes_without_task_end(step), why) | gone
        self._launcher.kill_srun_of_step(step)
        code = self.await_step_end(step, KILL_S)
        # Slurm keeps the old step, and all its nodes, until each of them has answered.
        self._overlap = True
        return 128 + signal.SIGKILL if code is None else code, lost

    def _list_nodes_without_task_end(self, step: RunningStep) -> list[NodeName]:
        """Return its nodes of which srun has not reported that a task ended."""
        heard = {end.node for end in self._output.settle().ends}
        return [node for node in step.nodes if node not in heard]

    def _find_unreachable_nodes(self, step: RunningStep) -> dict[NodeName, str]:
        """Return the silent nodes that do not answer; none where that says nothing of them."""
        silent = self._list_nodes_without_task_end(step)
        missing = list(silent)
        for seconds in (PROBE_S, SURE_S):
            there = self._launcher.answering(missing, seconds) if missing else set()
            if there is None:
                return {}
            missing = [node for node in missing if node not in there]
            if len(missing) < SEVERAL:
                break
        if len(missing) == len(step.nodes):
            # Not one node answered: then it is Slurm that does not start anything just now.
            return {}
        return dict.fromkeys(missing, "its ranks did not end at SIGKILL, and it does not answer")

    def collect_timeout_evidence(self) -> tuple[CollectiveTimeoutEvidence, JobRankResolver]:
        """Return what the witnesses say of the ranks of a step that has ended."""
        return self._timeouts.gather(self._map_tracked_rank_progress())

    def _add_awaited_ranks_to_hang(self, hang: HangWithRasEvidence) -> Trouble:
        """Return the hang of the running step with whom its ranks wait for."""
        tracked = self._map_tracked_rank_progress()
        tasks = (
            {}
            if self._given.restart_method.has_launcher
            else self._given.map_tasks_to_nodes(self._nodes)
        )
        tail = self._output.copy_rank_output_tail()
        facts = FailedRunContext(
            tail=tail, rank_nodes=_map_ranks_to_nodes(tracked), task_nodes=tasks
        )
        return diagnose_run_hang(
            hang.trouble,
            facts,
            lambda: self._timeouts.look(hang.finding, tracked),
            self._given.policy,
        )

    def _map_tracked_rank_progress(self) -> Mapping[int, TrackedRankProgress]:
        """Return the ranks that have reported themselves in this step."""
        return dict(self.ranks.progress.ranks) if self.ranks.progress else {}

    def facts(self, evidence: StepEndEvidence, nodes: Sequence[NodeName]) -> FailedRunContext:
        """Return what is known of a step on these nodes that has ended, besides its trouble.

        Where srun starts launchers, the tasks whose ends it reports are not the ranks.
        """
        launched = self._given.restart_method.has_launcher
        tasks = {} if launched else self._given.map_tasks_to_nodes(nodes)
        return FailedRunContext(
            tail=evidence.tail,
            ends=() if launched else evidence.ends,
            world=len(tasks),
            rank_nodes=_map_ranks_to_nodes(self._map_tracked_rank_progress()),
            task_nodes=tasks,
            nodes=nodes,
        )

    def evidence(self, code: int, lost: Mapping[NodeName, str], gpus: int = 0) -> StepEndEvidence:
        """Return all that is known of a step that has ended. `gpus`: a node has so many by
        Slurm."""
        heard = self._output.settle()
        self.ranks.look()
        mark = self._given.completion_marker_path
        self._after = self._given.find_newest_checkpoint()
        return StepEndEvidence(
            code=code,
            ends=list(heard.ends),
            failed=list(heard.failed),
            lost=lost,
            tail=heard.tail.list_lines(),
            marked=self.ranks.done or (mark is not None and is_own_file(mark)),
            stepped=self.ranks.step is not None,
            before=self._resume,
            after=self._after,
            step=self.ranks.step,
            account=self._account.find_last_generation_failure() if self._account else None,
            again=self._again,
            gpus=self._given.gpus(gpus),
        )

    def find_checkpoint_at_step_end(self, answer: RunActionDecision | None) -> ResumePoint | None:
        """Return where the next step resumes, if the last one's end has just shown it: a large
        checkpoint takes a second to prove. None: search again."""
        found, self._after = self._after, None
        places = self._given.resume_checkpoint_locations
        now = answer is not None and answer.after_s == 0
        if not now or found is None or not found.path:
            return None
        if places is None or not places.is_directory_only:
            return None
        files.record_job_start(places.directory)
        return found

    def save_first(self, step: RunningStep, seconds: float) -> None:
        """Ask the ranks to save, and wait for a newer checkpoint, for so long at most."""
        if seconds <= 0:
            return
        old = self._given.find_newest_checkpoint()
        self._say(f"asking the ranks to save, and waiting {seconds:g} s at most")
        self.request_checkpoint_save(step)
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.await_step_end(step, SAVE_LOOK_S) is None:
            if self._given.find_newest_checkpoint() != old:
                return

    def request_checkpoint_save(self, step: RunningStep) -> None:
        """Send the ranks that handle it the signal at which they save; it would end others."""
        number = self._given.save_signal
        name = signal.Signals(number).name

        def report_save_request_answer(asked: int | None, why: str) -> None:
            if asked:
                self._say(f"{asked} processes have a handler for {name} and are asked to save")
            elif asked == 0:
                self._say(f"no process has a handler for {name}: none is asked to save")
            elif self._given.has_save_signal:
                self._say(f"all ranks get {name}: who handles it is not known ({why})")
                self._launcher.signal(step, number)
            else:
                self._say(f"none is asked to save: who handles {name} is not known ({why})")

        self._launcher.request_checkpoint_save(step, number, report_save_request_answer)

    def forward_signal(self, step: RunningStep, number: int) -> None:
        """Pass a signal to the supervisor on to the ranks. A signal to end it ends the run, too."""
        if number in ENDING:
            self.asked_to_end = True
        if number == signal.SIGUSR1:
            self._say("asked to save")
            self.request_checkpoint_save(step)
            return
        self._say(f"{signal.Signals(number).name} is passed on to the ranks")
        self._launcher.signal(step, number)

    def await_step_end(self, step: RunningStep, seconds: float) -> int | None:
        """Return the step's code, None if it has not ended by then. Signals are passed on
        meanwhile."""
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            match self._events.next(left):
                case StepEndedEvent(step=ended, code=code) if ended is step:
                    return code
                case SignalReceivedEvent(number=number):
                    self.forward_signal(step, number)
        return None

    def pause(self, seconds: float) -> bool:
        """Wait between steps; False when a signal asks to end."""
        limit = time.monotonic() + seconds
        while not self.asked_to_end and (left := limit - time.monotonic()) > 0:
            match self._events.next(left):
                case SignalReceivedEvent(number=number) if number in ENDING:
                    self.asked_to_end = True
        return not self.asked_to_end

    def _build_step_environment(
        self, attempt: int, resume: ResumePoint, hosts: Mapping[str, NodeName]
    ) -> dict[str, str]:
        """Return what the ranks find in their environment."""
        exported = {"HPCTL_ATTEMPT": str(attempt), "HPCTL_RESTART_COUNT": str(attempt - 1)}
        if resume.path is not None:
            exported["HPCTL_RESUME_FROM"] = resume.path
        if resume.skip:
            exported["HPCTL_SKIP"] = resume.skip
        here = list(hosts.values()) == [self._given.environ.get("SLURMD_NODENAME")]
        exported["NCCL_RAS_ADDR"] = str(self._given.ras)
        delete_old_flight_dumps(self._given.history, attempt)
        exported |= build_flight_recorder_environment(
            self._given.environ, self._given.flight(attempt)
        )
        address = self.ranks.begin(hosts, here=here, file=self._given.progress_file)
        if address:
            exported["HPCTL_PROGRESS"] = address
        mark = _delete_old_completion_marker(self._given.completion_marker_path)
        if mark is not None:
            exported["HPCTL_DONE"] = str(mark)
        return exported

    def _handle_step_end(self, step: RunningStep, code: int) -> None:
        self._earlier.add(step.process.pid)
        self._events.put(StepEndedEvent(step, code))


class _StepOutputListener:
    """A listener that passes what the output contains to the supervisor's loop, and to those who
    wait for it."""

    def __init__(
        self,
        events: SupervisorEventQueue,
        say: Callable[[str], None],
        ranks: RankProgressListener,
        timeouts: CollectiveTimeoutInvestigation,
    ) -> None:
        self._events, self._say = events, say
        self._ranks, self._timeouts = ranks, timeouts

    def handle_srun_line(self, line: SrunLine) -> None:
        self._events.put(line)

    def handle_rule_verdict(self, verdict: LogRuleVerdict) -> None:
        trouble = make_log_rule_failure(verdict)
        if trouble is not None:
            self._events.put(trouble)
        else:
            self._say(f"log rule {verdict.rule!r}: {verdict.why}: {verdict.line}")

    def handle_progress_note(self, note: ProgressNote) -> None:
        self._ranks.add_progress_note_from_log(note)

    def handle_collective_timeout(self) -> None:
        self._timeouts.handle_rank_timeout()


def _map_ranks_to_nodes(ranks: Mapping[int, TrackedRankProgress]) -> dict[int, NodeName]:
    """Return the nodes of ranks, as they have reported them."""
    return {number: rank.node for number, rank in ranks.items() if rank.node is not None}


def _delete_old_completion_marker(mark: Path | None) -> Path | None:
    """Return the mark's path, with no mark of an earlier attempt there; None where it cannot be
    had."""
    if mark is None:
        return None
    try:
        mark.unlink(missing_ok=True)
    except OSError:
        return None
    return mark
