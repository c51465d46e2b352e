"""The step supervisor on a real Slurm: what goes wrong with a step, and that the next one runs."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest
from msgspec import Struct

from hpctl.sandbox.api import Sandbox
from tests.gpu.recordings import H200
from tests.live import until
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
RANK = """#!/bin/sh
date +%s.%N > "$DIR/first.$HPCTL_ATTEMPT.$SLURM_PROCID"
echo "$SLURMD_NODENAME $SLURM_JOB_NODELIST $SLURM_NODELIST $SLURM_NNODES" \\
    > "$DIR/seen.$HPCTL_ATTEMPT.$SLURM_PROCID"
"""
SETTLED_S = 30.0
AT_ONCE_S = 25.0
"""Less than slurmctld needs to find a node lost by itself, or slurmstepd to give up a rank; it is
two seconds on a machine that has nothing else to do."""
UNKILLED_S = 90.0
"""Enough for a run whose rank Slurm does not end: see `unkilled`."""


class Job(Struct):
    """One supervised job and the directory that its ranks write to."""

    slurm: Sandbox
    dir: Path
    id: int = 0

    def submit(self, body, *options, run="--spares 1", nodes=3, batch=""):
        """`body` is the rest of each rank's shell script, `options` are sbatch's."""
        rank = self.dir / "rank.sh"
        rank.write_text(RANK + body)
        rank.chmod(0o755)
        return self.submit_command(str(rank), *options, run=run, nodes=nodes, batch=batch)

    def submit_command(self, command, *options, run="--spares 1", nodes=3, batch=""):
        script = self.dir / "job.sh"
        script.write_text(
            f"#!/bin/sh\nexport DIR={self.dir} PYTHONPATH={ROOT} HOME={self.dir}\n{batch}\n"
            f"exec {sys.executable} -m hpctl run {run} -- {command}\n"
        )
        args = [f"--nodes={nodes}", "--no-kill", "--ntasks-per-node=1", "--gres=gpu:1"]
        args += ["--requeue", "--open-mode=append", f"--output={self.dir}/log", "--parsable"]
        done = self.slurm.run(["sbatch", *args, *options, str(script)], cwd=self.dir)
        self.id = int(done.stdout)
        return self

    def first(self, attempt: int, rank: int = 0, timeout: float = UNKILLED_S) -> float:
        """When that rank's first instruction ran."""
        path = self.dir / f"first.{attempt}.{rank}"
        until(lambda: path.exists() and path.read_text().endswith("\n"), timeout, f"{path.name}")
        return float(path.read_text())

    def nodes(self, attempt: int, ranks: int = 2) -> set[str]:
        """The nodes that the ranks of an attempt ran on."""
        found = set()
        for rank in range(ranks):
            path = self.dir / f"seen.{attempt}.{rank}"
            until(lambda path=path: path.exists() and bool(path.read_text()), 5, path.name)
            found.add(path.read_text().split()[0])
        return found

    def field(self, name: str) -> str:
        text = self.slurm.scontrol("--oneliner", "show", "job", str(self.id))
        found = re.search(rf"(?:^|\s){name}=(\S*)", text)
        return found[1] if found else ""

    def ended(self, state: str = "COMPLETED", timeout: float = UNKILLED_S) -> str:
        until(lambda: self.field("JobState") == state, timeout, f"{state}:\n{self.log()}")
        return self.log()

    def log(self) -> str:
        path = self.dir / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def past(self) -> list[dict[str, object]]:
        """The lines of its history."""
        paths = [*self.dir.glob("ck/.hpctl/*.jsonl"), *self.dir.glob(".local/state/hpctl/*.jsonl")]
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture
def job(slurm: Sandbox, shared: Path):
    """A job of a test's own, which may break nodes: all is idle before and after it."""
    _all_idle(slurm)
    one = Job(slurm, shared)
    yield one
    slurm.run(["scancel", str(one.id)], check=False)
    _all_idle(slurm)


def _all_idle(slurm: Sandbox) -> None:
    """Give the nodes back that a test, or Slurm itself, has closed, and wait until all idle."""
    for node in slurm.nodes:
        slurm.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)

    def idle() -> bool:
        states = re.findall(r" State=(\S+)", slurm.scontrol("-o", "show", "node"))
        return set(states) == {"IDLE"}

    until(idle, 60, "all is idle")


def quarantine(slurm: Sandbox, node: str) -> float:
    """DRAIN and DOWN, as the daemon does it. When the second was sent."""
    name = f"NodeName={node}"
    slurm.run(["scontrol", "update", name, "State=DRAIN", "Reason=hpctl:r1 xid 79"])
    at = time.time()
    slurm.run(["scontrol", "update", name, "State=DOWN", "Reason=hpctl:r1 xid 79"])
    return at


def test_a_lost_node_is_replaced_by_the_spare(slurm: Sandbox, job: Job) -> None:
    job.submit('[ "$HPCTL_ATTEMPT" = 2 ] || sleep 60\n')
    job.first(1, 1)
    before = job.nodes(1)
    batch_host = job.field("BatchHost")
    victim = next(node for node in sorted(before) if node != batch_host)
    down = quarantine(slurm, victim)
    took = max(job.first(2, rank) for rank in (0, 1)) - down
    assert took < AT_ONCE_S
    after = job.nodes(2)
    assert victim not in after
    assert len(after - before) == 1
    log = job.ended()
    assert f"node {victim} is lost" in log
    assert "hpctl: 2 " in log
    listed = (job.dir / "seen.2.0").read_text().split()
    assert (listed[1], listed[3]) == (listed[2], "2")


@pytest.mark.nightly
def test_a_frozen_node_does_not_hold_up_the_next_step(slurm: Sandbox, job: Job) -> None:
    body = """[ "$HPCTL_ATTEMPT" = 2 ] && exit 0
host=$SLURMD_NODENAME
if [ "$SLURM_PROCID" = "0" ]; then
    while [ ! -e "$DIR/frozen" ]; do sleep 0.1; done
    date +%s.%N > "$DIR/crashed"; exit 1
fi
sleep 60
"""
    job.submit(body)
    job.first(1, 1)
    victim = (job.dir / "seen.1.1").read_text().split()[0]
    assert victim != job.field("BatchHost"), "rank 1 is on the batch host"
    slurm.inject(victim, "freeze-node")
    try:
        (job.dir / "frozen").touch()
        took = job.first(2, 1) - float((job.dir / "crashed").read_text())
        assert victim not in job.nodes(2)
        assert took < AT_ONCE_S
    finally:
        slurm.inject(victim, "thaw-node")
    job.ended()
    assert f"node {victim}" in job.log()


def test_a_timed_out_collective_is_the_hang_of_the_rank_that_did_not_come(job: Job) -> None:
    """The ranks write the dumps of nccl_skip (an H200's) and print what its rank 0 printed."""
    recorded = H200 / "nccl"
    job.submit(
        f"""[ "$HPCTL_ATTEMPT" = 1 ] || exit 0
cp {recorded}/nccl_skip.nccl_trace_rank_$SLURM_PROCID.pickle \\
    "$TORCH_FR_DUMP_TEMP_FILE$SLURM_PROCID"
touch $DIR/dumped.$SLURM_PROCID
[ "$SLURM_PROCID" = 1 ] && sleep 600
until [ -e $DIR/dumped.1 ]; do sleep 0.1; done
sleep 1
cat {recorded}/nccl_skip.rank0.stderr >&2
sleep 1
kill -ABRT $$
"""
    )
    log = job.ended()
    (treated,) = [one for one in job.past() if one["type"] == "treated"]
    trouble = treated["trouble"]
    assert (trouble["kind"], trouble["rank"]) == ("hang", 1), log
    assert trouble["node"] == (job.dir / "seen.1.1").read_text().split()[0]
    where = f"rank 1 on {trouble['node']}"
    assert trouble["why"].startswith(f"{where} did not come to collective 5 of default_pg")
    assert trouble["evidence"].startswith("flight recorder (2 dumps)")
