"""Which file system is short of room, how full it is, and what to do."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.engine import state_disk
from hpctl.engine.journal.state import EngineState
from hpctl.engine.state_disk import (
    LOW,
    describe_full_state_filesystem,
    find_world_writable_directories,
)
from hpctl.engine.status_view import choose_cluster_status_exit_code, make_cluster_status_view
from hpctl.engine.world import World
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import OWN, at

BLOCK = 4096


def with_free(monkeypatch, free: int, inodes: int = 100) -> None:
    blocks, free_blocks = 2 * LOW // BLOCK, free // BLOCK
    sizes = (BLOCK, BLOCK, blocks, free_blocks, free_blocks)
    stat = os.statvfs_result((*sizes, 1000, inodes, inodes, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: stat)


@pytest.mark.parametrize(
    ("free", "inodes", "words"),
    [
        (LOW, 100, ""),
        (LOW - BLOCK, 100, "50 % full, 255 MiB of 512 MiB free"),
        (0, 100, "100 % full, 0 MiB of 512 MiB free"),
        (LOW, 0, "no inode is free"),
    ],
)
def test_full_disk_is_named(tmp_path, monkeypatch, free, inodes, words):
    with_free(monkeypatch, free, inodes)
    said = describe_full_state_filesystem(tmp_path)
    assert words in said
    assert bool(said) is bool(words)
    if said:
        mount = state_disk.find_filesystem_mount_for_path(
            tmp_path, Path("/proc/self/mountinfo").read_text()
        )
        assert f"the file system {mount.point} ({mount.kind}) of the state directory" in said


def test_a_directory_that_is_not_there_is_not_full(tmp_path):
    assert describe_full_state_filesystem(tmp_path / "no") == ""


def test_directories_that_any_user_may_write_to_are_found_on_the_same_file_system(tmp_path):
    state_dir, closed, shared = (tmp_path / name for name in ("state", "closed", "shared"))
    for directory, mode in ((state_dir, 0o711), (closed, 0o755), (shared, 0o1777)):
        directory.mkdir()
        directory.chmod(mode)
    looked_at = [str(closed), str(shared), str(tmp_path / "no")]
    assert find_world_writable_directories(state_dir, looked_at) == [str(shared)]


def test_an_open_directory_on_another_file_system_does_not_count():
    assert find_world_writable_directories(Path("/proc"), ["/dev/shm"]) == []


def test_a_full_disk_is_a_problem():
    world = World(at(10), OWN, EngineState(), slurm=SchedulerView(at(9)))
    assert make_cluster_status_view(world).problems == ()
    view = make_cluster_status_view(replace(world, full_disk="the file system / is short of room"))
    assert view.problems == ("the file system / is short of room",)
    assert choose_cluster_status_exit_code(view) is ExitCode.PROBLEM
