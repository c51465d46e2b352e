"""The Prolog: it fails for a faulty node, and for nothing that is our own fault."""

import os
import sys
import time
from subprocess import CompletedProcess

import pytest

from tests.detection.test_outside_local import ROOT, Node
from tests.process import run_text
from tests.waiting import until

pytestmark = pytest.mark.integration

PROLOG = ROOT / "slurm_plugins" / "prolog.sh"


UNHELD = "SchedulerParameters=batch_sched_delay=0,nohold_on_prolog_fail\n"
BATCH = {"SLURM_JOB_STDIN": "/dev/null"}
"""What a Prolog is told of batch jobs alone; seen on 22.05.8."""


def prolog(hpctl, conf: str = UNHELD, **environment):
    """Run the Prolog of a batch job, beside a slurm.conf with these lines."""
    path = hpctl.parent / "slurm.conf"
    path.write_text(conf)
    told = {**BATCH, "SLURM_CONF": str(path), **environment}
    return run_text([str(PROLOG)], env={"PATH": os.environ["PATH"], "HPCTL": str(hpctl), **told})


def program(place, body):
    path = place / "hpctl"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("xid", "status"), [("", 0), ("13", 0), ("79", 1)])
def test_a_job_is_kept_from_a_faulty_node_alone(tmp_path, xid: str, status: int) -> None:
    node = Node(tmp_path / "agent.sock")
    if xid:
        node.sees("kernel.xid", xid)
    hpctl = program(tmp_path, f'cd {ROOT} && exec {sys.executable} -m hpctl "$@"')

    def judge() -> CompletedProcess[str] | None:
        done = prolog(hpctl, HPCTL_AGENT_SOCKET=str(node.path))
        return done if done.returncode == status else None

    # On a busy machine Python may not have started when the script's two seconds are over.
    reported = until(judge)
    node.server.stop()
    assert reported.stdout == ""
    assert ("hpctl: n1 is faulty: Xid 79" in reported.stderr) is bool(status)


FAULTY = "echo n1 is faulty: Xid 79; exit 1"


def test_a_faulty_node_fails_no_job_that_slurm_would_cancel(tmp_path) -> None:
    done = prolog(program(tmp_path, FAULTY), SLURM_JOB_STDIN="")
    assert done.returncode == 0
    assert "n1 is faulty: Xid 79; the job starts" in done.stderr


@pytest.mark.parametrize(
    ("conf", "status"),
    [
        ("", 0),
        ("SchedulerParameters=batch_sched_delay=0\n", 0),
        ("# SchedulerParameters=nohold_on_prolog_fail\n", 0),
        ("SchedulerParameters=defer # nohold_on_prolog_fail\n", 0),
        ("  schedulerparameters = NoHold_on_prolog_fail\n", 1),
        ("Include scheduling.conf\n", 1),
        ("include {here}/scheduling.conf # ours\n", 1),
        ("#include scheduling.conf\n", 0),
        ("Include missing.conf\n", 0),
    ],
)
def test_a_faulty_node_fails_no_job_that_slurm_would_hold(tmp_path, conf: str, status: int) -> None:
    (tmp_path / "scheduling.conf").write_text(UNHELD)
    done = prolog(program(tmp_path, FAULTY), conf.replace("{here}", str(tmp_path)))
    assert done.returncode == status, done.stderr
    assert ("lacks nohold_on_prolog_fail" in done.stderr) is not bool(status)


def test_without_a_slurm_conf_the_job_starts(tmp_path) -> None:
    hpctl = program(tmp_path, FAULTY)
    assert prolog(hpctl, SLURM_CONF=str(tmp_path / "none")).returncode == 0


def test_without_an_agent_the_job_starts(tmp_path) -> None:
    hpctl = program(tmp_path, f'cd {ROOT} && exec {sys.executable} -m hpctl "$@"')
    assert prolog(hpctl, HPCTL_AGENT_SOCKET=str(tmp_path / "none")).returncode == 0


@pytest.mark.parametrize(
    "body",
    [
        f"exec {sys.executable} -c 'import no_such_module'", "exit 1", "exit 2", "kill -SEGV $$",
        "echo n1 is faulty; exit 0",
    ],
)  # fmt: skip
def test_where_hpctl_is_broken_the_job_starts(tmp_path, body: str) -> None:
    assert prolog(program(tmp_path, body)).returncode == 0


def test_where_hpctl_is_missing_or_hangs_the_job_starts(tmp_path) -> None:
    assert prolog(tmp_path / "none").returncode == 0
    begun = time.monotonic()
    assert prolog(program(tmp_path, "exec sleep 300")).returncode == 0
    assert time.monotonic() - begun < 60
