"""A part that leaves a daemon in a session of its own, without its environment."""

import subprocess
import sys

TITLE = "Leaves a daemon"
LIMIT_S = DRY_LIMIT_S = 20
SIDE_BY_SIDE = False
NEEDS: frozenset[str] = frozenset()


DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.write(1, str(os.getpid()).encode())
os.close(1)
time.sleep(600)
"""


def run(context):
    """Start the daemon and end."""
    command = [sys.executable, "-c", DAEMON]
    done = subprocess.run(command, env={}, stdout=subprocess.PIPE, check=True)
    context.record("daemon", int(done.stdout))
