"""srun's command line, taken apart and put together again."""

from __future__ import annotations

import pytest

from hpctl.core.model import NodeName
from hpctl.errors import HpctlError
from hpctl.jobs.run.srun import (
    TaskLayout,
    parse_srun,
    step_arguments,
    step_environment,
    task_layout,
    with_step_nodes,
)

AB = (NodeName("n1"), NodeName("n2"))


def test_options_end_where_the_command_begins() -> None:
    words = parse_srun(
        ["-n4", "--gres", "gpu:8", "-K", "--mpi=pmix", "-l", "-c", "2", "train", "-x", "1"]
    )
    assert words.command == ("train", "-x", "1")
    assert words.options == ("-n4", "--gres", "gpu:8", "-K", "--mpi=pmix", "-l", "-c", "2")
    assert words.given["ntasks"] == "4"
    assert words.given["cpus-per-task"] == "2"


@pytest.mark.parametrize(
    "pin", [["-w", "n1"], ["--nodelist=n1"], ["-x", "n1"], ["-r", "1"], ["--nodefile", "f"]]
)
def test_a_step_pinned_to_nodes_is_refused(pin: list[str]) -> None:
    with pytest.raises(HpctlError, match="pins the step"):
        parse_srun([*pin, "train"])


@pytest.mark.parametrize(
    ("options", "given"),
    [(["-un", "4"], "4"), (["-luln4"], "4"), (["-lQn", "4", "-K"], "4"), (["-lK0"], None)],
)
def test_letters_in_one_word_are_read_as_srun_does(options: list[str], given: str | None) -> None:
    words = parse_srun([*options, "train", "a"])
    assert words.command == ("train", "a")
    assert words.options == tuple(options)
    assert words.given.get("ntasks") == given
    assert words.lives_on == (given is None)


def test_the_supervisors_words_stand_after_the_users_and_before_the_command() -> None:
    line = step_arguments(parse_srun(["-K1", "train", "a"]), TaskLayout(8), AB, overlap=False)
    assert line == [
        "-K1", "--kill-on-bad-exit=0", "--nodes=2", "--nodelist=n[1-2]", "--ntasks=16",
        "--ntasks-per-node=8", "train", "a",
    ]  # fmt: skip
    assert "--overlap" in step_arguments(parse_srun(["train"]), TaskLayout(), AB, overlap=True)


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
def test_tasks_of_the_allocation_become_tasks_of_a_node(
    options: list[str], environ: dict[str, str], expected: int | None
) -> None:
    assert task_layout(parse_srun([*options, "x"]), environ, 5, 4).tasks_per_node == expected


def test_tasks_that_do_not_come_out_even_are_refused() -> None:
    with pytest.raises(HpctlError, match="evenly"):
        task_layout(parse_srun(["x"]), {"SLURM_NTASKS": "7"}, 5, 4)


def test_what_goes_stale_is_taken_out_of_the_environment() -> None:
    environ = {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_NNODES": "3", "PATH": "/bin",
        "MASTER_ADDR": "n0",
    }  # fmt: skip
    env = step_environment(environ, AB, (NodeName("n0"), *AB))
    assert env == {"SLURM_JOB_ID": "1", "PATH": "/bin", "MASTER_ADDR": "n1"}


def test_a_master_that_is_no_node_of_the_job_stays() -> None:
    env = step_environment({"MASTER_ADDR": "login1"}, AB, AB)
    assert env["MASTER_ADDR"] == "login1"


def test_ranks_see_the_nodes_of_their_step() -> None:
    command = with_step_nodes(parse_srun(["train"]), AB).command
    assert command[0] == "/usr/bin/env"
    assert "SLURM_NODELIST=n[1-2]" in command
    assert "SLURM_NNODES=2" in command
    assert with_step_nodes(parse_srun(["--multi-prog", "file"]), AB).command == ("file",)
