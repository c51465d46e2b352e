"""Configless nodes: their slurmd has its slurm.conf from slurmctld, and hpctl finds it there."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.daemon.chaos import Chaos, cluster
from tests.live import EAGER, ROOT, until
from tests.repertoire.network import NEEDS_ROOT
from tests.repertoire.stories import story
from tests.repertoire.test_prolog import HEADER, HPCTL, broken, fault, prologs

pytestmark = [pytest.mark.slurm, pytest.mark.integration, NEEDS_ROOT]
PROLOG = f"""#!/bin/sh
export HPCTL={{base}}/hpctl HPCTL_AGENT_SOCKET={{base}}/s/nodes/$SLURMD_NODENAME/agent.sock
{ROOT}/slurm_plugins/prolog.sh 2>{{base}}/said
status=$?
echo "$SLURM_JOB_ID $SLURMD_NODENAME $status $(cat {{base}}/said)" >>{{base}}/prologs
exit $status
"""
CONF = EAGER.replace("\n", ",nohold_on_prolog_fail\n") + (
    "SlurmctldParameters=enable_configless\nProlog={base}/prolog\nPrologFlags=Alloc\n"
)


@pytest.fixture(scope="module")
def live():
    files = {"prolog": PROLOG, "hpctl": HPCTL}
    with cluster(nodes=3, files=files, slurm_conf=CONF, configless=True) as live:
        yield live


def enter_node(live: Chaos, node: str, **environment: str) -> list[str]:
    """Return what goes before a command that runs on a node, as a user's who has logged in."""
    pid = (live.sandbox.spec.layout.of_node(node) / "slurmd.pid").read_text()
    inside = ["nsenter", f"--target={pid}", "--mount", "--root", "--wd", "--"]
    env = ["env", "--unset=SLURM_CONF", *(f"{key}={value}" for key, value in environment.items())]
    return [*inside, *env]


def on_node(live: Chaos, node: str, *command: str, **environment: str) -> str:
    """Run a command on a node, as a user who has logged in there."""
    return live.sandbox.run([*enter_node(live, node, **environment), *command]).stdout


@story(
    job="Batch job on configless nodes (`SlurmctldParameters=enable_configless`)",
    act="its node has a fault",
    slurm="The job runs again elsewhere without the begin delay; the node is replaced and returns.",
    owner="The job runs again by itself.",
)
def test_a_job_on_configless_nodes_is_restarted(live: Chaos):
    job = live.start("env; sleep 600", header=HEADER)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert live.of_job(job)[0].bad_nodes == (victim,)
    log = (Path(live.sandbox.state_dir) / f"job-{job}.log").read_text()
    assert "/conf-cache/slurm.conf" in log
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@pytest.mark.nightly
@story(
    job="Job of `hpctl sbatch` from a configless node, with `hpctl run`",
    act="its program exits with 3 twice",
    slurm="One restart inside the allocation, then FAILED with ExitCode 3:0.",
    explain="What its supervisor reported.",
    owner="`hpctl sbatch`, `hpctl status` and `hpctl explain` work on the node.",
)
def test_hpctl_on_a_configless_node_finds_slurm_and_the_head(live: Chaos, tmp_path: Path):
    node = live.sandbox.nodes[0]
    config = yaml.safe_load(live.sandbox.config_path.read_text())
    del config["slurm"]["conf"]
    (tmp_path / "hpctl.yaml").write_text(yaml.safe_dump(config))
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -m hpctl run -- sh -c 'exit 3'\n")

    def hpctl(*words: str) -> str:
        command = [sys.executable, "-m", "hpctl", *words]
        given = {"HPCTL_CONFIG": str(tmp_path / "hpctl.yaml"), "PYTHONPATH": ROOT}
        return on_node(live, node, *command, **given)

    text = hpctl("sbatch", "--parsable", f"--output={tmp_path}/log", str(script))
    job = int(text.split()[-1])
    until(lambda: live.job(job).state == "FAILED", 60, "its end is Slurm's own")
    assert live.job(job).exit_code == "3:0"
    assert live.job(job).restarts == 0
    assert "3 IDLE" in " ".join(hpctl("status").split())

    def explained() -> str:
        return " ".join(hpctl("explain", str(job)).split())

    until(lambda: "rank 0 on" in explained(), 60, "explain quotes the supervisor's report")


@pytest.mark.nightly
@story(
    job="Batch job that Slurm sends to a faulty configless node before hpctl has drained it",
    act="hpctl's Prolog fails there, with `nohold_on_prolog_fail`",
    slurm="The job starts at once on another node; hpctl takes over Slurm's drain.",
    owner="Nothing to do.",
)
def test_hpctls_prolog_reads_what_slurmctld_has_sent(live: Chaos):
    node = broken(live)
    fault(live, node)
    job = live.submit("sleep 600", header=HEADER)
    until(lambda: live.node(node).reason == "Prolog error", 60, "Slurm drains the node")
    assert f"{job} {node} 1 hpctl: " in prologs(live)
    live.hpctl("unpause")
    until(lambda: live.running(job, 1), 60, "it runs elsewhere")
    live.returned(node)
    live.sandbox.run(["scancel", str(job)])


@contextmanager
def daemon_on(live: Chaos, node: str, folder: Path) -> Iterator[None]:
    """Run the daemon on a node in place of the head's, with a file that names no slurm.conf."""
    config = yaml.safe_load(live.sandbox.config_path.read_text())
    del config["slurm"]["conf"]
    path = folder / "daemon.yaml"
    path.write_text(yaml.safe_dump(config))
    live.sandbox.kill_daemon()
    command = enter_node(live, node, PYTHONPATH=ROOT)
    command += [sys.executable, "-m", "hpctl", "daemon", "run", "--config", str(path)]
    env = {**live.sandbox.env, "LC_ALL": "C.UTF-8"}
    with (folder / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield
        assert daemon.poll() is None, (folder / "daemon.log").read_text()
    finally:
        daemon.terminate()
        daemon.wait(60)
        live.sandbox.start_daemon()


@pytest.mark.nightly
@story(
    job="Batch job in a cluster whose daemon runs on a configless host",
    act="its node has a fault",
    slurm="The job runs again elsewhere; the node is replaced and returns.",
    explain="The daemon finds the slurm.conf that slurmctld has sent.",
    owner="The job runs again by itself.",
)
def test_the_daemon_runs_on_a_configless_host(live: Chaos, tmp_path: Path):
    host = live.sandbox.nodes[-1]
    with daemon_on(live, host, tmp_path):
        job = live.start("sleep 600", f"--exclude={host}", header=HEADER)
        until(lambda: live.daemon_sees(job), 60, "the daemon answers, and sees the job")
        (victim,) = live.job(job).nodes
        live.xid(victim)
        until(lambda: live.running(job, 1), 60, "it runs again")
        live.returned(victim)
        assert live.of_job(job)[0].bad_nodes == (victim,)
        live.sandbox.run(["scancel", str(job)])
