"""What the agent's checks see is healed on a real Slurm, and what they only watch is left alone.

The nodes' EFA devices are files, their GPUs a script behind the real nvidia-ml-py.
"""

import json
import tempfile
import time
from datetime import datetime
from pathlib import Path

import pytest
from msgspec import Struct

from hpctl.engine.adapters import open_journal_reader
from hpctl.sandbox.proctree import list_descendants
from hpctl.toolkit.compat import UTC
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.stubs import nvml

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

EFAS, GPUS = 2, 8
AGENT = {
    "expected": {"efa_devices": EFAS},
    # The shipped table looks every 20 or 30 s, three times: a test cannot wait for that.
    "checks": {
        "efa.devices": {"every_s": 1, "gone_s": 3},
        "efa.link": {"every_s": 1, "gone_s": 3},
        "gpu.recovery": {"every_s": 1},
        "gpu.throttle": {"every_s": 1},
        "gpu.slowdown": {"every_s": 1},
    },
}
REBOOT = "BatchRebootClusterNodes"


@pytest.fixture(scope="module")
def shared():
    with tempfile.TemporaryDirectory() as folder:
        stub = nvml.Stub(Path(folder)).gpus(GPUS)
        with cluster(
            nodes=6,
            hardware={"efa": EFAS},
            agent_config=AGENT,
            nvml_library=stub.env()["LD_LIBRARY_PATH"],
            nvml_script=stub.script.read_text(),
        ) as live:
            yield live


def explained(live, target):
    return dict(json.loads(live.hpctl("explain", target, "--json")))


def health(live, node):
    """What the head node has from the node's agent."""
    store = open_journal_reader(live.config)
    try:
        return store.health()[node]
    finally:
        store.close()


def agent_of(live: Chaos, node: str) -> int:
    """The pid of the node's agent."""
    (row,) = [n for n in live.sandbox.status()["nodes"] if n["node"] == node]
    return int(row["agent_pid"])


class Hurt(Struct, frozen=True):
    """A job, one of its nodes, and how often that one's instance was treated before."""

    job: int
    node: str
    instance: str
    rebooted: int


def under_a_job(live: Chaos) -> Hurt:
    """Start a job on two nodes: one of them is to be hurt."""
    job = live.start("srun sleep 600", "--nodes=2")
    node = str(live.job(job).nodes[1])
    live.mark(node)
    old = live.instance(node)
    return Hurt(job, node, old, live.accepted(old, REBOOT))


def healed(live: Chaos, hurt: Hurt, rule: str) -> None:
    """The job went elsewhere at once, and the node was rebooted, once, and came back."""
    until(lambda: live.running(hurt.job, restarts=1), 20, "the job runs elsewhere")
    assert hurt.node not in live.job(hurt.job).nodes
    assert live.returned(hurt.node).rule == rule
    assert live.accepted(hurt.instance, REBOOT) == hurt.rebooted + 1
    assert live.accepted(hurt.instance) == 0
    assert live.instance(hurt.node) == hurt.instance
    assert live.job(hurt.job).restarts == 1


def test_a_lost_efa_device_moves_the_job_and_reboots_the_node(live: Chaos) -> None:
    hurt = under_a_job(live)
    live.sandbox.inject(hurt.node, "hardware", device="efa", count=EFAS - 1)
    until(lambda: live.of(hurt.node) != [], 15, "a recovery")
    reported = explained(live, hurt.node)
    (seen,) = [f for f in reported["evidence"] if f["check"] == "efa.devices"]
    assert (seen["verdict"], seen["code"]) == ("fail", "fewer")
    assert f"1 of {EFAS} EFA devices" in seen["detail"]
    assert reported["rule"]["id"] == "efa-devices-fewer"
    assert reported["rule"]["ladder"] == ["reboot", "replace"]
    healed(live, hurt, "efa-devices-fewer")


@pytest.mark.nightly
def test_the_drivers_word_and_its_silence_each_reboot_a_node(live: Chaos) -> None:
    """One node's driver asks for a reboot, the other's does not come back from a call."""
    silent, asking = under_a_job(live), under_a_job(live)
    hung = silent.node
    agent, begun = agent_of(live, hung), datetime.now(UTC)
    live.sandbox.inject(hung, "gpu", answers={"hang": "nvmlDeviceGetFieldValues"})
    live.sandbox.inject(asking.node, "gpu", index=3, answers={"field230": "2"})
    silent_s, children = 0.0, 1
    while not live.of(hung):
        now = datetime.now(UTC)
        assert (now - begun).total_seconds() < 30, "a hung call is found within 30 s"
        silent_s = max(silent_s, (now - health(live, hung).last_heard).total_seconds())
        children = max(children, len(list_descendants(agent)))
        time.sleep(0.5)
    assert silent_s < 18, "the agent went on reporting"
    assert children == 1, "and started nothing beside the child that hangs"
    healed(live, asking, "gpu-recovery-reboot")
    healed(live, silent, "gpu-hung-hung")
