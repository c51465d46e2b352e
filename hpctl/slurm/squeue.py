"""Jobs by `squeue`, in fields that nobody can forge: how jobs are read in every release.

What a job's owner writes (its name, its Comment) may hold `=`, newlines, whole records of another
job. So each field ends in a mark that is new for each read and that nobody can guess: squeue takes
the format with the marks from its environment, which no other user can read, and prints every
value as it is, of whatever length. Seen on 22.05.8: a suffix that begins with a letter takes the
width of 20 away, `exit_code` is wait(2)'s status (`code:signal` from 24.11 on), every job has an
ArrayJobID, and a pending one its TRES in `tres-alloc`. All times are UTC, because `run` sets TZ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hpctl.core.bounds import EARLIEST, at_text, natural, printable
from hpctl.core.model import JobId, NodeName, SlurmJob
from hpctl.core.walls import Flaw, each
from hpctl.slurm.parse import ended_state, job_states
from hpctl.slurm.records import Hostlists, JobRecord, Size, least_nodes, least_of, tasks_of
from hpctl.slurm.sizes import Asked, demand

FIELDS: Final = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "State", "SubmitTime", "StartTime", "EndTime",
    "EligibleTime", "RestartCnt", "Requeue", "BatchFlag", "BatchHost", "Partition", "NodeList",
    "Reason", "exit_code", "UserID", "UserName", "NumNodes", "NumTasks", "NumCPUs", "MinCpus",
    "NTPerNode", "OverSubscribe", "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task",
    "tres-per-socket", "ReqNodes", "Feature", "Comment", "Name",
)  # fmt: skip
"""Of squeue's --Format."""
EXCLUDED_SINCE: Final = (24, 5)
"""--Format has ExcNodes from here on; before, `of_lists` asks for them."""
EXCLUSIVE_SINCE: Final = (26, 5)
"""OverSubscribe is NO for every job that did not ask for it from here on, and Exclusive tells."""
UNKNOWN: Final = "Invalid job format specification"
"""What squeue says on standard error of a field that it does not have; it prints all others."""
WORDS: Final = ("--noheader", "--all", "--local", "--states=all")
_NOTHING: Final = ("", "(null)", "N/A", "n/a")


class FrameError(ValueError):
    """An answer that is not made of whole records."""


def fields_of(release: tuple[int, ...]) -> tuple[str, ...]:
    """What is asked of a release's squeue."""
    fields: tuple[str, ...] = FIELDS
    if release >= EXCLUSIVE_SINCE:
        fields = tuple("Exclusive" if name == "OverSubscribe" else name for name in FIELDS)
    return fields if release < EXCLUDED_SINCE else (*fields[:-2], "ExcNodes", *fields[-2:])


def environ(mark: str, fields: tuple[str, ...] = FIELDS) -> dict[str, str]:
    """What squeue reads its format from. `mark`: letters and digits that nobody can guess."""
    ends = [f"{name}:m{mark};" for name in fields[:-1]]
    return {"SQUEUE_FORMAT2": ",".join([*ends, f"{fields[-1]}:m{mark}."])}


def of_lists(mark: str) -> dict[str, str]:
    """The same for the nodes that each job excludes, which --format alone knows before 24.05."""
    return {"SQUEUE_FORMAT": f"%Am{mark};%xm{mark}."}


def jobs(
    out: bytes, lists: bytes, mark: str, hosts: Hostlists, fields: tuple[str, ...] = FIELDS
) -> tuple[list[JobRecord], list[Flaw]]:
    """The jobs that squeue printed, `lists` by `of_lists`, and the records that cannot be read.

    Raises FrameError.
    """
    excluded = {row[0].strip(): row[1] for row in _rows(lists, mark) if len(row) == 2}
    return each(
        "parse",
        _rows(out, mark),
        lambda row: row[0].strip(),
        lambda row: _record(row, fields, excluded, hosts),
    )


def _rows(out: bytes, mark: str) -> list[list[str]]:
    *rows, rest = out.split(f"m{mark}.".encode())
    if rest.strip():
        raise FrameError("it ends within a record")
    return [row.decode("utf-8", "replace").split(f"m{mark};") for row in rows]


def _record(
    row: list[str], fields: tuple[str, ...], excluded: Mapping[str, str], hosts: Hostlists
) -> JobRecord:
    """Raises ValueError for a record with more or fewer fields."""
    said = dict(zip(fields, row, strict=True))
    for name in fields[:-2]:
        word = said[name].strip()
        said[name] = "" if word in _NOTHING else word
    pending, task = said["State"] == "PENDING", said["ArrayTaskID"]
    exit_code = _exit_code(said["exit_code"])
    end, reason = at_text(said["EndTime"]), said["Reason"].replace(" ", "_")
    state, flags = job_states(said["State"], ended_state(end, reason, exit_code))
    uid = natural(said["UserID"])
    job = SlurmJob(
        id=JobId(_id(said["JobID"])),
        state=state,
        submit=at_text(said["SubmitTime"]) or EARLIEST,
        restarts=natural(said["RestartCnt"]),
        flags=flags,
        name=printable(said["Name"]),
        user=printable(said["UserName"]),
        partition=said["Partition"],
        nodes=hosts(said["NodeList"]),
        excluded=hosts.of_user(uid, said.get("ExcNodes", excluded.get(row[0].strip(), ""))),
        batch_host=NodeName(said["BatchHost"]) if said["BatchHost"] else None,
        batch=said["BatchFlag"] not in ("", "0"),  # 2, 3, ...: so often its launch has failed
        requeue=said["Requeue"] == "1",
        reason=reason,
        exit_code=exit_code,
        start=at_text(said["StartTime"]),
        end=end,
        eligible=at_text(said["EligibleTime"]),
        comment="" if said["Comment"] == "(null)" else said["Comment"],
        uid=uid,
        wants=least_of(said["NumNodes"]) * tasks_of(task) if pending else 0,
        asks=demand(_asked(said)) if pending else None,
    )
    size = Size(
        natural(said["NumNodes"]),
        least_nodes(said["tres-alloc"]),
        natural(said["NumTasks"]),
        natural(said["NTPerNode"]),
    )
    array = natural(said["ArrayJobID"]) if task else 0
    return JobRecord(job, array, task, natural(said["HetJobID"]), size)


def _id(text: str) -> int:
    number = natural(text)
    if not 0 < number < 2**32:
        raise ValueError("no job id")
    return number


def _exit_code(status: str) -> str:
    """wait(2)'s status as the code and signal that scontrol prints, and squeue too by now."""
    code, is_pair, signal = status.partition(":")
    if is_pair:
        return f"{natural(code)}:{natural(signal)}"
    number = natural(status)
    return f"{number >> 8 & 0xFF}:{number & 0x7F}"


def _oversubscribe(said: dict[str, str]) -> str:
    """As releases before 26.05 have it: OK for a job whose nodes others may be on, too."""
    if "OverSubscribe" in said:
        return said["OverSubscribe"]
    return "OK" if said["Exclusive"] in ("", "NO") else said["Exclusive"]


def _asked(said: dict[str, str]) -> Asked:
    return Asked(
        tres=said["tres-alloc"],
        nodes=least_of(said["NumNodes"]),
        tasks=natural(said["NumTasks"]),
        cpus=natural(said["NumCPUs"]),
        cpus_each=natural(said["MinCpus"]),
        array_tasks=tasks_of(said["ArrayTaskID"]),
        per_node=said["tres-per-node"],
        per_job=said["tres-per-job"],
        per_task=said["tres-per-task"],
        per_socket=said["tres-per-socket"],
        oversubscribe=_oversubscribe(said),
        features=said["Feature"],
        named=bool(said["ReqNodes"]),
    )
