"""NVRx's local checkpoints: whole where every rank's share is there, and every copy is good."""

import json

import pytest
from click.testing import CliRunner, Result

from hpctl.checkpoints import search as last
from hpctl.checkpoints.search import CheckpointTier, SkippedCheckpoint
from hpctl.cli.main import cli
from tests.checkpoints.checkpoint_files import dcp_files, instance, torch_save, write


def share(world: int | None = None) -> bytes:
    """As Megatron's: the arguments lie in the part that is common to all ranks."""
    args = instance("argparse", "Namespace", {"world_size": world} if world else {})
    return torch_save(instance("m", "MCoreTensorAwareStateDict", {"common": {"args": args}}))


def save(root, iteration, ranks, *, by=0, world=None):
    for rank in ranks:
        write(root, {f"{rank + by}/iter_{iteration:07d}_{rank}_local.pt": share(world)})


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *args])


def test_the_newest_iteration_of_which_every_rank_is_there(tmp_path) -> None:
    save(tmp_path, 10, range(4), world=4)
    save(tmp_path, 20, range(4), world=4)
    save(tmp_path, 30, range(3), world=4)
    write(tmp_path, {"3/iter_0000030_3_local.dirty.pt": share(4)[:50]})
    document = json.loads(run("last", "--json", str(tmp_path)).stdout)
    found = document["found"]
    assert (found["path"], found["step"], found["format"]) == (str(tmp_path), 20, "nvrx-local")
    (passed,) = document["passed_over"]
    assert passed["why"] == (
        "iteration 30 lacks the files of rank 3 of 4, rank 3 still being written"
    )
    assert not passed["claimed"]


def test_a_copy_in_another_ranks_directory_counts(tmp_path) -> None:
    save(tmp_path, 10, range(4), world=4)
    save(tmp_path, 10, range(2), by=2, world=4)
    (tmp_path / "0/iter_0000010_0_local.pt").unlink()
    assert last.find_newest_complete_checkpoint_in_tiers(tmp_path).found.step == 10
    (tmp_path / "2/iter_0000010_0_local.pt").unlink()
    search = last.find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert (search.verdict, search.passed_over[0].why) == (
        "none",
        "iteration 10 lacks the files of rank 0 of 4",
    )


def test_every_copy_must_be_good_because_nvrx_takes_its_own(tmp_path) -> None:
    save(tmp_path, 10, range(2), world=2)
    save(tmp_path, 20, range(2), world=2)
    save(tmp_path, 20, range(1), by=1, world=2)
    bad = tmp_path / "0/iter_0000020_0_local.pt"
    bad.write_bytes(bad.read_bytes()[:-9])
    search = last.find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.found.step == 10
    assert "0/iter_0000020_0_local.pt has no zip end record" in search.passed_over[0].why
    assert search.passed_over[0].claimed


def test_without_the_number_of_ranks_it_cannot_be_known(tmp_path) -> None:
    save(tmp_path, 10, range(8))
    result = run("last", "--export", str(tmp_path))
    assert result.exit_code == 3
    assert "files of ranks 0-7, but no file says how many ranks saved it" in result.stderr
    assert run("last", "--world-size", "8", str(tmp_path)).stdout == f"{tmp_path}\n"
    more = run("last", "--export", "--world-size", "16", str(tmp_path))
    assert (more.exit_code, more.stdout) == (1, "none\n")
    assert "lacks the files of ranks 8-15 of 16" in more.stderr


def test_on_a_nodes_own_disk_it_is_the_programs_business(tmp_path) -> None:
    save(tmp_path / "nvme", 40, range(2), world=2)
    shared = tmp_path / "shared"
    shared.mkdir()
    tiers = [CheckpointTier(tmp_path / "nvme", local=True), CheckpointTier(shared)]
    assert last.find_newest_complete_checkpoint_in_tiers(tiers, nodes=2).verdict == "none"
    assert last.find_newest_complete_checkpoint_in_tiers(tiers, nodes=1).verdict == "found"
    write(tmp_path / "nvme/step-50", dcp_files())
    search = last.find_newest_complete_checkpoint_in_tiers(tiers, nodes=2)
    assert search.verdict == "incomplete"
    assert {p.why for p in search.passed_over} == {
        "on this node's own disk, which the job's other nodes cannot read"
    }
    gone = [CheckpointTier(tmp_path / "not-made-yet", local=True), CheckpointTier(shared)]
    assert last.find_newest_complete_checkpoint_in_tiers(gone).verdict == "none", (
        "a new node's disk is empty"
    )


@pytest.mark.parametrize("number", [100, 0])
def test_directories_that_are_called_like_ranks_are_no_ranks(tmp_path, number: int) -> None:
    write(tmp_path / str(number), dcp_files())
    write(tmp_path / "7", {"notes": b"x"})
    search = last.find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert (search.found.step, search.found.format) == (number, "torch-dcp")
    assert isinstance(last.verify_checkpoint(tmp_path / "7"), SkippedCheckpoint)
