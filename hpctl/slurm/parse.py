"""The text of `scontrol show node|job -o` as nodes and jobs: Slurm before 24.11 has nothing else.

Values are not quoted and may hold spaces and `=` (Reason, Comment, JobName, Command), so the
fields are found by known keys in the order in which scontrol prints them, never by splitting.
A newline in a job's name or comment splits its record: see `split_jobs`. All times are UTC,
because `run` sets TZ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

from hpctl.core.compat import UTC
from hpctl.core.hostlist import HostlistError, expand
from hpctl.core.model import JobId, NodeName, SlurmJob, SlurmNode
from hpctl.slurm.records import (
    JOB_BASE,
    JobRecord,
    Size,
    least_nodes,
    least_of,
    node_states,
    tasks_of,
)
from hpctl.slurm.sizes import UNASKED, Asked, Dealt, demand, node_tres

_JOB_HEAD = re.compile(
    r"JobId=(?P<id>\d+) (?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+) )?"
    r"(?:HetJobId=(?P<het>\d+) HetJobOffset=\d+ )?JobName=(?P<name>.*?)"
    r"(?: HetJobIdSet=\S+)? UserId=(?P<user>[^()=]*)\((?P<uid>\d+)\)"
    r" GroupId=[^()=]*\(\d+\) MCS_label=",
    re.DOTALL,
)
_JOB_ID = re.compile(r"JobId=([0-9]{1,10}) ")
_JOB_START = re.compile(r"^(?=JobId=\d+ (?:ArrayJobId|HetJobId|JobName)=)", re.MULTILINE)
_WHO = re.compile(r" \[[^\s@\]]+@(?P<at>[0-9T:.-]+)\](?=\s|\Z)")
_EXPEDITED = re.compile(r"\sExpeditedRequeue=Yes(?=\s|\Z)")
_FLAG_BASE = {
    "CONFIGURING": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "RUNNING",
    "STAGE_OUT": "COMPLETED",
}
_ENDED_BY = {
    "TimeLimit": "TIMEOUT",
    "OutOfMemory": "OUT_OF_MEMORY",
    "NodeDown": "NODE_FAIL",
    "NonZeroExitCode": "FAILED",
    "JobLaunchFailure": "FAILED",
    "RaisedSignal": "FAILED",
    "DeadLine": "DEADLINE",
}


def nodes(text: str, by: Dealt = UNASKED) -> Iterator[SlurmNode]:
    """The nodes of `scontrol show node -o`."""
    for line in text.split("\n"):
        if line.startswith("NodeName="):
            yield _node(line, by)


def jobs(text: str) -> Iterator[JobRecord]:
    """The records of `scontrol show job -o`. A piece that is no whole record is left out."""
    for record in split_jobs(text):
        job = one_job(record)
        if job is not None:
            yield job


def job_list(text: str) -> tuple[dict[JobId, SlurmJob], set[JobId]]:
    """All jobs by id, and the ids that must be asked for alone.

    A newline in a name or a comment can cut a record in two or forge one. An id that comes
    twice or whose record is cut is not believed: asked for alone, its answer is one record.
    What remains forgeable is a job id that does not exist; every order looks at its job first.
    """
    found: dict[JobId, SlurmJob] = {}
    doubtful: set[JobId] = set()
    for record in split_jobs(text):
        named = _JOB_ID.match(record)
        if named is None:
            continue
        job, parsed = JobId(int(named[1])), one_job(record)
        if parsed is None or job in found:
            doubtful.add(job)
        else:
            found[job] = parsed.job
    return {job: found[job] for job in found if job not in doubtful}, doubtful


def expedited(record: str) -> bool:
    """Whether a lone `show job ID` says that it was submitted with --requeue=expedite.

    Only text says so: the flag is not in v0.0.42. A comment could say so as well; what follows
    from it is the release of a hold that the job's owner may release himself.
    """
    head = _JOB_HEAD.match(record)
    return head is not None and _EXPEDITED.search(record, head.end()) is not None


def split_jobs(text: str) -> list[str]:
    """The records of a list. A user can put a newline and a forged record into a comment."""
    return [r.rstrip("\n") for r in _JOB_START.split(text) if r.startswith("JobId=")]


def one_job(record: str) -> JobRecord | None:
    """One record, None where it is not one. A lone `show job ID` is one whatever it holds."""
    head = _JOB_HEAD.match(record)
    if head is None:
        return None
    try:
        return _job(record, head)
    except (ValueError, OverflowError):
        return None  # a name or a comment that looks like fields, with numbers that are none


def _job(record: str, head: re.Match[str]) -> JobRecord | None:
    """Raises ValueError, OverflowError."""
    at = head.end()
    state, flags = _job_state(record, at)
    if not state:
        return None
    batch_host = _word(record, " BatchHost=", at)
    task = head["task"] or ""
    wants = least_of(_word(record, " NumNodes=", at)) * tasks_of(task) if state == "PENDING" else 0
    job = SlurmJob(
        id=JobId(int(head["id"])),
        state=state,
        submit=_time(_word(record, " SubmitTime=", at)) or datetime.fromtimestamp(0, UTC),
        restarts=int(_word(record, " Restarts=", at) or 0),
        flags=flags,
        name=head["name"],
        user=head["user"],
        partition=_word(record, " Partition=", at),
        nodes=hosts(_word(record, " NodeList=", at)),
        excluded=hosts(_word(record, " ExcNodeList=", at)),
        batch_host=NodeName(batch_host) if batch_host else None,
        batch=_word(record, " BatchFlag=", at) not in ("0", ""),
        requeue=_word(record, " Requeue=", at) == "1",
        reason=_word(record, " Reason=", at),
        exit_code=_word(record, " ExitCode=", at),
        start=_time(_word(record, " StartTime=", at)),
        end=_time(_word(record, " EndTime=", at)),
        eligible=_time(_word(record, " EligibleTime=", at)),
        comment=_comment(record),
        uid=int(head["uid"]),
        wants=wants,
        asks=demand(_asked(record, at, task)) if state == "PENDING" else None,
    )
    array, het = int(head["array"] or 0), int(head["het"] or 0)
    return JobRecord(job, array, task, het, _size(record, at))


def _size(record: str, at: int) -> Size:
    """NumNodes is `2`, or a range before the first start; NtasksPerN:B:S:C is `8:0:*:*`."""
    return Size(
        _number(_word(record, " NumNodes=", at)),
        least_nodes(_word(record, " TRES=", at) or _word(record, " ReqTRES=", at)),
        _number(_word(record, " NumTasks=", at)),
        _number(_word(record, " NtasksPerN:B:S:C=", at).partition(":")[0]),
    )


def _asked(record: str, at: int, task: str) -> Asked:
    """TresPer* come last, after fields that the job's owner wrote."""
    last = max(record.rfind(" Power="), record.rfind(" StdOut="), at)
    return Asked(
        tres=_word(record, " TRES=", at) or _word(record, " ReqTRES=", at),
        nodes=least_of(_word(record, " NumNodes=", at)),
        tasks=_number(_word(record, " NumTasks=", at)),
        cpus=_number(_word(record, " NumCPUs=", at)),
        cpus_each=_number(_word(record, " MinCPUsNode=", at)),
        array_tasks=tasks_of(task),
        per_node=_word(record, " TresPerNode=", last),
        per_job=_word(record, " TresPerJob=", last),
        per_task=_word(record, " TresPerTask=", last),
        per_socket=_word(record, " TresPerSocket=", last),
        oversubscribe=_word(record, " OverSubscribe=", at),
        features=_word(record, " Features=", at),
        named=bool(_word(record, " ReqNodeList=", at)),
    )


def _number(word: str) -> int:
    return int(word) if word.isdigit() else 0


def config(text: str) -> dict[str, str]:
    """`scontrol show config` as a dict; an unset value (`(null)`) is an empty text."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        key, is_pair, value = line.partition("=")
        if is_pair and line[:1].isalpha():
            value = value.strip()
            found[key.strip()] = "" if value == "(null)" else value
    return found


def version(text: str) -> tuple[int, int, int] | None:
    """The release in `slurm-wlm 22.05.8` or `slurm 25.11.7`."""
    match = re.search(r"\b(\d{2})\.(\d{2})\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _node(line: str, by: Dealt) -> SlurmNode:
    cpus = _number(_word(line, " CPUEfctv=", 0)) or _number(_word(line, " CPUTot=", 0))
    features, gres = _word(line, " ActiveFeatures=", 0), _word(line, " Gres=", 0)
    at = line.find(" NodeAddr=")
    address = _word(line, " NodeAddr=", at) if at >= 0 else ""
    memory = _number(_word(line, " RealMemory=", max(at, 0)))
    at = max(at, 0)
    state, flags = _states_of(_word(line, " State=", at))
    at = max(line.find(" State=", at), 0)
    partitions = _word(line, " Partitions=", at)
    reason, set_at = _reason(line, at)
    return SlurmNode(
        name=NodeName(line[9 : line.index(" ")]),
        state=state,
        flags=flags,
        reason=reason,
        reason_at=_time(set_at),
        address=address,
        partitions=_names(partitions),
        boot_time=_time(_word(line, " BootTime=", at)),
        slurmd_start=_time(_word(line, " SlurmdStartTime=", at)),
        last_busy=_time(_word(line, " LastBusyTime=", at)),
        has=node_tres(cpus, memory, gres, by),
        features=_names(features),
    )


def _reason(line: str, at: int) -> tuple[str, str]:
    """The Reason and the time of its `[user@time]`, after which only Comment and Extra may come."""
    start = line.find(" Reason=", at)
    if start < 0:
        return "", ""
    text = line[start + 8 :]
    ends = list(_WHO.finditer(text))
    if not ends:
        return text.rstrip(), ""
    return text[: ends[-1].start()], ends[-1]["at"]


def _word(record: str, key: str, at: int) -> str:
    """The value after the first such key from `at` on, up to a space; `(null)` is empty."""
    start = record.find(key, at)
    if start < 0:
        return ""
    start += len(key)
    end = record.find(" ", start)
    value = record[start:] if end < 0 else record[start:end]
    return "" if value in ("(null)", "N/A") else value


def job_states(word: str, ended: str) -> tuple[str, frozenset[str]]:
    """Base state and flags of a job from the one word that `job_state_string` gives.

    A flag hides the base state there. Seen on 22.05.8: of the COMPLETING jobs, those that wait
    to be requeued have no EndTime; for the others, `ended` is how they ended.
    """
    if word in JOB_BASE or not word:
        return word, frozenset()
    if word == "COMPLETING":
        return ended or "PENDING", frozenset({word})
    return _FLAG_BASE.get(word, "PENDING"), frozenset({word})


def _job_state(record: str, at: int) -> tuple[str, frozenset[str]]:
    ended = ""
    if _time(_word(record, " EndTime=", at)) is not None:
        ended = ended_state(_word(record, " Reason=", at), _word(record, " ExitCode=", at))
    return job_states(_word(record, " JobState=", at), ended)


def ended_state(reason: str, exit_code: str) -> str:
    """The base state of a job that has ended, where a COMPLETING flag hides it."""
    by_reason = _ENDED_BY.get(reason.split(":", 1)[0])
    if by_reason:
        return by_reason
    code, _, signal = exit_code.partition(":")
    if signal not in ("", "0"):
        return "CANCELLED"
    return "COMPLETED" if code == "0" else "FAILED"


def _comment(record: str) -> str:
    """The Comment, printed after WorkDir and before StdErr, where there is one."""
    start = record.find(" Comment=", max(record.find(" WorkDir="), 0))
    if start < 0:
        return ""
    text = record[start + len(" Comment=") :]
    ends = [at for key in (" StdErr=", " Power=") if (at := text.rfind(key)) >= 0]
    return (text[: min(ends)] if ends else text).rstrip()


def hosts(text: str) -> tuple[NodeName, ...]:
    """A hostlist that Slurm printed. What cannot be read is no host, never an error."""
    try:
        return tuple(NodeName(name) for name in expand(text))
    except HostlistError:
        return ()


@lru_cache(maxsize=1024)
def _states_of(text: str) -> tuple[str, frozenset[str]]:
    return node_states(text.split("+"))


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


@lru_cache(maxsize=65536)
def _time(text: str) -> datetime | None:
    """A time as scontrol prints it, None for Unknown, None and N/A."""
    if len(text) != 19:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
