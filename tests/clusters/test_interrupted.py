"""Ctrl-C and kill -9, on the real program: the service goes on, and the next command with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend
from tests.clusters.bed import CLUSTER, REGION, SANDBOX_KEYS
from tests.clusters.shell import SPEC
from tests.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0


def hpctl(emulator: HyperPodEmulator, *args: str) -> subprocess.Popen[str]:
    env = {
        **os.environ, **SANDBOX_KEYS, "AWS_ENDPOINT_URL_SAGEMAKER": emulator.endpoint_url,
        "AWS_DEFAULT_REGION": REGION, "PYTHONPATH": str(ROOT), "COLUMNS": "80",
    }  # fmt: skip
    command = [sys.executable, "-m", "hpctl", "cluster", *args, "--every", "0.1s"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)


def test_ctrl_c_leaves_the_work_and_wait_picks_it_up(tmp_path) -> None:
    emulator = HyperPodEmulator(NullMachineBackend(), create_time_s=2.0, boot_time_s=0.05)
    emulator.start()
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(SPEC))
    running = hpctl(emulator, "create", str(file), "--no-validate", "--yes")
    until(lambda: emulator.calls.count("CreateCluster"), LIMIT_S)
    assert "llm Creating: controller 0/1" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130, err
    assert "interrupted; what was ordered continues" in out
    assert "\n  hpctl cluster wait llm\n" in out
    assert "Traceback" not in err

    waiting = hpctl(emulator, "wait", CLUSTER)
    out, err = waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == 0, err
    assert "wait llm: done; InService, controller 1/1, workers 4/4" in out
    assert emulator.calls.count("CreateCluster") == 1
    emulator.stop()
    assert emulator.response_errors == []
