"""slurm.conf as instances come and go: always what a slurmctld that is started again would need."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.core.model import InstanceId, LogicalId, NodeName
from hpctl.sandbox.machines import Machine
from hpctl.sandbox.packages import Programs
from hpctl.sandbox.slurmconf import Slots
from hpctl.sandbox.spec import Ports, Spec

PORTS = Ports(slurmctld=1, intake=2, emulator=3, moto=4, slurmd=100)


def machine(number: int, partition: str) -> Machine:
    return Machine(
        instance_id=InstanceId("i-0"),
        logical_id=LogicalId("l-0"),
        name=f"{partition}-{number}",
        group=partition,
        instance_type="ml.p5.48xlarge",
        role="compute",
        address=f"127.0.1.{number}",
        node=NodeName(f"ip-127-0-1-{number}"),
        partition=partition,
        source_s3_uri="",
        on_create="",
        on_init_complete="",
    )


class Conf:
    """A head node's slurm.conf with its slots, and what was asked of scontrol."""

    def __init__(self, directory: Path, **settings: object) -> None:
        spec = Spec(name="s", id="s-1", state=str(directory), ports=PORTS, **settings)  # type: ignore[arg-type]
        self.path = spec.layout.slurm_conf
        self.path.parent.mkdir(parents=True)
        self.asked = directory / "asked"
        self.asked.touch()
        scontrol = directory / "scontrol"
        scontrol.write_text(f'#!/bin/sh\necho "$*" >> {self.asked}\n')
        scontrol.chmod(0o755)
        self.slots = Slots(spec, Programs({"scontrol": str(scontrol)}, (22, 5, 8)))
        self.path.write_text(self.slots.text())

    def states(self) -> list[str]:
        lines = self.path.read_text().splitlines()
        return [line.rpartition("=")[2] for line in lines if line.startswith("NodeName=")]

    def partitions(self) -> dict[str, str]:
        lines = [li.split() for li in self.path.read_text().splitlines()]
        return {
            words[0].partition("=")[2]: next((w[6:] for w in words if w.startswith("Nodes=")), "")
            for words in lines
            if words and words[0].startswith("PartitionName=")
        }


def test_an_empty_sandbox_has_only_future_nodes_and_an_empty_dev(tmp_path: Path) -> None:
    conf = Conf(tmp_path, nodes=3, empty=True)
    assert conf.states() == ["FUTURE"] * 3
    assert conf.partitions() == {"dev": ""}


def test_a_node_joins_its_partition_once_and_the_partition_outlives_it(tmp_path: Path) -> None:
    conf = Conf(tmp_path, nodes=3, empty=True)
    assert conf.slots.join(machine(2, "h100"))
    assert not conf.slots.join(machine(2, "h100")), "a replacement changes nothing"
    assert conf.asked.read_text() == "reconfigure\n"
    assert conf.states() == ["FUTURE", "UNKNOWN", "FUTURE"]
    assert conf.partitions() == {"h100": "ip-127-0-1-2", "dev": "ip-127-0-1-2"}
    conf.slots.leave(machine(2, "h100"))
    conf.slots.leave(machine(2, "h100"))
    assert conf.asked.read_text().splitlines()[1:] == [
        "update NodeName=ip-127-0-1-2 State=DOWN Reason=instance deleted",
        "update NodeName=ip-127-0-1-2 State=FUTURE",
        "reconfigure",
    ]
    assert conf.states() == ["FUTURE"] * 3
    assert conf.partitions() == {"h100": "", "dev": ""}


@pytest.mark.parametrize(("slots", "future"), [(0, 0), (6, 2)])
def test_a_sandbox_with_a_cluster_has_its_nodes_and_room_for_more(
    tmp_path: Path, slots: int, future: int
) -> None:
    conf = Conf(tmp_path, nodes=4, groups=2, slots=slots)
    assert conf.states() == ["UNKNOWN"] * 4 + ["FUTURE"] * future
    assert conf.partitions()["worker-2"] == "ip-127-0-1-3,ip-127-0-1-4"
    assert not conf.slots.join(machine(3, "worker-2"))
