"""Real launchers and real processes, without torch: every way a group ends or starts again."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from hpctl.jobs.elastic.wire import send_controller_request
from hpctl.vocabulary.trouble import TroubleKind
from tests.jobs.elastic.elastic_bed import Start, all_wait, scripted, until_gone
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


@pytest.fixture
def start(tmp_path):
    with scripted(tmp_path) as begin:
        yield begin


def environment_of(group, rank, count):
    return dict(json.loads((group.save / f"env-{rank}-{count}").read_text()))


def test_ranks_get_torchruns_environment_and_no_secret(start: Start) -> None:
    group = start("")
    assert group.wait() == [0, 0]
    reported = [environment_of(group, rank, 0) for rank in range(4)]
    assert [each["RANK"] for each in reported] == ["0", "1", "2", "3"]
    assert [each["LOCAL_RANK"] for each in reported] == ["0", "1", "0", "1"]
    assert [each["GROUP_RANK"] for each in reported] == ["0", "0", "1", "1"]
    (same,) = {
        (e["WORLD_SIZE"], e["LOCAL_WORLD_SIZE"], e["GROUP_WORLD_SIZE"], e["MASTER_ADDR"],
         e["MASTER_PORT"], e["TORCHELASTIC_MAX_RESTARTS"], e["TORCHELASTIC_RUN_ID"], e["secret"])
        for e in reported
    }  # fmt: skip
    assert same[:4] == ("4", "2", "2", "127.0.0.1")
    assert same[5:] == ("3", group.run_id, None)
    assert group.account().verdict == "done"
    assert group.account().troubles == ()
    assert until_gone(group) == []


def test_one_dead_rank_restarts_them_all(start: Start) -> None:
    group = start("wait()")
    all_wait(group)
    before = group.rank_pids()
    port = environment_of(group, 0, 0)["MASTER_PORT"]
    os.kill(before[3], signal.SIGKILL)
    all_wait(group, count=1)
    assert not set(before.values()) & set(group.rank_pids().values())
    assert not [pid for pid in before.values() if Path(f"/proc/{pid}").exists()]
    assert environment_of(group, 0, 1)["MASTER_PORT"] != port
    (group.save / "go").touch()
    assert group.wait() == [0, 0]
    reported = group.account()
    assert (reported.verdict, reported.restarts) == ("done", 1)
    (trouble,) = reported.troubles
    assert (trouble.kind, trouble.rank, trouble.node, trouble.exit_code) == (
        TroubleKind.KILLED, 3, "node-1", 137,
    )  # fmt: skip
    assert trouble.why == "rank 3 on node-1 ended with signal 9 (SIGKILL)"


def test_restarts_used_up_end_with_the_ranks_code_and_the_last_error(start: Start) -> None:
    group = start("wait() if rank else fail(7)", "--max-restarts=2")
    assert group.wait() == [7, 7]
    reported = group.account()
    assert (reported.verdict, reported.exit_code, reported.restarts) == ("gave_up", 7, 2)
    assert [each.exit_code for each in reported.troubles] == [7, 7, 7]
    assert "rank 0 on node-0 ended with exit code 7 (restarts used up: 2" in reported.why
    assert "hpctl elastic: gave_up, exit code 7" in group.text()
    assert until_gone(group) == []


def test_exception_is_read_from_the_error_file(start: Start) -> None:
    body = """
if rank == 1 and first:
    said = {"message": "ValueError: loss of 3 is odd",
            "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1"}}
    pathlib.Path(get("TORCHELASTIC_ERROR_FILE")).write_text(json.dumps({"message": said}))
    put("told", "")
    time.sleep(0.5)
    fail(1)
while not (save / "told").exists():
    time.sleep(0.01)
fail(1) if first else None
"""
    group = start(body)
    assert group.wait() == [0, 0]
    (trouble,) = group.account().troubles
    # The others ended sooner, but its error file was written before.
    assert trouble.rank == 1
    assert "ValueError: loss of 3 is odd" in trouble.why
    assert trouble.evidence == "Traceback ..."


def test_a_hung_group_is_restarted_from_outside(start: Start) -> None:
    group = start("wait()")
    all_wait(group)
    stopped = group.rank_pids()[2]
    os.kill(stopped, signal.SIGSTOP)  # it answers to nothing, SIGTERM included
    assert (
        send_controller_request("127.0.0.1", group.run_id, group.secret, "restart: rank 2 hangs")
        == "ok"
    )
    all_wait(group, count=1)
    assert not Path(f"/proc/{stopped}").exists()
    group.processes[1].send_signal(signal.SIGUSR2)
    all_wait(group, count=2)
    assert (
        send_controller_request("127.0.0.1", group.run_id, group.secret, "status")
        == "ok: generation 2, running"
    )
    assert send_controller_request("127.0.0.1", group.run_id, group.secret, "dance").startswith(
        "no: "
    )
    (group.save / "go").touch()
    assert group.wait() == [0, 0]
    why = [each.why for each in group.account().generations]
    assert why[:2] == ["restart asked for: rank 2 hangs", "restart asked for: SIGUSR2"]


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    # That it is killed at all shows in its successor: it waits for `go`, and hears no SIGTERM.
    group = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwait()", "--grace=0.3")
    all_wait(group)
    begun = time.monotonic()
    os.kill(group.rank_pids()[0], signal.SIGKILL)
    all_wait(group, count=1)
    assert time.monotonic() - begun > 0.3
    (group.save / "go").touch()
    assert group.wait() == [0, 0]


def test_what_ranks_leave_behind_is_ended_before_the_next_generation(start: Start) -> None:
    body = """
if first:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True)
    put(f"child-{rank}", str(child.pid))
wait()
"""
    group = start(body)
    all_wait(group)
    children = [int(path.read_text()) for path in group.save.glob("child-*")]
    assert len(children) == 4
    assert all(Path(f"/proc/{pid}").exists() for pid in children)
    os.kill(group.rank_pids()[0], signal.SIGKILL)
    all_wait(group, count=1)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    (group.save / "go").touch()
    assert group.wait() == [0, 0]


@pytest.mark.parametrize("node", [0, 1])
def test_killed_launcher_leaves_no_process_of_its_group(start: Start, node: int) -> None:
    group = start("wait()")
    all_wait(group)
    group.processes[node].kill()
    codes = group.wait()
    assert (codes[node], codes[1 - node]) == (-signal.SIGKILL, 75)
    assert until_gone(group) == []
    if node == 1:
        assert group.account().verdict == "lost"
        assert "node-1" in group.account().why


def test_a_frozen_launcher_is_noticed(start: Start) -> None:
    group = start("wait()", "--silence=5")
    all_wait(group)
    group.processes[1].send_signal(signal.SIGSTOP)
    assert group.processes[0].wait(PATIENCE_S) == 75
    assert "silent for 5 s" in group.account().why


def test_sigterm_gives_the_ranks_time_and_ends_with_143(start: Start) -> None:
    body = """
def saved(*_):
    put(f"saved-{rank}", "")
    sys.exit(0)
signal.signal(signal.SIGTERM, saved)
wait()
"""
    group = start(body)
    all_wait(group)
    for each in group.processes:
        each.send_signal(signal.SIGTERM)
    assert group.wait() == [143, 143]
    assert len(list(group.save.glob("saved-*"))) == 4
    assert group.account().verdict == "stopped"


def test_sigusr1_reaches_only_ranks_that_catch_it(start: Start) -> None:
    body = """
if rank == 0:
    signal.signal(signal.SIGUSR1, lambda *_: put("asked", ""))
wait()
"""
    group = start(body, nodes=1)
    all_wait(group, ranks=2)
    group.processes[0].send_signal(signal.SIGUSR1)
    group.await_((group.save / "asked").exists, "request to save")
    (group.save / "go").touch()
    assert group.wait() == [0]
    assert group.account().restarts == 0


def test_checkpoints_none_of_which_is_whole_end_with_93(start: Start, tmp_path) -> None:
    bad = tmp_path / "group/save/step-1"
    bad.mkdir(parents=True)
    (bad / "manifest.json").write_text("{}")
    group = start("")
    assert group.wait() == [93, 93]
    assert "none of the checkpoints in" in group.account().why
