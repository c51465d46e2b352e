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

import math
import os
import pwd
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from hpctl.slurm import rules
from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.records import HostlistCache, SlurmJobRecord
from hpctl.slurm.run import UNAVAILABLE, classify_command_result
from hpctl.toolkit.bounds import parse_count, parse_slurm_time
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.hostlist import fold_hostlist, is_host_name, split_names_into_batches
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName, RecoveryId
from hpctl.vocabulary.node_test import COMMENT_OF_TEST, NodeTestJobSpec
from hpctl.vocabulary.outcome import NOT_LEADING, Outcome, OutcomeKind
from hpctl.vocabulary.slurm_facts import SlurmNode, SlurmReservation

BATCH = 100
"""Nodes in one update: a refusal costs at most this many single repeats."""

Rule = Callable[[SlurmNode | None, str], Outcome | None]
Send = Callable[[Sequence[str], str], Outcome]


def send_grouped_node_updates(
    wanted: Mapping[NodeName, str],
    seen: Mapping[NodeName, SlurmNode],
    rule: Rule,
    send: Send,
    *,
    with_reason: bool,
) -> dict[NodeName, Outcome]:
    """Return an Outcome for every wanted node: the rule's, or that of the update it went out in.

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
        for part in split_names_into_batches(names, BATCH):
            answers |= _send_node_update_batch(part, reason, send)
    return {name: answers[name] for name in wanted}


def send_node_updates_one_by_one(
    wanted: Mapping[NodeName, str],
    update: Callable[[Mapping[NodeName, str]], Mapping[NodeName, Outcome]],
) -> dict[NodeName, Outcome]:
    """Send the updates one by one, where nothing else may come between the look and the order."""
    outcomes: dict[NodeName, Outcome] = {}
    for name, reason in wanted.items():
        outcomes |= update({name: reason})
    return outcomes


def _send_node_update_batch(
    names: Iterable[str], reason: str, send: Send
) -> dict[NodeName, Outcome]:
    """Send one update for all; where it is refused, one each, so that each has its own answer.

    slurmctld stops at the first bad name and may have done those before it: DRAIN, DOWN and
    RESUME can be ordered twice. What may have been done as a whole is not repeated.
    """
    targets = [NodeName(name) for name in names]
    sent = send(targets, reason)
    if sent.kind is not OutcomeKind.REJECTED or sent.transient or len(targets) == 1:
        return dict.fromkeys(targets, sent)
    return {name: send([name], reason) for name in targets}


_HEAD = re.compile(
    r"^ReservationName=(?P<name>\S+) (?:StartTime=(?P<start>\S+) EndTime=(?P<end>\S+) )?"
    r".*?\bNodes=(?P<nodes>\S*) .*?(?:\bFlags=(?P<flags>\S*)|$)",
    re.MULTILINE,
)

NO_USER = "root"
"""Whose jobs may use it: a reservation needs a user, and root runs no jobs."""

_GONE = "ESLURM_RESERVATION_INVALID"
_SLURM_TIME = "%Y-%m-%dT%H:%M:%S"
"""How Slurm's commands take a time; theirs is UTC, because `run` sets TZ."""
_OURS = ("--noheader", "--local", "--states=all", "--format=%A")
_ALONE = (
    *("--parsable", "--nodes=1", "--ntasks=1", "--exclusive", "--mem=0", "--no-requeue"),
    *("--export=ALL", "--chdir=/", "--input=/dev/null", "--output=/dev/null"),
)
"""A test has the node to itself, with all that it has, and is the daemon's to repeat."""
COMMENT_BYTES = 400
_PASSED = ("PATH", "LANG", "SLURM_CONF")
"""The variables of a test. sbatch itself gets no others, because every value of --export but ALL
has slurmd run a login shell of the user before the job (--get-user-env), for up to two minutes."""
_BEHIND_ALL = 2147483645
"""The highest nice value that Slurm takes."""


def make_node_test_script(command: str) -> str:
    """Return the batch script of a test, which puts the end of a failed command's output into the
    job's Comment: a shared directory for a log may be missing, and the reason must reach the head
    node where the command itself does not run.
    """
    return (
        f'said=$({{ ({command}); echo " exit code $?"; }} 2>&1 | tail -c {COMMENT_BYTES} | '
        "tr -c '[:print:]' ' ' | sed 's/ *$//')\n"
        "code=${said##* }\n"
        '[ "$code" = 0 ] || scontrol update jobid="$SLURM_JOB_ID" comment="'
        f'{COMMENT_OF_TEST}$said"\n'
        'exit "$code"'
    )


def _find_daemon_user_name() -> str:
    """Return the daemon's own user: its name, which reservations want, or its number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def parse_reservations(text: str) -> dict[str, SlurmReservation]:
    """Return each reservation of `scontrol show reservation -o`."""
    hosts = HostlistCache()
    return {
        found["name"]: SlurmReservation(
            found["name"],
            hosts(found["nodes"]),
            parse_slurm_time(found["start"] or ""),
            parse_slurm_time(found["end"] or ""),
            "MAINT" in (found["flags"] or "").split(","),
        )
        for found in _HEAD.finditer(text)
    }


class CliScheduler(SlurmCommandReader):
    """`hpctl.vocabulary.ports.Scheduler` over Slurm's own commands, run by `runner`; it reads as
    Reader does.

    Slurm itself gives up on a dead or silent slurmctld after 10 s (MessageTimeout): a runner
    with a longer timeout gets Slurm's own message.
    """

    def drain(
        self, nodes: Mapping[NodeName, str], *, spare_marks: bool = False
    ) -> Mapping[NodeName, Outcome]:
        """DRAIN with a Reason, one update for each Reason and hundred nodes."""
        if spare_marks:
            return send_node_updates_one_by_one(
                nodes,
                lambda one: self.update(
                    one, "DRAIN", rules.find_unmarked_drain_outcome_without_sending
                ),
            )
        return self.update(nodes, "DRAIN", rules.find_drain_outcome_without_sending)

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """DOWN with the same Reason, where the node is DRAIN with our recovery's Reason."""
        return self.update(nodes, "DOWN", rules.find_down_outcome_without_sending)

    def resume_nodes(self, nodes: Mapping[NodeName, RecoveryId]) -> Mapping[NodeName, Outcome]:
        """RESUME where the Reason is still that recovery's and the slurmd answers."""
        return self.update(nodes, "RESUME", rules.find_owned_resume_outcome_without_sending)

    def signal(self, attempt: JobAttempt, signal: str) -> Outcome:
        """`scancel --full --signal`, to batch script and steps."""
        record = self._look(attempt.job)
        if isinstance(record, Outcome):
            return record
        refusal = rules.find_job_signal_outcome_without_sending(record, attempt)
        if refusal is not None or record is None:
            return refusal or rules.NO_SUCH_JOB
        return self.order("scancel", "--full", f"--signal={signal}", record.command_id)

    def requeue(self, attempt: JobAttempt) -> Outcome:
        """`scontrol requeue`, by the rules of `hpctl.slurm.rules`."""
        record = self._look(attempt.job)
        if isinstance(record, Outcome):
            return record
        send = rules.plan_job_requeue(record, attempt)
        if isinstance(send, Outcome):
            return send
        return rules.classify_requeue_answer(self.order("scontrol", "requeue", send))

    def start_pending_job(
        self,
        job: JobId,
        exclude: Sequence[NodeName],
        forgive: Sequence[NodeName] = (),
        after_s: float = 0.0,
        elastic: bool = False,
    ) -> Outcome:
        """`scontrol update ExcNodeList=... StartTime=now`, by the same rules.

        Where one of a heterogeneous job's components refuses, others may have the order already.
        """
        record = self._look(job)
        if isinstance(record, Outcome):
            return record
        try:
            known = self._find_existing_excluded_nodes(record, exclude)
        except ServiceUnavailable as error:
            return _make_unavailable_rejection(error)
        send = rules.plan_job_start(record, exclude, known, forgive, elastic=elastic)
        if isinstance(send, Outcome):
            return send
        sent = self._send_job_start_plan(send, after_s)
        return rules.classify_job_start_answer(sent, record, known)

    def _send_job_start_plan(self, send: rules.JobStartPlan, after_s: float) -> Outcome:
        sent = Outcome.accepted()
        if send.requeue:
            sent = rules.classify_requeue_answer(self.order("scontrol", "requeue", send.command_id))
        for update in send.updates:
            if sent.kind is not OutcomeKind.ACCEPTED:
                return sent
            args = [f"JobId={update.command_id}"]
            if update.exclude is not None:
                args += _format_exclusion_arguments(update.exclude, update.mark)
            if send.tasks is not None:
                args.append(f"NumTasks={send.tasks}")
            args.append(rules.format_start_time_argument(after_s))
            sent = self.order("scontrol", "update", *args)
        if send.release and sent.kind is OutcomeKind.ACCEPTED:
            return self.order("scontrol", "release", send.command_id)
        return sent

    def lift(self, job: JobId, nodes: Collection[NodeName]) -> Outcome:
        """`scontrol update ExcNodeList=... AdminComment=...`."""
        record = self._look(job)
        if isinstance(record, Outcome):
            return record
        try:
            known = self._find_existing_excluded_nodes(record, ())
        except ServiceUnavailable as error:
            return _make_unavailable_rejection(error)
        send = rules.plan_node_exclusion_lifts(record, nodes, known)
        if isinstance(send, Outcome):
            return send
        sent = Outcome.accepted()
        for update in send:
            args = _format_exclusion_arguments(update.exclude, update.mark)
            sent = self.order("scontrol", "update", f"JobId={update.command_id}", *args)
            if sent.kind is not OutcomeKind.ACCEPTED:
                return sent
        return sent

    def hold(self, job: JobId, why: str) -> Outcome:
        """`scontrol uhold`, then the Comment: a job that runs on is worse than no comment."""
        record = self._look(job)
        if isinstance(record, Outcome):
            return record
        refusal = rules.find_job_hold_outcome_without_sending(record)
        if refusal is not None or record is None:
            return refusal or rules.NO_SUCH_JOB
        held = self.order("scontrol", "uhold", record.command_id)
        if held.kind is not OutcomeKind.ACCEPTED:
            return held
        written = self._write_job_comment(record, why)
        noted = written.kind is OutcomeKind.ACCEPTED
        return held if noted else Outcome.accepted(f"held, reason not written: {written.detail}")

    def cancel_attempt(self, attempt: JobAttempt, why: str) -> Outcome:
        """Write the Comment, as that of an ended job stays, then `scancel`."""
        record = self._look(attempt.job)
        if isinstance(record, Outcome):
            return record
        refusal = rules.find_job_cancel_outcome_without_sending(record, attempt)
        if refusal is not None or record is None:
            return refusal or rules.NO_SUCH_JOB
        self._write_job_comment(record, why)
        return self.order("scancel", record.command_id)

    def note(self, attempt: JobAttempt, why: str) -> Outcome:
        """`scontrol update Comment=`."""
        record = self._look(attempt.job)
        if isinstance(record, Outcome):
            return record
        refusal = rules.find_job_comment_outcome_without_sending(record, attempt)
        if refusal is not None or record is None:
            return refusal or rules.NO_SUCH_JOB
        return self._write_job_comment(record, why)

    def _write_job_comment(self, record: SlurmJobRecord, why: str) -> Outcome:
        comment = rules.format_job_comment_argument(record.job.comment, why)
        return self.order("scontrol", "update", f"JobId={record.comment_id}", comment)

    def find_active_controller(self) -> str:
        """Return the host of the first slurmctld that answers `scontrol ping`; empty where none
        does."""
        ran = self.runner.run("scontrol", "ping")
        found = re.search(r"^Slurmctld\([^)]*\) at (\S+) is UP", ran.text, re.MULTILINE)
        return found[1] if found else ""

    def reservations(self) -> Mapping[str, SlurmReservation]:
        """`scontrol show reservation`. Raises Unavailable."""
        return parse_reservations(self.text("show", "reservation", "-o"))

    def reserve(self, name: str, nodes: Sequence[NodeName], *, own: bool = False) -> Outcome:
        """`scontrol create|update|delete` of a reservation, whichever it takes."""
        try:
            held = self.reservations().get(name)
        except ServiceUnavailable as error:
            return _make_unavailable_rejection(error)
        if held is not None and set(held.nodes) == set(nodes):
            return Outcome.accepted("it holds them already")
        this, none = f"ReservationName={name}", Outcome.accepted("there is none")
        if not nodes:
            sent = none if held is None else self.order("scontrol", "delete", this)
            return none if sent.code == _GONE else sent
        if held is not None:
            sent = self.order("scontrol", "update", this, f"Nodes={fold_hostlist(nodes)}")
        else:
            args = [
                this,
                "StartTime=now",
                "Duration=UNLIMITED",
                f"Users={_find_daemon_user_name() if own else NO_USER}",
            ]
            sent = self.order(
                "scontrol", "create", "reservation", *args, f"Nodes={fold_hostlist(nodes)}"
            )
        if sent.kind is OutcomeKind.REJECTED and sent.code == _GONE:
            return Outcome.rejected(sent.code, sent.detail, transient=True)
        return sent

    def maintain(
        self, name: str, nodes: Sequence[NodeName], start: datetime, end: datetime
    ) -> Outcome:
        """`scontrol create reservation` with Flags=MAINT,IGNORE_JOBS, where there is none."""
        try:
            held = self.reservations().get(name)
        except ServiceUnavailable as error:
            return _make_unavailable_rejection(error)
        if held is not None:
            return Outcome.accepted("there is a reservation of that name")
        past = start <= datetime.now(UTC)
        args = [
            f"ReservationName={name}",
            "StartTime=now" if past else f"StartTime={start:{_SLURM_TIME}}",
            f"EndTime={end:{_SLURM_TIME}}",
            f"Users={NO_USER}",
            "Flags=MAINT,IGNORE_JOBS",
            f"Nodes={fold_hostlist(nodes)}",
        ]
        return self.order("scontrol", "create", "reservation", *args)

    def test(self, test: NodeTestJobSpec) -> Outcome:
        """`sbatch --wrap`, where squeue knows no such job of ours."""
        mine = (f"--name={test.name}", f"--user={_find_daemon_user_name()}")
        try:
            known = self._read(*_OURS, *mine, program="squeue").text
        except ServiceUnavailable as error:
            return _make_unavailable_rejection(error)
        job = max(map(parse_count, known.split()), default=0)
        if job:
            return Outcome.accepted(str(job))
        args = [*_ALONE, f"--job-name={test.name}"]
        if test.partition:
            args.append(f"--partition={test.partition}")
        if test.qos:
            args.append(f"--qos={test.qos}")
        args += [
            f"--nice={_BEHIND_ALL}" if test.idle else f"--reservation={test.name}",
            f"--nodelist={test.node}",
            f"--time={math.ceil(test.limit_s / 60)}",
            f"--wrap={make_node_test_script(test.command)}",
        ]
        if not self.may_act():
            return NOT_LEADING
        environ = {n: value for n, value in self.runner.environ.items() if n in _PASSED}
        ran = replace(self.runner, environ=environ).run("sbatch", *args)
        return (
            Outcome.accepted(str(parse_count(ran.text.strip().partition(";")[0])))
            if ran.ok
            else classify_command_result(ran)
        )

    def cancel_node_test(self, name: str) -> Outcome:
        """`scancel` by name, of our own jobs alone."""
        return self.order("scancel", f"--name={name}", f"--user={_find_daemon_user_name()}")

    def set_node_weight(self, nodes: Sequence[NodeName], weight: int) -> Outcome:
        """Set the Weight of nodes that slurmctld knows: jobs get those of the least first."""
        return self.order(
            "scontrol", "update", f"NodeName={fold_hostlist(nodes)}", f"Weight={weight}"
        )

    def order(self, *args: str) -> Outcome:
        """Send one command, once."""
        return classify_command_result(self.runner.run(*args)) if self.may_act() else NOT_LEADING

    def _look(self, job: JobId) -> SlurmJobRecord | Outcome | None:
        """Return the job now; a failed look is an order that was not sent."""
        try:
            return self.job(job)
        except ServiceUnavailable as error:
            return _make_unavailable_rejection(error)

    def _find_existing_excluded_nodes(
        self, record: SlurmJobRecord | None, exclude: Sequence[NodeName]
    ) -> set[NodeName]:
        wanted = set(exclude)
        for job in (record.job, *record.components) if record is not None else ():
            wanted.update(job.excluded)
        return set(self.nodes(sorted(wanted))) if wanted else set()

    def update(
        self, wanted: Mapping[NodeName, str], state: str, rule: Rule
    ) -> dict[NodeName, Outcome]:
        """Look at the nodes, answer for those that the rule decides, send the rest grouped."""
        try:
            names = [name for name in wanted if is_host_name(name)]
            # Whether a mark is spent, which RESUME asks, takes the whole record.
            seen = self.nodes(names) if state == "RESUME" else self.states(names)
        except ServiceUnavailable as error:
            return dict.fromkeys(wanted, _make_unavailable_rejection(error))

        def send_node_update(names: Sequence[str], reason: str) -> Outcome:
            args = [f"NodeName={fold_hostlist(names)}", f"State={state}"]
            return self.order("scontrol", "update", *args, *([f"Reason={reason}"] * bool(reason)))

        return send_grouped_node_updates(
            wanted, seen, rule, send_node_update, with_reason=state != "RESUME"
        )


def _format_exclusion_arguments(exclude: Sequence[NodeName], mark: str | None) -> list[str]:
    listed = f"ExcNodeList={fold_hostlist(exclude) if exclude else ''}"
    return [listed] if mark is None else [listed, f"AdminComment={mark}"]


def _make_unavailable_rejection(error: ServiceUnavailable) -> Outcome:
    return Outcome.rejected(UNAVAILABLE, str(error), transient=True)
