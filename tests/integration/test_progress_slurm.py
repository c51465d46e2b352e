"""Ranks of a real step on several nodes tell one listener, in Python and in bash."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest

from hpctl.jobs.progress.listen import ReceivedNote, listen
from hpctl.sandbox.api import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]
ROOT = str(Path(__file__).resolve().parents[2])
CODE = "from hpctl import progress; progress.step(7, loss=0.5); progress.done()"
BASH = (
    "p=${HPCTL_PROGRESS#udp:}; a=${p%,*};"
    ' echo "token=${p#*,} step=8 rank=$SLURM_PROCID node=$SLURMD_NODENAME"'
    ' > "/dev/udp/${a%:*}/${a##*:}"'
)


def test_every_rank_on_every_node_is_heard(slurm: Sandbox) -> None:
    with listen(["localhost"]) as listener:
        words = ["srun", "--nodes=2", "--ntasks=4", "--overcommit", "bash", "-c"]
        python = f"{shlex.quote(sys.executable)} -c {shlex.quote(CODE)}"
        environment = {"PYTHONPATH": ROOT, "HPCTL_PROGRESS": listener.address}
        slurm.run([*words, f"{python}; {BASH}"], env=environment)
        heard: list[ReceivedNote] = []
        deadline = time.monotonic() + 30
        while len(heard) < 4 * 5 and time.monotonic() < deadline:
            heard += listener.take()
            time.sleep(0.05)
    notes = [one.note for one in heard]
    for step in (7, 8):
        told = [note for note in notes if note.step == step]
        assert sorted(note.rank for note in told if note.rank is not None) == [0, 1, 2, 3]
        nodes = {note.node for note in told}
        assert len(nodes) == 2
        assert all(node and not node.startswith("localhost") for node in nodes)
    assert {note.rank for note in notes if note.done} == {0, 1, 2, 3}
    assert listener.dropped == 0
