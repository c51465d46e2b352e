"""What `hpctl run` makes of its command line and the job's environment."""

from pathlib import Path

import pytest

from hpctl.jobs.run.settings import RunSettings, read_run_settings
from hpctl.jobs.run.srun import parse_srun_command
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.policy_file import RunPolicyFile

JOB = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-5]", "HOME": "/home/u"}


def given(*text: str, nodes: str = "", spares: int | None = None, **environ: str) -> RunSettings:
    return read_run_settings(
        parse_srun_command([*text, "train"]), JOB | environ, nodes=nodes, spares=spares
    )


def test_spares_are_kept_back() -> None:
    assert given(spares=1).wanted == 4
    assert (given(HPCTL_SPARES="2").wanted, given(spares=0, HPCTL_SPARES="2").wanted) == (3, 5)
    assert (given(nodes="3").wanted, given("-N3").wanted) == (3, 3)


def test_an_elastic_range_goes_into_the_policy() -> None:
    one = given(nodes="3-4")
    assert (one.wanted, one.least, one.policy.nodes, given(spares=1).least) == (4, 3, (3, 4), 4)


@pytest.mark.parametrize("bad", [{"nodes": "six"}, {"nodes": "9"}, {"spares": 5}])
def test_numbers_that_do_not_fit_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(HpctlError):
        given(**bad)


def test_history_is_next_to_the_checkpoints_or_in_the_home() -> None:
    assert given(HPCTL_CHECKPOINT_DIR="/ck").history == Path("/ck/.hpctl/run-42.jsonl")
    assert given(SLURM_CLUSTER_NAME="c/1").history == Path(
        "/home/u/.local/state/hpctl/run-c_1-42.jsonl"
    )
    assert given().history == Path("/home/u/.local/state/hpctl/run-42.jsonl")
    assert given(HPCTL_CHECKPOINT_DIR="/ck").completion_marker_path == Path(
        "/ck/.hpctl/run-42.done"
    )


def test_the_clusters_policy_goes_under_the_jobs_own_and_leaves_the_size() -> None:
    own = RunPolicyFile(hang_factor=7.0)
    one = read_run_settings(parse_srun_command(["train"]), JOB, [own], nodes="2-4")
    one.configure([RunPolicyFile(hang_floor_s=5.0, hang_factor=3.0, nodes=(1, 2))])
    assert (one.policy.hang_floor_s, one.policy.hang_factor) == (5.0, 7.0)
    assert (one.policy.nodes, one.wanted) == ((2, 4), 4)


@pytest.mark.parametrize(
    ("options", "environ", "tasks"),
    [
        (["--ntasks-per-node=2"], {}, ["n1", "n1", "n2", "n2"]),
        ([], {"SLURM_NTASKS_PER_NODE": "2"}, ["n1", "n1", "n2", "n2"]),
        (["--ntasks-per-node=1"], {"SLURM_NTASKS_PER_NODE": "8"}, ["n1", "n2"]),
        (["-n", "2", "--ntasks-per-node=1"], {}, ["n1", "n2"]),
        (["-n", "3"], {"SLURM_NTASKS_PER_NODE": "2"}, []),
        (["-m", "cyclic", "--ntasks-per-node=2"], {}, []),
        (["--ntasks-per-node=2"], {"SLURM_DISTRIBUTION": "cyclic"}, []),
        ([], {}, []),
    ],
)
def test_tasks_are_placed_where_their_number_on_each_node_is_known(options, environ, tasks):
    assert list(given(*options, **environ).map_tasks_to_nodes(("n1", "n2")).values()) == tasks
