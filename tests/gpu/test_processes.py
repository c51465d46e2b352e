"""Killing what a part has left, beside a part that runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

KILLER = """
import os, subprocess
from tests.gpu.processes import adopt_orphans, kill_descendants

adopt_orphans()
starts = "for i in $(seq 200); do sleep 0.005 || exit 1; done"
neighbor = subprocess.Popen(["sh", "-c", starts])
while neighbor.poll() is None:
    kill_descendants(spare=frozenset({neighbor.pid}))
print(neighbor.returncode)
"""


def test_what_a_spared_process_starts_meanwhile_is_spared():
    done = subprocess.run(
        [sys.executable, "-c", KILLER], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
