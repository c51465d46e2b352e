"""What a supervisor is told of a daemon that may not act on its job."""

import pytest

from hpctl.jobs.run_gates import explain_job_gate_block
from hpctl.vocabulary.pause import Pause
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from tests.fakes.values import OWN, at, slurm_job

OTHERS = RecoveryPolicy(mode=OperatingMode.OWN, partitions=frozenset({"other"}))
PAUSE = Pause("", "ann", at(0), "the switch is changed")


@pytest.mark.parametrize(
    ("policy", "stopped", "pause", "why"),
    [
        (OWN, "", None, ""),
        (RecoveryPolicy(mode=OperatingMode.OWN, partitions=frozenset({"all"})), "", None, ""),
        (OWN, "STOP exists", PAUSE, "STOP exists"),
        (OWN, "", PAUSE, PAUSE.text),
        (
            RecoveryPolicy(mode=OperatingMode.OBSERVE),
            "",
            None,
            "mode observe: decisions are written down",
        ),
        (OTHERS, "", None, "partition all is none that the configuration allows"),
    ],
    ids=["acts", "in a named partition", "stopped", "paused", "observes", "outside"],
)
def test_a_supervisor_reads_why_its_job_is_not_acted_on(policy, stopped, pause, why):
    found = explain_job_gate_block(slurm_job(partition="all"), policy, stopped, pause)
    assert found.startswith(why)
    assert bool(found) is bool(why)
