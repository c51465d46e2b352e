"""What a command says that has no file descriptor left."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from hpctl.cli.main import main
kept = []
try:
    while True:
        kept.append(os.dup(0))
except OSError:
    pass
sys.argv = ["hpctl", {command}, "--config", "/nonexistent/hpctl.yaml"]
main()
"""
MOST = 40


@pytest.mark.parametrize("command", ["status", "explain", "doctor"])
def test_a_command_out_of_descriptors_says_so_in_two_lines(command: str) -> None:
    program = PROGRAM.format(command=repr(command))
    done = subprocess.run(
        ["prlimit", f"--nofile={MOST}", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    first, second = done.stderr.splitlines()
    assert first.startswith("hpctl: out of file descriptors to open ")
    assert f"this process may have {MOST}" in first
    assert "ulimit -n" in second
