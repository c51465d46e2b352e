"""hpctl/nodes/acceptance/speed.py: memory for copies is taken near the GPU; affinity is given
back."""

import os
from types import SimpleNamespace

import pytest

from hpctl.nodes.acceptance import speed


def a_torch(seen: list[set[int]], **pci: int) -> SimpleNamespace:
    """A torch whose GPU has this PCI address, and which notes where it runs when it allocates."""

    def empty(*_size: int, **_how: object) -> str:
        seen.append(os.sched_getaffinity(0))
        return "memory"

    cuda = SimpleNamespace(get_device_properties=lambda _one: SimpleNamespace(**pci))
    return SimpleNamespace(cuda=cuda, empty=empty, uint8="uint8")


ADDRESS = {"pci_domain_id": 0, "pci_bus_id": 0x1B, "pci_device_id": 0}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,8\n", {0, 1, 2, 8}), ("5\n", {5}), ("\n", set()), ("many\n", set()), (None, set())],
)
def test_the_processors_of_a_gpus_numa_node_are_sysfss(tmp_path, text, cpus) -> None:
    device = tmp_path / "0000:1b:00.0"
    device.mkdir()
    if text is not None:
        (device / "local_cpulist").write_text(text)
    assert speed.list_gpu_numa_cpus(a_torch([], **ADDRESS), 0, str(tmp_path)) == cpus


def test_a_torch_that_does_not_say_where_its_gpu_is_binds_nothing(tmp_path) -> None:
    assert speed.list_gpu_numa_cpus(a_torch([]), 0, str(tmp_path)) == set()


def test_host_memory_is_taken_on_the_gpus_node_and_affinity_is_given_back(monkeypatch) -> None:
    usual = os.sched_getaffinity(0)
    near = {min(usual)}
    for cpus, during in ((near, near), (set(), usual), ({max(usual) + 1}, usual)):
        seen: list[set[int]] = []
        monkeypatch.setattr(speed, "list_gpu_numa_cpus", lambda *_, cpus=cpus: cpus)
        assert speed.allocate_pinned_host_memory(a_torch(seen), 0) == "memory"
        assert seen == [during]
        assert os.sched_getaffinity(0) == usual
