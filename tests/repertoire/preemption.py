"""What the stories of preemption share: mails, and what a registered job and its owner are told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.daemon.chaos import Chaos
from tests.live import until

COMMENT: Final = 'hpctl:{"policy":{"restarts":2}} my own words'
MAILER: Final = {"mailer": '#!/bin/sh\necho "$@" >>{base}/mails\ncat >>{base}/mails\n'}
MAILS: Final[dict[str, Any]] = {"notify": {"users": "mailprog"}}
MAIL_CONF: Final = "MailProg={base}/mailer\n"


def start_registered(live: Chaos, *options: str, header: str) -> int:
    """Start a registered job whose owner asks for mails; return once the daemon has seen it run."""
    mail = ("--mail-user=ann@x.org", "--mail-type=REQUEUE")
    job = live.start("sleep 600", f"--comment={COMMENT}", *mail, *options, header=header)
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")
    return job


def is_reported(live: Chaos, job: int, by: int, where: str) -> None:
    """Wait until Comment, `hpctl explain` and a mail say that a job preempted another."""
    other = f"job {by} of root ({where}) started on its nodes then"

    def commented() -> bool:
        own, _, why = live.job(job).comment.partition(" | hpctl: preempted at ")
        return own == COMMENT and why.endswith(f" UTC; {other}")

    # On 26.05 the main scheduler may leave its start to the next backfill pass.
    until(lambda: live.running(by), 60, f"job {by} runs")
    until(commented, 60, f"the Comment names job {by}")
    said = live.explained(job)
    assert "it was preempted at" in said
    assert other in said


def is_mailed(live: Chaos, job: int, by: list[int]) -> None:
    """Wait until the owner has a mail about each of the jobs that preempted another."""
    mails = Path(live.sandbox.state_dir).parent / "mails"

    def all_reported() -> bool:
        text = mails.read_text() if mails.exists() else ""
        return all(f"job {other} of root (" in text for other in by)

    until(all_reported, 60, f"the owner of job {job} has mails that name the jobs {by}")


def is_not_counted(live: Chaos, job: int) -> None:
    """Nothing holds the job, and nothing counts as a failure of it."""
    assert str(job) not in live.state().holds
    found = live.of_job(job)
    assert all(recovery.is_without_fault for recovery in found), found
    assert {step.kind for recovery in found for step in recovery.steps} <= {"note"}


def start_again(live: Chaos, job: int, restarts: int) -> None:
    """Take Slurm's delay from a job that waits; return once the daemon has seen it run."""
    live.cleared(job)
    live.end_delay(job, restarts)
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")


def preempt_five_times(live: Chaos, low: int, submit: Callable[[], int], where: str) -> None:
    """Preempt a registered job five times; each is told, and none counts. It runs afterwards.

    `submit` submits a job that preempts it, and `where` names that job's partition and QOS.
    """
    preemptors = list[int]()
    for number in range(1, 6):
        high = submit()
        is_reported(live, low, high, where)
        preemptors.append(high)
        live.sandbox.run(["scancel", str(high)])
        start_again(live, low, number)
    is_mailed(live, low, preemptors)
    is_not_counted(live, low)
    assert len(live.of_job(low)) == 5
