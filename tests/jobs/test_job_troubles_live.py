"""Jobs that go wrong without a node's fault, on a real Slurm with a real daemon.

One cluster for all of them. The jobs are submitted as `hpctl sbatch` registers them; those that
stand for a supervisor speak with `hpctl.wire.job_report_client`.
"""

import contextlib
import json
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire.job_report_client import JobReportReply, send_job_report
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.sandbox.test_training import ROOT, final

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PLAIN = "#!/bin/sh\n#SBATCH --requeue --open-mode=append\n"


@pytest.fixture(scope="module")
def live():
    with cluster({"job": {"supervisor_grace_s": 2.0}}, nodes=4) as found:
        yield found


def registered(**output) -> str:
    """A --comment as `hpctl sbatch` writes it."""
    return "--comment=hpctl:" + json.dumps({"ckpt": "/nowhere", **output}, separators=(",", ":"))


def unwrapped(text: str) -> str:
    """A story without its line breaks, which come where the line is full."""
    return " ".join(text.split())


def ended(live: Chaos, job: int) -> str:
    shown = live.job(job)
    return "" if shown.completing or shown.state in ("PENDING", "RUNNING") else shown.state


@contextlib.contextmanager
def at_node(live: Chaos, number: int = 0):
    """The environment of a process inside a job on a node."""
    node = live.sandbox.spec.layout.of_node(live.sandbox.nodes[number])
    output = {**live.sandbox.exports, "SLURM_CONF": str(node / "slurm.conf")}
    before = dict(os.environ)
    os.environ.update(output)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def report(job: int, restarts: int = 0, **changes) -> JobReport:
    trouble = Trouble(TroubleKind.HANG, datetime.now(UTC), "rank 3 makes no progress", "hang")
    return JobReport(job, restarts, trouble, **changes)


def test_a_crash_is_run_again_from_its_checkpoint_and_waits_where_it_got_nowhere(live):
    base = Path(live.sandbox.state_dir)
    saved, out = base / "crash", base / "crash.log"
    script = base / "crash.sh"
    train = '"$HPCTL_PYTHON" -m hpctl.sandbox.training --checkpoint-every 4 --step-s 0 --steps'
    script.write_text(
        "#!/bin/sh\n#SBATCH -N1\n"
        f"case $HPCTL_RESTART_COUNT in 0) srun {train} 8; exit 3 ;; [12]) sleep 2; exit 4 ;; esac\n"
        f"exec srun {train} 16\n"
    )
    crash = {"ladder": ["requeue"], "backoff": True}
    policy = {"backoff": {"first_s": 4.0}, "same_signature": 3, "on": {"crash": crash}}
    args = ["--parsable", f"--checkpoint-dir={saved}", f"--output={out}"]
    rules = base / "policy.yaml"
    rules.write_text(yaml.safe_dump(policy))
    args.append(f"--policy={rules}")
    command = [sys.executable, "-m", "hpctl", "sbatch", *args, str(script)]
    job = int(live.sandbox.run(command, env={"PYTHONPATH": ROOT}).stdout.split()[-1])
    until(lambda: ended(live, job) == "COMPLETED", 200, "the job completes")
    assert final(saved)["resumed_from"] == [8], out.read_text()
    first, second, third = live.of_job(job)
    assert first.trouble.exit_code == 3
    assert first.start_at is None or first.start_at <= add_seconds_within_bounds(first.opened, 3.0)
    assert second.trouble.why == "its script ended with exit code 4"
    assert second.trouble.progress == 8, "where the run resumed from is told at its start"
    assert third.trouble.progress == 8
    assert third.start_at is not None
    assert 4.0 <= (third.start_at - third.opened).total_seconds() <= 5.0
    (again,) = [m for m in third.trail if m.signal == "running_seen" or m.signal == "finished"][:1]
    # Slurm's own delay of a requeued job is two minutes.
    assert -0.1 <= (again.at - third.start_at).total_seconds() < 60


def test_a_lost_batch_host_of_a_no_kill_job(live):
    comment = registered(spares=1)
    job = live.submit("sleep 600", "--nodes=2", "--no-kill", comment, header=PLAIN)
    until(lambda: live.running(job), 20, "the job runs")
    host = str(live.job(job).batch_host)
    scontrol = ("scontrol", "update", f"NodeName={host}", "Reason=pulled the plug")
    live.sandbox.run([*scontrol, "State=DRAIN"])
    live.sandbox.run([*scontrol, "State=DOWN"])
    until(lambda: live.running(job, restarts=1), 30, "the job runs again")
    (recovery,) = live.of_job(job)
    assert recovery.trouble.kind is TroubleKind.NODE
    assert host not in live.job(job).nodes
    live.sandbox.run(["scontrol", "update", f"NodeName={host}", "State=RESUME"])
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.nightly
def test_job_keeps_its_allocation_while_its_supervisor_continues(live):
    comment = registered(spares=1)
    loyal, silent = (
        live.submit("sleep 600", "--nodes=2", "--no-kill", comment, header=PLAIN) for _ in range(2)
    )
    until(lambda: live.running(loyal) and live.running(silent), 20, "both run")
    for job in (loyal, silent):
        shown = live.job(job)
        victim = next(n for n in shown.nodes if n != shown.batch_host)
        live.sandbox.inject(str(victim), "xid", code=79)
    until(lambda: len(live.job(loyal).nodes) == 1, 20, "the bad node is taken away")
    with at_node(live):
        until(
            lambda: (
                (send_job_report(report(loyal, action=RunAction.STEP)) or JobReportReply(False)).ok
            ),
            5,
            "told",
        )
    until(lambda: [r.phase for r in live.of_job(loyal)] == ["resumed"], 10, "left alone")
    until(lambda: live.running(silent, restarts=1), 30, "the silent one runs again")
    assert live.running(loyal)
    assert live.job(loyal).restarts == 0
    assert [m.signal for m in live.of_job(loyal)[0].trail][-1] == "went_on"
    assert "no report from its supervisor" in unwrapped(live.hpctl("explain", str(silent)))
    live.sandbox.run(["scancel", str(loyal), str(silent)])
