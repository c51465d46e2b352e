"""Start the helpers of a job: one a node, in the background of its batch script."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from hpctl.core.bounds import natural
from hpctl.core.compat import SAFE_PATH, UTC
from hpctl.core.hostlist import expand, fold
from hpctl.core.model import NodeName
from hpctl.errors import HpctlError, Unavailable
from hpctl.jobs.fast import spec as specs
from hpctl.jobs.fast.spec import FastSaves, Spec
from hpctl.jobs.run.srun import step_environment
from hpctl.slurm.read import Reader
from hpctl.slurm.run import Runner

AGAIN = """
for pause in 1 2 4; do
    begun=$(date +%s)
    "$@" && exit
    [ $(($(date +%s) - begun)) -lt 30 ] || exit
    sleep $pause
done
"""
"""Where a task cannot be launched, srun ends them all: a moment later it may work."""


class TooLarge(HpctlError):
    """The saves would end the job for its memory: it does not start."""


def start(environ: Mapping[str, str]) -> str:
    """Write the Spec and start the helpers; the Spec's path. Raises HpctlError, OSError."""
    job, shared = environ.get("SLURM_JOB_ID", ""), environ.get("HPCTL_CHECKPOINT_DIR", "")
    hosts = tuple(NodeName(name) for name in expand(environ.get("SLURM_JOB_NODELIST", "")))
    directory = environ.get("HPCTL_FAST_DIR", "")
    if not (job.isdecimal() and hosts and shared and directory):
        raise HpctlError("this is no job of hpctl sbatch with --fast-dir", "Use hpctl sbatch.")
    options = msgspec.json.decode(environ.get("HPCTL_FAST_OPTIONS") or "{}", type=dict[str, object])
    saves = msgspec.convert({**options, "dir": directory}, FastSaves)
    if saves.memory and (limit := _memory(environ)) and saves.size >= limit:
        raise TooLarge(
            f"{saves.size >> 20} MiB of saves in {directory} would take all of the job's"
            f" {limit >> 20} MiB of memory on a node",
            "Ask for more by --mem, or for a smaller --fast-size.",
        )
    key = environ.get("SLURM_ARRAY_JOB_ID", "")
    key = f"{key}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}" if key else job
    runner = Runner()
    reader = Reader(runner, lambda: datetime.now(UTC))
    nodes, leaves = {}, {}
    with suppress(Unavailable):
        nodes = dict(reader.nodes(hosts))
        leaves = dict(reader.leaves())
    spec = Spec(
        job=key,
        secret=secrets.token_hex(32),
        saves=saves,
        shared=shared,
        hosts=tuple(map(str, hosts)),
        addresses=tuple((nodes[h].address if h in nodes else "") or str(h) for h in hosts),
        domains=tuple(leaves.get(h, "") for h in hosts),
        suspects=tuple(expand(environ.get("HPCTL_SUSPECTS", ""))),
        id=job,
        restarts=natural(environ.get("SLURM_RESTART_COUNT", "")),
    )
    path = Path(shared) / specs.META / f"{key}.json"
    specs.write(spec, path)
    _launch(hosts, path, environ)
    return str(path)


def _memory(environ: Mapping[str, str]) -> int:
    """Bytes that Slurm gives the job on each node; 0 where it sets no limit."""
    whole = natural(environ.get("SLURM_MEM_PER_NODE", ""))
    cpus = natural(environ.get("SLURM_CPUS_ON_NODE", ""))
    return (whole or natural(environ.get("SLURM_MEM_PER_CPU", "")) * cpus) << 20


def _launch(hosts: Sequence[NodeName], path: Path, environ: Mapping[str, str]) -> None:
    count = str(len(hosts))
    # --no-kill: the loss of a node leaves the others' helpers. They take nothing from the ranks.
    command = [
        *("sh", "-c", AGAIN, "sh"),
        *("srun", "--overlap", "--no-kill", "--kill-on-bad-exit=0", "--quiet", "--mpi=none"),
        *("--nodes", count, "--ntasks", count, "--ntasks-per-node=1", "--nodelist", fold(hosts)),
        *("--cpu-bind=none", "--gres=none", "--input=none", "--job-name=hpctl-fast"),
        *(sys.executable, *SAFE_PATH, "hpctl.jobs.fast", "serve"),
    ]
    subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env={
            **step_environment(environ, hosts, hosts),
            specs.ENVIRONMENT: str(path),
            specs.HELPER: "fast",
        },
        cwd="/",
        start_new_session=True,
    )


def gone(hosts: Sequence[str]) -> Sequence[str]:
    """Which of these nodes slurmctld calls DOWN or not responding: they run no rank."""
    reader = Reader(Runner(), lambda: datetime.now(UTC))
    with suppress(Unavailable):
        nodes = reader.nodes(tuple(map(NodeName, hosts)))
        return [
            h for h in hosts if (n := nodes.get(NodeName(h))) is None or n.down or not n.responding
        ]
    return ()


def given(environ: Mapping[str, str] = os.environ) -> Spec | None:
    """The job's Spec, None where it has no fast saves. Raises HpctlError."""
    path = environ.get(specs.ENVIRONMENT)
    return specs.read(Path(path)) if path else None
