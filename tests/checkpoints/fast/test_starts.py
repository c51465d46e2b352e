"""Starts and ends of a job with fast saves: what they take over, and what they leave."""

import errno
import hashlib
import itertools
import os
import signal
import time
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from hpctl.checkpoints.fast import helpers, union
from hpctl.checkpoints.fast.lead import restore_fast_saves
from hpctl.checkpoints.fast.node import NodeSaveStore
from hpctl.checkpoints.fast.spec import META, FastCheckpointSaveSpec
from hpctl.checkpoints.files import record_job_start
from hpctl.checkpoints.marks import CheckpointMark, write_checkpoint_mark_file
from hpctl.checkpoints.search import CheckpointSearchResult, UnsearchedPlace
from hpctl.slurm.records import SlurmJobRecord
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode
from tests.checkpoints.checkpoint_files import dcp_files, deepspeed_files
from tests.checkpoints.checkpoint_files import write as write_files
from tests.checkpoints.fast import cluster
from tests.checkpoints.fast.cluster import Nodes, content, save, saved, scontrol, shown
from tests.waiting import until

pytestmark = pytest.mark.integration


def test_a_step_that_is_passed_over_does_not_come_back_from_memory(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        for step in (20, 30):
            name, _ = saved(nodes, step)
            nodes.safe(name)
        mark = CheckpointMark(
            True, 21, "alice", datetime.now(UTC), why="loss is NaN", until_start=True
        )
        write_checkpoint_mark_file(nodes.shared, mark)
        nodes.restart("n0", "n1")
        found = nodes.resume().found
        assert found is not None
        assert found.step == 20
        assert any(
            line.startswith("step 30 of the nodes is passed over: marked as poisoned by alice")
            for line in nodes.said
        )
        record_job_start(nodes.shared)
        name, _ = saved(nodes, 30)
        nodes.safe(name)
        nodes.restart("n0", "n1")
        again = nodes.resume().found
        assert again is not None
        assert again.step == 30, "the step that the run saves again"


@pytest.mark.parametrize("silent", [False, True], ids=["", "with a helper that is silent"])
def test_the_same_step_of_two_starts_is_never_mixed(tmp_path, silent):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        files = deepspeed_files(40)
        half = {n: raw for n, raw in files.items() if "rank_1" in n}
        save(nodes, "global_step40", half, dict.fromkeys(half, "n1"))
        if silent:
            nodes.signal("n1", signal.SIGSTOP)
        assert nodes.resume(wait_s=0.5).verdict == "none", "the second start"
        if silent:
            nodes.signal("n1", signal.SIGCONT)
            assert (nodes.disk("n1") / "global_step40").exists(), "a rank may write there by now"
            time.sleep(union.RETRY_S)
        rest = {n: raw for n, raw in files.items() if n not in half}
        save(nodes, "global_step40", rest, dict.fromkeys(rest, "n0"))
        time.sleep(1.0 if not silent else 2.5)
        assert nodes.resume().found is None
        assert not any("comes from" in line for line in nodes.said)


def test_a_node_that_missed_a_restore_takes_part_in_the_next_steps(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        nodes.signal("n1", signal.SIGSTOP)
        nodes.resume(wait_s=0.5)
        name, files = saved(nodes, 10)
        nodes.signal("n1", signal.SIGCONT)
        nodes.safe(name)
        nodes.lose("n0")
        nodes.start("n0")
        assert nodes.resume().found is not None
        assert content(nodes.disk("n0") / name) == files


def test_what_another_run_left_on_the_nodes_is_not_resumed(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        nodes.safe(saved(nodes, 500)[0])
        for host in list(nodes.processes):
            nodes.kill(host)
        nodes.shared = tmp_path / "another"
        nodes.shared.mkdir()
        nodes.spec = replace(nodes.spec, shared=str(nodes.shared))
        nodes.restart(*nodes.spec.hosts)
        assert nodes.resume().verdict == "none"
        assert f"held saves of {tmp_path}/shared: moved away" in nodes.log()
        nodes.safe(saved(nodes, 10)[0])


def test_a_start_from_scratch_keeps_its_own_saves(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        for number in (490, 500):
            nodes.safe(saved(nodes, number)[0])
        older = write_files(nodes.shared / "step-10", dcp_files(step=9))
        for path in (older, *older.iterdir()):
            os.utime(path, (1e9, 1e9))
        nodes.restart("n0", "n1")
        assert (
            restore_fast_saves(
                nodes.spec, CheckpointSearchResult(None), nodes.said.append, scratch=True
            ).found
            is None
        )
        name, files = saved(nodes, 10)
        nodes.safe(name)
        nodes.safe(saved(nodes, 9)[0])
        nodes.end()
        assert content(nodes.shared / name) == files
        assert not (nodes.shared / "step-500").exists()


@pytest.mark.parametrize("resume", ["", "scratch"])
def test_a_start_from_scratch_has_the_nodes_move_away_what_they_hold(tmp_path, monkeypatch, resume):
    monkeypatch.setattr(helpers, "launch_fast_save_helpers_on_nodes", lambda *_: None)
    monkeypatch.setattr(helpers, "SlurmCommandReader", Mock())
    monkeypatch.setattr(helpers, "wait_for_fast_save_helpers", lambda spec, gone: "")
    monkeypatch.setattr(helpers, "restore_fast_saves", made := Mock())
    reader = helpers.SlurmCommandReader()
    reader.nodes.return_value = reader.leaves.return_value = {}
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-1]", "HPCTL_RESUME": resume}
    places = {"HPCTL_CHECKPOINT_DIR": str(tmp_path), "HPCTL_FAST_DIR": "/nowhere"}
    helpers.start_fast_save_helpers({**environ, **places})
    assert [call.kwargs for call in made.call_args_list] == [{"scratch": True}] * bool(resume)


def test_a_flush_that_hangs_holds_up_nothing(tmp_path, monkeypatch):
    hangs = f"""{cluster.LOOK_OFTEN}
import time
from hpctl.checkpoints.fast import node
place = node._copy_stream_to_new_file
def slow(source, to, *more):
    while "/step-10/" in str(to) and Path("{tmp_path}/hangs").exists():
        time.sleep(0.05)
    place(source, to, *more)
node._copy_stream_to_new_file = slow
"""
    monkeypatch.setattr(cluster, "HELPER", cluster.HELPER.replace(cluster.LOOK_OFTEN, hangs))
    (tmp_path / "hangs").touch()
    with Nodes(tmp_path, 2, flush_s=1) as nodes:
        nodes.resume()
        nodes.safe(saved(nodes, 10)[0])
        until(lambda: list((nodes.shared / META).glob("flush-*/*")), 10)
        nodes.safe(saved(nodes, 20)[0])
        found = nodes.resume().found
        assert found is not None
        assert found.step == 20
        name, files = saved(nodes, 30)
        nodes.safe(name)
        begun = time.monotonic()
        nodes.end()
        # slurmd kills what is left after 30 s; a busy machine adds the start of programs.
        assert time.monotonic() - begun < 60
        assert content(nodes.shared / name) == files
    (tmp_path / "hangs").unlink()


def test_a_flush_that_is_slower_than_the_saves_lands(tmp_path, monkeypatch):
    slow = f"""{cluster.LOOK_OFTEN}
import time
from hpctl.checkpoints.fast import node
place = node._copy_stream_to_new_file
def slow(source, to, *more):
    time.sleep(0.5 if "/flush-" in str(to) else 0)
    place(source, to, *more)
node._copy_stream_to_new_file = slow
"""
    monkeypatch.setattr(cluster, "HELPER", cluster.HELPER.replace(cluster.LOOK_OFTEN, slow))
    with Nodes(tmp_path, 2, flush_s=1) as nodes:
        nodes.resume()
        numbers = itertools.count(1)

        def lands_while_steps_are_saved() -> bool:
            nodes.safe(saved(nodes, next(numbers))[0])
            return any(path.name.startswith("step-") for path in nodes.shared.iterdir())

        until(lands_while_steps_are_saved, every=0.3)


def test_a_node_that_is_lost_holds_up_no_end(tmp_path, monkeypatch):
    scontrol(tmp_path, monkeypatch).write_text(shown("COMPLETING"))
    long = f"{cluster.LOOK_OFTEN}helpers.LAST_FLUSH_S = 600.0\n"
    monkeypatch.setattr(cluster, "HELPER", cluster.HELPER.replace(cluster.LOOK_OFTEN, long))
    with Nodes(tmp_path, 3) as nodes:
        nodes.restart_as_job_7()
        nodes.resume()
        nodes.safe(saved(nodes, 10)[0])
        nodes.lose("n2")
        nodes.end()
        assert (nodes.shared / "step-10").is_dir()


def test_a_full_disk_does_not_keep_a_helper_from_its_start(tmp_path, monkeypatch):
    given = FastCheckpointSaveOptions(str(tmp_path / "n0"))
    first, second = (
        FastCheckpointSaveSpec(secret, secret, given, str(tmp_path), ("n0",), ("",))
        for secret in "ab"
    )
    for spec, full in ((first, False), (second, True)):
        with monkeypatch.context() as patch:
            if full:
                no_room = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
                patch.setattr(Path, "write_bytes", no_room)
                patch.setattr(
                    "hpctl.checkpoints.fast.node.NodeSaveStore.lock_save_directory", Mock()
                )
            node = NodeSaveStore(spec, "n0")
    assert node.start.job == hashlib.sha256(b"b").hexdigest()
    assert node.begun_ns > 0


def test_a_place_that_cannot_be_read_loses_nothing(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        nodes.safe(saved(nodes, 10)[0])
        nodes.kill("n2")
        stale = CheckpointSearchResult(
            None, unseen=(UnsearchedPlace(str(nodes.shared), "Stale file handle"),)
        )
        told = restore_fast_saves(nodes.spec, stale, nodes.said.append, wait_s=0.3)
        assert told.verdict == "unreadable"
        nodes.start("n2")
        assert nodes.resume().found is not None, "the start tries again, and all are there"


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """Slurm says that the job has ended by itself."""
    words = "JobId=7 JobState=COMPLETING Reason=None Restarts=0 ExitCode=0:0 EndTime=2026-01-01"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho {words}\n")
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "none").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("ended")
def test_what_is_saved_just_before_the_end_is_flushed(tmp_path, monkeypatch):
    seldom = "helpers.BEAT_LOOKS = 100_000\n"
    monkeypatch.setattr(cluster, "HELPER", cluster.HELPER.replace(cluster.LOOK_OFTEN, seldom))
    with Nodes(tmp_path, 3, keep=False) as nodes:
        nodes.spec = replace(nodes.spec, id="7")
        nodes.restart(*nodes.spec.hosts)
        nodes.resume()
        nodes.safe(saved(nodes, 10)[0])
        time.sleep(4)  # the quick looks are over
        name, files = saved(nodes, 20)
        nodes.end()
        assert content(nodes.shared / name) == files
        assert not any(nodes.disk(host).exists() for host in nodes.spec.hosts)


@pytest.mark.usefixtures("ended")
def test_a_step_in_no_known_format_is_not_removed(tmp_path):
    with Nodes(tmp_path, 2, keep=False) as nodes:
        nodes.spec = replace(nodes.spec, id="7")
        nodes.restart(*nodes.spec.hosts)
        nodes.resume()
        for host in nodes.spec.hosts:
            write_files(nodes.disk(host) / "step-10", {f"{host}.npz": b"x" * 100})
            write_files(nodes.disk(host) / "final", {f"{host}.npz": b"x" * 100})
        nodes.end()
        assert "2 files of step-10 stay on the nodes: no known format" in nodes.log()
        assert "2 files of final stay on the nodes: no known format" in nodes.log()
        assert all((nodes.disk(host) / "step-10").exists() for host in nodes.spec.hosts)


@pytest.mark.parametrize(
    ("job_nodes", "is_gone"),
    [(("n0",), True), (("n0", "n1"), False), (None, False)],
    ids=["taken out of the job", "still in it", "no such job"],
)
def test_a_drained_node_that_answers_is_gone_when_the_job_has_lost_it(
    monkeypatch, job_nodes, is_gone
):
    # As a sandbox shows it: DRAIN, then DOWN, and a second later slurmd has registered again.
    drained = SlurmNode(NodeName("n1"), "IDLE", frozenset({"DRAIN"}))
    job = SlurmJob(JobId(7), "RUNNING", datetime(2026, 1, 1, tzinfo=UTC), nodes=job_nodes or ())
    record = None if job_nodes is None else SlurmJobRecord(job)
    reader = Mock(nodes=lambda names: {drained.name: drained}, job=lambda number: record)
    monkeypatch.setattr(helpers, "SlurmCommandReader", lambda *_: reader)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert (list(helpers.find_hosts_without_job_ranks(["n1"])) == ["n1"]) is is_gone


def test_of_deepspeed_every_node_gets_all_where_one_was_a_spare(tmp_path):
    with Nodes(tmp_path, 4) as nodes:
        nodes.resume()
        files, name = deepspeed_files(40), "global_step40"
        of_rank = {n: f"n{part[1][0]}" for n in files if len(part := n.split("zero_pp_rank_")) > 1}
        save(nodes, name, files, {n: of_rank.get(n, "n0") for n in files})
        nodes.safe(name)
        assert nodes.resume().found is not None
        assert all(content(nodes.disk(host) / name) == files for host in nodes.spec.hosts)
