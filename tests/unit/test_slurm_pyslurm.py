"""The pyslurm child, asked for real over its socket, with a stand-in for the library itself.

The stand-in behaves as pyslurm 25.11 does where that matters: a text that is no UTF-8 raises
UnicodeDecodeError when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctl.core.bounds import LATEST
from hpctl.ports import Unavailable
from hpctl.slurm.cli import CliScheduler
from hpctl.slurm.pyslurm import PySlurm
from hpctl.slurm.run import Runner

LIBRARY = """
import os

class PyslurmError(Exception): pass
class RPCError(PyslurmError): pass

class Thing:
    def __init__(self, **said): self._said = said
    def __getattr__(self, name):
        value = self.__dict__["_said"].get(name)
        if isinstance(value, Exception): raise value
        return value.decode() if isinstance(value, bytes) else value

def job(id, **said):
    return Thing(**{"id": id, "state": "RUNNING", "submit_time": 1795264006, "user_id": 5,
                    "allocated_nodes": "n1", "is_batch_job": True, **said})

class Jobs:
    @staticmethod
    def load():
        if os.path.exists("broken"): raise ValueError("the library has a bug")
        return {1: job(1, name="good"),
                2: job(2, name=b"caf\\xe9", comment=b"\\xff"),
                3: job(3, end_time=253402300800),
                4: job(4, state=None)}

class Nodes:
    @staticmethod
    def load():
        return {n: Thing(name=n, state=s) for n, s in (("n1", "IDLE"), ("n2", None))}
"""


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PySlurm]:
    (tmp_path / "pyslurm.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = PySlurm(CliScheduler(Runner(timeout=20)))
    yield made
    made.close()


def test_no_single_record_ends_the_child(scheduler: PySlurm) -> None:
    view = scheduler.view()
    assert [(job.id, job.name, job.comment) for job in view.jobs.values()] == [
        (1, "good", ""),
        (2, "caf\ufffd", "\ufffd"),
        (3, "", ""),
    ]
    assert view.jobs[3].end == LATEST  # type: ignore[index]
    assert list(view.nodes) == ["n1"]
    assert [flaw.target for flaw in view.flaws] == ["n2", "4"]


def test_a_bug_of_the_library_is_an_answer(scheduler: PySlurm, tmp_path: Path) -> None:
    before = scheduler._child._started()
    (tmp_path / "broken").touch()
    with pytest.raises(Unavailable, match="the library has a bug"):
        scheduler.view()
    (tmp_path / "broken").unlink()
    assert len(scheduler.view().jobs) == 3
    assert scheduler._child._started() is before, "the child lives on"
