"""The pyslurm child, asked for real over its socket, with a stand-in for the library itself.

The stand-in behaves as pyslurm 25.11 does where that matters: a text that is no UTF-8 raises
UnicodeDecodeError when it is read.
"""

import gc
from contextlib import suppress
from pathlib import Path

import pytest

from hpctl.engine.adapters import choose_slurm_client_for_daemon
from hpctl.engine.config import Config, SlurmSection
from hpctl.slurm.cli import CliScheduler
from hpctl.slurm.pyslurm import PySlurmScheduler
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit.bounds import LATEST
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from tests.process import ended
from tests.waiting import until

LIBRARY = """
import os, time

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
                4: job(4, state=None),
                5: job(5, state="COMPLETING", exit_code=3, end_time=time.time() - 60,
                       state_reason="NonZeroExitCode"),
                6: job(6, state="COMPLETING", end_time=time.time() + 60),
                7: job(7, state="PENDING", num_nodes=2, array_tasks_waiting="0-9",
                       array_tasks_parallel=4, state_reason="ReqNodeNotAvail, May be reserved"),
                8: job(8, state="PENDING", num_nodes=3),
                9: job(9, state="COMPLETED", num_nodes=3, end_time=1795264006),
                10: job(10, state="COMPLETING", exit_code=143, end_time=time.time() - 60),
                11: job(11, state="COMPLETING", end_time=time.time() - 60)}

class Nodes:
    @staticmethod
    def load():
        return {n: Thing(name=n, state=s) for n, s in (("n1", "IDLE"), ("n2", None))}
"""


def list_children() -> list[int]:
    """Return the processes that this one started to ask the library."""
    name = PySlurmScheduler.__module__.encode()
    found = []
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread, or a child, that has ended
            for pid in file.read_text().split():
                if name in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(pid))
    return sorted(found)


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    (tmp_path / "pyslurm.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = PySlurmScheduler(SlurmCommandRunner(timeout=60))
    yield made
    made.close()


def test_no_single_record_ends_the_child(scheduler):
    view = scheduler.view()
    assert [(job.id, job.name, job.comment) for job in view.jobs.values()][:3] == [
        (1, "good", ""),
        (2, "caf\ufffd", "\ufffd"),
        (3, "", ""),
    ]
    assert view.jobs[3].end == LATEST
    assert (list(view.nodes), [flaw.target for flaw in view.flaws]) == (["n1"], ["n2", "4"])


def test_a_bug_of_the_library_is_an_answer(scheduler, tmp_path):
    scheduler.view()
    before = list_children()
    (tmp_path / "broken").touch()
    with pytest.raises(ServiceUnavailable, match="the library has a bug"):
        scheduler.view()
    (tmp_path / "broken").unlink()
    assert len(scheduler.view().jobs) == 10
    assert list_children() == before, "the child lives on"


def test_a_completing_job_has_ended_or_waits_for_its_next_run(scheduler):
    jobs = scheduler.view().jobs
    states = [jobs[n].state for n in (5, 6, 10, 11)]
    assert states == ["FAILED", "PENDING", "CANCELLED", "COMPLETING"]
    assert jobs[6].completing


def test_only_a_pending_job_wants_nodes_and_an_array_for_the_tasks_that_may_run(scheduler):
    jobs = scheduler.view().jobs
    assert [jobs[n].wants for n in (1, 7, 8, 9)] == [0, 8, 3, 0]
    assert jobs[7].reason == "ReqNodeNotAvail,_May_be_reserved"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The stand-in as pyslurm 25.11.2, beside commands of that release and no slurmctld."""
    (tmp_path / "pyslurm-25.11.2.dist-info").mkdir()
    (tmp_path / "pyslurm-25.11.2.dist-info/METADATA").write_text("Name: pyslurm\nVersion: 25.11.2")
    (tmp_path / "pyslurm.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$1" = --version ] && echo slurm 25.11.7 || exit 1\n')
    scontrol.chmod(0o755)
    return tmp_path


def chosen(place, adapter="auto"):
    return choose_slurm_client_for_daemon(Config(slurm=SlurmSection(bin=place, adapter=adapter)))


def test_the_choice_asks_no_slurmctld(installed):
    frozen = "Nodes.load = Jobs.load = lambda: time.sleep(60)"
    (installed / "pyslurm.py").write_text(f"{LIBRARY}\n{frozen}\n")
    scheduler, why = chosen(installed)
    assert isinstance(scheduler, PySlurmScheduler)
    assert why == "pyslurm (slurm.adapter: auto)"


def test_the_choice_says_why_it_is_cli(installed):
    assert chosen(installed, "cli")[1] == "cli, as slurm.adapter says"
    (installed / "pyslurm.py").write_text("raise ImportError")
    scheduler, why = chosen(installed)
    assert type(scheduler) is CliScheduler
    assert why.startswith("cli (slurm.adapter: auto), for pyslurm 25.11.2 does not start")
    (installed / "scontrol").write_text("#!/bin/sh\necho slurm-wlm 22.05.8\n")
    assert "pyslurm 25.11.2 does not match Slurm 22.5.8" in chosen(installed)[1]
    with pytest.raises(HpctlError, match="does not match"):
        chosen(installed, "pyslurm")


def test_the_child_ends_with_who_asked_and_closed_nothing(installed):
    scheduler, _ = chosen(installed)
    assert isinstance(scheduler, PySlurmScheduler)
    until(lambda: len(list_children()) == 1)  # those of the tests before have ended
    (child,) = list_children()
    del scheduler
    gc.collect()
    assert ended(child)
