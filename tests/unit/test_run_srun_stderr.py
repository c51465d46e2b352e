"""srun's lines about its tasks."""

from __future__ import annotations

from hpctl.jobs.run.launch import blocked, step_of
from hpctl.jobs.run.srun import NotLaunched, TaskEnd, lines, root_end

BLOCK = b"""loss 3.2
srun: error: ip-10-0-0-2: task 1: Exited with exit code 93
slurmstepd-ip-10-0-0-2: error: *** STEP 1.1 ON ip-10-0-0-2 CANCELLED AT 2026-11-21T18:08:47 ***
srun: error: ip-10-0-0-3: tasks 8-9,12: Killed
srun: error: ip-10-0-0-3: task 3: Segmentation fault (core dumped)
srun: error: ip-10-0-0-4: task 30: Out Of Memory
srun: error: Task launch for StepId=4.17 failed on node ip-10-0-0-5: Zero Bytes were sent
srun: error: Unable to create step for job 7: Requested nodes are busy
not srun: error: x: task 1: Killed
"""


def test_the_lines_in_their_order() -> None:
    found = list(lines(BLOCK))
    ends = [(e.node, e.rank, e.code) for e in found if isinstance(e, TaskEnd)]
    assert ends == [
        ("ip-10-0-0-2", 1, 93), ("ip-10-0-0-3", 8, 137), ("ip-10-0-0-3", 3, 139),
        ("ip-10-0-0-4", 30, 137),
    ]  # fmt: skip
    assert [e.node for e in found if isinstance(e, NotLaunched)] == ["ip-10-0-0-5", None]
    assert isinstance(found[0], TaskEnd)


def end(code: int, rank: int = 0) -> TaskEnd:
    from hpctl.core.model import NodeName

    return TaskEnd(NodeName("n1"), rank, code, "")


def test_the_root_is_the_first_unless_a_code_says_more() -> None:
    assert root_end([end(1, 4), end(143, 2)], (93,), (16, 17)) == end(1, 4)
    assert root_end([end(1, 4), end(93, 2)], (93,), (16, 17)) == end(93, 2)
    assert root_end([end(1), end(17, 2)], (93,), (16, 17)) == end(17, 2)
    assert root_end([], (93,), ()) is None


def test_a_step_is_found_by_its_sruns_process() -> None:
    text = (
        "StepId=1.batch UserId=0 State=RUNNING SrunHost:Pid=(null):0\n"
        "StepId=1.4 UserId=0 State=RUNNING Name=sh Dist=Block SrunHost:Pid=vm:14398 TresPerNode=x\n"
        "StepId=9_2.5 UserId=0 Name=sh SrunHost:Pid=vm:143981\n"
    )
    assert step_of(text, 14398) == "1.4"
    assert step_of(text, 143981) == "9_2.5"
    assert step_of(text, 1) is None


def test_a_step_that_waits_for_a_dead_one_is_seen() -> None:
    old = "StepId=21.0 UserId=0 State=RUNNING Name=env SrunHost:Pid=vm:2095 TresPerNode=x\n"
    new = "StepId=21.TBD UserId=0 State=PENDING Name=(null) SrunHost:Pid=vm:3027\n"
    assert blocked(old + new, 3027, {2095})
    assert not blocked(new, 3027, {2095})
    assert not blocked(old + new, 3027, set())
    assert not blocked(old + new.replace("PENDING", "RUNNING"), 3027, {2095})
