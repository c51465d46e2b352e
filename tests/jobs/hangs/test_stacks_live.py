"""Stacks of real ranks that really hang: by hand through Slurm, and for the daemon by an agent."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpctl.engine.clock import SystemClock
from hpctl.engine.kinds import DueRecoveryStep
from hpctl.engine.node_health import NodeHealthStore
from hpctl.jobs.hangs import stacks
from hpctl.jobs.hangs.daemon import StackCollector
from hpctl.jobs.hangs.stack_groups import (
    StackHangVerdict,
    diagnose_hang_from_rank_stacks,
    parse_node_stacks,
)
from hpctl.vocabulary.identity import JobAttempt, JobId
from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.recovery import StepKind, StepStartDecision
from hpctl.vocabulary.slurm_facts import SlurmJob
from hpctl.vocabulary.trouble import HangPlace
from tests.agent_process import AgentProcess
from tests.intakes import Head
from tests.reports import NOON, Rows
from tests.waiting import until

pytestmark = pytest.mark.integration

RANKS = 3
KINDS = ("sleeps", "spins", "reads", "loads", "saves", "stops")
PROGRAM = Path(__file__).with_name("hanging_rank.py")
COLLECTOR = [sys.executable, "-P", "-m", "hpctl.jobs.hangs.stacks"]


class Hangs:
    """A plan of hangs, and the way out of each."""

    def __init__(self, folder: Path, plan: list[tuple[str, int]]) -> None:
        self.folder, self.plan = folder, plan
        for number in range(len(plan)):
            os.mkfifo(folder / f"{number}.fifo")

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(PROGRAM), str(self.folder), json.dumps(self.plan)]

    def each(self, look):
        """Per hang its kind, its culprit, and what `look` says of it once all others wait."""
        for number, (kind, culprit) in enumerate(self.plan):
            until((self.folder / f"{number}.hung").exists, seconds=90)
            for rank in {*range(RANKS)} - {culprit}:
                until((self.folder / f"{number}.{rank}.waits").exists, seconds=30)
            time.sleep(1.0)
            yield kind, culprit, look()
            self._release(number, kind)

    def _release(self, number: int, kind: str) -> None:
        (self.folder / f"{number}.go").touch()
        if kind in ("reads", "loads", "saves"):
            (self.folder / f"{number}.fifo").write_text("x")
        for path in Path("/proc").glob("[0-9]*") if kind == "stops" else ():
            try:
                if str(self.folder).encode() in (path / "cmdline").read_bytes():
                    os.kill(int(path.name), signal.SIGCONT)
            except OSError:
                continue


@contextmanager
def ranks(command, size: int, node=lambda rank: f"n{rank}", **env: str):
    """The ranks of a job 77 without a Slurm."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", **env}
    made = []
    try:
        for rank in range(size):
            own = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size)}
            own["SLURMD_NODENAME"] = node(rank)
            made.append(subprocess.Popen(command, stdin=subprocess.PIPE, env={**env, **own}))
        yield made
    finally:
        for one in made:
            one.kill()
            one.communicate()


@pytest.mark.slurm
def test_hpctl_stacks_names_the_rank_that_a_running_job_waits_for(slurm, tmp_path) -> None:
    tmp_path.chmod(0o777)
    hangs = Hangs(tmp_path, [("loads", 1), ("spins", 0), ("stops", 2)])
    script = tmp_path / "job.sh"
    command = " ".join(f"'{word}'" for word in hangs.command)
    # The step takes every CPU and GPU that the job has.
    script.write_text(f"#!/bin/sh\nsrun --exact -n3 -N3 --gres=gpu:8 {command}\n")
    hpctl = [sys.executable, "-P", "-m", "hpctl", "stacks"]
    options = ["-N3", "-n3", "--exclusive", "--gres=gpu:8", f"--chdir={tmp_path}"]
    said = slurm.run(["sbatch", "--parsable", *options, f"--output={tmp_path}/log", str(script)])
    job, env = said.stdout.strip(), {**os.environ, **slurm.env}

    def look():
        done = subprocess.run(
            [*hpctl, job, "--json"], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return json.loads(done.stdout)

    for kind, culprit, view in hangs.each(look):
        (one,) = view["suspects"]
        assert (one["rank"], one["node"]) == (culprit, view["nodes"][culprit]), view["text"]
        assert (one["file"], one["function"].split(".")[0]) == ("hanging_rank.py", kind)
        assert "all_reduce (distributed_c10d.py:" in view["groups"][0]["place"]
    until(lambda: job not in slurm.run(["squeue", "-h", "-o", "%A"]).stdout.split(), seconds=30)
    gone = subprocess.run([*hpctl, job], env=env, capture_output=True, text=True, check=False)
    assert gone.returncode == 1
    assert f"job {job} is not running: its state is COMPLETED" in gone.stderr


@pytest.mark.slurm
def test_a_node_without_a_step_is_called_a_spare_and_no_error(slurm, tmp_path) -> None:
    tmp_path.chmod(0o777)
    script = tmp_path / "job.sh"
    script.write_text(
        f"#!/bin/sh\nsrun -N2 -n2 {sys.executable} -c 'import time; time.sleep(600)'\n"
    )
    comment = 'hpctl:{"spares":1}'
    options = ["-N3", "--exclusive", f"--comment={comment}", f"--chdir={tmp_path}"]
    said = slurm.run(["sbatch", "--parsable", *options, f"--output={tmp_path}/log", str(script)])
    job, env = said.stdout.strip(), {**os.environ, **slurm.env}
    steps = ["squeue", "--steps", "-h", f"--jobs={job}", "--format=%i %N"]
    until(lambda: f"{job}.0 " in slurm.run(steps).stdout, seconds=30)
    command = [sys.executable, "-P", "-m", "hpctl", "stacks", job, "--json"]

    def look():
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        view = json.loads(done.stdout)
        return view if sum(len(group["ranks"]) for group in view["groups"]) == 2 else None

    view = until(look)
    slurm.run(["scancel", job])
    (idle,) = view["idle"]
    assert view["errors"] == []
    assert view["text"].endswith(f"; {idle}: spare, idle")
    assert idle in view["nodes"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_culprit_of_48_hangs_is_right(tmp_path) -> None:
    right = []
    for seed in range(8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        chance = random.Random(seed)
        plan = [(kind, chance.randrange(RANKS)) for kind in chance.sample(KINDS, len(KINDS))]
        hangs = Hangs(folder, plan)
        with ranks(hangs.command, RANKS):
            found = [(culprit, look) for _, culprit, look in hangs.each(_looked)]
            right += [[one.rank for one in look.suspects] == [who] for who, look in found]
    assert len(right) == 8 * len(KINDS)
    assert sum(right) >= 0.95 * len(right)


def test_a_rank_whose_background_save_waits_for_a_file_is_named(tmp_path) -> None:
    hangs = Hangs(tmp_path, [("saves", 1)])
    with ranks(hangs.command, RANKS):
        ((_, _, found),) = hangs.each(_looked)
    (one,) = found.suspects
    assert (one.rank, one.hang_place) == (1, HangPlace.FILES), found.text
    assert "saves (hanging_rank.py:" in one.why


def _looked() -> StackHangVerdict:
    nodes = [f"n{rank}" for rank in range(RANKS)]
    ask = [[*COLLECTOR, "--job=77", f"--node={node}"] for node in nodes]
    made = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in ask]
    text = "".join(one.communicate(timeout=60)[0] for one in made)
    return diagnose_hang_from_rank_stacks(parse_node_stacks(text.splitlines()), nodes)


def test_neither_a_helper_nor_another_clusters_job_is_a_rank(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_WORKING_CLUSTER", "mine:127.0.0.1:6817:9728:109")
    command = [sys.executable, "-c", "input()"]
    with (
        ranks(command, 1, SLURM_CLUSTER_NAME="mine") as mine,
        ranks(command, 2, lambda rank: "n0", SLURM_CLUSTER_NAME="theirs", SLURM_STEP_ID="1"),
        ranks(command, 2, lambda rank: "n0", HPCTL_HELPER="fast", SLURM_STEP_ID="2"),
    ):
        until(lambda: stacks.find_rank_processes("77", None, "n0", ""), seconds=10)
        found = stacks.find_rank_processes("77", None, "n0", "")
        assert {key: one.pid for key, one in found.items()} == {("0", 0): mine[0].pid}


def test_slurmds_configuration_tells_clusters_apart_in_a_step_without_a_name(monkeypatch) -> None:
    for name in ("SLURM_CLUSTER_NAME", "SLURM_WORKING_CLUSTER", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    command = [sys.executable, "-c", "input()"]
    with (
        ranks(command, 1, SLURM_CONF="/mine/slurm.conf", SLURM_CLUSTER_NAME="mine") as mine,
        ranks(command, 2, lambda rank: "n0", SLURM_CONF="/theirs/slurm.conf", SLURM_STEP_ID="1"),
    ):
        until(lambda: len(stacks.find_rank_processes("77", None, "n0", "3")) == 3, seconds=10)
        monkeypatch.setenv("SLURM_CONF", "/mine/slurm.conf")
        found = stacks.find_rank_processes("77", None, "n0", "3")
        assert {key: one.pid for key, one in found.items()} == {("0", 0): mine[0].pid}


COLLECTIVE = """
import os, sys, time
def all_reduce():
    all_reduce.arrive(); time.sleep(600)
all_reduce.arrive = lambda: open(f"{sys.argv[1]}/at-{os.environ['SLURM_PROCID']}", "w").close()
"""
SMALL = """
import sys, time
sys.path.insert(0, sys.argv[1])
from torch.distributed.distributed_c10d import all_reduce
def load():
    all_reduce.arrive(); time.sleep(600)
import os
load() if os.environ["SLURM_PROCID"] == "2" else all_reduce()
"""


@pytest.mark.slurm
def test_an_agent_reads_stacks_for_the_daemon(munges, tmp_path) -> None:
    package = tmp_path / "torch/distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text(COLLECTIVE)
    program = tmp_path / "train.py"
    program.write_text(SMALL)
    health = NodeHealthStore({}, Rows(), lambda: None, SystemClock())
    asks = {}
    head = Head(munges, asks=asks)
    head.accept, head.heard = health.accept, health.heard
    attempt = JobAttempt(JobId(77), NOON, 0)
    job = SlurmJob(JobId(77), "RUNNING", NOON, nodes=("n1",), uid=os.geteuid())
    slurm = SimpleNamespace(slurm=SimpleNamespace(jobs={77: job}))
    line = SimpleNamespace(request_stack_traces=lambda fresh: (asks.clear(), asks.update(fresh)))
    desk = StackCollector(health, slurm, tmp_path / "kept", lambda: None, line)
    (tmp_path / "agent").mkdir()
    head.server.start()
    agent = AgentProcess(tmp_path / "agent", head.server.url, munges.n1)
    due = DueRecoveryStep("j-1", StepStartDecision(StepKind.STACKS, "77", 1), attempt)
    ended = []
    with ranks([sys.executable, str(program), str(tmp_path)], 4, lambda _: "n1"):
        try:
            agent.start(HPCTL_AGENT_HEARTBEAT_S="1")
            until(lambda: health.find_generation("n1"), seconds=60)
            until(lambda: len([*tmp_path.glob("at-*")]) == 4, seconds=60)
            desk.begin(due)
            until(lambda: ended.extend(desk.done()) or ended, seconds=60)
        finally:
            agent.end()
            head.server.stop()
    ((which, outcome),) = ended
    assert (which, outcome.kind) == (due, OutcomeKind.ACCEPTED)
    assert outcome.detail.startswith("rank 2 on n1 is in load (train.py:6)")
    assert "3 of 4 ranks wait in all_reduce (distributed_c10d.py:4)" in outcome.detail
    kept = json.loads((tmp_path / "kept/j-1.json").read_text())
    assert [one["rank"] for one in kept["nodes"][0]["ranks"]] == [0, 1, 2, 3]
    assert asks == {}
