"""Ctrl-C and kill -9, on the real program: the service goes on, and the next command with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.clusters.bed import CLUSTER, REGION, SANDBOX_KEYS
from tests.clusters.shell import SPEC

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """A service that takes two seconds to make a cluster."""
    made = Emulator(NullMachines(), create_time_s=2.0, boot_time_s=0.05)
    made.start()
    yield made
    made.stop()
    assert made.response_errors == []


def hpctl(emulator: Emulator, *args: str) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        **SANDBOX_KEYS,
        "AWS_ENDPOINT_URL_SAGEMAKER": emulator.endpoint_url,
        "AWS_DEFAULT_REGION": REGION,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "80",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "hpctl", "cluster", *args, "--every", "0.1s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def create(emulator: Emulator, dir: Path) -> subprocess.Popen[str]:
    file = dir / "cluster.yaml"
    file.write_text(yaml.safe_dump(SPEC))
    return hpctl(emulator, "create", str(file), "--no-validate", "--yes")


def until_ordered(emulator: Emulator) -> None:
    deadline = time.monotonic() + LIMIT_S
    while "CreateCluster" not in operations(emulator):
        assert time.monotonic() < deadline, "nothing was ordered"
        time.sleep(0.02)


def operations(emulator: Emulator) -> list[str]:
    return [call.operation for call in emulator.calls.all()]


def test_ctrl_c_leaves_the_work_and_wait_picks_it_up(emulator: Emulator, tmp_path: Path) -> None:
    running = create(emulator, tmp_path)
    until_ordered(emulator)
    assert running.stderr is not None
    assert "llm Creating: controller 0/1" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130, err
    assert "interrupted; what was ordered goes on" in out
    assert "\n  hpctl cluster wait llm\n" in out
    assert "Traceback" not in err

    waiting = hpctl(emulator, "wait", CLUSTER)
    out, err = waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == 0, err
    assert "wait llm: done; InService, controller 1/1, workers 4/4" in out
    assert operations(emulator).count("CreateCluster") == 1
