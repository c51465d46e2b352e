"""How an agent finds its name: by a real munged's word for its address and scontrol's answers."""

import os
import time
from unittest.mock import Mock

import pytest

from hpctl.detection import node_name
from hpctl.toolkit.errors import ServiceUnavailable
from tests.munged import realm

LINE = "NodeName={} Arch=x86_64 CPUTot=16 Gres=gpu:8 NodeAddr={} NodeHostName={} State=IDLE"


@pytest.fixture(scope="module")
def origin():
    """The socket of a munged that vouches for 127.0.1.2."""
    with realm() as running:
        yield running.n1


class Scontrol:
    """A scontrol that knows some nodes, and keeps what it was asked."""

    def __init__(self, directory):
        self.directory = directory
        self.log = directory / "asked"

    def knows(self, **nodes: str) -> None:
        """`gpu_1="127.0.1.2"`: gpu-1 with that NodeAddr."""
        names = {name.replace("_", "-"): addr for name, addr in nodes.items()}
        lines = "\n".join(LINE.format(n, a, n) for n, a in names.items())
        self._write(
            f"""echo "$*" >> {self.log}
all='{lines}'
if [ -z "$4" ]; then echo "$all"; exit 0; fi
echo "$all" | grep "^NodeName=$4 " || {{ echo "Node $4 not found" >&2; exit 1; }}"""
        )

    def is_away(self) -> None:
        self._write('echo "slurm_load_node error: Unable to contact slurm controller" >&2; exit 1')

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def _write(self, body: str) -> None:
        self.log.unlink(missing_ok=True)
        program = self.directory / "scontrol"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Scontrol:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setattr(node_name.socket, "gethostname", lambda: "ip-127-0-1-2.ec2.internal")
    return Scontrol(directory)


def test_the_name_is_that_of_the_node_at_our_address(slurm, origin, tmp_path):
    slurm.knows(gpu_1="127.0.1.1", gpu_2="127.0.1.2", gpu_3="127.0.1.22")
    assert node_name.find_own_slurm_node_name(origin, tmp_path) == "gpu-2"
    assert slurm.asked() == ["-o show node ip-127-0-1-2", "-o show node"]
    slurm.knows(gpu_1="127.0.1.1", gpu_2="127.0.1.2")
    assert node_name.find_own_slurm_node_name(origin, tmp_path) == "gpu-2"
    assert slurm.asked() == ["-o show node gpu-2"], "once known, it is one cheap question"


def test_a_host_name_is_only_a_guess(slurm, origin, tmp_path):
    slurm.knows(ip_127_0_1_2="127.0.1.2")
    assert node_name.find_own_slurm_node_name(origin, tmp_path / "a") == "ip-127-0-1-2"
    assert slurm.asked() == ["-o show node ip-127-0-1-2"]
    slurm.knows(ip_127_0_1_2="127.0.1.9", gpu_2="127.0.1.2")
    assert node_name.find_own_slurm_node_name(origin, tmp_path / "b") == "gpu-2"


def test_a_node_addr_may_be_a_host_name(slurm, origin, tmp_path, monkeypatch):
    found = {"gpu-2": frozenset({node_name.IPv4Address("127.0.1.2")})}
    monkeypatch.setattr(node_name, "resolve_ipv4", lambda host: found.get(host, frozenset()))
    slurm.knows(gpu_1="gpu-1", gpu_2="gpu-2")
    assert node_name.find_own_slurm_node_name(origin, tmp_path) == "gpu-2"


def test_who_is_at_no_nodes_address_says_so(slurm, origin, tmp_path):
    slurm.knows(gpu_1="127.0.1.1")
    with pytest.raises(
        node_name.NodeNameError, match=r"no node has the NodeAddr 127\.0\.1\.2"
    ) as caught:
        node_name.find_own_slurm_node_name(origin, tmp_path, wait_s=0)
    assert "--origin" in caught.value.hint
    slurm.knows(gpu_1="127.0.1.2", gpu_2="127.0.1.2")
    with pytest.raises(node_name.NodeNameError, match="2 nodes, gpu-1 for one"):
        node_name.find_own_slurm_node_name(origin, tmp_path, wait_s=0)


def test_it_waits_for_slurm_and_says_so_once(slurm, origin, tmp_path, monkeypatch, caplog):
    slurm.is_away()
    with pytest.raises(ServiceUnavailable, match="Unable to contact slurm controller"):
        node_name.find_own_slurm_node_name(origin, tmp_path, wait_s=0)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            slurm.knows(gpu_2="127.0.1.2")

    clock = Mock(spec_set=time, sleep=pause, monotonic=lambda: 3.0 * len(pauses))
    monkeypatch.setattr(node_name, "time", clock)
    assert node_name.find_own_slurm_node_name(origin, tmp_path) == "gpu-2"
    assert (len(pauses), len(caplog.records)) == (3, 1)
    slurm.is_away()
    assert node_name.find_own_slurm_node_name(origin, tmp_path) == "gpu-2", "kept for such a time"
    (tmp_path / "slurm-name").write_text("gpu-2 127.0.1.9")
    with pytest.raises(ServiceUnavailable):
        node_name.find_own_slurm_node_name(origin, tmp_path, wait_s=0)


def test_slurmds_own_word_is_enough(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-7")
    assert node_name.find_own_slurm_node_name(tmp_path / "nobody", tmp_path) == "gpu-7"
