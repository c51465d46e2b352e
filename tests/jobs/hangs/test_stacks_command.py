"""`hpctl stacks`: the flight recorders' dumps beside the stacks."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpctl.jobs.hangs.command import RunningJob, stacks
from hpctl.jobs.hangs.fresh_dumps import FRESH_S, diagnose_hang_from_job_dumps
from hpctl.jobs.hangs.stack_groups import NodeStacks, RankStack, StackFrame
from tests.gpu.recordings import H200

pytestmark = pytest.mark.integration

WAITS = (StackFrame("all_reduce", "torch/distributed/distributed_c10d.py", 3068),)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """The dumps of nccl_skip3, just written."""
    for rank in range(3):
        source = H200 / f"nccl/nccl_skip3.nccl_trace_rank_{rank}.pickle"
        shutil.copyfile(source, tmp_path / f"fr-{rank}")
    return f"{tmp_path}/fr-"


def node(prefix: str) -> NodeStacks:
    ranks = [RankStack(rank, frames=WAITS, flight=f"{prefix}{rank}") for rank in range(3)]
    return NodeStacks("n1", 3, tuple(ranks))


def show(monkeypatch, *options: str, said: NodeStacks):
    job = RunningJob(7, os.getuid(), "ada", ("n1",))
    monkeypatch.setattr("hpctl.jobs.hangs.command.find_running_job", lambda _: job)
    monkeypatch.setattr("hpctl.jobs.hangs.stacks.collect_job_stacks", lambda *_, **__: [said])
    return CliRunner().invoke(stacks, ["7", *options])


def test_the_dumps_name_the_rank_where_the_stacks_are_alike(monkeypatch, prefix: str) -> None:
    found = show(monkeypatch, said=node(prefix))
    assert found.exit_code == 1, found.output
    assert "Flight recorder" in found.output
    assert "rank 1 did not come to collective 5" in " ".join(found.output.split())
    document = json.loads(show(monkeypatch, "--json", said=node(prefix)).stdout)
    assert (document["flight_ranks"], document["suspects"]) == ([1], [])


def test_old_dumps_are_of_another_hang(monkeypatch, prefix: str) -> None:
    for rank in range(3):
        path = f"{prefix}{rank}"
        old = os.stat(path).st_mtime - FRESH_S - 60
        os.utime(path, (old, old))
    found = show(monkeypatch, said=node(prefix))
    assert (found.exit_code, "Flight recorder" in found.output) == (0, False)


def test_dumps_from_before_the_run_and_of_another_size_are_other_runs(prefix: str) -> None:
    """Ten minutes hold the end of one job and the start of the next."""
    said, written = node(prefix), os.stat(f"{prefix}0").st_mtime
    assert diagnose_hang_from_job_dumps([replace(said, began=written - 60)], None).ranks == (1,)
    assert diagnose_hang_from_job_dumps([replace(said, began=written + 60)], None).dumps == 0
    other = NodeStacks("n2", began=written + 60)
    assert diagnose_hang_from_job_dumps([said, other], None).dumps == 0, (
        "the ranks of another node began later"
    )
    assert diagnose_hang_from_job_dumps([replace(said, world=4)], None).dumps == 0


def test_dumps_in_several_places_are_not_read(prefix: str) -> None:
    first, *others = node(prefix).ranks
    mixed = NodeStacks(
        "n1", 3, (first, *(RankStack(o.rank, flight=f"/x-{o.rank}") for o in others))
    )
    assert diagnose_hang_from_job_dumps([mixed], None).dumps == 0
    assert diagnose_hang_from_job_dumps([node(prefix)], None).ranks == (1,)


def test_an_account_that_this_host_does_not_know_costs_the_dumps_alone(
    monkeypatch, prefix: str
) -> None:
    monkeypatch.setattr("hpctl.jobs.hangs.stacks.os.geteuid", lambda: 0)
    assert diagnose_hang_from_job_dumps([node(prefix)], 2_000_000_000).dumps == 0
