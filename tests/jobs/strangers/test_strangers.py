"""Scripts as people write them lose a node and a rank: they run again, or the submission says why.

One script a shape. Its stubs stand before PATH, so that nothing in it is changed.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs.strangers.stage import Part, stage

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True)
class Row:
    """A script, what its submission says, and what it does after a rank was killed.

    `says`: parts of hpctl's warnings and notes; with none, hpctl warns of nothing. `cause`: what
    `hpctl explain` says then.
    """

    part: Part
    says: tuple[str, ...] = ()
    cause: str = "it was killed by SIGKILL"


def script(name: str, **more: object) -> Part:
    return Part(SCRIPTS / name, **more)  # type: ignore[arg-type]


TRAIN = {"train.sh": "STRANGERS={records} {stub} python train.py\n"}
BAD_MODULE = {"site-packages/msgspec.py": "raise SystemExit('of another Python')\n"}
ROWS = {
    "head_address": Row(script("head_address.sbatch")),
    "tool_after_training": Row(
        script("tool_after_training.sbatch", ends=False),
        says=("the script ends with `dcgmi profile --resume`, which hides the exit code",),
    ),
    "container_options": Row(
        script("container_options.sbatch"), says=("--auto-resume=1 is HyperPod's own",)
    ),
    "shell_and_log": Row(script("shell_and_log.slurm")),
    "modules_and_conda": Row(script("modules_and_conda.sh", ranks=4, files=BAD_MODULE)),
    "two_servers": Row(
        script("two_servers.sbatch", ranks=3, ends=False),
        says=("one that crashes neither ends nor fails the job",),
    ),
    "one_step_a_node": Row(
        script("one_step_a_node.sbatch"), says=("`wait` alone ends",), cause="exit code 1"
    ),
    "own_requeue": Row(script("own_requeue.sh", ranks=4)),
    "first_to_end": Row(
        script("first_to_end.sh"),
        says=("this EXIT trap replaces hpctl's", "this step writes"),
        cause="",
    ),
    "replaced_shell": Row(
        script("replaced_shell.sbatch", ranks=16), says=("this step writes to files of its own",)
    ),
    "one_node": Row(script("one_node.sh", ranks=1, files={"environment.sh": ""})),
    "few_variables": Row(
        script(
            "few_variables.sh",
            arguments=["train.sh"],
            environment={"SCRATCH_HOME": "/none"},
            files=TRAIN,
            ends=False,
        ),
        says=(
            "ends with `set +x`, which hides the exit code",
            "srun --export without ALL",
            "this step writes to files of its own",
        ),
    ),
    "profiled": Row(script("profiled.sbatch", ranks=8)),
    "ray_cluster": Row(
        script(
            "ray_cluster.sub",
            ranks=3,
            environment={"CONTAINER": "image.sqsh", "COMMAND": "python train.py"},
        ),
        says=("this step writes to files of its own",),
    ),
    "driver_in_head": Row(
        script(
            "driver_in_head.sub",
            environment={"CONTAINER": "image.sqsh", "COMMAND": "python train.py"},
        ),
        says=("this EXIT trap replaces hpctl's", "this step writes to files of its own"),
        cause="",
    ),
    # A real node has the address of the daemon in a file, and the sandbox in the environment.
    "no_environment": Row(script("no_environment.sh", files=TRAIN), cause=""),
}


EACH_TIME = ("container_options", "shell_and_log")
"""The others are nightly."""


@pytest.fixture(scope="module")
def found():
    with stage() as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in EACH_TIME else pytest.mark.nightly) for name in ROWS],
)
def test_a_script_continues_after_a_lost_node_and_a_killed_rank(found, name):
    row = ROWS[name]
    found.clear()
    played = found.submit(row.part)
    for text in row.says:
        assert text in played.said
    if not row.says:
        assert "warning" not in played.said
    found.lose_node(played, row.part)
    found.kill_rank(played, row.part)
    if row.part.ends:
        assert row.cause in played.rank_killed
    found.finish(played)


@pytest.mark.nightly
def test_a_job_of_a_script_that_calls_sbatch_continues(found):
    part = script("submits.sh")
    found.clear()
    played = found.submit_by(part)
    assert found.live.job(played.job).comment.startswith("hpctl:{")
    found.lose_node(played, part)
    found.kill_rank(played, part)
    assert "it was killed by SIGKILL" in played.rank_killed
    found.finish(played)


@pytest.mark.nightly
def test_a_program_without_the_job_s_environment_gets_hpctl_s_variables(found):
    home = found.base / "checkpoints"
    home.mkdir()
    part = script("no_environment.sh", files=TRAIN, options=[f"--checkpoint-dir={home}"])
    found.clear()
    played = found.submit(part)
    for rank in found.wait_for_run(played.job, 0, part):
        assert rank["environment"]["HPCTL_CHECKPOINT_DIR"] == str(home)
        assert rank["environment"]["HPCTL_RESTART_COUNT"] == "0"
    found.finish(played)
