"""The Prolog: it fails for a faulty node, and for nothing that is our own fault."""

import os
import sys
import time

import pytest

from tests.detection.test_outside_local import ROOT, Node
from tests.process import run_text

pytestmark = pytest.mark.integration

PROLOG = ROOT / "slurm_plugins" / "prolog.sh"


def prolog(hpctl, **environment):
    return run_text(
        [str(PROLOG)], env={"PATH": os.environ["PATH"], "HPCTL": str(hpctl), **environment}
    )


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
    reported = prolog(hpctl, HPCTL_AGENT_SOCKET=str(node.path))
    node.server.stop()
    assert (reported.returncode, reported.stdout) == (status, "")
    assert ("hpctl: n1 is faulty: Xid 79" in reported.stderr) is bool(status)


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
    assert prolog(program(tmp_path, "exec sleep 30")).returncode == 0
    assert time.monotonic() - begun < 6
