import os

import pytest

from hpctl.sandbox.api import Sandbox
from tests.process import room
from tests.slurm.contract.beds import Cluster, FakeBed, RealBed, cli

PREFIX = "HPCTL_TEST_SLURM_PREFIX"
"""A Slurm installation to run the suite on, in place of the one on PATH."""

EPILOG = """#!/bin/sh
n=0
while [ -e "$(dirname "$0")/slow" ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done
exit 0
"""


@pytest.fixture(scope="module")
def cluster():
    """Four nodes of a real Slurm, an Epilog that can be slow, expedited requeue where it exists.

    One for each file, because Slurm remembers some of what is done to it: see the end of test_runs.
    """
    with room() as base:
        files = base / "files"
        files.mkdir(mode=0o777)
        epilog = files / "epilog"
        epilog.write_text(EPILOG)
        epilog.chmod(0o755)
        # Slurm gives up after MessageTimeout, and pings every third of SlurmdTimeout: be quicker.
        lines = [f"Epilog={epilog}", "MessageTimeout=5", "SlurmdTimeout=15"]
        lines.append("SchedulerParameters=batch_sched_delay=0,bf_interval=3")
        lines.append("SlurmctldParameters=enable_expedited_requeue")
        settings = {"nodes": 4, "agents": False, "emulator": False, "slurm_conf": "\n".join(lines)}
        prefix = os.environ.get(PREFIX, "")
        with Sandbox("sched", state_dir=base / "s", prefix=prefix, **settings) as sandbox:
            made = Cluster(sandbox, files)
            yield made
            made.close()


ADAPTERS = [pytest.param(name, marks=pytest.mark.slurm) for name in ("cli", "pyslurm")]


@pytest.fixture(params=["fake", *ADAPTERS])
def bed(request):
    if request.param == "fake":
        yield FakeBed()
    else:
        yield from _used(request)


@pytest.fixture(params=ADAPTERS)
def real(request):
    yield from _used(request)


def _used(request):
    cluster: Cluster = request.getfixturevalue("cluster")
    real = RealBed(cluster, _adapter(request.param, cluster.sandbox))
    yield real
    real.quiet()
    real.close()


def _adapter(adapter, sandbox):
    commands = cli(sandbox)
    if adapter == "cli":
        return commands
    from hpctl.slurm.pyslurm import PySlurmScheduler

    pyslurm = PySlurmScheduler(commands.runner)
    if why_not := pyslurm.explain_why_pyslurm_is_unusable():
        pytest.skip(f"PYSLURM NOT TESTED HERE: {why_not}")
    return pyslurm
