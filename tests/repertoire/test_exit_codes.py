"""Exit codes: a program's own end is Slurm's end, and dependents and `sbatch -W` see it."""

import json
import sys
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n"
CODES = "RequeueExit=40\nRequeueExitHold=41\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2, config={"job": {"settle_s": 0.0}}, slurm_conf=CODES) as live:
        yield live


def comment(**policy: object) -> str:
    """Return the option that registers a job with a policy of its own."""
    return f"--comment=hpctl:{json.dumps({'policy': policy})}"


def ended(live: Chaos, job: int, state: str, code: str, restarts: int) -> None:
    """Wait until a job has ended for good, and compare how."""

    def over() -> bool:
        seen = live.job(job)
        settled = str(job) in live.state().holds or state in ("CANCELLED", "COMPLETED")
        return seen.state == state and not seen.completing and settled

    until(over, 60, f"job {job} ends as {state}")
    seen = live.job(job)
    assert (seen.exit_code, seen.restarts) == (code, restarts)


def held(live: Chaos) -> list[int]:
    """Return the jobs that are held."""
    jobs = live.scheduler.view().jobs.values()
    return [job.id for job in jobs if job.reason.startswith("JobHeld")]


@pytest.mark.parametrize(
    ("body", "state", "code"),
    [
        ("exit 3", "FAILED", "3:0"),
        ("kill -SEGV $$", "FAILED", "0:11"),
        ("sh -c 'kill -SEGV $$'", "FAILED", "139:0"),
        ("kill -KILL $$", "FAILED", "0:9"),
    ],
)
@story(
    job="Registered batch job, default policy",
    act="its script ends twice in the same way: exit code 3, SIGSEGV or SIGKILL",
    slurm="One restart, then FAILED with the program's own exit code; never held.",
    explain="`hpctl explain` says that the run is not restarted, and by which budget.",
    owner="`sbatch -W`, dependents and workflow engines see the end.",
)
def test_the_same_end_twice_is_final(live: Chaos, body: str, state: str, code: str) -> None:
    job = live.submit(body, comment(backoff={"first_s": 0}), header=HEADER)
    ended(live, job, state, code, 1)
    assert held(live) == []
    assert "not restarted" in live.explained(str(job))


@story(
    job="Registered batch job with `restarts: 0`",
    act="its script exits with 3",
    slurm="FAILED with ExitCode 3:0 at once.",
)
def test_a_policy_of_no_restarts_leaves_the_first_end_alone(live: Chaos) -> None:
    job = live.submit("exit 3", comment(restarts=0), header=HEADER)
    ended(live, job, "FAILED", "3:0", 0)


@story(
    job="Registered batch job with `restarts: 3` and a crash ladder of `requeue` alone",
    act="its script exits with 3 each time",
    slurm="Three restarts, then FAILED with ExitCode 3:0.",
)
def test_restarts_of_three(live: Chaos) -> None:
    crash = {"ladder": ["requeue"], "hold_same": False, "backoff": False}
    policy = comment(restarts=3, without_progress=9, on={"crash": crash})
    job = live.submit("exit 3", policy, header=HEADER)
    ended(live, job, "FAILED", "3:0", 3)


@story(
    job="Registered batch job of `sbatch -W`",
    act="its script exits with 3 and the policy restarts it no more",
    slurm="FAILED; `sbatch -W` returns with exit code 3.",
)
def test_sbatch_w_returns_the_exit_code(live: Chaos) -> None:
    script = Path(live.sandbox.state_dir) / "wait.sh"
    script.write_text(HEADER + "exit 3\n")
    option = comment(restarts=0)
    done = live.sandbox.run(["sbatch", "-W", option, str(script)], check=False, timeout=60)
    assert done.returncode == 3


@story(
    job="Jobs that depend on a registered one (`afterok`, `afternotok`, `afterany`)",
    act="the script of the registered job exits with 3 and the policy restarts it no more",
    slurm="`afternotok` and `afterany` run; `afterok` shows DependencyNeverSatisfied.",
)
def test_what_waits_for_its_end_is_released(live: Chaos) -> None:
    job = live.submit("sleep 2; exit 3", comment(restarts=0), header=HEADER)
    depends = {
        kind: live.submit("exit 0", f"--dependency={kind}:{job}", header=HEADER)
        for kind in ("afterok", "afternotok", "afterany")
    }
    ended(live, job, "FAILED", "3:0", 0)
    released = [depends["afternotok"], depends["afterany"]]
    until(lambda: all(live.job(j).state == "COMPLETED" for j in released), 60, "both are released")
    until(lambda: live.job(depends["afterok"]).reason == "DependencyNeverSatisfied", 60, "afterok")
    live.sandbox.run(["scancel", str(depends["afterok"])])


@story(
    job="Registered job array",
    act="one task exits with 3, twice",
    slurm="That task is FAILED, the others are COMPLETED.",
)
def test_one_task_of_an_array(live: Chaos) -> None:
    body = 'test "$SLURM_ARRAY_TASK_ID" = 2 && exit 3; exit 0'
    array = live.submit(body, "--array=1-3", comment(backoff={"first_s": 0}), header=HEADER)

    def tasks() -> list[str]:
        rows = live.sandbox.run(["squeue", "-hrt", "all", "-j", str(array), "-o", "%K|%T"])
        return sorted(rows.stdout.split())

    until(lambda: tasks() == ["1|COMPLETED", "2|FAILED", "3|COMPLETED"], 60, "all tasks have ended")
    failed = [j for j in live.scheduler.view().jobs.values() if j.state == "FAILED"]
    assert any(job.exit_code == "3:0" and job.restarts <= 1 for job in failed)


@story(
    job="Registered batch job whose exit code slurm.conf lists in RequeueExit",
    act="the policy restarts it no more after Slurm has requeued it",
    slurm="CANCELLED, because no order makes a waiting job FAILED; `afternotok` runs.",
    owner="Comment has the reason.",
)
def test_what_slurm_requeues_itself_is_cancelled_once_it_is_given_up(live: Chaos) -> None:
    job = live.submit("exit 40", comment(restarts=0), header=HEADER)
    waits = live.submit("exit 0", f"--dependency=afternotok:{job}", header=HEADER)
    until(lambda: live.job(job).state == "CANCELLED", 60, "it is cancelled")
    assert "exit code 40" in live.job(job).comment
    until(lambda: live.job(waits).state == "COMPLETED", 90, "afternotok is released")


@story(
    job="Registered batch job whose exit code slurm.conf lists in RequeueExit",
    act="hpctl has canceled it, and its owner mends the program and runs `scontrol requeue`",
    slurm="The job waits and starts again as Slurm decides; it is not canceled again.",
    owner="No restart is counted against the job's policy.",
)
@pytest.mark.parametrize("daemon", ["runs", "restarts"])
def test_a_requeue_of_what_was_cancelled_is_an_order(live: Chaos, daemon: str) -> None:
    job = live.submit("exit 40", comment(restarts=0), header=HEADER)
    until(lambda: live.job(job).state == "CANCELLED", 60, "it is cancelled")
    until(lambda: job not in live.state().open_jobs, 60, "its recovery has ended")
    if daemon == "restarts":
        live.sandbox.kill_daemon()
    live.sandbox.run(["scontrol", "requeue", str(job)])
    if daemon == "restarts":
        live.sandbox.start_daemon()
    until(lambda: live.daemon_knows(job, "PENDING"), 60, "hpctl has seen that it waits")
    stays(lambda: live.job(job).state == "PENDING", 2, "it waits")
    assert len(live.of_job(job)) == 1
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Registered batch job whose exit code slurm.conf lists in RequeueExitHold",
    act="its script exits with that code",
    slurm="Slurm requeues and holds it (`SPECIAL_EXIT`); hpctl releases no hold.",
    explain="Slurm holds it since its last run ended with that code; `hpctl status` lists it.",
    owner="`scontrol release` runs the job again, `scancel` ends it.",
)
def test_what_slurm_requeues_and_holds_stays_held(live: Chaos) -> None:
    job = live.submit("exit 41", comment(restarts=2), header=HEADER)
    until(lambda: live.job(job).restarts == 1, 60, "Slurm requeues it")
    listed = f"job {job} is held by Slurm"
    until(lambda: listed in live.hpctl("status", check=False), 60, "status lists it")
    said = live.explained(str(job))
    assert "Slurm holds it since its last run ended with exit code 41:0" in said
    assert live.job(job).reason == "JobHeldUser"
    assert live.of_job(job) == []
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Registered batch job with `restarts: 0`",
    act="its node fails",
    slurm="The job runs elsewhere: a lost node is not an end of the program.",
)
def test_a_node_that_is_lost_is_no_end_of_the_program(live: Chaos) -> None:
    job = live.start("sleep 600", comment(restarts=0), header=HEADER + "#SBATCH --exclusive\n")
    (victim,) = live.job(job).nodes
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "it runs elsewhere")
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@story(
    job="Jobs that depend on a plain script (`afterok`, with and without `--kill-on-invalid-dep`)",
    act="the node of the plain script fails",
    slurm="They wait for its second run, and start once that is COMPLETED.",
    owner=(
        "Where the program fails by itself, Slurm may release them in the moment between its end"
        " and its requeue."
    ),
)
def test_what_waits_for_a_job_waits_for_its_second_run(live: Chaos) -> None:
    again = '[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 3; exec sleep 600'
    job = live.start(again, header=HEADER + "#SBATCH --exclusive\n")
    waits = f"--dependency=afterok:{job}"
    plain = live.submit("exit 0", waits, header=HEADER)
    kills = live.submit("exit 0", waits, "--kill-on-invalid-dep=yes", header=HEADER)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "it runs elsewhere")
    assert [live.job(j).reason for j in (plain, kills)] == ["Dependency", "Dependency"]
    until(lambda: live.job(job).state == "COMPLETED", 60, "its second run ends")
    for dependent in (plain, kills):
        until(lambda j=dependent: live.job(j).state == "COMPLETED", 90, "it is released")
    live.returned(victim)


def submit_by_hpctl(live: Chaos, tmp_path: Path, body: str) -> int:
    """Submit with `hpctl sbatch`, the default policy without its backoff; return the job."""
    script, policy = tmp_path / "job.sh", tmp_path / "policy.yaml"
    policy.write_text("backoff: {first_s: 0}\n")
    script.write_text(f"#!/bin/sh\n{body}\n")
    args = [sys.executable, "-m", "hpctl", "sbatch", f"--policy={policy}", "--parsable"]
    done = live.sandbox.run([*args, "--no-resume", str(script)], cwd=tmp_path)
    return int(done.stdout.strip().splitlines()[-1])


@story(
    job="`hpctl sbatch` of a plain script",
    act="the program exits with 3, twice in the same way",
    slurm="One restart, then FAILED with ExitCode 3:0.",
)
def test_hpctl_sbatch(live: Chaos, tmp_path: Path) -> None:
    ended(live, submit_by_hpctl(live, tmp_path, "exit 3"), "FAILED", "3:0", 1)


@story(
    job="`hpctl run` in a script of `hpctl sbatch`",
    act="the program exits with 3, twice in the same way",
    slurm="One restart inside the allocation, no requeue, then FAILED with ExitCode 3:0.",
    explain="The supervisor's last report says that it gave the run up, and why.",
)
def test_hpctl_run(live: Chaos, tmp_path: Path) -> None:
    job = submit_by_hpctl(live, tmp_path, f"exec {sys.executable} -m hpctl run -- sh -c 'exit 3'")
    ended(live, job, "FAILED", "3:0", 0)
