"""What every Scheduler promises about jobs: requeue, start_pending_job, signal, hold."""

import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.toolkit.bounds import LATEST
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.slurm_facts import SlurmJob
from tests.slurm.contract.beds import Bed, FakeBed, RealBed, cli, job_of, node_of

pytestmark = [pytest.mark.integration, pytest.mark.contract]

MINE = format_hpctl_node_reason("r1", "xid 79")
SPARED_S = 121.0
"""What start_pending_job spares a job: it starts in a second, and later where the machine is
busy."""


def running(bed: Bed, size: int = 1, **options) -> int:
    """A job that runs."""
    job = bed.submit(size, **options)
    bed.until("running", lambda: job_of(bed, job).running)
    return job


def requeued(bed: Bed, job: int, attempt: JobAttempt) -> None:
    """Requeue as the core does: again while the answer is transient."""

    def done() -> bool:
        outcome = bed.scheduler.requeue(attempt)
        assert outcome.kind is OutcomeKind.ACCEPTED or outcome.transient, outcome
        return outcome.kind is OutcomeKind.ACCEPTED

    bed.until("requeued", done)


def started(bed: Bed, job: int, exclude: tuple[str, ...] = ()) -> float:
    """start_pending_job as the core does; seconds from then to RUNNING."""
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    bed.wait_for_a_second_to_begin()
    send_start(bed, job, exclude)
    return bed.until("running", lambda: job_of(bed, job).running)


def slurm_of(bed: Bed) -> tuple[int, int, int]:
    """The release; the one in memory behaves as 22.05 does."""
    return cli(bed.sandbox).version() if isinstance(bed, RealBed) else (22, 5, 0)


def send_start(bed: Bed, job: int, exclude: tuple[str, ...] = ()) -> None:
    """start_pending_job, again while the answer is transient."""

    def sent() -> bool:
        outcome = bed.scheduler.start_pending_job(job, exclude)
        assert outcome.kind is OutcomeKind.ACCEPTED or outcome.transient, outcome
        return outcome.kind is OutcomeKind.ACCEPTED

    bed.until("sent", sent)


def test_a_job_that_failed_is_requeued_only_when_completing_has_cleared(bed: Bed) -> None:
    bed.slow_epilog(True)
    job = running(bed)
    attempt = job_of(bed, job).attempt
    bed.fail_job(job)
    seen = job_of(bed, job)
    assert seen.completing
    assert seen.state == "FAILED"
    outcome = bed.scheduler.requeue(attempt)
    assert (outcome.code, outcome.transient) == ("completing", True)
    assert job_of(bed, job).restarts == 0
    bed.slow_epilog(False)
    bed.until("completing cleared", lambda: not job_of(bed, job).completing, 30)
    assert bed.scheduler.requeue(attempt).kind is OutcomeKind.ACCEPTED
    again = job_of(bed, job)
    assert (again.state, again.restarts) == ("PENDING", 1)


def test_start_now_clears_the_delay_and_goes_elsewhere(bed: Bed) -> None:
    a, b, c, d = bed.nodes
    job = running(bed, 1, exclude=[d])
    first = job_of(bed, job)
    node = first.nodes[0]
    bed.scheduler.drain({node: MINE})
    bed.scheduler.down({node: MINE})
    bed.until("not completing", lambda: not job_of(bed, job).completing)
    assert job_of(bed, job).state == "PENDING"
    assert bed.scheduler.requeue(first.attempt).kind is OutcomeKind.ACCEPTED
    bed.scheduler.resume_nodes({node: "r1"})
    assert started(bed, job, (node, "no-such-node")) < SPARED_S / 2
    second = job_of(bed, job)
    assert second.restarts == 1
    assert set(second.excluded) == {node, d}
    assert second.nodes[0] in {a, b, c} - {node}


def test_nodes_that_ended_a_job_take_it_back_in_the_next_second(bed: Bed) -> None:
    bed.slow_epilog(False)
    took = []
    for _ in range(3):
        job = running(bed, 3)
        before = job_of(bed, job).nodes
        node = before[2]
        bed.scheduler.drain({node: MINE})
        bed.wait_for_a_second_to_begin()
        bed.scheduler.down({node: MINE})
        bed.until("not completing", lambda j=job: not job_of(bed, j).completing)
        took.append(started(bed, job, (node,)))
        assert {*job_of(bed, job).nodes} & {*before}
        bed.cancel(job)
        bed.scheduler.resume_nodes({node: "r1"})
        bed.until(
            "idle", lambda: all(n.state == "IDLE" for n in bed.scheduler.view().nodes.values())
        )
    assert max(took) < SPARED_S / 2


@pytest.mark.timeout(660)
def test_nodes_that_ended_a_job_kill_it_when_it_comes_back_in_the_same_second(bed: Bed) -> None:
    """But from 25.11 on, where each run has an id of its own, they take it."""
    bed.slow_epilog(False)
    killed, harmless, tries = False, slurm_of(bed) >= (25, 11, 0), 0
    # slurmctld starts jobs at its own times within a second, which may miss the one that is meant:
    # so each try begins later. And the job is seen to run before slurmd has refused it.
    until = time.monotonic() + 600
    while not killed and (tries < 10 if harmless else time.monotonic() < until):
        tries += 1
        job = running(bed, 4)
        attempt = job_of(bed, job).attempt
        bed.wait_for_a_second_to_begin(0.15 * tries % 1)
        requeued(bed, job, attempt)
        send_start(bed, job)
        bed.until("run or killed", lambda j=job: job_of(bed, j).state != "PENDING")
        with suppress(AssertionError):
            bed.until("killed", lambda j=job: job_of(bed, j).state == "FAILED", 0.5)
            killed = True
        bed.cancel(job)
        bed.until(
            "idle", lambda: all(n.state == "IDLE" for n in bed.scheduler.view().nodes.values())
        )
    assert killed is not harmless, "then the wait for the next second can go, or is needed"


def test_without_start_now_the_job_waits(bed: Bed) -> None:
    job = running(bed)
    requeued(bed, job, job_of(bed, job).attempt)
    bed.until("pending", lambda: not job_of(bed, job).completing)
    seen = job_of(bed, job)
    assert seen.state == "PENDING"
    assert seen.eligible is not None
    assert seen.eligible - seen.submit > timedelta(seconds=60)


def test_a_forgiven_node_leaves_the_list_and_the_users_own_stays(bed: Bed) -> None:
    a, b, c, d = bed.nodes
    job = running(bed, 1, exclude=[d])
    requeued(bed, job, job_of(bed, job).attempt)
    started(bed, job, (a, b))
    assert set(job_of(bed, job).excluded) == {a, b, d}
    requeued(bed, job, job_of(bed, job).attempt)
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    bed.wait_for_a_second_to_begin()
    assert bed.scheduler.start_pending_job(job, [c], forgive=[a, b]).kind is OutcomeKind.ACCEPTED
    bed.until("running", lambda: job_of(bed, job).running)
    assert set(job_of(bed, job).excluded) == {c, d}
    requeued(bed, job, job_of(bed, job).attempt)
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    bed.wait_for_a_second_to_begin()
    assert bed.scheduler.start_pending_job(job, [], forgive=[c, d]).kind is OutcomeKind.ACCEPTED
    bed.until("running", lambda: job_of(bed, job).running)
    assert job_of(bed, job).excluded == (d,)
    assert job_of(bed, job).admin_comment == ""


def test_an_exclusion_of_hpctls_is_lifted_and_the_users_own_stays(bed: Bed) -> None:
    a, _, _, d = bed.nodes
    job = running(bed, 2, exclude=[d])
    requeued(bed, job, job_of(bed, job).attempt)
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    assert bed.scheduler.start_pending_job(job, [a], after_s=600.0).kind is OutcomeKind.ACCEPTED
    assert job_of(bed, job).nodes_excluded_by_hpctl == (a,)
    assert bed.scheduler.lift(job, [a, d]).kind is OutcomeKind.ACCEPTED
    seen = job_of(bed, job)
    assert (seen.excluded, seen.admin_comment, seen.state) == ((d,), "", "PENDING")


def test_a_job_that_waits_again_is_given_up_with_a_reason(bed: Bed) -> None:
    job = running(bed)
    attempt = job_of(bed, job).attempt
    requeued(bed, job, attempt)
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    assert bed.scheduler.cancel_attempt(attempt, "hpctl: a bug").kind is OutcomeKind.ACCEPTED
    bed.until("cancelled", lambda: job_of(bed, job).state == "CANCELLED")
    assert "hpctl: a bug" in job_of(bed, job).comment
    assert bed.scheduler.cancel_attempt(attempt, "hpctl: a bug").kind is OutcomeKind.ACCEPTED


def test_start_now_while_completing_is_refused_for_now(bed: Bed) -> None:
    bed.slow_epilog(True)
    job = running(bed)
    assert bed.scheduler.requeue(job_of(bed, job).attempt).kind is OutcomeKind.ACCEPTED
    seen = job_of(bed, job)
    assert (seen.state, seen.completing) == ("PENDING", True)
    outcome = bed.scheduler.start_pending_job(job, [])
    assert (outcome.code, outcome.transient) == ("completing", True)


def test_start_now_is_for_pending_jobs(bed: Bed) -> None:
    job = running(bed)
    assert bed.scheduler.start_pending_job(job, []).code == "not_pending"
    bed.fail_job(job)
    bed.until("ended", lambda: not job_of(bed, job).completing)
    assert bed.scheduler.start_pending_job(job, []).code == "not_pending"


def test_a_requeue_of_a_pending_job_is_what_was_asked_for(bed: Bed) -> None:
    job = running(bed)
    attempt = job_of(bed, job).attempt
    requeued(bed, job, attempt)
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    for _ in range(2):
        assert bed.scheduler.requeue(attempt).kind is OutcomeKind.ACCEPTED
    assert job_of(bed, job).restarts == 1


def test_an_older_attempt_is_another_attempt(bed: Bed) -> None:
    job = running(bed)
    first = job_of(bed, job).attempt
    requeued(bed, job, first)
    started(bed, job)
    assert bed.scheduler.requeue(first).code == "other_attempt"
    assert bed.scheduler.signal(first, "USR1").code == "other_attempt"
    assert job_of(bed, job).running
    assert job_of(bed, job).restarts == 1


def test_a_reused_job_id_is_another_attempt(bed: Bed) -> None:
    job = running(bed)
    now = job_of(bed, job).attempt
    before = replace(now, submit=now.submit - timedelta(days=30))
    assert bed.scheduler.requeue(before).code == "other_attempt"
    assert bed.scheduler.requeue(replace(before, restarts=3)).code == "other_attempt"
    assert bed.scheduler.signal(before, "USR1").code == "other_attempt"
    assert job_of(bed, job).running


def test_a_job_that_no_one_knows(bed: Bed) -> None:
    view = bed.scheduler.view()
    gone = JobAttempt(999999, view.as_of, 0)
    assert bed.scheduler.requeue(gone).code == "no_such_job"
    assert bed.scheduler.signal(gone, "USR1").code == "no_such_job"
    assert bed.scheduler.start_pending_job(gone.job, []).code == "no_such_job"
    assert bed.scheduler.hold(gone.job, "why").code == "no_such_job"


def test_a_job_without_requeue_is_refused_and_left_alone(bed: Bed) -> None:
    job = running(bed, 1, requeue=False)
    assert not job_of(bed, job).recoverable
    outcome = bed.scheduler.requeue(job_of(bed, job).attempt)
    assert (outcome.code, outcome.transient) == ("no_requeue", False)
    assert job_of(bed, job).running


def test_a_hold_is_the_users_and_tells_why_after_what_the_user_wrote(bed: Bed) -> None:
    job = running(bed, comment="run 7; a=b")
    assert bed.scheduler.hold(job, "why").code == "not_pending"
    requeued(bed, job, job_of(bed, job).attempt)
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    for _ in range(2):
        outcome = bed.scheduler.hold(job, "hpctl: 5 restarts without progress, see explain r1")
        assert outcome.kind is OutcomeKind.ACCEPTED
    seen = job_of(bed, job)
    assert seen.reason == "JobHeldUser"
    assert seen.comment == "run 7; a=b | hpctl: 5 restarts without progress, see explain r1"
    assert bed.scheduler.start_pending_job(job, []).code == "held"


def test_a_cancelled_job_is_requeued_only_as_the_same_attempt(bed: Bed) -> None:
    job = running(bed)
    attempt = job_of(bed, job).attempt
    bed.cancel(job)
    bed.until(
        "ended", lambda: job_of(bed, job).state == "CANCELLED" and not job_of(bed, job).completing
    )
    older = replace(attempt, restarts=attempt.restarts + 1)
    assert bed.scheduler.requeue(older).code == "other_attempt"


def test_a_requeue_while_completing_would_bring_the_fake_down() -> None:
    bed = FakeBed()
    job = running(bed)
    bed.fail_job(job)
    bed.scheduler.requeue_unchecked(bed.scheduler.jobs[job])
    assert "COMPLETING" in bed.scheduler.crashed


def test_a_requeued_job_with_a_time_limit_waits_while_it_is_completing(real: RealBed) -> None:
    """slurmctld tells when its next run would end, in the future, as if its last one had ended."""
    real.slow_epilog(True)
    job = real.submit(options=["--time=10"])
    real.until("running", lambda: job_of(real, job).running)
    assert real.scheduler.requeue(job_of(real, job).attempt).kind is OutcomeKind.ACCEPTED
    seen = job_of(real, job)
    assert (seen.state, seen.completing) == ("PENDING", True)


def test_a_signal_reaches_the_batch_script(real: RealBed) -> None:
    script = "trap 'touch got; exit 0' USR1; touch ready; while :; do sleep 0.1; done"
    job = real.submit(
        script=f"cd $(mktemp -d) && echo $PWD > '{real.sandbox.state_dir}/where'; {script}"
    )
    where = real.sandbox.state_dir / "where"
    real.until("running", lambda: job_of(real, job).running and where.exists())
    real.until("the script said where", where.read_text)
    place = Path(where.read_text().strip())
    real.until("the trap is set", (place / "ready").exists)
    assert real.scheduler.signal(job_of(real, job).attempt, "USR1").kind is OutcomeKind.ACCEPTED
    real.until("the script got it", (place / "got").exists)
    where.unlink()
    real.until("ended", lambda: not job_of(real, job).running)
    assert real.scheduler.signal(job_of(real, job).attempt, "USR1").code == "not_running"


@pytest.mark.parametrize("word", ["NOPE", "USR1;x", "-h", ""])
def test_a_signal_that_is_none_is_refused(real: RealBed, word: str) -> None:
    job = running(real)
    assert real.scheduler.signal(job_of(real, job).attempt, word).kind is OutcomeKind.REJECTED
    assert job_of(real, job).running


def test_of_a_job_array_only_the_one_task_is_requeued(real: RealBed) -> None:
    array = real.submit(options=["--array=1-3"])

    def tasks() -> dict[int, SlurmJob]:
        return {j.id: j for j in real.scheduler.view().jobs.values() if j.running}

    real.until("three tasks run", lambda: len(tasks()) == 3)
    assert array in tasks()
    attempt = job_of(real, array).attempt
    assert real.scheduler.requeue(attempt).kind is OutcomeKind.ACCEPTED
    others = [j for j in tasks().values() if j.id != array]
    assert [j.restarts for j in others] == [0, 0]
    real.until("cleared", lambda: not job_of(real, array).completing)
    # Its node kills what comes back in the second it was ended in.
    real.wait_for_a_second_to_begin()
    assert real.scheduler.start_pending_job(array, []).kind is OutcomeKind.ACCEPTED
    real.until("three tasks run again", lambda: len(tasks()) == 3, 40)
    assert sorted(j.restarts for j in tasks().values()) == [0, 0, 1]


def test_jobs_are_found_by_their_ids(bed: Bed) -> None:
    job, other = running(bed), running(bed)
    found = bed.scheduler.find_jobs([job, 999_999])
    assert found.keys() == {job}
    assert found[job] == job_of(bed, job)
    assert bed.scheduler.find_jobs([999_999]) == {}
    assert bed.scheduler.find_jobs([job, other]).keys() == {job, other}


def test_a_task_that_waits_again_among_its_array_is_found_by_its_id(real: RealBed) -> None:
    """Whether or not the list joins it with the tasks that have not run yet."""
    array = real.submit(options=["--array=1-40", "--exclusive"])

    def tasks() -> list[SlurmJob]:
        return [j for j in real.scheduler.view().jobs.values() if j.running and j.id != array]

    real.until("some tasks run", lambda: len(tasks()) >= 2)
    task, other = tasks()[:2]
    assert real.scheduler.requeue(task.attempt).kind is OutcomeKind.ACCEPTED
    real.until("it waits", lambda: not real.scheduler.find_jobs([task.id])[task.id].completing)
    found = real.scheduler.find_jobs([task.id, other.id, 999_999])
    assert found.keys() == {task.id, other.id}
    assert (found[task.id].state, found[task.id].restarts) == ("PENDING", 1)
    assert real.scheduler.find_jobs([999_999]) == {}
    assert real.scheduler.start_pending_job(task.id, []).kind is OutcomeKind.ACCEPTED
    real.cancel(array)


def test_tasks_that_are_still_one_record_are_refused(real: RealBed) -> None:
    array = real.submit(options=["--array=1-3", "--begin=now+3600"])
    assert real.scheduler.start_pending_job(array, []).code == "array_whole"
    assert real.scheduler.hold(array, "why").code == "array_whole"
    assert job_of(real, array).state == "PENDING"


def test_a_heterogeneous_job_is_one_job_under_its_leaders_id(real: RealBed) -> None:
    second, other = real.nodes[0], real.nodes[1]
    begin = "--begin=now+3600"
    job = real.submit(options=[begin, ":", "-n1", begin])
    real.sandbox.run(["scontrol", "update", f"JobId={job}+1", f"ExcNodeList={second}"])
    assert real.scheduler.start_pending_job(job + 1, []).code == "het_component"
    whole = job_of(real, job)
    assert (whole.shown, whole.components, whole.state) == (str(job), (job, job + 1), "PENDING")
    assert job + 1 not in real.scheduler.view().jobs
    assert real.scheduler.start_pending_job(job, [other], after_s=3600).kind is OutcomeKind.ACCEPTED
    record = cli(real.sandbox).job(job)
    assert record is not None
    assert [set(component.excluded) for component in record.components] == [
        {other},
        {second, other},
    ]
    assert real.scheduler.hold(job, "why").kind is OutcomeKind.ACCEPTED
    record = cli(real.sandbox).job(job)
    assert record is not None
    assert [each.reason for each in record.components] == ["JobHeldUser"] * 2
    assert [each.comment for each in record.components] == ["why", ""]
    real.cancel(job)


def test_an_expedited_job_that_slurm_holds_is_released(real: RealBed) -> None:
    """25.11 holds one whose script failed while every Epilog went well; older ones have none."""
    if cli(real.sandbox).version() < (25, 11, 0):
        with pytest.raises(HpctlError, match="requeue"):
            real.submit(options=["--requeue=expedite"])
        return
    job = real.submit(options=["--requeue=expedite"])
    real.until("running", lambda: job_of(real, job).running)
    attempt = job_of(real, job).attempt
    real.fail_job(job)
    real.until("cleared", lambda: not job_of(real, job).completing)
    held = job_of(real, job)
    assert (held.state, held.restarts) == ("PENDING", 1)
    assert "REQUEUE_HOLD" in held.flags
    assert real.scheduler.requeue(attempt).kind is OutcomeKind.ACCEPTED
    real.fix_job(job)
    assert started(real, job, (real.nodes[0],)) < 10
    assert real.nodes[0] not in job_of(real, job).nodes


def test_an_interactive_job_cannot_be_requeued(real: RealBed) -> None:
    real.sandbox.run(["salloc", "--no-shell", "-N1"])
    job = max(real.scheduler.view().jobs)
    seen = job_of(real, job)
    assert not seen.batch
    assert real.scheduler.requeue(seen.attempt).code == "not_batch"


def test_the_same_job_in_the_view_whatever_it_is_called(real: RealBed) -> None:
    name = 'odd = "name" JobState=FAILED UserId=eve(7) NodeList=n9'
    comment = "a=b Requeue=0 StdErr=x\nJobId=4242 JobName=forged UserId=eve(7) GroupId=eve(7) x"
    job = real.submit(2, name=name, comment=comment, exclude=[real.nodes[3]])
    real.until("running", lambda: job_of(real, job).running)
    seen = job_of(real, job)
    assert (seen.name, len(seen.nodes), seen.excluded) == (name, 2, (real.nodes[3],))
    assert seen.batch_host == seen.nodes[0]
    assert seen.recoverable
    assert seen.comment.startswith("a=b Requeue=0")
    assert 4242 not in real.scheduler.view().jobs
    assert node_of(real, seen.nodes[0]).state in ("ALLOCATED", "MIXED")


FORGERIES = (
    "x UserId=alice(1667) GroupId=alice(1667) MCS_label=N/A JobState=FAILED NodeList=a[1-99999]",
    "x\nJobId=999999 JobName=y UserId=alice(1667) GroupId=a(1) MCS_label=N/A JobState=RUNNING",
    "caf\udce9 \x1b[2J\u202e",
    "%A;%x \\ ' \" $(id)",
)


@pytest.mark.parametrize("name", FORGERIES, ids=range(len(FORGERIES)))
def test_a_name_and_a_comment_are_words_and_no_facts(real: RealBed, name: str) -> None:
    """What their owner wrote reaches neither this job's fields nor another's, on any release."""
    other = running(real)
    before = real.scheduler.view().jobs
    job = real.submit(name=name, comment=f"hpctl:{{}} {name}", options=["--hold"])
    after = real.scheduler.view()
    assert not after.flaws
    assert set(after.jobs) == {*before, job}
    hostile = after.jobs[job]
    assert (hostile.state, hostile.nodes, hostile.restarts) == ("PENDING", (), 0)
    assert hostile.uid == before[other].uid
    assert hostile.name.isprintable()
    assert hostile.comment.startswith("hpctl:{}")
    assert after.jobs[other] == before[other]
    real.cancel(job)
    real.cancel(other)


def test_a_job_that_begins_at_the_end_of_time(real: RealBed) -> None:
    """Slurm gives it an end in the year 10000."""
    job = real.submit(options=["--begin=9999-12-31T23:00:00", "--time=3-0"])
    view = real.scheduler.view()
    found = view.jobs[job]
    assert not view.flaws
    assert (found.state, found.eligible, found.start) == ("PENDING", LATEST, LATEST)
    assert found.end in (LATEST, None)
    real.cancel(job)
