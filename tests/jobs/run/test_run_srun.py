"""srun's command line, taken apart and put together again, and its lines about its tasks."""

import pytest

from hpctl.jobs.run.srun import (
    SrunLaunchFailure,
    SrunTaskEnd,
    build_step_arguments,
    find_failed_rank_node,
    find_root_cause_task_end,
    find_step_id,
    find_tasks_per_node,
    is_step_blocked_by_earlier_step,
    parse_srun_command,
    parse_srun_lines,
    restrict_srun_to_step_nodes,
)
from hpctl.slurm.step_environment import make_step_environment
from hpctl.toolkit.errors import HpctlError

AB = ("n1", "n2")


def test_options_end_where_the_command_begins():
    parsed = parse_srun_command(
        ["-n4", "--gres", "gpu:8", "-K", "--mpi=pmix", "-l", "-c", "2", "train", "-x", "1"]
    )
    assert parsed.command == ("train", "-x", "1")
    assert parsed.options == ("-n4", "--gres", "gpu:8", "-K", "--mpi=pmix", "-l", "-c", "2")
    assert (parsed.given["ntasks"], parsed.given["cpus-per-task"]) == ("4", "2")


@pytest.mark.parametrize(
    "pin", [["-w", "n1"], ["--nodelist=n1"], ["-x", "n1"], ["-r", "1"], ["--nodefile", "f"]]
)
def test_a_step_pinned_to_nodes_is_refused(pin):
    with pytest.raises(HpctlError, match="pins the step"):
        parse_srun_command([*pin, "train"])


@pytest.mark.parametrize(
    ("options", "given"),
    [(["-un", "4"], "4"), (["-luln4"], "4"), (["-lQn", "4", "-K"], "4"), (["-lK0"], None)],
)
def test_letters_in_one_word_are_read_as_srun_does(options, given):
    parsed = parse_srun_command([*options, "train", "a"])
    assert (parsed.command, parsed.options) == (("train", "a"), tuple(options))
    assert (parsed.given.get("ntasks"), parsed.should_continue_on_bad_exit) == (
        given,
        given is None,
    )


def test_the_supervisors_words_stand_after_the_users_and_before_the_command():
    line = build_step_arguments(parse_srun_command(["-K1", "train", "a"]), 8, AB, overlap=False)
    assert line == [
        "-K1", "--kill-on-bad-exit=0", "--nodes=2", "--nodelist=n[1-2]", "--ntasks=16",
        "--ntasks-per-node=8", "train", "a",
    ]  # fmt: skip
    assert "--overlap" in build_step_arguments(
        parse_srun_command(["train"]), None, AB, overlap=True
    )


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ([], {}, None),
        (["-n", "8"], {"SLURM_NTASKS": "40"}, None),
        ([], {"SLURM_NTASKS": "40", "SLURM_NTASKS_PER_NODE": "8"}, None),
        ([], {"SLURM_NTASKS": "40"}, 8),
        ([], {"SLURM_NTASKS": "32"}, 8),
    ],
)
def test_tasks_of_the_allocation_become_tasks_of_a_node(options, environ, expected):
    assert find_tasks_per_node(parse_srun_command([*options, "x"]), environ, 5, 4) == expected


def test_tasks_that_do_not_come_out_even_are_refused():
    with pytest.raises(HpctlError, match="evenly"):
        find_tasks_per_node(parse_srun_command(["x"]), {"SLURM_NTASKS": "7"}, 5, 4)


def test_what_goes_stale_is_taken_out_of_the_environment():
    environ = {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_NNODES": "3", "PATH": "/bin",
        "MASTER_ADDR": "n0",
    }  # fmt: skip
    env = make_step_environment(environ, AB, ("n0", *AB))
    assert env == {"SLURM_JOB_ID": "1", "PATH": "/bin", "MASTER_ADDR": "n1"}
    env = make_step_environment({"MASTER_ADDR": "login1"}, AB, AB)
    assert env["MASTER_ADDR"] == "login1"


def test_ranks_see_the_nodes_of_their_step():
    command = restrict_srun_to_step_nodes(parse_srun_command(["train"]), AB).command
    assert command[0] == "/usr/bin/env"
    assert "SLURM_NODELIST=n[1-2]" in command
    assert "SLURM_NNODES=2" in command
    assert restrict_srun_to_step_nodes(
        parse_srun_command(["--multi-prog", "file"]), AB
    ).command == ("file",)


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


def test_the_lines_in_their_order():
    found = list(parse_srun_lines(BLOCK))
    ends = [(e.node, e.rank, e.code) for e in found if isinstance(e, SrunTaskEnd)]
    assert ends == [
        ("ip-10-0-0-2", 1, 93), ("ip-10-0-0-3", 8, 137), ("ip-10-0-0-3", 3, 139),
        ("ip-10-0-0-4", 30, 137),
    ]  # fmt: skip
    assert [e.node for e in found if isinstance(e, SrunLaunchFailure)] == ["ip-10-0-0-5", None]


def test_the_node_of_a_rank_is_where_its_end_was_reported():
    ends = [one for one in parse_srun_lines(BLOCK) if isinstance(one, SrunTaskEnd)]
    assert [find_failed_rank_node(rank, ends) for rank in (1, 9, 12, 30)] == [
        "ip-10-0-0-2", "ip-10-0-0-3", "ip-10-0-0-3", "ip-10-0-0-4",
    ]  # fmt: skip
    assert find_failed_rank_node(10, ends) is None


def end(code: int, rank: int = 0) -> SrunTaskEnd:
    return SrunTaskEnd("n1", rank, code, "")


def test_the_root_is_the_first_unless_a_code_says_more():
    assert find_root_cause_task_end([end(1, 4), end(143, 2)], (93,), (16, 17)) == end(1, 4)
    assert find_root_cause_task_end([end(1, 4), end(93, 2)], (93,), (16, 17)) == end(93, 2)
    assert find_root_cause_task_end([end(1), end(17, 2)], (93,), (16, 17)) == end(17, 2)
    assert find_root_cause_task_end([], (93,), ()) is None


def test_a_step_is_found_by_its_sruns_process():
    text = (
        "StepId=1.batch UserId=0 State=RUNNING SrunHost:Pid=(null):0\n"
        "StepId=1.4 UserId=0 State=RUNNING Name=sh Dist=Block SrunHost:Pid=vm:14398 TresPerNode=x\n"
        "StepId=9_2.5 UserId=0 Name=sh SrunHost:Pid=vm:143981\n"
    )
    assert (find_step_id(text, 14398), find_step_id(text, 143981)) == ("1.4", "9_2.5")
    assert find_step_id(text, 1) is None


def test_a_step_that_waits_for_a_dead_one_is_seen():
    old = "StepId=21.0 UserId=0 State=RUNNING Name=env SrunHost:Pid=vm:2095 TresPerNode=x\n"
    new = "StepId=21.TBD UserId=0 State=PENDING Name=(null) SrunHost:Pid=vm:3027\n"
    assert is_step_blocked_by_earlier_step(old + new, 3027, {2095})
    assert not is_step_blocked_by_earlier_step(new, 3027, {2095})
    assert not is_step_blocked_by_earlier_step(old + new, 3027, set())
    assert not is_step_blocked_by_earlier_step(
        old + new.replace("PENDING", "RUNNING"), 3027, {2095}
    )
