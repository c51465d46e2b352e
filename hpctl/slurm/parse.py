"""The text of `scontrol show node -o` as nodes, of `squeue` as jobs, in every release.

scontrol's values are not quoted and may hold spaces and `=` (Reason, OS), so the fields are found
by known keys in the order in which scontrol prints them, never by splitting. Who is root on a node
writes its OS, and with a newline in it a line of another node's: see `nodes`.

What a job's owner writes (its name, its Comment) may hold `=`, newlines, whole records of another
job. So jobs are read by squeue, in fields that no owner can forge: each ends in a mark that is new
for each read and cannot be guessed. squeue takes the format with the marks from its
environment, which no other user can read, and prints every value as it is, of whatever length. Seen
on 22.05.8: a suffix that begins with a letter takes the width of 20 away, `exit_code` is wait(2)'s
status (`code:signal` from 24.11 on), every job has an ArrayJobID, and a pending one its TRES in
`tres-alloc`. All times are UTC, because `run` sets TZ.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from hpctl.slurm.records import (
    DEFAULT_DEALT,
    JOB_BASE,
    ConsumableResources,
    HostlistCache,
    PendingJobSize,
    SlurmJobRecord,
    compute_node_tres,
    parse_array_task_limit,
    parse_gres,
    parse_mebibytes,
    parse_minimum_node_count,
    parse_node_state_and_flags,
    parse_tres,
)
from hpctl.toolkit.bounds import EARLIEST, make_printable, parse_count, parse_slurm_time
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.demand import JobResourceRequest, Tres
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.slurm_facts import COMPLETING, SlurmJob, SlurmNode

SKEW = timedelta(seconds=30)
"""How far slurmctld's clock may be from ours."""

LAST_EXIT_CODE: Final = 255
"""Of a process."""

_WHO = re.compile(r" \[(?P<who>[^\s@\]]+)@(?P<at>[0-9T:.-]+)\](?=\s|\Z)")
_EXPEDITED = re.compile(r"\sExpeditedRequeue=Yes(?=\s|\Z)")
_TIER = re.compile(r"^PartitionName=(\S+) .*? PriorityTier=([0-9]+) ", re.MULTILINE)
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


def split_scontrol_node_lines(text: str) -> list[str]:
    """Return the lines of `scontrol show node -o`, one for each node, and what a node's root
    forged."""
    return [line for line in text.split("\n") if line.startswith("NodeName=")]


def parse_scontrol_nodes(
    lines: Iterable[str], by: ConsumableResources = DEFAULT_DEALT, slurm_user: str = ""
) -> tuple[list[SlurmNode], list[ItemProcessingFailure]]:
    """Return the nodes of these lines, and the lines that cannot be read."""
    return process_items_capturing_failures(
        "parse",
        lines,
        _parse_scontrol_node_name,
        lambda line: _parse_scontrol_node(line, by, slurm_user),
    )


def _parse_scontrol_node_name(line: str) -> NodeName:
    return NodeName(line[9:].partition(" ")[0])


def is_expedited_requeue_record(record: str) -> bool:
    """Return whether a lone `show job ID` says that it was submitted with --requeue=expedite.

    Only text says so: the flag is not in v0.0.42. A comment could say so as well; what follows
    from it is the release of a hold that the job's owner may release himself.
    """
    return _EXPEDITED.search(record) is not None


def parse_squeue_json_reason(out: bytes, job: JobId) -> str:
    """Return a job's Reason in `squeue --json`, which holds no description; empty where it has
    none.

    22.05 prints all jobs, whichever is asked for.
    """
    try:
        answer = msgspec.json.decode(out, type=_SqueueJsonOutput)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return next((one.state_reason for one in answer.jobs if one.job_id == job), "")


class _SqueueJsonJob(msgspec.Struct):
    job_id: int = 0
    state_reason: str = ""


class _SqueueJsonOutput(msgspec.Struct):
    jobs: list[_SqueueJsonJob] = []


def parse_scontrol_config(text: str) -> dict[str, str]:
    """`scontrol show config` as a dict; an unset value (`(null)`) is an empty text."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        key, is_pair, value = line.partition("=")
        if is_pair and line[:1].isalpha():
            value = value.strip()
            found[key.strip()] = "" if value == "(null)" else value
    return found


def parse_requeue_exit_codes(text: str) -> frozenset[int]:
    """Return the codes of a RequeueExit list such as `1-9,93`."""
    codes: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        if match:
            last = min(parse_count(match[2] or match[1]), LAST_EXIT_CODE)
            codes.update(range(parse_count(match[1]), last + 1))
    return frozenset(codes)


def parse_partition_priority_tiers(text: str) -> dict[str, int]:
    """Return the PriorityTier of each partition of `scontrol show partition -o`."""
    return {found[1]: parse_count(found[2]) for found in _TIER.finditer(text)}


def parse_qos_preemption(text: str) -> dict[str, frozenset[str]]:
    """Return the QOS that each QOS preempts, of `sacctmgr --parsable2 show qos
    format=Name,Preempt`."""
    rows = (line.partition("|") for line in text.splitlines())
    return {name: frozenset(preempts.split(",")) for name, _, preempts in rows if preempts}


def parse_slurm_version(text: str) -> tuple[int, int, int] | None:
    """Return the release in `slurm-wlm 22.05.8` or `slurm 25.11.7`."""
    match = re.search(r"\b(\d{2})\.(\d{2})\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _parse_scontrol_node(line: str, by: ConsumableResources, slurm_user: str) -> SlurmNode:
    cpus = parse_count(_parse_scontrol_record_value(line, " CPUEfctv=", 0)) or parse_count(
        _parse_scontrol_record_value(line, " CPUTot=", 0)
    )
    features, gres = (
        _parse_scontrol_record_value(line, " ActiveFeatures=", 0),
        _parse_scontrol_record_value(line, " Gres=", 0),
    )
    at = line.find(" NodeAddr=")
    address = _parse_scontrol_record_value(line, " NodeAddr=", at) if at >= 0 else ""
    version = _parse_scontrol_record_value(line, " Version=", max(at, 0))
    memory = parse_count(_parse_scontrol_record_value(line, " RealMemory=", max(at, 0)))
    at = max(at, 0)
    state, flags = _parse_cached_node_state(_parse_scontrol_record_value(line, " State=", at))
    at = max(line.find(" State=", at), 0)
    partitions = _parse_scontrol_record_value(line, " Partitions=", at)
    reason, set_at, who = _parse_node_reason(line, at)
    return SlurmNode(
        name=_parse_scontrol_node_name(line),
        state=state,
        flags=flags,
        reason=reason,
        reason_at=_parse_cached_slurm_time(set_at),
        address=address,
        partitions=_split_comma_separated_names(partitions),
        boot_time=_parse_cached_slurm_time(_parse_scontrol_record_value(line, " BootTime=", at)),
        slurmd_start=_parse_cached_slurm_time(
            _parse_scontrol_record_value(line, " SlurmdStartTime=", at)
        ),
        last_busy=_parse_cached_slurm_time(
            _parse_scontrol_record_value(line, " LastBusyTime=", at)
        ),
        has=compute_node_tres(cpus, memory, gres, by),
        features=_split_comma_separated_names(features),
        version=version,
        reason_by=find_human_reason_author(who, slurm_user),
    )


def find_human_reason_author(who: str, slurm_user: str) -> str:
    """Return the author of a Reason, where that is a person: neither root nor SlurmUser.

    Where SlurmUser is not known the author is unknown, and is taken to be Slurm.
    """
    return who if slurm_user and who not in ("root", slurm_user, "Unknown") else ""


def parse_slurm_user(config: Mapping[str, str]) -> str:
    """Return the name of SlurmUser, of `slurm(64030)` in `scontrol show config`."""
    return config.get("SlurmUser", "").partition("(")[0]


GLANCE: Final = "NodeList:0|,StateComplete:0|,Timestamp:0|,User:0|,Reason:0"
"""What `sinfo --Node --Format` prints for `glance`, the free text last."""


def parse_sinfo_node(text: str, known: SlurmNode, slurm_user: str = "") -> SlurmNode | None:
    """Return the node with the state and Reason that sinfo prints, a line for each of its
    partitions.

    None where it is absent, or its lines differ.
    """
    lines = set(text.rstrip("\n").split("\n"))
    if len(lines) != 1:
        return None
    name, _, rest = lines.pop().partition("|")
    shown, _, rest = rest.partition("|")
    set_at, _, rest = rest.partition("|")
    who, ends, reason = rest.partition("|")
    if name != known.name or not ends:
        return None
    none = set_at == "Unknown" and reason == "none"
    state, flags = _parse_cached_node_state(shown.upper())
    return replace(
        known,
        state=state,
        flags=flags,
        reason="" if none else reason,
        reason_at=_parse_cached_slurm_time(set_at),
        reason_by=find_human_reason_author(who, slurm_user),
    )


def _parse_node_reason(line: str, at: int) -> tuple[str, str, str]:
    """Return the Reason, and time and user of its `[user@time]`; only Comment and Extra may
    follow."""
    start = line.find(" Reason=", at)
    if start < 0:
        return "", "", ""
    text = line[start + 8 :]
    ends = list(_WHO.finditer(text))
    if not ends:
        return text.rstrip(), "", ""
    return text[: ends[-1].start()], ends[-1]["at"], ends[-1]["who"]


@lru_cache(maxsize=65536)
def _parse_cached_slurm_time(text: str) -> datetime | None:
    return parse_slurm_time(text)


def _parse_scontrol_record_value(record: str, key: str, at: int) -> str:
    """Return the value after the first such key from `at` on, up to a space; `(null)` is empty."""
    start = record.find(key, at)
    if start < 0:
        return ""
    start += len(key)
    end = record.find(" ", start)
    value = record[start:] if end < 0 else record[start:end]
    return "" if value in ("(null)", "N/A") else value


def parse_job_state_and_flags(word: str, ended: str) -> tuple[str, frozenset[str]]:
    """Base state and flags of a job from the one word that `job_state_string` gives.

    A flag hides the base state there. `ended` is how a COMPLETING job ended, "" for one that waits
    to be requeued.
    """
    if word in JOB_BASE or not word:
        return word, frozenset()
    if word == COMPLETING:
        return ended or "PENDING", frozenset({word})
    return _FLAG_BASE.get(word, "PENDING"), frozenset({word})


def find_ended_job_state(
    end: datetime | None, reason: str, exit_code: str, *, preempted: bool
) -> str:
    """Return the base state of a job that has ended, where a COMPLETING flag hides it.

    "" for no end: a job that waits to be requeued has none, or with a time limit that of its next
    run, a minute or more from now (slurmctld's `_pack_job`).

    slurmctld gives a run that failed on its own a Reason (`_job_complete`: NonZeroExitCode,
    RaisedSignal, before 23.02 JobLaunchFailure), and a canceled or preempted one none, whatever its
    script returns on SIGTERM. COMPLETING where the end is not known before the flag is gone: the
    exit code of a canceled job is 0 until its script has ended, as that of a completed one is.
    """
    if end is None or end > datetime.now(UTC) + SKEW:
        return ""
    by_reason = _ENDED_BY.get(reason.split(":", 1)[0])
    if by_reason:
        return by_reason
    returned_nothing = exit_code in ("", "0:0")
    return COMPLETING if returned_nothing or preempted else "CANCELLED"


@lru_cache(maxsize=1024)
def _parse_cached_node_state(text: str) -> tuple[str, frozenset[str]]:
    return parse_node_state_and_flags(text.split("+"))


@lru_cache(maxsize=1024)
def _split_comma_separated_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


FIELDS: Final = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "SubmitTime",
    "StartTime", "EndTime", "EligibleTime", "RestartCnt", "Requeue", "BatchFlag", "BatchHost",
    "Partition", "NodeList", "Reason", "exit_code", "UserID", "UserName", "NumNodes", "NumTasks",
    "NumCPUs", "MinCpus",
    "NTPerNode", "OverSubscribe", "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task",
    "tres-per-socket", "ReqNodes", "Feature", "QOS", "PreemptTime", "admin_comment", "Comment",
    "Name",
)  # fmt: skip
"""Of squeue's --Format."""
EXCLUDED_SINCE: Final = (24, 5)
"""--Format has ExcNodes from here on; before, `make_squeue_exclusion_environment` asks for them."""
EXCLUSIVE_SINCE: Final = (26, 5)
"""OverSubscribe is NO for every job that did not ask for it from here on, and Exclusive tells."""
UNKNOWN: Final = "Invalid job format specification"
"""What squeue says on standard error of a field that it does not have; it prints all others."""
WORDS: Final = ("--noheader", "--all", "--local", "--states=all")
_NOTHING: Final = ("", "(null)", "N/A", "n/a")


class IncompleteSqueueRecordError(ValueError):
    """An answer that is not made of whole records."""


def list_squeue_fields(release: tuple[int, ...]) -> tuple[str, ...]:
    """Return what is asked of a release's squeue."""
    fields: tuple[str, ...] = FIELDS
    if release >= EXCLUSIVE_SINCE:
        fields = tuple("Exclusive" if name == "OverSubscribe" else name for name in FIELDS)
    return fields if release < EXCLUDED_SINCE else (*fields[:-2], "ExcNodes", *fields[-2:])


def make_squeue_format_environment(mark: str, fields: tuple[str, ...] = FIELDS) -> dict[str, str]:
    """Return what squeue reads its format from. `mark`: letters and digits, not to be guessed."""
    ends = [f"{name}:m{mark};" for name in fields[:-1]]
    return {"SQUEUE_FORMAT2": ",".join([*ends, f"{fields[-1]}:m{mark}."])}


def make_squeue_exclusion_environment(mark: str) -> dict[str, str]:
    """Return the same for the nodes that each job excludes, which --format alone knows before
    24.05."""
    return {"SQUEUE_FORMAT": f"%Am{mark};%xm{mark}."}


def parse_squeue_jobs(
    out: bytes, lists: bytes, mark: str, hosts: HostlistCache, fields: tuple[str, ...] = FIELDS
) -> tuple[list[SlurmJobRecord], list[ItemProcessingFailure]]:
    """Return the jobs that squeue printed, `lists` by `make_squeue_exclusion_environment`, and the
    records that cannot be read.

    Raises IncompleteSqueueRecordError.
    """
    excluded = {row[0].strip(): row[1] for row in _split_squeue_rows(lists, mark) if len(row) == 2}
    return process_items_capturing_failures(
        "parse",
        _split_squeue_rows(out, mark),
        lambda row: row[0].strip(),
        lambda row: _parse_squeue_record(row, fields, excluded, hosts),
    )


def _split_squeue_rows(out: bytes, mark: str) -> list[list[str]]:
    *rows, rest = out.split(f"m{mark}.".encode())
    if rest.strip():
        raise IncompleteSqueueRecordError("it ends within a record")
    return [row.decode("utf-8", "replace").split(f"m{mark};") for row in rows]


def _parse_squeue_record(
    row: list[str], fields: tuple[str, ...], excluded: Mapping[str, str], hosts: HostlistCache
) -> SlurmJobRecord:
    """Raises ValueError for a record with more or fewer fields."""
    values = dict(zip(fields, row, strict=True))
    for name in fields[:-2]:
        word = values[name].strip()
        values[name] = "" if word in _NOTHING else word
    pending, task = values["State"] == "PENDING", values["ArrayTaskID"]
    exit_code = _parse_job_exit_code(values["exit_code"])
    end, reason = parse_slurm_time(values["EndTime"]), values["Reason"].replace(" ", "_")
    preempted = parse_slurm_time(values["PreemptTime"])
    ended = find_ended_job_state(end, reason, exit_code, preempted=preempted is not None)
    state, flags = parse_job_state_and_flags(values["State"], ended)
    uid = parse_count(values["UserID"])
    job = SlurmJob(
        id=JobId(_parse_raw_job_id(values["JobID"])),
        state=state,
        submit=parse_slurm_time(values["SubmitTime"]) or EARLIEST,
        restarts=parse_count(values["RestartCnt"]),
        flags=flags,
        name=make_printable(values["Name"]),
        user=make_printable(values["UserName"]),
        partition=values["Partition"],
        nodes=hosts(values["NodeList"]),
        excluded=hosts.of_user(uid, values.get("ExcNodes", excluded.get(row[0].strip(), ""))),
        batch_host=NodeName(values["BatchHost"]) if values["BatchHost"] else None,
        batch=values["BatchFlag"] not in ("", "0"),  # 2, 3, ...: so often its launch has failed
        requeue=values["Requeue"] == "1",
        reason=reason,
        exit_code=exit_code,
        start=parse_slurm_time(values["StartTime"]),
        end=end,
        eligible=parse_slurm_time(values["EligibleTime"]),
        comment="" if values["Comment"] == "(null)" else values["Comment"],
        uid=uid,
        wants=parse_minimum_node_count(values["NumNodes"]) * parse_array_task_limit(task)
        if pending
        else 0,
        asks=parse_job_resource_request(values) if pending else None,
        completing_on=hosts(values["NodeList"]) if COMPLETING in flags else (),
        array_job=parse_count(values["ArrayJobID"]) if task else 0,
        array_task=task,
        het_job=JobId(parse_count(values["HetJobID"])),
        het_offset=parse_count(values["HetJobOffset"]),
        qos=make_printable(values["QOS"]),
        preempted=preempted,
        admin_comment=values["admin_comment"],
    )
    size = PendingJobSize(
        parse_count(values["NumNodes"]),
        parse_count(parse_tres(values["tres-alloc"]).get("node", "")),
        parse_count(values["NumTasks"]),
        parse_count(values["NTPerNode"]),
    )
    return SlurmJobRecord(job, size=size)


def _parse_raw_job_id(text: str) -> int:
    number = parse_count(text)
    if not 0 < number < 2**32:
        raise ValueError("no job id")
    return number


def _parse_job_exit_code(status: str) -> str:
    """wait(2)'s status as the code and signal that scontrol prints, and squeue too by now."""
    code, is_pair, signal = status.partition(":")
    if is_pair:
        return f"{parse_count(code)}:{parse_count(signal)}"
    number = parse_count(status)
    return f"{number >> 8 & 0xFF}:{number & 0x7F}"


def _parse_oversubscribe(values: Mapping[str, str]) -> str:
    """Return as releases before 26.05 have it: OK for a job whose nodes others may be on, too."""
    if "OverSubscribe" in values:
        return values["OverSubscribe"]
    return "OK" if values["Exclusive"] in ("", "NO") else values["Exclusive"]


_SHARED: Final = ("", "OK", "YES")
"""OverSubscribe of a job whose nodes others may be on, too. Not NO, USER, MCS."""


def parse_job_resource_request(fields: Mapping[str, str]) -> JobResourceRequest:
    """Return what a pending job asks for, of each node and together."""
    tres = parse_tres(fields["tres-alloc"])
    nodes = max(parse_count(tres.get("node", ""), parse_minimum_node_count(fields["NumNodes"])), 1)
    each, tasks = parse_gres(fields["tres-per-node"]), max(parse_count(fields["NumTasks"]), 1)
    together = dict(parse_gres(fields["tres-per-job"]))
    for listed, times in ((parse_gres(fields["tres-per-task"]), tasks), (each, nodes)):
        for name, count in listed:
            together[name] = max(together.get(name, 0), count * times)
    return JobResourceRequest(
        nodes=nodes,
        tasks=max(parse_array_task_limit(fields["ArrayTaskID"]), 1),
        each=Tres(parse_count(fields["MinCpus"]), 0, each),
        total=Tres(
            parse_count(tres.get("cpu", ""), parse_count(fields["NumCPUs"])),
            parse_mebibytes(tres.get("mem", "")),
            tuple(sorted(together.items())),
        ),
        # How many sockets a node has is not known: such a job is taken to fill its nodes.
        whole=_parse_oversubscribe(fields) not in _SHARED or bool(fields["tres-per-socket"]),
        features=fields["Feature"],
        named=bool(fields["ReqNodes"]),
    )
