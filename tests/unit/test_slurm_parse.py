"""Slurm's texts and JSON as nodes and jobs. The samples are what 22.05.8 and 25.11.7 printed."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import pytest

from hpctl.core.compat import UTC
from hpctl.core.model import JobId
from hpctl.core.tres import Demand, Tres
from hpctl.slurm import parse, parse_json
from hpctl.slurm.records import Size

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=1.50 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=(null) NodeAddr=127.0.0.1 "
    "NodeHostName={name} Port=40197 Version=22.05.8 OS=Linux 6.18 #1 SMP PREEMPT_DYNAMIC @0  "
    "RealMemory=1 AllocMem=0 FreeMem=20368 Sockets=2 Boards=1 State={state} ThreadsPerCore=1 "
    "TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=all,dev  "
    "BootTime=2026-11-21T11:08:09 SlurmdStartTime=2026-11-21T11:40:41 "
    "LastBusyTime=2026-11-21T11:40:41 CfgTRES=cpu=2,mem=1M,billing=2 AllocTRES= CapWatts=n/a "
    "CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{reason}"
)
JOB = (
    "JobId={id} {array}JobName={name} UserId=ada(1000) GroupId=domain users(513) MCS_label=N/A "
    "Priority=4294901759 Nice=0 Account=(null) QOS=(null) JobState={state} Reason={reason} "
    "Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode={code} "
    "RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A SubmitTime=2026-11-21T11:40:49 "
    "EligibleTime=2026-11-21T11:40:49 AccrueTime=2026-11-21T11:40:49 "
    "StartTime=2026-11-21T11:40:50 EndTime={end} Deadline=N/A SuspendTime=None "
    "SecsPreSuspend=0 LastSchedEval=2026-11-21T11:40:50 Scheduler=Main Partition=all "
    "AllocNode:Sid=localhost:3185 ReqNodeList=n[8-9] ExcNodeList=n4 NodeList=n[1-2] BatchHost=n1 "
    "NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=2,node=2,billing=2 "
    "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=0 "
    "MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 "
    "Licenses=(null) Network=(null) Command=/tmp/j.sh a=1 b WorkDir=/home/ada/my work "
    "{comment}StdErr=/tmp/o1 StdIn=/dev/null StdOut=/tmp/o1 Power= "
)


FORGED = (
    "abc",
    "\u00b2",
    "9" * 5000,
    "-1",
    "1-",
    "n[1-",
    "cpu=\u00b2,node=\u00b2",
    "gpu:9x",
    "0-\u00b2:\u00b2%\u00b2",
)
"""No numbers, whatever Python's isdigit says; and one that Python will not read."""
FIELDS = ("Restarts", "NumNodes", "NumTasks", "MinCPUsNode", "NtasksPerN:B:S:C", "TRES", "NodeList")


def node_text(name: str = "n1", state: str = "IDLE", reason: str = "") -> str:
    return NODE.format(name=name, state=state, reason=reason)


def job_text(**over: Any) -> str:
    base = {"id": 7, "array": "", "name": "job", "state": "RUNNING", "reason": "None"}
    return JOB.format(**{**base, "code": "0:0", "end": "Unknown", "comment": "", **over})


@pytest.mark.parametrize(
    "reason",
    [
        "plain",
        'x=y "q" # é State=DOWN',
        "a [b@c] d",
        "hpctl:r1 gone [root@2026-01-01T00:00:00] twice",
        "ends in space ",
        "Reason=Reason= NodeName=n9",
    ],
)
def test_a_nodes_reason_is_kept_to_the_letter(reason: str) -> None:
    text = node_text(state="IDLE+DRAIN", reason=f" Reason={reason} [root@2026-11-21T11:40:51]")
    (node,) = parse.nodes(text + "\n")
    assert node.reason == reason
    assert (node.state, node.flags) == ("IDLE", {"DRAIN"})


def test_a_node_in_full() -> None:
    (node,) = parse.nodes(node_text(state="DOWN+DRAIN+NOT_RESPONDING") + "\n")
    assert (node.name, node.address, node.partitions) == ("n1", "127.0.0.1", ("all", "dev"))
    assert node.boot_time == datetime(2026, 11, 21, 11, 8, 9, tzinfo=UTC)
    assert node.slurmd_start == datetime(2026, 11, 21, 11, 40, 41, tzinfo=UTC)
    assert node.down
    assert node.drained
    assert not node.responding


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("MIXED+COMPLETING+DRAIN", "MIXED", {"COMPLETING", "DRAIN"}),
        ("DOWN*+DRAIN", "DOWN", {"DRAIN", "NOT_RESPONDING"}),
        ("IDLE+DRAINED", "IDLE", {"DRAIN"}),
        ("ALLOCATED+DRAINING", "ALLOCATED", {"DRAIN"}),
        ("IDLE+CLOUD+POWERED_DOWN", "IDLE", {"CLOUD", "POWERED_DOWN"}),
        ("IDLE+SOMETHING_NEW", "IDLE", {"SOMETHING_NEW"}),
    ],
)
def test_a_nodes_state_is_a_base_and_flags(text: str, state: str, flags: set[str]) -> None:
    (node,) = parse.nodes(node_text(state=text))
    assert (node.state, set(node.flags)) == (state, flags)


def test_a_node_that_never_registered() -> None:
    text = (
        "NodeName=n9 CoresPerSocket=1  CPUAlloc=0 CPUTot=2 CPULoad=N/A NodeAddr=n9 "
        "NodeHostName=n9  RealMemory=1 State=UNKNOWN+NOT_RESPONDING ThreadsPerCore=1 "
        "BootTime=None SlurmdStartTime=None LastBusyTime=Unknown"
    )
    (node,) = parse.nodes(text)
    assert (node.state, node.boot_time, node.slurmd_start) == ("UNKNOWN", None, None)


def test_a_job_in_full() -> None:
    record = parse.one_job(job_text(comment="Comment=a=b StdErr=c  "))
    assert record is not None
    job = record.job
    assert (job.id, job.state, job.restarts, job.user) == (7, "RUNNING", 2, "ada")
    assert job.nodes == ("n1", "n2")
    assert job.excluded == ("n4",)
    assert (job.batch_host, job.batch, job.requeue) == ("n1", True, True)
    assert job.submit == datetime(2026, 11, 21, 11, 40, 49, tzinfo=UTC)
    assert job.end is None
    assert job.comment == "a=b StdErr=c"


@pytest.mark.parametrize(
    "name", ["x y", "JobState=FAILED", 'a "b" UserId=eve(7) NodeList=n9', "x UserId= y", "(1)"]
)
def test_a_jobs_name_cannot_pass_for_its_fields(name: str) -> None:
    record = parse.one_job(job_text(name=name))
    assert record is not None
    assert (record.job.name, record.job.user, record.job.state) == (name, "ada", "RUNNING")


@pytest.mark.parametrize(
    ("over", "state"),
    [
        ({"end": "Unknown"}, "PENDING"),
        ({"end": "2026-11-21T11:45:38", "reason": "NonZeroExitCode", "code": "3:0"}, "FAILED"),
        ({"end": "2026-11-21T11:45:38", "code": "0:15"}, "CANCELLED"),
        ({"end": "2026-11-21T11:45:38", "code": "0:0"}, "COMPLETED"),
        ({"end": "2026-11-21T11:45:38", "reason": "TimeLimit", "code": "0:0"}, "TIMEOUT"),
        ({"end": "2026-11-21T11:45:38", "reason": "NodeDown:_x", "code": "0:0"}, "NODE_FAIL"),
    ],
)
def test_the_base_state_that_completing_hides(over: dict[str, str], state: str) -> None:
    record = parse.one_job(job_text(state="COMPLETING", **over))
    assert record is not None
    assert (record.job.state, record.job.flags) == (state, {"COMPLETING"})


@pytest.mark.parametrize(
    ("word", "state"),
    [("CONFIGURING", "RUNNING"), ("REQUEUE_HOLD", "PENDING"), ("SPECIAL_EXIT", "PENDING")],
)
def test_a_flag_printed_as_the_state(word: str, state: str) -> None:
    record = parse.one_job(job_text(state=word))
    assert record is not None
    assert (record.job.state, record.job.flags) == (state, {word})


def test_array_tasks_are_named_by_array_and_task() -> None:
    one = parse.one_job(job_text(array="ArrayJobId=5 ArrayTaskId=3 "))
    rest = parse.one_job(job_text(array="ArrayJobId=5 ArrayTaskId=4-9%2 "))
    het = parse.one_job(job_text(array="HetJobId=7 HetJobOffset=0 "))
    assert one is not None
    assert rest is not None
    assert het is not None
    assert (one.command_id, one.whole_array) == ("5_3", False)
    assert rest.whole_array
    assert het.het_job == 7


def test_a_forged_record_in_a_comment_is_asked_for_again() -> None:
    forged = job_text(id=8, state="FAILED").rstrip()
    text = "\n".join([job_text(id=7, comment=f"Comment=x\n{forged}  "), job_text(id=8), ""])
    jobs, doubtful = parse.job_list(text)
    assert doubtful == {JobId(8)}
    assert set(jobs) == {JobId(7)}


def test_a_newline_in_a_name_makes_both_ids_doubtful() -> None:
    name = "x\nJobId=8 JobName=y"
    jobs, doubtful = parse.job_list("\n".join([job_text(id=7, name=name), job_text(id=8), ""]))
    assert doubtful == {JobId(7), JobId(8)}
    assert not jobs


@pytest.mark.parametrize("text", ["", "No jobs in the system\n", "JobId=7 JobName=x", "garbage"])
def test_no_jobs(text: str) -> None:
    jobs, _ = parse.job_list(text)
    assert not jobs


def test_config() -> None:
    text = (
        "Configuration data as of 2026-11-21\nAuthInfo                = cred_expire=60,a=b\n"
        "MailProg                = (null)\nKillWait                = 5 sec\n\n"
        "Slurmctld(primary) at x is UP\n"
    )
    expected = {"AuthInfo": "cred_expire=60,a=b", "MailProg": "", "KillWait": "5 sec"}
    assert parse.config(text) == expected


@pytest.mark.parametrize(
    ("text", "release"),
    [("slurm-wlm 22.05.8", (22, 5, 8)), ("slurm 25.11.7\n", (25, 11, 7)), ("huh", None)],
)
def test_version(text: str, release: tuple[int, int, int] | None) -> None:
    assert parse.version(text) == release


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def test_json_and_text_agree() -> None:
    stamp = int(datetime(2026, 11, 21, 11, 40, 49, tzinfo=UTC).timestamp())
    job = {
        "job_id": 7,
        "job_state": ["FAILED", "COMPLETING"],
        "submit_time": number(stamp),
        "start_time": number(stamp + 1),
        "end_time": number(stamp + 60),
        "eligible_time": number(stamp),
        "restart_cnt": 2,
        "flags": ["JOB_WAS_RUNNING"],
        "name": "job",
        "user_name": "ada",
        "user_id": 1000,
        "node_count": number(2),
        "tasks": number(2),
        "tasks_per_node": number(0),
        "tres_req_str": "cpu=2,node=2,billing=2",
        "partition": "all",
        "nodes": "n[1-2]",
        "excluded_nodes": "n4",
        "batch_host": "n1",
        "batch_flag": True,
        "requeue": True,
        "state_reason": "NonZeroExitCode",
        "comment": "c",
        "array_job_id": number(0),
        "exit_code": {"return_code": number(3), "signal": {"id": number(0)}, "status": ["ERROR"]},
        "something_new": {"a": 1},
    }
    (by_json,) = parse_json.jobs(json.dumps({"jobs": [job], "errors": []}).encode())
    by_text = parse.one_job(
        job_text(
            state="COMPLETING",
            reason="NonZeroExitCode",
            code="3:0",
            end="2026-11-21T11:41:49",
            comment="Comment=c ",
        )
    )
    assert by_text is not None
    assert by_json.job == by_text.job
    assert by_json.size == by_text.size == Size(nodes=2, least=2, tasks=2)


@pytest.mark.parametrize("shape", [None, 3, {"set": False, "number": 3}, "3"])
def test_a_size_in_a_shape_that_nobody_knows_breaks_nothing(shape: Any) -> None:
    job = {"job_id": 7, "job_state": ["PENDING"], "tasks": shape, "tres_req_str": shape}
    (record,) = parse_json.jobs(json.dumps({"jobs": [job], "errors": []}).encode())
    assert record.size.tasks == (3 if shape == 3 else 0)
    assert record.size.least == 0


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b'{"nodes": [{"name": 3}]}', b'{"jobs": []}',
        b'{"nodes": [], "errors": [{"description": "Invalid node name", "error_number": 0}]}',
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_or_with_errors_is_no_answer(data: bytes) -> None:
    with pytest.raises(parse_json.ParseError):
        list(parse_json.nodes(data))


def test_an_empty_list_counts_only_from_a_controller_that_has_answered() -> None:
    """What 25.11.7 prints, with exit status 0, when slurmctld is away, and when it is there."""
    for kind, read in (("jobs", parse_json.jobs), ("nodes", parse_json.nodes)):
        answer = {kind: [], "errors": [], "warnings": [], "last_update": number(0)}
        with pytest.raises(parse_json.ParseError):
            list(read(json.dumps(answer).encode()))
        there = {**answer, "last_update": number(1795264006)}
        assert list(read(json.dumps(there).encode())) == []


def test_ten_thousand_nodes_are_parsed_in_half_a_second() -> None:
    reason = " Reason=hpctl:r{} xid [root@2026-11-21T11:40:51]"
    text = "\n".join(
        node_text(f"gpu-{i:05d}", "IDLE+DRAIN", reason.format(i)) for i in range(10_000)
    )
    began = time.process_time()
    found = list(parse.nodes(text))
    assert len(found) == 10_000
    assert time.process_time() - began < 0.5


def test_what_a_pending_job_asks_for_and_a_node_has() -> None:
    text = job_text(state="PENDING", comment="Comment=x TresPerNode=gres:gpu:99 ")
    (record,) = parse.jobs(text + "TresPerNode=gres:gpu:2 \n")
    assert record.job.asks == Demand(
        nodes=2,
        each=Tres(1, 0, (("gpu", 2),)),
        total=Tres(2, 0, (("gpu", 4),)),
        named=True,
    )
    assert next(parse.jobs(job_text() + "\n")).job.asks is None
    (node,) = parse.nodes(
        node_text()
        .replace("Gres=(null)", "Gres=gpu:h100:8(S:0-1)")
        .replace("ActiveFeatures=(null)", "ActiveFeatures=p5,efa")
    )
    assert (node.has, node.features) == (Tres(2, 1, (("gpu", 8),)), ("p5", "efa"))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", FORGED, ids=range(len(FORGED)))
@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_what_a_user_writes_into_his_job_never_ends_the_daemon(
    field: str, value: str, state: str
) -> None:
    """A name can look like the fields that follow it, a comment like another job's record."""
    fields = f"x UserId=a(1) GroupId=a(1) MCS_label=N/A Priority=1 {field}={value} JobState={state}"
    other = job_text(id=8)
    mine = (
        job_text(name=fields),
        job_text(comment=f"Comment=x\nJobId={value} JobName={fields} "),
        job_text(array=f"ArrayJobId=7 ArrayTaskId={value} ", name=fields),
    )
    for text in mine:
        found, _ = parse.job_list(f"{text}\n{other}")
        assert found[JobId(8)].state == "RUNNING", "the jobs of others are seen all the same"


@pytest.mark.parametrize("field", ["name", "comment", "user_name", "state_description"])
def test_a_name_that_is_no_utf_8_hides_no_job(field: str) -> None:
    """`sbatch -J` takes what an old terminal sends."""
    named = f'{{"job_id": 7, "job_state": ["RUNNING"], "{field}": "caf'.encode() + b'\xe9"}'
    other = b'{"job_id": 8, "job_state": ["RUNNING"]}'
    told = b'{"jobs": [' + named + b", " + other + b'], "last_update": {"set": true, "number": 1}}'
    assert [r.job.id for r in parse_json.jobs(told)] == [7, 8]
    reason = b'{"nodes": [{"name": "n1", "reason": "caf\xe9"}]}'
    assert [n.reason for n in parse_json.nodes(reason)] == ["caf\ufffd"]
