"""The Scheduler by scontrol and scancel: works with every Slurm from 22.05 on.

Text in every release: `--json` costs 5 to 20 times as much (docs/adr/0050).
Reads are repeated (three times, jittered); orders are sent once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from hpctl.core.compat import UTC
from hpctl.core.hostlist import fold, valid_name
from hpctl.core.model import (
    Attempt,
    JobId,
    NodeName,
    Outcome,
    OutcomeKind,
    RecoveryId,
    SchedulerView,
)
from hpctl.errors import Unavailable
from hpctl.slurm import nodes as rules
from hpctl.slurm import requeue as sequence
from hpctl.slurm import reservations
from hpctl.slurm.batch import Rule, singly, update
from hpctl.slurm.errors import outcome
from hpctl.slurm.read import Reader
from hpctl.slurm.records import JobRecord
from hpctl.slurm.run import Runner


def _utc_now() -> datetime:
    return datetime.now(UTC)


class CliScheduler:
    """`hpctl.ports.Scheduler` over Slurm's own commands, run by `runner`.

    Slurm gives up on a dead or silent slurmctld after 10 s (MessageTimeout) by itself: a runner
    with a longer timeout gets Slurm's own words.
    """

    def __init__(
        self, runner: Runner | None = None, *, now: Callable[[], datetime] = _utc_now
    ) -> None:
        self.runner = runner or Runner()
        self.reader = Reader(self.runner, now)

    def version(self) -> tuple[int, int, int]:
        """The release of the commands. Raises Unavailable."""
        return self.reader.version()

    def show_config(self) -> dict[str, str]:
        """`scontrol show config` as a dict. Raises Unavailable."""
        return self.reader.config()

    def view(self) -> SchedulerView:
        """All nodes and jobs, by three commands side by side. Raises Unavailable."""
        return self.reader.view()

    def part(self, nodes: Collection[NodeName]) -> SchedulerView:
        """All jobs and these nodes, by three commands side by side. Raises Unavailable."""
        return self.reader.part(nodes)

    def marks(self) -> Mapping[NodeName, str]:
        """By one `sinfo`. Raises Unavailable."""
        return self.reader.marks()

    def booted(self) -> datetime | None:
        """By `scontrol show config`. Raises Unavailable."""
        return self.reader.booted()

    def drain(
        self, nodes: Mapping[NodeName, str], *, spare_marks: bool = False
    ) -> Mapping[NodeName, Outcome]:
        """DRAIN with a Reason, one update for each Reason and hundred nodes."""
        if spare_marks:
            return singly(nodes, lambda one: self.update(one, "DRAIN", rules.drain_unmarked))
        return self.update(nodes, "DRAIN", rules.drain)

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """DOWN with the same Reason, where the node is DRAIN with our recovery's Reason."""
        return self.update(nodes, "DOWN", rules.down)

    def give_back(self, nodes: Mapping[NodeName, RecoveryId]) -> Mapping[NodeName, Outcome]:
        """RESUME where the Reason is still that recovery's and the slurmd answers."""
        return self.update(nodes, "RESUME", rules.give_back)

    def signal(self, attempt: Attempt, signal: str) -> Outcome:
        """`scancel --full --signal`, to batch script and steps."""
        record = self._look(attempt.job)
        if isinstance(record, Outcome):
            return record
        refusal = sequence.signal(record, attempt)
        if refusal is not None or record is None:
            return refusal or sequence.NO_SUCH_JOB
        return outcome(
            self.runner.run("scancel", "--full", f"--signal={signal}", record.command_id)
        )

    def requeue(self, attempt: Attempt) -> Outcome:
        """`scontrol requeue`, by the rules of `hpctl.slurm.requeue`."""
        record = self._look(attempt.job)
        if isinstance(record, Outcome):
            return record
        send = sequence.requeue(record, attempt)
        if isinstance(send, Outcome):
            return send
        ran = self.runner.run("scontrol", "requeue", send.command_id)
        return sequence.requeue_answer(outcome(ran))

    def start_now(
        self,
        job: JobId,
        exclude: Sequence[NodeName],
        forgive: Sequence[NodeName] = (),
        after_s: float = 0.0,
        elastic: bool = False,
    ) -> Outcome:
        """`scontrol update ExcNodeList=... StartTime=now`, by the same rules."""
        record = self._look(job)
        if isinstance(record, Outcome):
            return record
        try:
            known = self._known(record, exclude)
        except Unavailable as error:
            return _unavailable(error)
        send = sequence.start_now(record, exclude, known, forgive, elastic=elastic)
        if isinstance(send, Outcome):
            return send
        words = [f"JobId={send.command_id}"]
        if send.exclude is not None:
            words.append(f"ExcNodeList={fold(send.exclude) if send.exclude else ''}")
        if send.tasks is not None:
            words.append(f"NumTasks={send.tasks}")
        words.append(sequence.start_time(after_s))
        sent = outcome(self.runner.run("scontrol", "update", *words))
        if send.release and sent.kind is OutcomeKind.ACCEPTED:
            return outcome(self.runner.run("scontrol", "release", send.command_id))
        return sent

    def hold(self, job: JobId, why: str) -> Outcome:
        """`scontrol uhold`, then the Comment: a job that runs on is worse than no comment."""
        record = self._look(job)
        if isinstance(record, Outcome):
            return record
        refusal = sequence.hold(record)
        if refusal is not None or record is None:
            return refusal or sequence.NO_SUCH_JOB
        held = outcome(self.runner.run("scontrol", "uhold", record.command_id))
        if held.kind is not OutcomeKind.ACCEPTED:
            return held
        comment = sequence.comment(record.job.comment, why)
        told = self.runner.run("scontrol", "update", f"JobId={record.command_id}", comment)
        return held if told.ok else Outcome.accepted(f"held, but not told: {told.said}")

    def reservations(self) -> Mapping[str, tuple[NodeName, ...]]:
        """`scontrol show reservation`. Raises Unavailable."""
        return reservations.read(self.reader)

    def reserve(self, name: str, nodes: Sequence[NodeName]) -> Outcome:
        """`scontrol create|update|delete` of a reservation, whichever it takes."""
        return reservations.reserve(self.reader, name, nodes)

    def _look(self, job: JobId) -> JobRecord | Outcome | None:
        """The job now; a failed look is an order that was not sent."""
        try:
            return self.reader.job(job)
        except Unavailable as error:
            return _unavailable(error)

    def _known(self, record: JobRecord | None, exclude: Sequence[NodeName]) -> set[NodeName]:
        wanted = {*exclude, *(record.job.excluded if record else ())}
        return set(self.reader.nodes(sorted(wanted))) if wanted else set()

    def update(
        self, wanted: Mapping[NodeName, str], state: str, rule: Rule
    ) -> dict[NodeName, Outcome]:
        """Look at the nodes, answer for those that the rule decides, send the rest grouped."""
        try:
            seen = self.reader.nodes([name for name in wanted if valid_name(name)])
        except Unavailable as error:
            return dict.fromkeys(wanted, _unavailable(error))

        def send(names: Sequence[str], reason: str) -> Outcome:
            words = [f"NodeName={fold(names)}", f"State={state}"]
            if reason:
                words.append(f"Reason={reason}")
            return outcome(self.runner.run("scontrol", "update", *words))

        return update(wanted, seen, rule, send, with_reason=state != "RESUME")


def _unavailable(error: Unavailable) -> Outcome:
    return Outcome.rejected("unavailable", str(error), transient=True)
