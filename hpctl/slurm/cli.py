"""The Scheduler by scontrol and scancel: works with every Slurm from 22.05 on.

Text in every release: `--json` costs 5 to 20 times as much (docs/adr/0050).
Reads are repeated (three times, jittered); orders are sent once.

Orders for many nodes go as few updates: by equal Reason, a hundred nodes in one hostlist.

A reservation's first fields are the same from 22.05 to 26.05. What 22.05.8 does was seen there: an
update replaces the whole list of nodes, or refuses it whole where one of the new ones has a job
("Requested nodes are busy") or another reservation; `Nodes=` empty is accepted and changes nothing,
so that no nodes means to delete; a change makes slurmctld look at its queue. The nodes of a
reservation bear the flag RESERVED only at slurmctld's next look, seconds later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from hpctl.core.compat import UTC
from hpctl.core.hostlist import batches, fold, valid_name
from hpctl.core.model import (
    Attempt,
    JobId,
    NodeName,
    Outcome,
    OutcomeKind,
    RecoveryId,
    SchedulerView,
    SlurmNode,
    reason_owner,
)
from hpctl.core.reach import SLURMCTLD_REASONS
from hpctl.errors import Unavailable
from hpctl.slurm import nodes as rules
from hpctl.slurm import requeue as sequence
from hpctl.slurm.errors import outcome
from hpctl.slurm.nodes import NO_SUCH_NODE
from hpctl.slurm.read import Reader
from hpctl.slurm.records import Hostlists, JobRecord
from hpctl.slurm.run import Runner

BATCH = 100
"""Nodes in one update: a refusal costs at most this many single repeats."""

Rule = Callable[[SlurmNode | None, str], Outcome | None]
Send = Callable[[Sequence[str], str], Outcome]


def update(
    wanted: Mapping[NodeName, str],
    seen: Mapping[NodeName, SlurmNode],
    rule: Rule,
    send: Send,
    *,
    with_reason: bool,
) -> dict[NodeName, Outcome]:
    """An Outcome for every wanted node: the rule's, or that of the update it went out in.

    `send(names, reason)` sends one update; `with_reason` says whether the text of a node is
    the Reason to send (a RESUME has none, so all its nodes go together).
    """
    answers: dict[NodeName, Outcome] = {}
    groups: dict[str, list[NodeName]] = {}
    for name, text in wanted.items():
        answer = rule(seen.get(name), text)
        if answer is not None:
            answers[name] = answer
        else:
            groups.setdefault(text if with_reason else "", []).append(name)
    for reason, names in groups.items():
        for part in batches(names, BATCH):
            answers |= _one_batch(part, reason, send)
    return {name: answers[name] for name in wanted}


def singly(
    wanted: Mapping[NodeName, str],
    update: Callable[[Mapping[NodeName, str]], Mapping[NodeName, Outcome]],
) -> dict[NodeName, Outcome]:
    """The same one by one, where nothing else may come between the look and the order."""
    return {n: o for name in wanted for n, o in update({name: wanted[name]}).items()}


def _one_batch(names: Iterable[str], reason: str, send: Send) -> dict[NodeName, Outcome]:
    """One update for all; where it is refused, one each, so that each has its own answer.

    slurmctld stops at the first bad name and may have done those before it: DRAIN, DOWN and
    RESUME can be said twice. What may have been done as a whole is not repeated.
    """
    targets = [NodeName(name) for name in names]
    sent = send(targets, reason)
    if sent.kind is not OutcomeKind.REJECTED or sent.transient or len(targets) == 1:
        return dict.fromkeys(targets, sent)
    return {name: send([name], reason) for name in targets}


_HEAD = re.compile(r"^ReservationName=(?P<name>\S+) .*? Nodes=(?P<nodes>\S*) ", re.MULTILINE)

NOBODY = "root"
"""Whose jobs may use it: a reservation needs somebody, and root runs none."""

_GONE = "ESLURM_RESERVATION_INVALID"


def parse_reservations(text: str) -> dict[str, tuple[NodeName, ...]]:
    """The nodes of each reservation of `scontrol show reservation -o`."""
    hosts = Hostlists()
    return {found["name"]: hosts(found["nodes"]) for found in _HEAD.finditer(text)}


def read(reader: Reader) -> Mapping[str, tuple[NodeName, ...]]:
    """All reservations. Raises Unavailable."""
    return parse_reservations(reader.text("show", "reservation", "-o"))


def reserve(reader: Reader, name: str, nodes: Sequence[NodeName]) -> Outcome:
    """See ports.Scheduler.reserve."""
    try:
        held = read(reader).get(name)
    except Unavailable as error:
        return Outcome.rejected("unavailable", str(error), transient=True)
    if held is not None and set(held) == set(nodes):
        return Outcome.accepted("it holds them already")
    if not nodes:
        if held is None:
            return Outcome.accepted("there is none")
        sent = outcome(reader.runner.run("scontrol", "delete", f"ReservationName={name}"))
        return Outcome.accepted("there is none") if sent.code == _GONE else sent
    wanted = f"Nodes={fold(nodes)}"
    if held is not None:
        sent = outcome(reader.runner.run("scontrol", "update", f"ReservationName={name}", wanted))
    else:
        words = [f"ReservationName={name}", "StartTime=now", "Duration=UNLIMITED"]
        words += [f"Users={NOBODY}", wanted]
        sent = outcome(reader.runner.run("scontrol", "create", "reservation", *words))
    if sent.kind is OutcomeKind.REJECTED and sent.code == _GONE:
        return Outcome.rejected(sent.code, sent.detail, transient=True)
    return sent


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
        return read(self.reader)

    def reserve(self, name: str, nodes: Sequence[NodeName]) -> Outcome:
        """`scontrol create|update|delete` of a reservation, whichever it takes."""
        return reserve(self.reader, name, nodes)

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


class SlurmByHand:
    """`hpctl.ports.ByHand` over Slurm's own commands."""

    def __init__(self, cli: CliScheduler) -> None:
        self._cli = cli

    def view(self) -> SchedulerView:
        """See ports.ByHand."""
        return self._cli.view()

    def close(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """See ports.ByHand."""
        return self._cli.update(nodes, "DRAIN", close)

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """See ports.ByHand."""
        return self._cli.update(nodes, "DOWN", down)

    def reopen(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """See ports.ByHand."""
        return self._cli.update(nodes, "RESUME", reopen)


def close(node: SlurmNode | None, reason: str) -> Outcome | None:
    """A node that somebody closed (DRAIN, FAIL, or DOWN by hand) is closed: that is enough."""
    if node is None:
        return NO_SUCH_NODE
    if not reason.isprintable() or not reason or reason_owner(reason) is not None:
        return Outcome.rejected("bad_reason", f"not an operator's Reason: {reason!r}")
    if node.drained and _ours(node, reason):
        return Outcome.accepted("it is drained already")
    by_hand = node.down and bool(node.reason) and not node.reason.startswith(SLURMCTLD_REASONS)
    if node.closed or by_hand:
        return Outcome.rejected("closed", f"{node.name} is closed already: {node.reason}")
    return None


def down(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Only a node that is DRAIN with this Reason."""
    if node is None:
        return NO_SUCH_NODE
    if not (node.drained and _ours(node, reason)):
        return Outcome.rejected("not_ours", f"{node.name} has another Reason: {node.reason}")
    return Outcome.accepted("it is down already") if node.down else None


def reopen(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Only with this Reason, and a slurmd that answers: RESUME makes a dead node IDLE, too."""
    if node is None:
        return NO_SUCH_NODE
    if node.in_service:
        return Outcome.accepted("it is in service already")
    if not _ours(node, reason):
        return Outcome.rejected("not_ours", f"{node.name} has another Reason: {node.reason}")
    if not node.responding:
        text = f"the slurmd of {node.name} does not answer: RESUME would offer it to jobs"
        return Outcome.rejected("not_responding", text, transient=True)
    return None


def _ours(node: SlurmNode, reason: str) -> bool:
    """slurmctld appends ` : Not responding` and the like to a Reason."""
    return node.reason == reason or node.reason.startswith(f"{reason} : ")
