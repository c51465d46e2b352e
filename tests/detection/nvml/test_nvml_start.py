"""A start of the agent's checks and of the child: no GPU is called unknown while the first sweep is
under way, and what the child needs to start does not stay in its memory."""

import os
import re
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpctl.detection.changes import FindingChangeListener
from hpctl.detection.checking import CheckSupervisor
from hpctl.detection.config import AgentConfig, CheckConfig
from hpctl.detection.settings import AgentSettings
from hpctl.faults.table import CHECKS
from hpctl.wire.heads import HeadNodeAddress
from tests.detection.nvml.bed import PATIENCE_S, pci_gpu

pytestmark = pytest.mark.integration

RESET = 1


def checks(root, seen):
    """Only `gpu.recovery`, each second; whatever is found at any time is added to `seen`."""
    chosen = {spec.name: CheckConfig(enabled=spec.name == "gpu.recovery") for spec in CHECKS}
    chosen["gpu.recovery"] = CheckConfig(every_s=1)
    settings = AgentSettings(
        (HeadNodeAddress("127.0.0.1", 1),), "n1", "i-1", "b-1", spool=root / "spool", root=root,
        config=AgentConfig(checks=chosen),
    )  # fmt: skip
    listener = Mock(
        spec_set=FindingChangeListener, handle_finding_change=lambda: seen.extend(made.findings())
    )
    made = CheckSupervisor(settings, (), listener)
    return made


def test_the_first_look_waits_for_the_first_sweep(stub, tmp_path, monkeypatch):
    pci_gpu(tmp_path)
    stub.gpus(1).set(0, field230=RESET)
    stub.slow(300)
    for name, value in stub.env().items():
        monkeypatch.setenv(name, value)
    seen = []
    running = checks(tmp_path, seen)
    running.start()
    try:
        until = time.monotonic() + PATIENCE_S
        while not seen and time.monotonic() < until:
            time.sleep(0.05)
        metrics = running.metrics(())
    finally:
        running.stop()
    assert [(f.check, f.code) for f in seen][:1] == [("gpu.recovery", "reset")]
    assert b"hpctl_agent_nvml_child_resident_memory_bytes" in metrics


@pytest.mark.parametrize("bytecode", ["kept", "not kept"])
def test_the_child_keeps_little_memory(stub, connect, bytecode):
    # Where nothing keeps the bytecode (a read-only tree), to compile nvidia-ml-py takes 24 MB, of
    # which all but 11 go back to the kernel.
    never = {"PYTHONPYCACHEPREFIX": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    stub.gpus(8)
    env = {**os.environ, **stub.env(), **(never if bytecode == "not kept" else {})}
    client = connect(env=env)
    client.wait(PATIENCE_S)
    status = Path(f"/proc/{client.child_pid()}/status").read_text()
    (anonymous_kb,) = re.findall(r"^RssAnon:\s+(\d+)", status, re.MULTILINE)
    assert int(anonymous_kb) < 16 * 1024
