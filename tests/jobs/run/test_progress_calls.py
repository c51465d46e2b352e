"""Progress told by real Python processes over real sockets and files."""

import socket
import subprocess
import sys

import pytest

from hpctl import progress
from hpctl.jobs.run.progress_notes import open_progress_note_listener
from tests.jobs.run.progress_talk import CALLS, environment, heard, python

pytestmark = pytest.mark.integration


@pytest.fixture(params=["unix", "udp"])
def listener(request, tmp_path):
    peers = ["localhost"] if request.param == "udp" else []
    with open_progress_note_listener(peers) as made:
        assert made.address.startswith(f"{request.param}:")
        yield made


@pytest.fixture
def reporter_to():
    made: list[progress.Reporter] = []

    def make(address: str) -> progress.Reporter:
        made.append(progress.Reporter({progress.VARIABLE: address}))
        return made[-1]

    yield make
    for reporter in made:
        reporter.close()


def test_each_call_arrives(listener):
    gpu = {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5", "SLURMD_NODENAME": "node-7"}
    python(CALLS, listener.address, **gpu)
    notes = heard(listener, 8)
    assert {(n.rank, n.node, n.gpu) for n in notes} == {(3, "node-7", "5")}
    assert len({n.pid for n in notes}) == 1
    first, second, *rest = notes
    assert first.phase == "warm up"
    assert (second.step, second.loss, second.tokens) == (12, 0.25, 4096.0)
    assert [n.saving for n in rest[:2]] == [True, False]
    assert (rest[2].checkpoint, rest[2].step, rest[2].seconds) == ("/a dir/50%", 12, 1.5)
    assert all(n.done for n in rest[3:])
    assert listener.dropped == 0


def test_without_the_variable_nothing_is_opened_or_imported():
    code = """
        import os, sys
        os.environ.pop("HPCTL_PROGRESS")
        before = set(os.listdir("/proc/self/fd"))
        modules = set(sys.modules)
        from hpctl import progress
        progress.step(1, loss=0.5)
        progress.done()
        with progress.saving():
            pass
        new = {name.partition(".")[0] for name in set(sys.modules) - modules}
        assert not new & {"socket", "json", "msgspec", "pydantic", "click", "asyncio"}, new
        assert len(os.listdir("/proc/self/fd")) == len(before)
        print("fine")
    """
    assert python(code, "") == "fine\n"


@pytest.mark.parametrize(
    "address",
    ["unix:/nowhere/s", "unix:" + "/x" * 200, "udp:127.0.0.1:1,x", "udp:no.such.name:1", "udp:x",
     "udp:127.0.0.1:99999999,x", "file:/nowhere/f", "file:/dev/full", "nonsense", "unix:", ":"],
)  # fmt: skip
def test_a_wrong_address_never_raises(address, reporter_to):
    reporter = reporter_to(address)
    for n in range(100):
        reporter.step(n, 0.5, None, {})
    reporter.say("done=1")


def test_wrong_arguments_never_raise(monkeypatch, tmp_path, reporter_to):
    reporter = reporter_to(f"file:{tmp_path / 'p'}")
    monkeypatch.setattr(progress, "_reporter", reporter)
    monkeypatch.setattr(progress, "_off", False)

    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("a tensor on a device that is gone")

    progress.step("x")
    progress.step(1, loss=Odd())
    progress.step(1, lr=None)
    progress.checkpoint(None, 1)
    progress.checkpoint("x", 1, seconds="long")
    progress.phase("x" * 5000)
    assert progress.dropped() == 6


def test_process_reports_progress_after_a_fork(listener):
    code = """
        import os
        from hpctl import progress
        progress.step(1)
        child = os.fork()
        if child == 0:
            progress.step(2)
            os._exit(0)
        os.waitpid(child, 0)
    """
    python(code, listener.address)
    first, second = heard(listener, 2)
    assert first.pid != second.pid


def test_a_full_socket_drops_and_counts_and_never_waits(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(path))
        code = """
            import time
            from hpctl import progress
            begun = time.monotonic()
            for n in range(20_000):
                progress.step(n)
                progress.saving(True)
            print(progress.dropped(), time.monotonic() - begun)
        """
        dropped, taken = python(code, f"unix:{path}").split()
    assert int(dropped) > 35_000
    assert float(taken) < 60.0


def test_the_next_line_says_how_many_were_lost(tmp_path, reporter_to):
    path = tmp_path / "s"
    reporter = reporter_to(f"unix:{path}")
    for n in range(3):
        reporter.step(n, None, None, {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
        reader.bind(str(path))
        reporter.step(3, None, None, {})
        reporter.step(4, None, None, {})
        assert b" lost=3 " in reader.recv(4096)
        assert b"lost" not in reader.recv(4096)


def test_too_many_steps_are_held_back_but_never_a_nan(tmp_path, reporter_to):
    reporter = reporter_to(f"file:{tmp_path / 'p'}")
    for n in range(5000):
        reporter.step(n, 0.5, None, {})
    reporter.step(5000, float("nan"), None, {})
    reporter.say("done=1")
    lines = (tmp_path / "p").read_text().splitlines()
    assert len(lines) < 1000
    assert "loss=nan lost=" in lines[-2]
    assert "done=1" in lines[-1]


def test_the_command_for_shells(listener):
    command = [sys.executable, "-m", "hpctl.progress", "step=12", "loss=0.5"]
    env = environment(listener.address)
    assert subprocess.run(command, env=env, timeout=60, check=False).returncode == 0
    assert heard(listener, 1)[0].step == 12
    env = environment("unix:/nowhere/s")
    assert subprocess.run(command, env=env, timeout=60, check=False).returncode == 1
