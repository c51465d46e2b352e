"""An NVML child that is kept from running is not a driver that hangs.

What it did before is in the recording child-killed-and-stopped.json: SIGSTOP became FAIL gpu.hung
after 20 s, both between two sweeps and inside of one.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctl.detection.check import CheckedMachine, ExpectedHardware
from hpctl.detection.check_once import CheckResultRow, run_node_checks_once
from hpctl.detection.runner import load_check
from hpctl.faults.table import CHECKS
from tests.detection.nvml import halts
from tests.detection.nvml.bed import PATIENCE_S, fresh, hung, newest, until

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ROOT = Path(__file__).parents[3]
HUNG_S = 0.6
TIMES = 10
GPU_CHECKS = [load_check(spec) for spec in CHECKS if spec.name.startswith("gpu.")]
GPU_HUNG = [check for check in GPU_CHECKS if check.spec.name == "gpu.hung"]


def connected(connect, **settings):
    """A client that calls a call hung after HUNG_S."""
    client = connect(deadline_s=HUNG_S / 2, **settings)
    client.wait(PATIENCE_S)
    return client


def says(client, root) -> CheckResultRow:
    """What `gpu.hung` says now."""
    (row,) = run_node_checks_once(
        GPU_HUNG, CheckedMachine(root, ExpectedHardware(), nvml=client.newest)
    )
    return row


def watch(client, root, reason: str, seconds: float) -> int:
    """How often `reason` was said in this time, and on a busy machine until it is; the driver must
    never be blamed."""
    said, began = 0, time.monotonic()
    while (spent_s := time.monotonic() - began) < seconds or (not said and spent_s < PATIENCE_S):
        row = says(client, root)
        assert row.state in ("ok", "unknown"), row.findings
        said += any(finding.detail.startswith(reason) for finding in row.findings)
        time.sleep(0.05)
    return said


@pytest.mark.parametrize("way", halts.halts())
def test_a_halted_child_is_named_and_recovers(stub, connect, tmp_path, way, caplog):
    halt, reason = halts.halts()[way]
    stub.gpus(1)
    client = connected(connect, every_s=0.05)
    pid = client.child_pid()
    with caplog.at_level(logging.WARNING), halt(pid):
        assert watch(client, tmp_path, reason, 4 * HUNG_S) > 0, f"{reason!r} was never said"
    assert fresh(client).gpus[0].recovery_action == 0
    assert client.child_pid() == pid
    said = [record.getMessage() for record in caplog.records]
    # One line for the whole pause: it names this process where that lost the processor first.
    (line,) = [line for line in said if "the driver is not blamed" in line]
    assert reason in line or line.startswith("the agent itself did not run")
    assert not any("hangs" in line for line in said)


def test_sigstop_between_sweeps_ten_times(stub, connect, tmp_path):
    stub.gpus(1)
    client = connected(connect, every_s=60.0)
    for _ in range(TIMES):
        with halts.stopped(client.child_pid()):
            assert watch(client, tmp_path, "the NVML child is stopped", 2 * HUNG_S) > 0
        until(lambda: newest(client))


def test_sigstop_inside_a_sweep_ten_times(stub, connect, tmp_path):
    stub.gpus(1)
    client = connected(connect, every_s=0.05)
    for _ in range(TIMES):
        pid = client.child_pid()
        stub.hang("nvmlDeviceGetFieldValues")
        until(lambda: _inside(client), every=0.005)
        with halts.stopped(pid):
            stub.fix()
            assert watch(client, tmp_path, "the NVML child is stopped", 2 * HUNG_S) > 0
        assert fresh(client).gpus[0].recovery_action == 0
        assert client.child_pid() == pid


def _inside(client) -> bool:
    call = client._child.get_oldest_driver_call()
    return call is not None and call.name.startswith("nvmlDeviceGetFieldValues")


def test_a_child_that_was_stopped_and_then_hangs_is_hung(stub, connect):
    stub.gpus(1)
    client = connected(connect, every_s=0.05)
    with halts.stopped(client.child_pid()):
        time.sleep(2 * HUNG_S)
        stub.hang("nvmlDeviceGetFieldValues")
    assert until(lambda: hung(client)).call == "nvmlDeviceGetFieldValues gpu0"


@pytest.mark.parametrize("then", ["nothing", "SIGSTOP"])
def test_a_call_in_state_d_is_hung_even_when_a_stop_is_pending(stub, connect, tmp_path, then):
    stub.gpus(1)
    client = connected(connect, every_s=0.05)
    pid = client.child_pid()
    stub.block("nvmlDeviceGetFieldValues")
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D")
    if then == "SIGSTOP":
        os.kill(pid, signal.SIGSTOP)
    try:
        assert until(lambda: hung(client)).call == "nvmlDeviceGetFieldValues gpu0"
        # Once it is known to hang, it stays so.
        assert says(client, tmp_path).state == "ok"  # the limit of the check is 20 s
        time.sleep(HUNG_S)
        assert hung(client)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_call_that_spins_is_hung(stub, connect):
    stub.gpus(1)
    client = connected(connect, every_s=0.05)
    stub.spin("nvmlDeviceGetFieldValues")
    assert until(lambda: hung(client)).call == "nvmlDeviceGetFieldValues gpu0"


AGENT = """
import time
from hpctl.detection.check import CheckResultUnknownError, DriverHungError
from hpctl.detection.nvml.client import NvmlClient
client = NvmlClient(0.05, 0.3)
client.wait(60)
print(client.child_pid(), flush=True)
while True:
    try:
        client.newest()
        print("ok", flush=True)
    except DriverHungError as hung:
        print("HUNG", hung, flush=True)
    except CheckResultUnknownError as error:
        print("unknown", error, flush=True)
    time.sleep(0.02)
"""


def test_an_agent_that_was_stopped_with_its_child_does_not_blame_the_driver(stub):
    stub.gpus(1)
    env = {**os.environ, **stub.env(), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True, env=env
    ) as agent:
        try:
            child = int(agent.stdout.readline())
            for _ in range(3):
                for pid in (agent.pid, child):
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(1.5)
                # The agent goes on first: it sees a call that is old, and a child that is stopped.
                for pid in (agent.pid, child):
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.2)
        finally:
            agent.terminate()
        lines = agent.stdout.read().splitlines()
    assert lines[-1] == "ok"
    assert not [line for line in lines if line.startswith("HUNG")]
    assert any("the NVML child is stopped" in line or "did not run" in line for line in lines)
