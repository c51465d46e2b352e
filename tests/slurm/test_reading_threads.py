"""A reading of Slurm starts no thread but the first."""

import threading
import time
from typing import Any

import pytest

from hpctl.slurm.read import SlurmCommandReader
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.slurm_facts import SlurmNode


class QuickReader(SlurmCommandReader):
    """A reader that finds nothing at once, and no single node: `n0` at once, others later."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[str] = []

    def version(self) -> tuple[int, int, int]:
        return 22, 5, 8

    def slurm_user(self) -> str:
        return "slurm"

    def _read_all_nodes(self, *_: Any) -> Any:
        return {}, []

    def _read_all_jobs(self) -> Any:
        return {}, []

    def _read(self, *options: str, **_: Any) -> Any:
        if "--nodes=n0" not in options:
            time.sleep(0.1)
            self.answered.append(options[-1])
        raise OSError("no command is started")


def test_a_later_reading_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = QuickReader()
    reader.view()

    def refuse(_: threading.Thread) -> None:
        raise MemoryError

    monkeypatch.setattr(threading.Thread, "start", refuse)
    view = reader.view()
    assert (view.nodes, view.jobs) == ({}, {})
    with pytest.raises(OSError, match="no command"):
        reader.states([NodeName(f"n{number}") for number in range(4)])


def test_a_reading_of_one_node_that_fails_waits_for_all_others() -> None:
    reader = QuickReader()
    names = [NodeName(f"n{number}") for number in range(4)]
    with pytest.raises(OSError, match="no command"):
        reader.part(names, {name: SlurmNode(name, "IDLE") for name in names})
    assert sorted(reader.answered) == ["--nodes=n1", "--nodes=n2", "--nodes=n3"]
