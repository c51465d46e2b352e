"""`hpctl cluster create|scale|delete|wait` as a person runs them, over HTTP."""

import json

import pytest

from hpctl.errors import HpctlError
from tests.clusters.bed import CLUSTER, AwsBed
from tests.clusters.shell import FAST, Shell


def drop(bed: AwsBed) -> None:
    bed.emulator.delete(CLUSTER)
    assert bed.emulator.wait_until(lambda: not bed.emulator.world.clusters, 10)


# --- create -----------------------------------------------------------------------------------


def test_a_cluster_is_created_and_followed_to_its_last_node(shell: Shell) -> None:
    drop(shell.bed)
    shell.bed.forget_calls()
    text = shell.said("create", str(shell.file), "--no-validate", *FAST, stdin="y\n")
    assert text == "create llm: done; InService, controller 1/1, workers 4/4\n" or "(" in text
    assert shell.bed.operations().count("CreateCluster") == 1


def test_nothing_is_created_without_a_yes(shell: Shell) -> None:
    drop(shell.bed)
    result = shell.run("create", str(shell.file), "--no-validate", *FAST, stdin="n\n")
    assert result.exit_code == 1
    assert "4 x ml.p5.48xlarge" in result.stderr
    assert "nothing was done" in result.stderr
    assert max(map(len, result.stderr.splitlines())) <= 80
    assert not shell.bed.emulator.world.clusters


def test_a_dry_run_of_create_prints_the_request_and_orders_nothing(shell: Shell) -> None:
    drop(shell.bed)
    shell.bed.forget_calls()
    text = shell.said("create", str(shell.file), "--no-validate", "--dry-run", "--json")
    view = json.loads(text)
    assert view["outcome"] == "dry_run"
    assert view["orders"][0]["operation"] == "CreateCluster"
    assert view["orders"][0]["request"]["ClusterName"] == CLUSTER
    assert set(shell.bed.operations()) == {"DescribeCluster"}


def test_an_interrupted_create_goes_on_without_asking(shell: Shell) -> None:
    result = shell.run("create", str(shell.file), "--no-validate", *FAST)
    assert result.exit_code == 0
    assert "there already, made from this spec: going on" in result.stderr
    assert "CreateCluster" not in shell.bed.operations()


def test_a_spec_that_fails_a_check_orders_nothing(shell: Shell) -> None:
    drop(shell.bed)

    def fail(*_: object) -> None:
        raise HpctlError("cluster.yaml: 1 check failed; nothing was ordered")

    shell.patch.setattr("hpctl.cli.cluster.validate.before_spending", fail)
    result = shell.run("create", str(shell.file), "--yes", *FAST)
    assert result.exit_code == 1
    assert not shell.bed.emulator.world.clusters


# --- scale ------------------------------------------------------------------------------------


def test_a_group_grows_and_nothing_is_added_twice(shell: Shell) -> None:
    grow = ("scale", "workers", "6", "--cluster", CLUSTER, "--yes", *FAST)
    assert "workers 6/6" in shell.said(*grow)
    assert "there is nothing to do" in shell.said(*grow)
    assert shell.bed.operations().count("BatchAddClusterNodes") == 1


def test_without_slurm_nothing_is_removed_unless_told(shell: Shell) -> None:
    shrink = ("scale", "workers", "2", "--cluster", CLUSTER, "--yes", *FAST)
    result = shell.run(*shrink)
    assert result.exit_code == 1
    assert "Slurm is not at hand" in str(result.exception)
    assert "workers 2/2" in shell.said(*shrink, "--now")
    assert "UpdateCluster" not in shell.bed.operations()


def test_idle_nodes_go_first_and_jobs_are_waited_for(shell: Shell) -> None:
    slurm = shell.head_node()
    slurm.run(6, "ip-127-0-1-5", "ip-127-0-1-4")
    slurm.run(7, "ip-127-0-1-5", "ip-127-0-1-4")
    slurm.run(8, "ip-127-0-1-3")
    slurm.at_look += [lambda: None] * 3 + [lambda: slurm.end(8)]
    text = shell.said("scale", "workers", "2", "--yes", *FAST)
    assert "workers 2/2" in text
    left = {n.node for n in shell.bed.emulator.world.cluster(CLUSTER).nodes.values()}
    assert left == {"ip-127-0-1-1", "ip-127-0-1-4", "ip-127-0-1-5"}


def test_named_nodes_go_and_the_count_follows(shell: Shell) -> None:
    shell.head_node()
    view = json.loads(
        shell.said("scale", "workers", "--nodes", "ip-127-0-1-[3-4]", "--yes", "--json", *FAST)
    )
    assert {r["node"]: r["phase"] for r in view["removals"]} == {
        "ip-127-0-1-3": "done", "ip-127-0-1-4": "done",
    }  # fmt: skip
    assert {g["name"]: g["target"] for g in view["groups"]}["workers"] == 2


def test_a_count_that_does_not_fit_the_named_nodes_is_a_usage_error(shell: Shell) -> None:
    args = ("scale", "workers", "1", "--cluster", CLUSTER, "--nodes", "ip-127-0-1-3")
    result = shell.run(*args, "--now", "--yes")
    assert result.exit_code == 2
    assert "without these 1 it has 3, not 1" in result.stderr


@pytest.mark.parametrize("how", ["--yes", "--dry-run"])
def test_a_controller_does_not_go(shell: Shell, how: str) -> None:
    shell.head_node()
    result = shell.run("scale", "controller", "0", how, *FAST)
    assert result.exit_code == 1
    assert "controller" in str(result.exception)
    assert "BatchDeleteClusterNodes" not in shell.bed.operations()


# --- delete -----------------------------------------------------------------------------------


def test_a_cluster_goes_when_its_name_is_typed(shell: Shell) -> None:
    result = shell.run("delete", CLUSTER, *FAST, stdin="llm\n")
    assert result.exit_code == 0, result.output
    assert "ends 5 instance(s)" in result.stderr
    assert "accounting on the\ncontroller.\n" in result.stderr
    assert "Running jobs: nobody knows" in result.stderr
    assert "delete llm: done; Deleted" in result.stdout


@pytest.mark.parametrize("typed", ["llmm\n", "\n", ""])
def test_a_cluster_stays_when_another_name_is_typed(shell: Shell, typed: str) -> None:
    result = shell.run("delete", CLUSTER, *FAST, stdin=typed)
    assert result.exit_code == 1
    assert "DeleteCluster" not in shell.bed.operations()


def test_the_jobs_that_end_are_shown_where_slurm_is_at_hand(shell: Shell) -> None:
    shell.head_node().run(7, "ip-127-0-1-3", "ip-127-0-1-4")
    result = shell.run("delete", CLUSTER, "--dry-run", *FAST)
    assert "7 bert of ana on 2 node(s)" in result.stderr
    assert "DeleteCluster" not in shell.bed.operations()


def test_a_deletion_that_is_repeated_is_done_only_where_that_was_foreseen(shell: Shell) -> None:
    shell.said("delete", CLUSTER, "--yes", *FAST)
    again = shell.run("delete", CLUSTER, "--yes", *FAST)
    assert (again.exit_code, str(again.exception)) == (1, "there is no cluster 'llm'")
    text = shell.said("delete", CLUSTER, "--yes", "--if-exists", *FAST)
    assert "there is nothing to do: there is no such cluster" in " ".join(text.split())


def test_delete_takes_what_can_only_be_nodes_for_nodes(shell: Shell) -> None:
    shell.head_node()
    wait = FAST[:2] + FAST[4:]
    text = shell.said("delete", "ip-127-0-1-[4-5]", "--yes", *wait)
    assert "deleted" in text
    assert shell.bed.operations().count("BatchDeleteClusterNodes") == 1
    assert "DeleteCluster" not in shell.bed.operations()
    # One word too many: nothing is ended, neither node nor cluster.
    mixed = shell.run("delete", CLUSTER, "ip-127-0-1-3", "--yes", *wait)
    assert mixed.exit_code == 1
    assert f"no node is called '{CLUSTER}'" in str(mixed.exception)
    assert shell.bed.operations().count("BatchDeleteClusterNodes") == 1
    assert "DeleteCluster" not in shell.bed.operations()
