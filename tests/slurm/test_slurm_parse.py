"""Slurm's texts as nodes and jobs. The samples are what 22.05.8 and 25.11.7 printed."""

import re
from datetime import datetime

import pytest
from msgspec.structs import replace

from hpctl.slurm import parse
from hpctl.slurm.records import HostlistCache, SlurmJobRecord
from hpctl.toolkit.bounds import LATEST
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.demand import JobResourceRequest, Tres
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode
from tests.fakes.slurm_text import JOB, MARK, listed, node_text, row

FORGED = (
    "abc", "\u00b2", "9" * 5000, "-1", "1-", "n[1-", "cpu=\u00b2,node=\u00b2", "gpu:9x",
    "0-\u00b2:\u00b2%\u00b2",
)  # fmt: skip
"""No numbers, whatever Python's isdigit says; and one that Python will not read."""


def parsed(*rows, lists=b""):
    return parse.parse_squeue_jobs(b"".join(rows), lists or listed(j7="n4"), MARK, HostlistCache())


def read(*rows: bytes) -> dict[int, SlurmJob]:
    records, flaws = parsed(*rows)
    assert not flaws
    return {record.job.id: record.job for record in records}


def one(**over: str) -> SlurmJobRecord:
    (record,), flaws = parsed(row(**over))
    assert not flaws
    return record


def nodes_of(text: str) -> list[SlurmNode]:
    found, flaws = parse.parse_scontrol_nodes(parse.split_scontrol_node_lines(text))
    assert not flaws
    return found


@pytest.mark.parametrize(
    "reason",
    [
        "plain", 'x=y "q" # é State=DOWN', "a [b@c] d",
        "hpctl:r1 gone [root@2026-01-01T00:00:00] twice", "ends in space ",
        "Reason=Reason= NodeName=n9",
    ],
)  # fmt: skip
def test_a_nodes_reason_is_kept_to_the_letter(reason: str) -> None:
    text = node_text(state="IDLE+DRAIN", reason=f" Reason={reason} [root@2026-11-21T11:40:51]")
    (node,) = nodes_of(text + "\n")
    assert (node.reason, node.state, node.flags) == (reason, "IDLE", {"DRAIN"})


def test_a_node_in_full() -> None:
    (node,) = nodes_of(node_text(state="DOWN+DRAIN+NOT_RESPONDING") + "\n")
    assert (node.name, node.address, node.partitions) == ("n1", "127.0.0.1", ("all", "dev"))
    assert node.boot_time == datetime(2026, 11, 21, 11, 8, 9, tzinfo=UTC)
    assert node.slurmd_start == datetime(2026, 11, 21, 11, 40, 41, tzinfo=UTC)
    assert node.version == "22.05.8"
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
    (node,) = nodes_of(node_text(state=text))
    assert (node.state, set(node.flags)) == (state, flags)


def test_a_node_that_never_registered() -> None:
    text = (
        "NodeName=n9 CoresPerSocket=1  CPUAlloc=0 CPUTot=2 CPULoad=N/A NodeAddr=n9 "
        "NodeHostName=n9  RealMemory=1 State=UNKNOWN+NOT_RESPONDING ThreadsPerCore=1 "
        "BootTime=None SlurmdStartTime=None LastBusyTime=Unknown"
    )
    (node,) = nodes_of(text)
    assert (node.state, node.boot_time, node.slurmd_start) == ("UNKNOWN", None, None)


def test_a_job_in_full() -> None:
    job = one(Comment=" a=b  StdErr=c ").job
    assert (job.id, job.state, job.restarts, job.user) == (7, "RUNNING", 2, "ada")
    assert (job.nodes, job.excluded) == (("n1", "n2"), ("n4",))
    assert (job.batch_host, job.batch, job.requeue) == ("n1", True, True)
    assert (job.submit, job.end) == (datetime(2026, 11, 21, 11, 40, 49, tzinfo=UTC), None)
    assert job.comment == " a=b  StdErr=c "


HOSTILE = (
    "x UserId=alice(1667) GroupId=a(1) MCS_label=N/A JobState=RUNNING NodeList=a[1-99999]",
    "x\nJobId=8 JobName=y UserId=eve(1)",
    f"x{JOB['JobID']};8;9;.",
    row(JobID="8", State="FAILED", NodeList="n9").decode().replace(MARK, "f" * 16),
    "caf\udce9 \x1b[2J \u202e",
)
"""What a user can write: none of it holds the mark, which is not known before squeue runs."""


@pytest.mark.parametrize("field", ["Name", "Comment"])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_user_writes_is_no_field_and_no_record(field: str, text: str) -> None:
    hostile = row(**{field: "@@@"}).replace(b"@@@", text.encode("utf-8", "surrogateescape"))
    found = read(row(JobID="6"), hostile, row(JobID="8"))
    assert set(found) == {6, 7, 8}
    assert found[7] == replace(one().job, name=found[7].name, comment=found[7].comment)
    assert found[6] == one(JobID="6").job  # and so of the one after it
    assert found[8] == one(JobID="8").job
    assert found[7].name.isprintable()


@pytest.mark.parametrize(
    ("over", "state"),
    [
        ({}, "PENDING"),
        ({"EndTime": "2999-01-01T00:00:00", "Reason": "BeginTime"}, "PENDING"),
        ({"EndTime": "2026-11-21T11:45:38", "Reason": "NonZeroExitCode"}, "FAILED"),
        ({"EndTime": "2026-11-21T11:45:38", "Reason": "JobLaunchFailure"}, "FAILED"),
        ({"EndTime": "2026-11-21T11:45:38", "exit_code": "15"}, "CANCELLED"),
        ({"EndTime": "2026-11-21T11:45:38", "exit_code": "36608"}, "CANCELLED"),
        ({"EndTime": "2026-11-21T11:45:38", "exit_code": "0"}, "COMPLETING"),
        (
            {
                "EndTime": "2026-11-21T11:45:38",
                "exit_code": "15",
                "PreemptTime": "2026-11-21T11:45:08",
            },
            "COMPLETING",
        ),
    ],
)
def test_the_base_state_that_completing_hides(over: dict[str, str], state: str) -> None:
    job = one(State="COMPLETING", **over).job
    assert (job.state, job.flags) == (state, {"COMPLETING"})


@pytest.mark.parametrize(
    ("word", "state"),
    [("REQUEUE_HOLD", "PENDING"), ("CONFIGURING", "RUNNING"), ("SPECIAL_EXIT", "PENDING")],
)
def test_a_flag_printed_as_the_state(word: str, state: str) -> None:
    job = one(State=word).job
    assert (job.state, job.flags) == (state, {word})


@pytest.mark.parametrize(("flag", "batch"), [("0", False), ("1", True), ("2", True), ("5", True)])
def test_a_batch_job_stays_one_when_slurm_has_requeued_it(flag: str, batch: bool) -> None:
    """slurmctld counts in it how often the launch has failed."""
    assert one(BatchFlag=flag).job.batch is batch


@pytest.mark.parametrize("release", [(24, 5, 0), (24, 11, 5), (26, 5, 5)])
def test_excluded_nodes_are_a_field_since_24_05(release: tuple[int, ...]) -> None:
    fields = parse.list_squeue_fields(release)
    output = {**JOB, "ExcNodes": "n[4-5]", "Exclusive": "NO"}
    line = "".join(f"{output[name]}m{MARK};" for name in fields[:-1]) + f"{output['Name']}m{MARK}."
    (record,), flaws = parse.parse_squeue_jobs(line.encode(), b"", MARK, HostlistCache(), fields)
    assert not flaws
    assert record.job.excluded == ("n4", "n5")
    assert "ExcNodes" not in parse.list_squeue_fields((22, 5, 8))


def test_array_tasks_are_named_by_array_and_task() -> None:
    task = one(ArrayJobID="5", ArrayTaskID="3")
    rest = one(ArrayJobID="5", ArrayTaskID="4-9%2")
    assert (task.command_id, task.is_multi_task_array) == ("5_3", False)
    assert rest.is_multi_task_array
    assert (one().command_id, one(HetJobID="7", HetJobOffset="1").command_id) == ("7", "7+1")


def test_times_without_bounds_are_in_bounds() -> None:
    """`sbatch --begin=9999-12-31T23:00:00 -t 3-0`, as 22.05.8 printed it."""
    job = one(
        State="PENDING",
        EligibleTime="9999-12-31T23:00:00",
        StartTime="9999-12-31T23:00:00",
        EndTime="10000-01-03T23:00:00",
    ).job
    assert (job.eligible, job.start, job.end) == (LATEST, LATEST, LATEST)


@pytest.mark.parametrize("cut", [b"7", b"7;8", row()[:-3], row()[:40]])
def test_half_an_answer_is_no_answer(cut: bytes) -> None:
    with pytest.raises(parse.IncompleteSqueueRecordError):
        parsed(row(JobID="6"), cut)
    with pytest.raises(parse.IncompleteSqueueRecordError):
        parsed(row(JobID="6"), lists=listed(j6="") + cut)


@pytest.mark.parametrize("over", [{"JobID": "x"}, {"JobID": str(2**32)}, {"JobID": ""}])
def test_a_record_that_cannot_be_read_hides_no_other(over: dict[str, str]) -> None:
    records, flaws = parsed(row(JobID="6"), row(**over), row(JobID="8"))
    assert [record.job.id for record in records] == [6, 8]
    assert [(f.where, f.error) for f in flaws] == [("parse", "ValueError: no job id")]
    assert re.fullmatch("[0-9a-f]{12}", flaws[0].digest)


def test_the_names_of_one_read_are_bounded_and_each_user_by_his_own() -> None:
    """Hundreds of jobs with `a[1-99999]` ate the daemon's memory."""
    hosts = HostlistCache()
    rows = [row(JobID=str(n), UserID="5" if n < 9 else "6") for n in range(1, 10)]
    excluded = listed(**{f"j{n}": f"a{n}x[1-99999]" for n in range(1, 9)}, j9="n[1-2000]")
    jobs = [
        record.job for record in parse.parse_squeue_jobs(b"".join(rows), excluded, MARK, hosts)[0]
    ]
    assert [len(job.excluded) for job in jobs] == [99_999, 99_999, *[0] * 6, 2000]
    assert all(job.nodes == ("n1", "n2") for job in jobs)
    hosts.begin()
    again = [record.job for record in parse.parse_squeue_jobs(rows[0], excluded, MARK, hosts)[0]]
    assert again[0].excluded is jobs[0].excluded, "it is not expanded again"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("", set()),
        ("40", {40}),
        ("1-3, 93", {1, 2, 3, 93}),
        ("254-99999999999", {254, 255}),
        ("x,5", {5}),
    ],
)
def test_exit_codes(text: str, codes: set[int]) -> None:
    assert parse.parse_requeue_exit_codes(text) == codes


def test_config() -> None:
    text = (
        "Configuration data as of 2026-11-21\nAuthInfo                = cred_expire=60,a=b\n"
        "MailProg                = (null)\nKillWait                = 5 sec\n\n"
        "Slurmctld(primary) at x is UP\n"
    )
    expected = {"AuthInfo": "cred_expire=60,a=b", "MailProg": "", "KillWait": "5 sec"}
    assert parse.parse_scontrol_config(text) == expected


@pytest.mark.parametrize(
    ("text", "release"),
    [("slurm-wlm 22.05.8", (22, 5, 8)), ("slurm 25.11.7\n", (25, 11, 7)), ("huh", None)],
)
def test_version(text: str, release: tuple[int, int, int] | None) -> None:
    assert parse.parse_slurm_version(text) == release


def test_what_a_pending_job_asks_for_and_a_node_has() -> None:
    job = one(State="PENDING", Comment="x TresPerNode=gres:gpu:99", tres_per_node="gres:gpu:2").job
    assert job.asks == JobResourceRequest(
        nodes=2, each=Tres(1, 0, (("gpu", 2),)), total=Tres(2, 0, (("gpu", 4),)), named=True
    )
    assert one().job.asks is None
    (node,) = nodes_of(
        node_text()
        .replace("Gres=(null)", "Gres=gpu:h100:8(S:0-1)")
        .replace("ActiveFeatures=(null)", "ActiveFeatures=p5,efa")
    )
    assert (node.has, node.features) == (Tres(2, 1, (("gpu", 8),)), ("p5", "efa"))


@pytest.mark.parametrize("field", sorted(set(JOB) - {"JobID"}))
@pytest.mark.parametrize("value", FORGED, ids=range(len(FORGED)))
@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_no_value_of_a_field_ends_the_daemon(field: str, value: str, state: str) -> None:
    records, flaws = parsed(row(**{"State": state, field: value}), row(JobID="8"))
    assert [record.job.id for record in records] == [7, 8]
    assert not flaws


SEEN = "n1|drained*|2026-11-21T11:40:49|ann|a | b\n"


@pytest.mark.parametrize(
    ("who", "slurm_user", "person"),
    [("ann", "slurm", "ann"), ("root", "slurm", ""), ("slurm", "slurm", ""), ("ann", "", "")],
)
def test_the_author_of_a_reason_is_a_person_or_slurm(
    who: str, slurm_user: str, person: str
) -> None:
    line = f"NodeName=n1 State=IDLE+DRAIN Reason=a b [{who}@2026-11-21T11:40:49] Comment=[x@1]"
    (node,), flaws = parse.parse_scontrol_nodes([line], slurm_user=slurm_user)
    assert (node.reason, node.reason_by, flaws) == ("a b", person, [])
    looked = parse.parse_sinfo_node(SEEN.replace("ann", who), SlurmNode("n1", "IDLE"), slurm_user)
    assert looked is not None
    assert looked.reason_by == person


def test_slurm_user_is_read_from_the_configuration() -> None:
    assert parse.parse_slurm_user({"SlurmUser": "slurm(64030)"}) == "slurm"
    assert parse.parse_slurm_user({}) == ""


def test_a_glance_is_one_nodes_state_and_reason() -> None:
    known = SlurmNode("n1", "IDLE", version="25.11.7")
    at = datetime(2026, 11, 21, 11, 40, 49, tzinfo=UTC)
    seen = parse.parse_sinfo_node(SEEN * 2, known)
    assert seen == replace(known, state=seen.state, flags=seen.flags, reason="a | b", reason_at=at)
    assert "DRAIN" in {seen.state, *seen.flags}
    assert parse.parse_sinfo_node("n1|idle|Unknown|Unknown|none", known, "slurm") == known
    differing = SEEN + SEEN.replace("drained", "idle")
    for text in (
        "",
        "\n",
        "n1|idle",
        "n1",
        "n1|idle|Unknown|none",
        SEEN.replace("n1", "n2"),
        differing,
        "no nodes found",
    ):
        assert parse.parse_sinfo_node(text, known) is None, text


JSON = b"""{"meta": {"x": [1]}, "jobs": [
 {"job_id": 6, "state_reason": "None"},
 {"job_id": 7, "state_reason": "JobHeldAdmin", "state_description": "launch failed requeued held"}]}
"""


@pytest.mark.parametrize(
    ("out", "job", "reason"),
    [(JSON, 7, "JobHeldAdmin"), (JSON, 6, "None"), (JSON, 8, ""), (b"", 7, ""), (b"{}", 7, ""),
     (b"squeue: error", 7, ""), (b'{"jobs": [{"job_id": "7"}]}', 7, ""), (b"\xff", 7, "")],
)  # fmt: skip
def test_the_reason_behind_slurmctlds_description_is_read_from_json(out, job, reason) -> None:
    assert parse.parse_squeue_json_reason(out, job) == reason
