"""Real helpers, real sockets: what a node's loss costs, and what strangers and full disks do."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from concurrent import futures
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpctl.checkpoints import advise
from hpctl.checkpoints.fast import helpers, lead
from hpctl.checkpoints.fast.lead import NodeClockOffsets
from hpctl.checkpoints.fast.node import NodeSaveStore
from hpctl.checkpoints.fast.peer import (
    PeerConnection,
    PeerError,
    PeerServer,
    TransferRateLimiter,
    list_helper_ports,
)
from hpctl.checkpoints.fast.spec import (
    META,
    FastCheckpointSaveSpec,
    FastSavedFile,
    FastSavedStep,
    compute_free_memory,
    load_step_ledger,
    write_fast_save_spec,
)
from hpctl.checkpoints.fast.union import PeerConnections
from hpctl.checkpoints.search import CompleteCheckpoint, verify_checkpoint
from hpctl.cli.main import cli
from hpctl.slurm.signals import SIGNALS
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from hpctl.vocabulary.registration import JobRegistration
from tests.checkpoints.checkpoint_files import WHOLE, dcp_files, deepspeed_files
from tests.checkpoints.fast import cluster
from tests.checkpoints.fast.cluster import (
    Nodes,
    children,
    content,
    owners,
    save,
    saved,
    saved_file,
    scontrol,
    shown,
    wait_for,
)
from tests.cli.test_json_contract import holds
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration


def test_a_lost_nodes_share_comes_from_its_partner(tmp_path):
    with Nodes(tmp_path, 4) as nodes:
        assert nodes.resume().verdict == "none", "a first start"
        name, files = saved(nodes, 10)
        nodes.safe(name)
        wrote = {h for h in nodes.spec.hosts if (nodes.disk(h) / name).is_dir()}
        lost = sorted(wrote)[-1]
        nodes.lose(lost)
        nodes.start(lost)
        found = nodes.resume().found
        assert found is not None, nodes.said
        assert found.step == 10
        for host in nodes.spec.hosts:
            assert content(nodes.disk(host) / name) == files
            assert isinstance(verify_checkpoint(nodes.disk(host) / name), CompleteCheckpoint)
        assert any(f"copy of {lost}" in line for line in nodes.said), nodes.said


def test_a_copy_that_its_disk_has_damaged_is_not_restored(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, files = saved(nodes, 1)
        nodes.safe(name)
        nodes.safe(saved(nodes, 2)[0])
        (copy,) = tmp_path.glob(f"n*/{META}/copies/n1/step-2/*")
        status, raw = copy.stat(), copy.read_bytes()
        copy.write_bytes(raw[:99] + bytes([raw[99] ^ 1]) + raw[100:])
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        nodes.lose("n1")
        nodes.start("n1")
        found = nodes.resume().found
        assert found is not None
        assert found.step == 1, nodes.said
        assert any("disk has damaged" in line for line in nodes.said), nodes.said
        for host in nodes.spec.hosts:
            assert content(nodes.disk(host) / "step-1") == files


def test_a_late_word_of_the_leader_does_not_undo_a_move(tmp_path):
    files = tuple(FastSavedFile("zero_pp_rank_0_x", 1, 1, 1, host) for host in ("n1", "n2"))
    row = FastSavedStep("step-1", 1, "deepspeed", ("n1", "n2"), files, seen_s=1e12)
    moved = lead.reassign_step_files_to_hosts(row, ("n2", "n3"))
    spec = FastCheckpointSaveSpec(
        "1",
        "x",
        FastCheckpointSaveOptions(str(tmp_path / "n2")),
        str(tmp_path),
        ("n2",),
        ("127.0.0.1",),
    )
    node = NodeSaveStore(spec, "n2")
    for each in (row, moved, row):
        node.handle({"do": "row", "row": msgspec.to_builtins(each), "living": ["n2"]})
    assert node.rows == {"step-1": moved}


def test_of_deepspeed_each_node_gets_its_ranks_share(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        files, name = deepspeed_files(40), "global_step40"
        of_rank = {n: f"n{part[1]}" for n in files if len(part := n.split("zero_pp_rank_")) > 1}
        of_rank = {n: f"n{owner[1]}" for n, owner in of_rank.items()}
        save(nodes, name, files, {n: of_rank.get(n, "n0") for n in files})
        for lost in ("n1", "n2"):
            nodes.safe(name)
            nodes.lose(lost)
            nodes.start(lost)
            assert nodes.resume().found is not None, nodes.said
            for host in nodes.spec.hosts:
                share = {n: raw for n, raw in files.items() if of_rank.get(n, host) == host}
                assert content(nodes.disk(host) / name) == share


def test_a_share_that_has_moved_to_another_node_is_copied_again(tmp_path):
    with Nodes(tmp_path, 0) as nodes:
        nodes.restart("n0", "n1", "n2")
        nodes.resume()
        files, name = deepspeed_files(40), "global_step40"
        rank_of = {n: int(n.partition("zero_pp_rank_")[2][:1] or 0) for n in files}
        save(nodes, name, files, {n: f"n{rank}" for n, rank in rank_of.items()})
        for lost, hosts in (("n0", ("n1", "n2", "n3")), ("n2", ("n1", "n3", "n4"))):
            nodes.safe(name)
            nodes.lose(lost)
            nodes.restart(*hosts)
            assert nodes.resume().found is not None, (lost, nodes.said)
            for rank, host in enumerate(hosts):
                share = {
                    n: raw for n, raw in files.items() if rank_of[n] == rank or "zero" not in n
                }
                assert content(nodes.disk(host) / name) == share


def test_what_only_two_partners_had_is_lost_and_said_so(tmp_path):
    with Nodes(tmp_path, 4, flush_s=1) as nodes:
        nodes.resume()
        name, files = saved(nodes, 10)
        wait_for(nodes.shared / name)
        assert content(nodes.shared / name) == files
        newer, files = saved(nodes, 20)
        nodes.safe(newer)
        wait_for(nodes.shared / newer)
        third, _ = saved(nodes, 30)
        nodes.safe(third)
        owner = next(
            h for h in nodes.spec.hosts if (nodes.disk(h) / third / "__1_0.distcp").exists()
        )
        for host in (owner, *nodes.spec.partners(owner, nodes.spec.hosts)):
            nodes.lose(host)
            nodes.start(host)
        found = nodes.resume().found
        assert found is not None
        if found.step != 30:  # the flush may have come in between
            assert found.path == nodes.shared / newer
            assert any("step 30 is lost with" in line for line in nodes.said), nodes.said
            for host in nodes.spec.hosts:
                assert not (nodes.disk(host) / third).exists(), (
                    "a later step 30 must not mix with it"
                )


def test_what_all_nodes_had_is_read_from_the_shared_ledger_and_from_no_strangers(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        nodes.safe(saved(nodes, 10)[0])
        for host in nodes.spec.hosts:
            nodes.lose(host)
            nodes.start(host)
        assert nodes.resume().found is None
        assert any("step 10 is lost with n0" in line for line in nodes.said), nodes.said
        (ledger,) = (nodes.shared / META).glob("ledger-*.json")
        ledger.chmod(0o622)
        nodes.resume()
        assert not any("is lost" in line for line in nodes.said), nodes.said


def test_a_jobs_steps_are_listed_with_their_copies(tmp_path, monkeypatch):
    with Nodes(tmp_path, 3, flush_s=1) as nodes:
        nodes.resume()
        name, _ = saved(nodes, 10)
        nodes.safe(name)
        wait_for(nodes.shared / name)
        write_fast_save_spec(nodes.spec, nodes.shared / META / "7.json")
        registered = str(nodes.shared), JobRegistration(fast=nodes.spec.saves)
        monkeypatch.setattr(advise, "find_checkpoint_directory", lambda job, config: registered)

        def listed(*more):
            return CliRunner().invoke(cli, ["checkpoint", "ls", "--job", "7", *more])

        holds("checkpoint-ls", (document := listed("--json")).stdout)
        (row,) = json.loads(document.stdout)["fast"]
        assert (row["step"], row["copies"], row["lost"]) == (10, 2, [])
        shown = listed().stdout
        assert "step 10  torch-dcp  complete (2 of each file on n" in shown
        assert len(shown.splitlines()) == 2, "nothing of hpctl's own"
        for host in ("n0", "n1"):
            nodes.lose(host)
        done = listed()
        assert "hpctl: no helper answers on n0, n1" in done.stderr
        assert "step 10  torch-dcp  lost with n" in done.stdout
        assert done.exit_code == 0, "the flushed one is whole"


def test_a_step_that_is_not_whole_is_never_resumed(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, _ = saved(nodes, 10)
        nodes.safe(name)
        files = dcp_files()
        del files[".metadata"]
        save(nodes, "step-20", files, owners(nodes, files))
        time.sleep(1.0)
        found = nodes.resume().found
        assert found is not None
        assert found.step == 10
        assert not any((nodes.disk(h) / "step-20").exists() for h in nodes.spec.hosts)


def test_older_steps_go_and_the_last_is_flushed_at_the_end(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        for number in (1, 2, 3, 4):
            name, files = saved(nodes, number)
            nodes.safe(name)
        until(lambda: not any((nodes.disk(h) / "step-1").exists() for h in nodes.spec.hosts))
        assert any((nodes.disk(h) / "step-3").exists() for h in nodes.spec.hosts)
        nodes.end()
        assert content(nodes.shared / "step-4") == files
        assert isinstance(verify_checkpoint(nodes.shared / "step-4"), CompleteCheckpoint)
        assert "flushed step 4" in nodes.log()


def test_copies_of_steps_that_the_program_has_removed_go_too(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        for number in range(1, 7):
            name, _ = saved(nodes, number)
            for host in nodes.spec.hosts:
                shutil.rmtree(nodes.disk(host) / f"step-{number - 1}", ignore_errors=True)
            nodes.safe(name)

        def copies():
            return {mark.stem for mark in tmp_path.glob(f"n?/{META}/copies/n?/*.json")}

        until(lambda: copies() == {"step-5", "step-6"}, 10)


def test_a_helper_that_is_launched_only_the_second_time_is_waited_for(tmp_path, monkeypatch):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        nodes.safe(saved(nodes, 10)[0])
        nodes.kill("n1")

        def launch_again(silent):
            """The first round has ended, and Slurm says that the node is still the job's."""
            if "n1" not in nodes.processes:
                nodes.start("n1")
            return ()

        assert lead.ROUNDS > 1
        monkeypatch.setattr(lead, "ROUNDS", 60)  # a busy machine starts it slowly
        found = nodes.resume(gone=launch_again, wait_s=1.0).found
        assert found is not None
        assert found.step == 10


def test_a_newest_step_that_is_lost_does_not_keep_the_one_before_it_from_the_last_flush(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        for number in (10, 20):
            name, _ = saved(nodes, number)
            nodes.safe(name)
        for lost in nodes.place.glob("n*/**/step-20/__0_0.distcp"):
            lost.unlink()
        nodes.end()
        assert "flushed step 10" in nodes.log()
        assert isinstance(verify_checkpoint(nodes.shared / "step-10"), CompleteCheckpoint)
        assert not (nodes.shared / "step-20").exists()


def test_megatrons_ranks_are_flushed_with_the_pointer_that_says_they_saved(tmp_path):
    _, name, make = WHOLE["megatron-legacy"]
    with Nodes(tmp_path, 2, flush_s=1) as nodes:
        nodes.resume()
        files = make()
        save(nodes, name, files, owners(nodes, files))
        wait_for(nodes.shared / name)
        until(lambda: isinstance(verify_checkpoint(nodes.shared / name), CompleteCheckpoint), 10)
        assert content(nodes.shared / name) == files
        for host in ("n0", "n1"):
            nodes.lose(host)
            nodes.start(host)
        found = nodes.resume().found
        assert found is not None
        assert found.path == nodes.shared / name


def test_the_loss_of_the_leader_stops_nothing(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, _ = saved(nodes, 1)
        nodes.safe(name)
        nodes.lose("n0")
        files = dcp_files()
        save(nodes, "step-2", files, dict.fromkeys(files, "n2"))
        nodes.safe("step-2")
        nodes.start("n0")
        found = nodes.resume().found
        assert found is not None
        assert found.step == 2
        assert content(nodes.disk("n0") / "step-2") == files


def test_a_helper_that_falls_silent_stops_nothing(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, _ = saved(nodes, 1)
        nodes.safe(name)
        nodes.signal("n0", signal.SIGSTOP)
        files = dcp_files()
        save(nodes, "step-2", files, dict.fromkeys(files, "n2"))
        nodes.safe("step-2")


@pytest.mark.parametrize(("state", "launches"), [("RUNNING", 5), ("COMPLETING", 1)])
def test_helpers_are_launched_again_while_their_job_runs(tmp_path, monkeypatch, state, launches):
    programs = {
        "srun": 'kill -USR1 $PPID; echo >>"$0.calls"; [ "$(wc -l <"$0.calls")" = 5 ]',
        "scontrol": f"echo JobId=1 JobState={state}",
        "sleep": ":",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    with monkeypatch.context() as patch:
        patch.setattr(helpers.subprocess, "Popen", made := Mock())
        helpers.launch_fast_save_helpers_on_nodes(
            ("n0", "n1"), tmp_path / "7.json", {"PATH": "/nowhere"}
        )
    ((command,), _) = made.call_args
    subprocess.run(command, env=env, timeout=PATIENCE_S, check=False)
    assert (tmp_path / "srun.calls").read_text().count("\n") == launches


def test_nodes_report_what_they_save_and_none_is_asked(tmp_path, monkeypatch):
    seldom = f"{cluster.LOOK_OFTEN}helpers.BEAT_LOOKS = 100_000\n"
    monkeypatch.setattr(cluster, "HELPER", cluster.HELPER.replace(cluster.LOOK_OFTEN, seldom))
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, _ = saved(nodes, 1)
        nodes.safe(name)
        nodes.kill("n0")  # it leads: the next is told, and finds that it does now
        files = dcp_files()
        save(nodes, "step-2", files, dict.fromkeys(files, "n2"))
        nodes.safe("step-2")


def test_a_helper_that_is_missing_rules_the_saves_out_unless_its_node_is_gone(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, _ = saved(nodes, 1)
        nodes.safe(name)
        nodes.kill("n2")
        assert nodes.resume(wait_s=5.0).found is None
        assert any("cannot be gathered on n2" in line for line in nodes.said)


def test_a_helper_that_is_killed_starts_again_and_knows_what_was_saved(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, files = saved(nodes, 1)
        (child,) = children(nodes.processes["n1"].pid)
        os.kill(child, signal.SIGKILL)
        until(lambda: "n1 was ended by signal 9; it starts again" in nodes.log(), 10)
        nodes.safe(name)
        nodes.lose("n2")
        nodes.start("n2")
        assert nodes.resume().found is not None
        assert content(nodes.disk("n1") / name) == files


def test_a_helper_that_is_killed_while_a_step_is_gathered_costs_no_step(tmp_path, monkeypatch):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, files = saved(nodes, 1)
        nodes.safe(name)
        looks, held_steps = [], lead.list_node_steps

        def look(*given):
            looks.append(found := held_steps(*given))
            if len(looks) == 1:
                (child,) = children(nodes.processes["n1"].pid)
                os.kill(child, signal.SIGKILL)
            return found

        monkeypatch.setattr(lead, "list_node_steps", look)
        assert nodes.resume().found is not None, nodes.said
        assert len(looks) == 2
        assert any("is not gathered" in line for line in nodes.said), nodes.said
        assert all(content(nodes.disk(host) / name) == files for host in nodes.spec.hosts)


def test_a_signal_that_asks_for_a_save_ends_no_helper(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        nodes.safe(saved(nodes, 1)[0])
        alive = {host: children(each.pid) for host, each in nodes.processes.items()}
        for name in SIGNALS:
            for host in nodes.spec.hosts if name != "TERM" else ():
                nodes.signal(host, signal.Signals[f"SIG{name}"])
        nodes.safe(saved(nodes, 2)[0])
        assert alive == {host: children(each.pid) for host, each in nodes.processes.items()}


@pytest.mark.parametrize(
    ("records", "runs", "over"),
    [
        ([shown("RUNNING")], True, False),
        ([shown("SUSPENDED")], True, False),
        ([shown("STOPPED")], True, False),
        ([shown("RUNNING", restarts=1)], False, False),  # elsewhere, and this start has ended
        ([shown("COMPLETING")], False, True),
        ([shown("COMPLETED")], False, True),
        ([shown("CANCELLED", code="0:15")], False, True),
        ([shown("COMPLETING", restarts=1, end="Unknown")], False, False),
        ([shown("COMPLETING", restarts=1)], False, False),
        ([shown("PENDING", restarts=1)], False, False),
        ([shown("COMPLETING", reason="TimeLimit")], False, False),
        ([shown("COMPLETING", code="1:0", reason="NonZeroExitCode")], False, False),
        ([shown("RUNNING", number=8), shown("COMPLETED"), shown("PENDING", number=9)], False, True),
        ([shown("FAILED", number=8), shown("RUNNING"), shown("COMPLETED", number=9)], True, False),
        ([shown("RUNNING", number=8)], False, False),
        ([], False, False),
    ],
)  # fmt: skip
def test_a_job_has_ended_where_slurm_says_so_of_itself(tmp_path, monkeypatch, records, runs, over):
    scontrol(tmp_path, monkeypatch).write_text("".join(f"{record}\n" for record in records))
    spec = FastCheckpointSaveSpec(
        "7_1", "0", FastCheckpointSaveOptions("/x"), "/x", ("n0",), ("n0",), id="7"
    )
    assert (helpers.is_job_running(spec), helpers.has_job_ended_without_requeue(spec)) == (
        runs,
        over,
    )


def asked_to_end(nodes):
    """Job 7 has saved a step, and gets SIGTERM; its helpers see the test's scontrol."""
    nodes.restart_as_job_7()
    nodes.resume()
    nodes.safe(saved(nodes, 1)[0])
    for host in nodes.spec.hosts:
        nodes.signal(host, signal.SIGTERM)


def test_a_sigterm_while_the_job_runs_is_not_its_end(tmp_path, monkeypatch):
    tell = scontrol(tmp_path, monkeypatch)
    tell.write_text(shown("RUNNING"))
    with Nodes(tmp_path, 3, keep=False) as nodes:
        asked_to_end(nodes)
        time.sleep(1.0)
        name, files = saved(nodes, 2)
        nodes.safe(name)
        tell.write_text(shown("COMPLETING"))
        nodes.end()
        assert content(nodes.shared / name) == files
        left = [host for host in ("n0", "n1", "n2") if nodes.disk(host).exists()]
        assert left == [], nodes.log()


def test_a_sigterm_while_slurm_does_not_answer_is_asked_about_again(tmp_path, monkeypatch):
    tell = scontrol(tmp_path, monkeypatch)
    with Nodes(tmp_path, 2) as nodes:
        asked_to_end(nodes)
        wait_for(nodes.shared / "step-1")  # for this may be the end
        tell.write_text(shown("RUNNING"))
        time.sleep(1.0)
        nodes.safe(saved(nodes, 2)[0])


def test_a_node_that_is_gone_does_not(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        name, files = saved(nodes, 1)
        nodes.safe(name)
        nodes.lose("n2")
        found = nodes.resume(gone=lambda hosts: hosts, wait_s=5.0).found
        assert found is not None
        assert found.step == 1
        assert content(nodes.disk("n1") / name) == files


@pytest.mark.parametrize("kind", ["link", "fifo", "newline"])
def test_hostile_entries_are_no_part_of_a_step(tmp_path, kind):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        step = nodes.disk("n0") / "step-1"
        step.mkdir(parents=True)
        if kind == "link":
            (tmp_path / "secret").write_text("secret")
            (step / "__0_1.distcp").symlink_to(tmp_path / "secret")
            (nodes.disk("n0") / "step-9").symlink_to(tmp_path)
        elif kind == "fifo":
            os.mkfifo(step / "__0_1.distcp")
        else:
            (step / "a\nb").write_text("x")
        name, files = saved(nodes, 1)
        nodes.safe(name)
        nodes.lose("n1")
        nodes.start("n1")
        assert nodes.resume().found is not None
        assert content(nodes.disk("n1") / name) == files


def test_a_slow_answer_is_no_clock_that_differs():
    clocks, ms = NodeClockOffsets(), 1_000_000
    clocks.sample("n1", 0, 1 * ms, 80 * ms)
    assert clocks.get_offset_ns("n1") == 0, "answered at once, and 79 ms on its way"
    clocks.sample("n1", 1000 * ms, 1021 * ms, 1002 * ms)
    assert clocks.get_offset_ns("n1") == 20 * ms
    clocks.sample("n1", 2000 * ms, 2021 * ms, 2060 * ms)
    clocks.sample("n1", 3000 * ms, 3022 * ms, 3002 * ms)
    assert clocks.get_offset_ns("n1") == 20 * ms, "a drift of 1 ms judges no step again"


def test_a_helper_waits_for_the_one_of_the_run_before_to_exit(tmp_path):
    place = tmp_path / "n0"
    spec = FastCheckpointSaveSpec(
        "7", "0" * 64, FastCheckpointSaveOptions(str(place)), str(tmp_path), ("n0",), ("127.0.9.1",)
    )
    (place / META).mkdir(parents=True, mode=0o700)
    with (place / META / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(0.5, fcntl.flock, (lock, fcntl.LOCK_UN))
        release.start()
        NodeSaveStore(spec, "n0")
        release.join()


def test_two_jobs_do_not_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("hpctl.checkpoints.fast.node.LOCK_S", 0.2)
    with Nodes(tmp_path, 1) as nodes:
        nodes.resume()
        other = replace(
            nodes.spec, job="other", saves=FastCheckpointSaveOptions(str(nodes.disk("n0")))
        )
        with pytest.raises(PeerError, match=f"the helper of job {nodes.spec.job} uses"):
            NodeSaveStore(other, "n0")


def test_a_helper_of_an_earlier_start_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("hpctl.checkpoints.fast.node.LOCK_S", 20.0)
    with Nodes(tmp_path, 1) as nodes:
        nodes.resume()
        saved(nodes, 10)
        until(lambda: "step-10" in load_step_ledger(nodes.disk("n0") / META / "ledger.json"), 60)
        again = replace(
            nodes.spec,
            secret="1" * 64,
            restarts=1,
            saves=FastCheckpointSaveOptions(str(nodes.disk("n0"))),
        )
        node = NodeSaveStore(again, "n0")
        assert nodes.processes["n0"].wait(PATIENCE_S) == -signal.SIGKILL
        del nodes.processes["n0"]
        assert "step-10" in node.rows, "what it saved is kept"


def test_a_start_says_which_node_takes_no_part(tmp_path):
    (tmp_path / "n1").symlink_to(tmp_path)
    with Nodes(tmp_path, 2) as nodes:
        why = helpers.wait_for_fast_save_helpers(nodes.spec, lambda hosts: ())
        assert why == f"on n1, {tmp_path}/n1 is not a directory of this user"


def test_a_directory_that_two_nodes_share_is_no_disk_of_their_own(tmp_path, monkeypatch):
    short = f"{cluster.LOOK_OFTEN}from hpctl.checkpoints.fast import node\nnode.LOCK_S = 0.5\n"
    monkeypatch.setattr(cluster, "HELPER", cluster.HELPER.replace(cluster.LOOK_OFTEN, short))
    monkeypatch.setattr(Nodes, "disk", lambda nodes, host: nodes.place / "disk")
    with Nodes(tmp_path, 2) as nodes:
        why = helpers.wait_for_fast_save_helpers(nodes.spec, lambda hosts: ())
        assert re.search(r"disk is the same directory as on n[01]: fast saves need a disk", why)


def test_where_locks_are_of_one_node_the_shared_directory_is_seen_all_the_same(tmp_path):
    place = tmp_path / "disk"
    hosts, addresses = ("n0", "n1"), ("127.0.9.1", "127.0.9.2")
    spec = FastCheckpointSaveSpec(
        "7", "0" * 64, FastCheckpointSaveOptions(str(place)), str(tmp_path), hosts, addresses
    )
    first = NodeSaveStore(spec, "n0")
    assert first.handle({"do": "ready"}) == {"off": ""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpctl.checkpoints.fast.node.try_lock_file", lambda file: True)
        NodeSaveStore(spec, "n1")
    assert "is the same directory as on n1" in first.handle({"do": "ready"})["off"]


@pytest.mark.parametrize(("gone", "why"), [((), "no helper answers on n1"), (("n1",), "")])
def test_a_node_without_a_helper_counts_while_it_is_the_job_s(tmp_path, gone, why):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        nodes.kill("n1")
        assert helpers.wait_for_fast_save_helpers(nodes.spec, lambda hosts: gone, wait_s=5.0) == why


@pytest.mark.parametrize(
    ("where", "refused"), [("/var/tmp", "its file system is"), ("/dev/shm", "")]
)
def test_saves_in_memory_lie_in_a_tmpfs_and_keep_their_size(tmp_path, where, refused):
    with tempfile.TemporaryDirectory(dir=where) as place:  # /tmp may be either
        spec = FastCheckpointSaveSpec(
            "7",
            "0" * 64,
            FastCheckpointSaveOptions(place, memory=True, size=1 << 20),
            str(tmp_path),
            ("n0", "n1"),
            ("127.0.9.1", "127.0.9.2"),
        )
        if refused:
            with pytest.raises(PeerError, match=refused):
                NodeSaveStore(spec, "n0")
            return
        node = NodeSaveStore(spec, "n0")
        file = FastSavedFile("x", 2 << 20, 1, 1, "n1")
        row = FastSavedStep("step-1", 1, "torch-dcp", ("n0", "n1"), (file,), 0.0)
        with pytest.raises(OSError, match="more than --fast-size 1 MiB"):
            node.copy(row, "n1", None)


def test_what_a_killed_helper_and_a_restore_leave_takes_no_room_for_good(tmp_path):
    size = 100_000
    saves = FastCheckpointSaveOptions(str(tmp_path / "disk"), size=2 * size)
    spec = FastCheckpointSaveSpec(
        "7", "0" * 64, saves, str(tmp_path), ("n0", "n1"), ("127.0.9.1", "127.0.9.2")
    )
    left = tmp_path / "disk" / META / "copies/n1"
    (left / "step-1.tmp").mkdir(parents=True)
    (left / "step-1.tmp/x").write_bytes(b"x" * size)
    (left / "step-2.tmp").write_bytes(b"[")
    node = NodeSaveStore(spec, "n0")
    assert not list(left.iterdir())
    for name in ("aside/step-9", "new/step-8", "copies/n1/step-7.tmp"):
        (node.meta / name).mkdir(parents=True)
        (node.meta / name / "x").write_bytes(b"x" * size)
    assert 3 * size < node.measure_disk_usage() < 3 * size + 1000
    shutil.rmtree(node.meta / "new")
    shutil.rmtree(left / "step-7.tmp")
    (node.root / "step-10").mkdir()
    os.link(node.meta / "aside/step-9/x", node.root / "step-10/x")
    assert node.measure_disk_usage() < size + 1000, "one file, at two places"
    file = FastSavedFile("x", size, 1, 1, "n1")
    row = FastSavedStep("step-11", 11, "torch-dcp", ("n0", "n1"), (file,), time.time() + 1)
    node.rows = {row.name: row}
    (node.root / "step-10/x").unlink()
    (node.root / "step-10/y").write_bytes(b"y" * size)
    node.peer = lambda _: socket.socket()
    (error,) = node.copy_steps_of_partner_nodes()
    assert "more than --fast-size" in error
    assert not (node.meta / "aside").exists()
    assert node.measure_disk_usage() < size + 1000
    node.check_space_for_new_files(size - 1000)


def test_memory_that_is_left_is_the_least_of_all_groups(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    proc.mkdir()
    (proc / "cgroup").write_text("0::/job_7/step_0\n")
    for name, most, now in (("job_7", 8 << 30, 5 << 30), ("job_7/step_0", "max", 1)):
        (groups / name).mkdir(parents=True)
        (groups / name / "memory.max").write_text(f"{most}\n")
        (groups / name / "memory.current").write_text(f"{now}\n")
    assert compute_free_memory(proc, groups) == (8 - 5 - 1) << 30
    pages = f"anon {2 << 30}\nfile {3 << 30}\ninactive_file {2 << 30}\nactive_file {1 << 30}\n"
    (groups / "job_7/memory.stat").write_text(f"{pages}shmem 0\n")
    assert compute_free_memory(proc, groups) == (8 - 2 - 1) << 30
    (groups / "job_7/memory.max").write_text("max\n")
    assert compute_free_memory(proc, groups) is None


def spec_of(place, *hosts):
    """A job on these hosts, of which a test's process is one."""
    addresses = tuple(f"127.0.9.{number + 1}" for number in range(len(hosts)))
    secret = os.urandom(32).hex()
    return FastCheckpointSaveSpec(
        "1", secret, FastCheckpointSaveOptions(str(place / hosts[0])), str(place), hosts, addresses
    )


def test_what_a_node_saves_while_it_lists_its_files_is_not_missed(tmp_path, monkeypatch):
    node = NodeSaveStore(spec_of(tmp_path, "n0"), "n0")
    live = node.live

    def save_meanwhile():
        listed = live()
        monkeypatch.setattr(node, "live", live)
        (node.root / "step-1").mkdir()
        (node.root / "step-1/x").write_text("x")
        assert node.look()
        return listed

    monkeypatch.setattr(node, "live", save_meanwhile)
    answer = node.handle({"do": "inventory"})
    assert answer["live"] == {}
    assert node.handle({"do": "ping"})["version"] != answer["version"], "the leader asks again"


def test_the_leaders_word_of_a_restore_waits_for_the_restore(tmp_path, monkeypatch):
    """The leader finds nodes that a running restore has not reached yet, and tells them of it."""
    node = NodeSaveStore(spec_of(tmp_path, "n0"), "n0")
    row = FastSavedStep("step-1", 1, "torch-dcp", ("n0",), (), 1.0)
    (node.meta / "new/step-1").mkdir(parents=True)
    missed = {"do": "missed", "epoch": 5, "above": 1, "begun": 1}
    told = threading.Thread(target=node.handle, args=(missed,))
    move_away = node.move_newer_steps_away

    def slowly(above, name):
        told.start()
        told.join(0.5)
        assert told.is_alive(), "it came between"
        move_away(above, name)

    monkeypatch.setattr(node, "move_newer_steps_away", slowly)
    node.handle({"do": "adopt", "row": msgspec.to_builtins(row), "epoch": 5})
    told.join(60)
    assert node.rows == {"step-1": row}
    assert node.begun_ns > 1, "the restore's time counts"


def test_a_copy_of_a_step_that_was_dropped_meanwhile_does_not_stay(tmp_path):
    node = NodeSaveStore(spec_of(tmp_path, "n0", "n1"), "n0")
    row = FastSavedStep("step-1", 1, "torch-dcp", ("n0", "n1"), (), 1.0)
    node.rows = {row.name: row}
    peer = Mock()
    peer.ask.side_effect = lambda *_, **__: node.drop([row.name])
    (node.copies / "n1/step-1.tmp").mkdir(parents=True)
    with pytest.raises(OSError, match="step-1 is no longer kept"):
        node.copy(row, "n1", peer)
    assert list((node.copies / "n1").iterdir()) == []


def test_two_helpers_that_lead_at_the_end_release_a_node_once(tmp_path):
    node = NodeSaveStore(spec_of(tmp_path, "n0"), "n0")
    node.handle({"do": "bye", "over": True})
    node.handle({"do": "bye", "over": False})
    assert node.over, "what the first has flushed is not left on the node"


def test_a_host_that_no_longer_runs_a_helper_is_not_waited_for(tmp_path, monkeypatch):
    helper = helpers.FastSaveHelper(spec_of(tmp_path, "n0", "n1"), "n0")
    monkeypatch.setattr(lead.FastSaveLeader, "answering", frozenset({"n0", "n1"}))
    begun = time.monotonic()
    helper.release(True, begun + 600)
    assert time.monotonic() < begun + 60
    assert helper.node.over


def test_a_change_that_was_reported_to_the_wrong_host_reaches_the_leader(tmp_path, monkeypatch):
    spec = spec_of(tmp_path, "n0", "n1", "n2")
    node, asked = NodeSaveStore(spec, "n1"), []

    def answer(_, what, hosts, **given):
        asked.append((what, hosts, given["by"]))
        node.released.set()  # the helper ends after this round
        return {host: {} for host in hosts}

    monkeypatch.setattr(helpers, "NodeSaveStore", lambda *_: node)
    monkeypatch.setattr(PeerConnections, "each", answer)
    monkeypatch.setattr(signal, "signal", Mock())
    node.handle({"do": "changed", "by": "n2"})
    helpers.FastSaveHelper(spec, "n1").run()
    assert ("changed", ["n0"], "n2") in asked
    assert not node.changed


def test_a_helper_that_starts_is_heard_at_once(tmp_path):
    spec = spec_of(tmp_path, "n0", "n1")
    with closing(PeerConnections(spec, retry_s=3600)) as peers:
        assert peers.each("ping", ["n1"]) == {}
        with closing(PeerServer(spec, "n1", lambda _: {"yes": 1})):
            assert peers.each("ping", ["n1"]) == {"n1": {"yes": 1}}


def test_a_helper_that_ends_answers_first(tmp_path):
    spec = spec_of(tmp_path, "n0")
    asked, answer = threading.Event(), threading.Event()

    def handle(_):
        asked.set()
        answer.wait(60)
        return {"yes": 1}

    server = PeerServer(spec, "n0", handle)
    with futures.ThreadPoolExecutor() as pool, closing(PeerConnection(spec, "n0")) as peer:
        heard = pool.submit(peer.ask, "bye")
        assert asked.wait(60)
        closed = pool.submit(server.close)
        assert not futures.wait([closed], 0.3).done
        answer.set()
        closed.result(60)
        assert heard.result(60) == {"yes": 1}


def test_a_pace_is_kept(monkeypatch):
    slept: list[float] = []
    clock = Mock(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("hpctl.checkpoints.fast.peer.time", clock)
    pace = TransferRateLimiter(10 << 20)
    for _ in range(8):
        pace(1 << 19)
    assert 0.25 < sum(slept) < 0.5


def test_nothing_is_written_where_another_user_may_have_been_first(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (meta := tmp_path / "shared" / META).mkdir(parents=True)
    given = str(tmp_path / "disk")
    spec = FastCheckpointSaveSpec(
        "7", "0" * 64, FastCheckpointSaveOptions(given), str(meta.parent), ("n0",), ("127.0.9.1",)
    )
    for mode in (0o777, 0o720, 0o755):
        meta.chmod(mode)
        with pytest.raises(HpctlError, match="belongs to another user"):
            write_fast_save_spec(spec, meta / "7.json")
    meta.chmod(0o2700)
    write_fast_save_spec(spec, meta / "7.json")
    node, into = NodeSaveStore(spec, "n0"), meta / "flush-7/step-1"
    (node.root / "step-1").mkdir()
    (node.root / "step-1/x").write_text("theirs")
    asked = {"do": "flush", "name": "step-1", "into": str(into)}
    asked["files"] = [(saved_file(node.root / "step-1/x", "x", "n0"), "")]
    into.mkdir(parents=True)
    (into / "x").symlink_to(tmp_path / "precious")
    node.handle(asked)
    until(lambda: not node.handle({"do": "task", "kind": "flush"})["running"], 5)
    assert "File exists" in node.handle({"do": "task", "kind": "flush"})["errors"][0]
    meta.chmod(0o777)
    with pytest.raises(PeerError, match="not this user's alone"):
        node.handle(asked)
    meta.rename(meta.with_name("kept"))
    meta.symlink_to("kept")
    with pytest.raises(HpctlError, match="belongs to another user"):
        write_fast_save_spec(spec, meta / "7.json")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_stranger_reads_nothing(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        with pytest.raises(PeerError, match=r"secret|lost|no process"):
            PeerConnection(replace(nodes.spec, secret="0" * 64), "n0")
        port = next(list_helper_ports(nodes.spec))
        for raw in (b"", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[" * 5000 + b"\n", b"\xff" * 9000):
            with (
                socket.create_connection(("127.0.9.1", port), timeout=PATIENCE_S) as stranger,
                suppress(ConnectionError),
            ):
                stranger.sendall(raw)
                stranger.shutdown(socket.SHUT_WR)
                assert b"welcome" not in stranger.recv(4096)
        good = PeerConnection(nodes.spec, "n0")
        for bad in ("../x", "/etc/passwd", "a/../../b", ""):
            with pytest.raises(PeerError):
                good.ask("read", step="step-1", path=bad, offset=0, length=1, tag=[])
        with pytest.raises(PeerError, match="checkpoint directory"):
            good.ask("flush", name="step-1", into="/tmp", files=[])
        good.close()
        assert nodes.resume().verdict == "none"


def test_two_leaders_flush_one_step_without_moving_one_copy_away(tmp_path, monkeypatch):
    """A leader that was slow to answer is replaced for a moment: both flush the newest step."""
    (tmp_path / "shared").mkdir()
    spec = replace(spec_of(tmp_path, "n0", "n1"), shared=str(tmp_path / "shared"))
    written_ns = time.time_ns()
    files = tuple(
        FastSavedFile(name, len(data), written_ns, written_ns, "n0")
        for name, data in dcp_files(step=1).items()
    )
    row = FastSavedStep("step-1", 1, "torch-dcp", ("n0", "n1"), files, time.time())
    lines: list[str] = []

    def make_lead(host):
        saves = FastCheckpointSaveOptions(str(tmp_path / host))
        return lead.FastSaveLeader(
            NodeSaveStore(replace(spec, saves=saves), host), Mock(), lines.append
        )

    slow, other = make_lead("n0"), make_lead("n1")

    def write_files(into):
        into.mkdir()
        for name, data in dcp_files(step=1).items():
            (into / name).write_bytes(data)

    def write_after_the_other(row, peers, into, limit_s, halt):
        monkeypatch.setattr(
            other, "write_step_files_from_nodes", lambda *given: write_files(given[2])
        )
        assert other.flush_step(row, peers, limit_s, halt)
        write_files(into)

    monkeypatch.setattr(slow, "write_step_files_from_nodes", write_after_the_other)
    assert slow.flush_step(row, Mock(), 1.0, threading.Event())
    place = Path(spec.shared)
    assert [path.name for path in place.iterdir() if path.name != META] == ["step-1"]
    assert len([line for line in lines if line.startswith("flushed step 1")]) == 1
