"""The JSON of `scontrol show ... --json=v0.0.42` (24.11 to 26.05) as nodes and jobs.

Only the fields that hpctl reads are decoded; what a release adds is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from hpctl.core.bounds import EARLIEST, at_stamp, printable
from hpctl.core.model import JobId, NodeName, SlurmJob, SlurmNode
from hpctl.core.walls import Flaw, each
from hpctl.slurm.records import (
    JOB_BASE,
    Hostlists,
    JobRecord,
    Size,
    least_nodes,
    node_states,
    tasks_of,
)
from hpctl.slurm.sizes import UNASKED, Asked, Dealt, demand, node_tres

PARSER = "v0.0.42"
"""The data parser that 24.11, 25.05, 25.11 and 26.05 all have."""


class _Number(msgspec.Struct):
    """Slurm's number that may be unset or infinite."""

    set: bool = False
    infinite: bool = False
    number: int = 0

    def time(self) -> datetime | None:
        """As a point in time; 0 and unset are none."""
        return at_stamp(self.number) if self.set and not self.infinite else None


class _Signal(msgspec.Struct):
    id: _Number = msgspec.field(default_factory=_Number)


class _Exit(msgspec.Struct):
    return_code: _Number = msgspec.field(default_factory=_Number)
    signal: _Signal = msgspec.field(default_factory=_Signal)


class _Node(msgspec.Struct):
    name: str
    state: list[str] = []
    reason: str = ""
    reason_changed_at: Any = None
    address: str = ""
    partitions: list[str] = []
    boot_time: _Number = msgspec.field(default_factory=_Number)
    slurmd_start_time: _Number = msgspec.field(default_factory=_Number)
    last_busy: _Number = msgspec.field(default_factory=_Number)
    cpus: Any = None
    effective_cpus: Any = None
    real_memory: Any = None
    gres: Any = None
    active_features: Any = None
    version: Any = None


class _Job(msgspec.Struct):
    job_id: int
    job_state: list[str] = []
    submit_time: _Number = msgspec.field(default_factory=_Number)
    start_time: _Number = msgspec.field(default_factory=_Number)
    end_time: _Number = msgspec.field(default_factory=_Number)
    eligible_time: _Number = msgspec.field(default_factory=_Number)
    restart_cnt: int = 0
    flags: list[str] = []
    name: str = ""
    user_name: str = ""
    user_id: int | None = None
    partition: str = ""
    nodes: str = ""
    excluded_nodes: str = ""
    batch_host: str = ""
    batch_flag: bool = False
    requeue: bool = False
    state_reason: str = ""
    state_description: str = ""
    exit_code: _Exit = msgspec.field(default_factory=_Exit)
    comment: str = ""
    array_job_id: _Number = msgspec.field(default_factory=_Number)
    array_task_id: _Number = msgspec.field(default_factory=_Number)
    array_task_string: str = ""
    het_job_id: _Number = msgspec.field(default_factory=_Number)
    node_count: Any = None
    tasks: Any = None
    tasks_per_node: Any = None
    tres_req_str: Any = None
    tres_per_node: Any = None
    tres_per_job: Any = None
    tres_per_task: Any = None
    tres_per_socket: Any = None
    cpus: Any = None
    minimum_cpus_per_node: Any = None
    shared: Any = None
    features: Any = None
    required_nodes: Any = None


class _Name(msgspec.Struct):
    """What every record is named by; a job's `name` is its owner's text, and not asked for."""

    job_id: int = 0
    name: str = ""


class _Error(msgspec.Struct):
    description: str = ""
    error: str = ""


class _Nodes(msgspec.Struct):
    nodes: list[msgspec.Raw]
    last_update: _Number = msgspec.field(default_factory=_Number)
    errors: list[_Error] = []


class _Jobs(msgspec.Struct):
    jobs: list[msgspec.Raw]
    last_update: _Number = msgspec.field(default_factory=_Number)
    errors: list[_Error] = []


T = TypeVar("T")
Paced = Callable[[Iterable[msgspec.Raw]], Iterable[msgspec.Raw]]
_nodes_decoder = msgspec.json.Decoder(_Nodes)
_jobs_decoder = msgspec.json.Decoder(_Jobs)
_name_decoder = msgspec.json.Decoder(_Name)
_node_decoder = msgspec.json.Decoder(_Node)
_job_decoder = msgspec.json.Decoder(_Job)


class AnswerError(ValueError):
    """An answer that says of itself that something went wrong."""


ParseError = (msgspec.DecodeError, AnswerError)
"""What both functions raise for an answer of another shape, or with errors in it.

Slurm can answer with exit status 0, an empty list and an error in the body: that is no list.
"""


def nodes(
    data: bytes, by: Dealt = UNASKED, paced: Paced = iter
) -> tuple[list[SlurmNode], list[Flaw]]:
    """The nodes of `scontrol show nodes --json`, and those that cannot be read. Raises ParseError.

    `paced` passes the records on at the reader's pace.
    """
    answer = _decoded(_nodes_decoder, data)
    _no_errors(answer.errors)
    if not answer.nodes and not answer.last_update.number:
        raise AnswerError("no nodes, and never updated: slurmctld has not answered")
    return _some(*each("parse", paced(answer.nodes), _named, lambda raw: _node(raw, by)))


def _node(raw: msgspec.Raw, by: Dealt) -> SlurmNode:
    node = _decoded(_node_decoder, raw)
    state, flags = node_states(node.state)
    return SlurmNode(
        name=NodeName(node.name),
        state=state,
        flags=flags,
        reason=node.reason,
        reason_at=at_stamp(_count(node.reason_changed_at) or None),
        address=node.address,
        partitions=tuple(node.partitions),
        boot_time=node.boot_time.time(),
        slurmd_start=node.slurmd_start_time.time(),
        last_busy=node.last_busy.time(),
        has=node_tres(
            _count(node.effective_cpus) or _count(node.cpus),
            _count(node.real_memory),
            _text(node.gres),
            by,
        ),
        features=tuple(f for f in _text(node.active_features).split(",") if f),
        version=_text(node.version),
    )


def jobs(data: bytes, hosts: Hostlists) -> tuple[list[JobRecord], list[Flaw]]:
    """The jobs of `scontrol show jobs --json`, and those that cannot be read. Raises ParseError.

    With slurmctld away, 25.11.7 prints an empty list without an error and exits with 0; what
    gives it away is last_update 0. An unknown job id looks the same: ask in text to be sure.
    """
    answer = _decoded(_jobs_decoder, data)
    _no_errors(answer.errors)
    if not answer.jobs and not answer.last_update.number:
        raise AnswerError("no jobs, and never updated: slurmctld has not answered")
    return _some(*each("parse", answer.jobs, _named, lambda raw: _record(raw, hosts)))


def _some(made: list[T], flaws: list[Flaw]) -> tuple[list[T], list[Flaw]]:
    """Where no record at all can be read it is the shape that is another, and no record's fault."""
    if flaws and not made:
        raise AnswerError(flaws[0].error)
    return made, flaws


def _named(raw: msgspec.Raw) -> str:
    """Whom a record is about; its beginning where even that cannot be read."""
    try:
        name = _decoded(_name_decoder, raw)
    except msgspec.DecodeError:
        return "a record of Slurm's"
    return str(name.job_id) if name.job_id else name.name


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    """Slurm prints the bytes of a job's name as they were submitted, Latin-1 ones too: what is no
    UTF-8 becomes U+FFFD, as in text, and hides nobody else's job."""
    try:
        return decoder.decode(data)
    except UnicodeDecodeError:
        return decoder.decode(bytes(data).decode("utf-8", "replace"))
    except RecursionError as error:
        raise AnswerError("nested deeper than Slurm nests") from error


def _no_errors(errors: list[_Error]) -> None:
    if errors:
        raise AnswerError("; ".join(e.description or e.error or "error" for e in errors))


def _record(raw: msgspec.Raw, hosts: Hostlists) -> JobRecord:
    job = _decoded(_job_decoder, raw)
    base = next((word for word in job.job_state if word in JOB_BASE), "PENDING")
    flags = {word for word in job.job_state if word not in JOB_BASE}
    # Requeue=expedite is a flag of the job (EXPEDITED_REQUEUE), not of its state.
    flags |= {word for word in job.flags if word.startswith("EXPEDIT")}
    tasks = tasks_of(job.array_task_string) if job.array_job_id.number else 1
    exit_code = f"{job.exit_code.return_code.number}:{job.exit_code.signal.id.number}"
    slurm_job = SlurmJob(
        id=JobId(job.job_id),
        state=base,
        submit=job.submit_time.time() or EARLIEST,
        restarts=job.restart_cnt,
        flags=frozenset(flags),
        name=printable(job.name),
        user=printable(job.user_name),
        partition=job.partition,
        nodes=hosts(job.nodes),
        excluded=hosts.of_user(job.user_id, job.excluded_nodes),
        batch_host=NodeName(job.batch_host) if job.batch_host else None,
        batch=job.batch_flag,
        requeue=job.requeue,
        reason=_reason(job),
        exit_code=exit_code,
        start=job.start_time.time(),
        end=job.end_time.time(),
        eligible=job.eligible_time.time(),
        comment=job.comment,
        uid=job.user_id,
        wants=_count(job.node_count) * tasks if base == "PENDING" else 0,
        asks=demand(_asked(job, tasks)) if base == "PENDING" else None,
    )
    array, het = job.array_job_id.number, job.het_job_id.number
    task = job.array_task_string
    if not task and job.array_task_id.set:
        task = str(job.array_task_id.number)
    size = Size(
        _count(job.node_count),
        least_nodes(str(job.tres_req_str or "")),
        _count(job.tasks),
        _count(job.tasks_per_node),
    )
    return JobRecord(slurm_job, array, task if array else "", het, size)


def _asked(job: _Job, array_tasks: int) -> Asked:
    shared = _text(job.shared).lower()
    return Asked(
        tres=_text(job.tres_req_str),
        nodes=_count(job.node_count),
        tasks=_count(job.tasks),
        cpus=_count(job.cpus),
        cpus_each=_count(job.minimum_cpus_per_node),
        array_tasks=array_tasks,
        per_node=_text(job.tres_per_node),
        per_job=_text(job.tres_per_job),
        per_task=_text(job.tres_per_task),
        per_socket=_text(job.tres_per_socket),
        # `none` shares with nobody; what text calls OK is an empty list.
        oversubscribe="OK" if shared in ("", "oversubscribe") else shared,
        features=_text(job.features),
        named=bool(_text(job.required_nodes)),
    )


def _text(value: Any) -> str:
    """A text, or a list of them with commas, whichever the release has; empty for neither."""
    if isinstance(value, list):
        return ",".join(str(one) for one in value)
    return value if isinstance(value, str) else ""


def _reason(job: _Job) -> str:
    """The Reason, with the names of nodes that it asks for and that are out, as text has them."""
    said = job.state_description
    return said if said.startswith(f"{job.state_reason}, Unavailable") else job.state_reason


def _count(value: Any) -> int:
    """A count in any of the shapes that releases give it; 0 where it says nothing."""
    if isinstance(value, dict):
        value = value.get("number", 0) if value.get("set", True) else 0
    return value if isinstance(value, int) else 0
