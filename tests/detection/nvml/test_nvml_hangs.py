"""An NVML child whose driver hangs, or that crashes, is killed, or loses its agent."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctl.detection.check import CheckResultUnknownError
from hpctl.detection.nvml import client as client_module
from tests.detection.nvml.bed import PATIENCE_S, alive, fresh, hung, newest, until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


def test_a_hung_call_is_reported_with_its_name_and_no_second_child_is_started(stub, connect):
    stub.gpus(8)
    client = connect()
    client.wait(PATIENCE_S)
    pid = client.child_pid()
    began = time.monotonic()
    stub.hang("nvmlDeviceGetFieldValues", gpu=5)
    error = until(lambda: hung(client))
    # Twice the deadline, one sweep's interval, and a machine with others on it.
    assert time.monotonic() - began < 1.1 + 5.0
    assert error.call == "nvmlDeviceGetFieldValues gpu5"
    assert error.overdue_s > 1.0
    time.sleep(1.0)
    assert hung(client).overdue_s > error.overdue_s + 0.9
    assert client.child_pid() == pid
    assert alive(pid), "the child was killed inside a call of the driver"


def test_when_the_call_comes_back_its_sweep_counts_and_a_fresh_child_takes_over(stub, connect):
    stub.gpus(2)
    client = connect()
    client.wait(PATIENCE_S)
    pid = client.child_pid()
    stub.hang("nvmlDeviceGetFieldValues").set(0, field230=2)
    assert until(lambda: hung(client))
    time.sleep(1.0)
    began = time.monotonic()
    stub.fix()
    late = until(lambda: newest(client))
    assert late.at < began - 1.0, "the late sweep was thrown away"
    assert late.gpus[0].recovery_action == 2
    assert until(lambda: client.child_pid() not in (pid, None))
    assert fresh(client).gpus[0].recovery_action == 2
    assert not alive(pid)


def test_a_hung_child_outlives_its_agent_until_the_call_comes_back(stub, connect):
    stub.gpus(1)
    client = connect()
    client.wait(PATIENCE_S)
    pid = client.child_pid()
    stub.hang("nvmlDeviceGetFieldValues")
    until(lambda: hung(client))
    client.close()
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    assert alive(pid), "the child was killed inside a call of the driver"
    stub.fix()
    until(lambda: not alive(pid))


def test_a_child_that_does_not_get_out_of_the_driver_is_reported(stub, connect, monkeypatch):
    # As when closing the device hangs: the child has gone silent, in no call, and does not exit.
    stub.gpus(1)
    client = connect()
    client.wait(PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setattr(client_module.NvmlChildProcess, "exit_status", lambda child: None)
        stub.gpus(2)  # ends the session
        assert until(lambda: hung(client)).call == "the child's exit"
    assert fresh(client).gpus[0].recovery_action == 0


def test_a_healthy_child_ends_when_the_client_closes(stub, connect):
    stub.gpus(1)
    client = connect()
    client.wait(PATIENCE_S)
    pid = client.child_pid()
    client.close()
    assert not alive(pid)
    client.close()
    with pytest.raises(CheckResultUnknownError, match="closed"):
        client.newest()
    assert client.events() == ()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_of_an_agent_that_dies_ends_too(stub, number):
    stub.gpus(2)
    program = (
        "import time\n"
        "from hpctl.detection.nvml.client import NvmlClient\n"
        "client = NvmlClient(0.1)\n"
        "client.wait(60)\n"
        "print(client.child_pid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    env = {**os.environ, **stub.env(), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env
    ) as agent:
        pid = int(agent.stdout.readline())
        assert alive(pid)
        agent.send_signal(number)
        # The pipe closes with the agent: its child must not hold it open.
        assert agent.stdout.read() == ""
    until(lambda: not alive(pid))


def test_a_child_that_crashes_is_started_again_more_and_more_seldom(stub, connect, caplog):
    stub.gpus(2)
    client = connect()
    client.wait(PATIENCE_S)
    began = time.monotonic()
    stub.crash("nvmlDeviceGetFieldValues")

    def list_pauses() -> list[float]:
        newest(client)
        found = re.findall(r"the next starts in (\S+) s", caplog.text)
        return [float(pause_s) for pause_s in found]

    until(lambda: len(list_pauses()) >= 5)
    pauses = list_pauses()
    assert pauses[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
    # The fifth crash comes after the pauses that followed the four before it.
    assert time.monotonic() - began > sum(pauses[:4])
    stub.fix()
    assert until(lambda: fresh(client).gpus)[1].recovery_action == 0


def test_while_there_is_no_sweep_nothing_is_claimed(stub, connect, monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 60.0)
    stub.gpus(1)
    client = connect(every_s=0.1, deadline_s=0.2)
    with pytest.raises(CheckResultUnknownError, match="first sweep"):
        client.newest()
    client.wait(PATIENCE_S)
    stub.crash("nvmlDeviceGetFieldValues")
    until(lambda: newest(client) is None)
    time.sleep(0.2)
    with pytest.raises(
        CheckResultUnknownError, match=r"s old; the NVML child ended with status -6"
    ):
        client.newest()


def test_what_was_opened_is_closed(stub, connect):
    stub.gpus(1)
    before = len(os.listdir("/proc/self/fd"))
    client = connect()
    client.wait(PATIENCE_S)
    pid = client.child_pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: newest(client) and client.child_pid() not in (None, pid))
    client.close()
    assert len(os.listdir("/proc/self/fd")) == before
