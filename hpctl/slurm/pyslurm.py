"""The Scheduler by pyslurm (25.11): the fast path, where it imports and matches the Slurm.

pyslurm runs in a separate child process: an RPC holds the interpreter's lock until slurmctld
answers, libslurm reads SLURM_CONF once for a whole process, and a crash inside it must not be
the daemon's. The child is asked over a pipe, bounded in time, and killed when it is late.

Through pyslurm: the view, looks at nodes, drain, down, give_back. As the CLI adapter, by
inheritance: everything about single jobs. pyslurm has no state flags of a job (EXPEDITED_REQUEUE,
the base state of a COMPLETING job), requeues a whole array when given its id, and cannot signal
batch script and steps at once; those orders are rare, and a fork is nothing beside them.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from hpctl.slurm import parse
from hpctl.slurm.cli import CliScheduler, Rule, send_grouped_node_updates
from hpctl.slurm.parse import find_ended_job_state, parse_job_state_and_flags
from hpctl.slurm.read import RETRY_WITHIN
from hpctl.slurm.records import (
    HostlistCache,
    merge_heterogeneous_jobs,
    parse_array_task_limit,
    parse_node_state_and_flags,
)
from hpctl.slurm.run import SlurmCommandRunner, classify_slurm_error_text
from hpctl.toolkit.bounds import EARLIEST, make_printable, parse_timestamp
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.hostlist import fold_hostlist, is_host_name
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.isolation import (
    ItemProcessingFailure,
    call_and_capture_failure,
    process_items_capturing_failures,
)
from hpctl.vocabulary.outcome import NOT_LEADING, Outcome
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode

T = TypeVar("T")

LOOK_SINGLY = 16
"""Up to so many nodes are looked at one by one; for more, all are read at once."""


class PySlurmAnswer(msgspec.Struct):
    """What the child says: a value, or slurmctld's error text, and whether it was sent."""

    nodes: list[SlurmNode] = []
    jobs: list[SlurmJob] = []
    flaws: list[ItemProcessingFailure] = []
    error: str = ""


class PySlurmQuestion(msgspec.Struct):
    """What the child is asked: `start`, `view`, `nodes` (all for no names), or `update`."""

    do: str
    names: list[str] = []
    state: str = ""
    reason: str = ""


class PySlurmScheduler(CliScheduler):
    """`hpctl.vocabulary.ports.Scheduler` over libslurm; what it lacks is the CLI adapter's."""

    def __init__(
        self,
        runner: SlurmCommandRunner,
        *,
        event: Callable[[], bool] | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(runner, event=event, may_act=may_act)
        self._child = _PySlurmChildProcess(runner)

    def explain_why_pyslurm_is_unusable(self) -> str:
        """Return why pyslurm cannot be used with these commands; "" where it can.

        slurmctld is not asked: one that is away now is no reason to do without pyslurm for good.
        """
        try:
            ours = metadata.version("pyslurm")
        except metadata.PackageNotFoundError:
            return "pyslurm is not installed"
        try:
            theirs = self.version()
        except ServiceUnavailable as error:
            return f"the release of Slurm is not known: {error}"
        if ours.split(".")[:2] != [f"{theirs[0]}", f"{theirs[1]:02d}"]:
            return f"pyslurm {ours} does not match Slurm {'.'.join(map(str, theirs))}"
        if self._child.ask(PySlurmQuestion("start")) is None:
            return f"pyslurm {ours} does not start: it was compiled for another Slurm, or is broken"
        return ""

    def close(self) -> None:
        """End the child, as the end of this object does. The next question starts another."""
        self._child.end()

    def view(self) -> SchedulerView:
        """Return all nodes and jobs, by two RPCs. Raises Unavailable."""
        as_of = self.now()
        answer = self._ask_pyslurm_child(PySlurmQuestion("view"))
        nodes = self._by_name(answer.nodes)
        jobs = merge_heterogeneous_jobs({job.id: job for job in answer.jobs})
        return SchedulerView(as_of, nodes, jobs, tuple(answer.flaws))

    def part(
        self, nodes: Collection[NodeName], known: Mapping[NodeName, SlurmNode]
    ) -> SchedulerView:
        """Return the whole view, which costs a fraction of what the commands take for a part."""
        return self.view()

    def find_jobs(self, ids: Collection[JobId]) -> dict[JobId, SlurmJob]:
        """Return those of these jobs that slurmctld knows: slurmctld joins no tasks of arrays."""
        return {job: known for job, known in self.view().jobs.items() if job in ids}

    def _by_name(self, nodes: Iterable[SlurmNode]) -> dict[NodeName, SlurmNode]:
        """Return the child's nodes, with the author of each Reason, any user."""
        named = {node.name: node for node in nodes}
        for name, node in named.items():
            if node.reason_by:
                author = parse.find_human_reason_author(node.reason_by, self.slurm_user())
                named[name] = replace(node, reason_by=author)
        return named

    def _ask_pyslurm_child(self, question: PySlurmQuestion) -> PySlurmAnswer:
        began = time.monotonic()
        answer = self._child.ask(question)
        if answer is None and time.monotonic() - began < RETRY_WITHIN:
            answer = self._child.ask(question)  # the child had died: a new one may do
        if answer is None:
            raise ServiceUnavailable(
                "Slurm does not answer pyslurm, the Python library that hpctl uses",
                "check slurmctld: scontrol ping",
            )
        if answer.error:
            raise ServiceUnavailable(
                "pyslurm, the Python library that hpctl uses, cannot read from Slurm: "
                f"{answer.error}",
                "check slurmctld: scontrol ping",
            )
        return answer

    def update(
        self, wanted: Mapping[NodeName, str], state: str, rule: Rule
    ) -> dict[NodeName, Outcome]:
        """Update nodes as the CLI adapter does, by one RPC for each Reason and hundred nodes."""
        good = [str(name) for name in wanted if is_host_name(name)]
        seen: dict[NodeName, SlurmNode] = {}
        try:
            if good:
                looked = self._ask_pyslurm_child(
                    PySlurmQuestion("nodes", good if len(good) <= LOOK_SINGLY else [])
                )
                seen = self._by_name(looked.nodes)
        except ServiceUnavailable as error:
            refused = Outcome.rejected("unavailable", str(error), transient=True)
            return dict.fromkeys(wanted, refused)

        def send_node_update(names: Sequence[str], reason: str) -> Outcome:
            if not self.may_act():
                return NOT_LEADING
            answer = self._child.ask(
                PySlurmQuestion("update", [fold_hostlist(names)], state, reason)
            )
            if answer is None:
                return Outcome.ambiguous("timeout", "the pyslurm process was late or has died")
            return classify_slurm_error_text(answer.error) if answer.error else Outcome.accepted()

        return send_grouped_node_updates(
            wanted, seen, rule, send_node_update, with_reason=state != "RESUME"
        )


class _PySlurmChildProcess:
    """The process that has libslurm: started when it is needed, asked one thing at a time."""

    def __init__(self, runner: SlurmCommandRunner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self._running: list[tuple[subprocess.Popen[bytes], Connection]] = []
        # A command that has read Slurm once just ends.
        weakref.finalize(self, _kill_child_process, self._running)

    def ask(self, question: PySlurmQuestion) -> PySlurmAnswer | None:
        """Return the answer, or None where there was none in time; the child is then gone."""
        with self._lock:
            try:
                pipe = self._start_child_process()
                pipe.send_bytes(msgspec.msgpack.encode(question))
                if not pipe.poll(self._runner.timeout):
                    raise TimeoutError
                return msgspec.msgpack.decode(pipe.recv_bytes(), type=PySlurmAnswer)
            except (OSError, EOFError, msgspec.DecodeError):
                _kill_child_process(self._running)
                return None

    def end(self) -> None:
        """Kill the child."""
        with self._lock:
            _kill_child_process(self._running)

    def _start_child_process(self) -> Connection:
        if self._running and self._running[0][0].poll() is None:
            return self._running[0][1]
        _kill_child_process(self._running)
        ours, theirs = Pipe()
        env = self._runner.env()
        places = [str(Path(__file__).parents[2]), *env.get("PYTHONPATH", "").split(os.pathsep)]
        env["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *SAFE_PATH, __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        self._running.append((process, ours))
        return ours


def _kill_child_process(running: list[tuple[subprocess.Popen[bytes], Connection]]) -> None:
    while running:
        process, pipe = running.pop()
        pipe.close()
        process.kill()
        process.wait()


def _answer_parent_questions(pipe: Connection) -> None:
    """Answer until the parent is gone. libslurm is initialised here, and only here."""
    import pyslurm

    while True:
        try:
            question = msgspec.msgpack.decode(pipe.recv_bytes(), type=PySlurmQuestion)
        except EOFError:
            return
        answer = call_and_capture_failure(
            "ask", question.do, partial(_answer_question_or_report_error, pyslurm), question
        )
        if isinstance(answer, ItemProcessingFailure):
            answer = PySlurmAnswer(error=answer.error)
        pipe.send_bytes(msgspec.msgpack.encode(answer))


def _answer_question_or_report_error(pyslurm: Any, question: PySlurmQuestion) -> PySlurmAnswer:
    try:
        return _answer_question(pyslurm, question)
    except pyslurm.PyslurmError as error:
        return PySlurmAnswer(error=str(error) or "error without a text")


def _answer_question(pyslurm: Any, question: PySlurmQuestion) -> PySlurmAnswer:
    if question.do == "start":
        return PySlurmAnswer()
    if question.do == "update":
        (names,) = question.names
        changes = pyslurm.Node(state=question.state)
        if question.reason:
            changes.reason = question.reason
        pyslurm.Node(names).modify(changes)
        return PySlurmAnswer()
    if question.do == "nodes" and question.names:
        found: list[SlurmNode] = []
        for name in question.names:
            found += _load_pyslurm_node(pyslurm, name)
        return PySlurmAnswer(nodes=found)
    nodes, flaws = process_items_capturing_failures(
        "parse",
        pyslurm.Nodes.load().items(),
        itemgetter(0),
        _make_type_checked_converter(_convert_pyslurm_node),
    )
    if question.do == "nodes":
        return PySlurmAnswer(nodes=nodes)
    hosts = HostlistCache()
    job = _make_type_checked_converter(partial(_convert_pyslurm_job, hosts))
    jobs = process_items_capturing_failures(
        "parse", pyslurm.Jobs.load().items(), itemgetter(0), job
    )
    return PySlurmAnswer(nodes=nodes, jobs=jobs[0], flaws=[*flaws, *jobs[1]])


def _load_pyslurm_node(pyslurm: Any, name: str) -> list[SlurmNode]:
    """Return the node, or none: only a controller that answers may say that there is none."""
    try:
        return [_convert_pyslurm_node((name, pyslurm.Node.load(name)))]
    except pyslurm.RPCError as error:
        if "does not exist" in str(error) or "Invalid node name" in str(error):
            return []
        raise


def _make_type_checked_converter(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return the same, raising here for a value of another type: there it would cost the whole
    answer."""

    def convert_and_check_type(item: Any) -> T:
        one = make(item)
        msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=type(one))
        return one

    return convert_and_check_type


def _read_text_attribute(thing: Any, name: str) -> str:
    """Return a text of libslurm's; pyslurm raises for one that is no UTF-8, and so U+FFFD stands
    there."""
    try:
        return getattr(thing, name) or ""
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


def _convert_pyslurm_node(item: tuple[str, Any]) -> SlurmNode:
    node = item[1]
    state, flags = parse_node_state_and_flags(node.state.split("+"))
    return SlurmNode(
        name=NodeName(node.name),
        state=state,
        flags=flags,
        reason=_read_text_attribute(node, "reason"),
        address=_read_text_attribute(node, "address"),
        partitions=tuple(node.partitions or ()),
        boot_time=parse_timestamp(node.boot_time),
        slurmd_start=parse_timestamp(node.slurmd_start_time),
        last_busy=parse_timestamp(getattr(node, "last_busy_time", None)),
        reason_at=parse_timestamp(getattr(node, "reason_time", None)),
        version=_read_text_attribute(node, "slurm_version"),
        reason_by=_read_text_attribute(node, "reason_user")
        if _read_text_attribute(node, "reason")
        else "",
    )


def _count_requested_job_nodes(job: Any) -> int:
    """Return the nodes of all tasks of a pending job that may run at once."""
    limit = job.array_tasks_parallel or ""
    return (job.num_nodes or 0) * parse_array_task_limit(f"{job.array_tasks_waiting or ''}%{limit}")


def _format_array_tasks(job: Any) -> str:
    """Return which task of its array it is, or those that wait in its record; "" for no array."""
    if not job.array_id:
        return ""
    return str(job.array_task_id) if job.array_task_id is not None else job.array_tasks_waiting


def _convert_pyslurm_job(hosts: HostlistCache, item: tuple[int, Any]) -> SlurmJob:
    job = item[1]
    exit_code = f"{job.exit_code or 0}:{job.exit_code_signal or 0}"
    # As `squeue` has it; libslurm's descriptions have spaces.
    end, reason = (
        parse_timestamp(job.end_time),
        _read_text_attribute(job, "state_reason").replace(" ", "_"),
    )
    preempted = parse_timestamp(job.preempt_time)
    ended = find_ended_job_state(end, reason, exit_code, preempted=preempted is not None)
    state, flags = parse_job_state_and_flags(job.state, ended)
    return SlurmJob(
        id=JobId(job.id),
        state=state,
        submit=parse_timestamp(job.submit_time) or EARLIEST,
        restarts=job.requeue_count or 0,
        flags=flags,
        name=make_printable(_read_text_attribute(job, "name")),
        user=make_printable(_read_text_attribute(job, "user_name")),
        partition=job.partition or "",
        nodes=hosts(job.allocated_nodes or ""),
        excluded=hosts.of_user(job.user_id, job.excluded_nodes or ""),
        batch_host=NodeName(job.batch_host) if job.batch_host else None,
        batch=bool(job.is_batch_job),
        requeue=bool(job.is_requeueable),
        reason=reason,
        exit_code=exit_code,
        start=parse_timestamp(job.start_time),
        end=end,
        eligible=parse_timestamp(job.eligible_time),
        comment=_read_text_attribute(job, "comment"),
        admin_comment=_read_text_attribute(job, "admin_comment"),
        uid=job.user_id,
        wants=_count_requested_job_nodes(job) if state == "PENDING" else 0,
        completing_on=hosts(job.allocated_nodes or "") if "COMPLETING" in flags else (),
        array_job=job.array_id or 0,
        array_task=_format_array_tasks(job),
        het_job=JobId(job.heterogeneous_id or 0),
        het_offset=job.heterogeneous_offset or 0,
        qos=_read_text_attribute(job, "qos"),
        preempted=preempted,
    )


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the daemon ended while we answered
        _answer_parent_questions(Connection(int(sys.argv[1])))
