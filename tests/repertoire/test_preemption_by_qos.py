"""Preemption by QOS: the preempted job is Slurm's to start again, as with partitions."""

from functools import partial

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.accounting import accounting, needs_slurmdbd, sacctmgr
from tests.repertoire.preemption import (
    MAIL_CONF,
    MAILER,
    MAILS,
    preempt_five_times,
    start_registered,
)
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, needs_slurmdbd]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive --nodes=2\n"


@pytest.fixture(scope="module")
def live():
    with (
        cluster(MAILS, MAILER, nodes=2, slurm_conf=MAIL_CONF) as live,
        accounting(live, "PreemptType=preempt/qos", "PreemptMode=REQUEUE"),
    ):
        sacctmgr(live, "add", "qos", "urgent", "preempt=normal", "priority=100")
        sacctmgr(live, "modify", "user", "root", "set", "qos+=urgent")
        yield live


@story(
    job="Registered batch job of a QOS that another preempts (`PreemptType=preempt/qos`)",
    act="five jobs of the other QOS preempt it, one after the other",
    slurm=(
        "The job waits and starts again as Slurm decides; it is never held. Its Comment says, after"
        " the owner's text, when it was preempted and by which job of whom."
    ),
    explain="It was preempted, when, and by which job of whom, with its QOS.",
    owner=(
        "A mail for each preemption (`--mail-type=REQUEUE`); no restart is counted against the"
        " job's policy."
    ),
)
def test_five_preemptions_by_qos_are_reported_and_count_for_nothing(live: Chaos):
    low = start_registered(live, "--qos=normal", header=HEADER)
    preempts = partial(live.submit, "sleep 600", "--qos=urgent", header=HEADER)
    preempt_five_times(live, low, preempts, "partition dev, QOS urgent")
    live.sandbox.run(["scancel", str(low)])


@story(
    job="Batch job that did not register, of a QOS that another preempts",
    act="a job of the other QOS preempts it",
    slurm="The job waits, and starts again as Slurm decides; its Comment stays as it is.",
    explain=(
        "It was preempted, when, and by which job of whom, with its QOS; without slurmdbd that it"
        " was requeued, unless the daemon read Slurm while the job was ending."
    ),
)
def test_explain_names_the_job_of_the_other_qos(live: Chaos):
    low = live.start("sleep 600", "--qos=normal", "--comment=mine", header=HEADER)
    until(lambda: live.daemon_sees(low), 60, "the daemon sees it run")
    high = live.submit("sleep 600", "--qos=urgent", header=HEADER)
    until(lambda: live.job(low).restarts == 1 and live.running(high), 60, "it is preempted")
    until(lambda: f"job {high} of root" in live.explained(low), 60, "explain names the other job")
    assert "it was preempted at" in live.explained(low)
    assert live.job(low).comment == "mine"
    assert live.of_job(low) == []
    live.sandbox.run(["scancel", str(low), str(high)])
