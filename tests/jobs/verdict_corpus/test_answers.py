"""What the policy does about the verdicts on the recorded runs."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from hpctl.jobs.decide import PastJobFailure, RestartResources, decide_job_failure_action
from hpctl.jobs.run.post_mortem import diagnose_job_run_end
from hpctl.vocabulary.failure import FailureCause
from hpctl.vocabulary.run_policy import RESTARTS, RunAction, RunPolicy
from tests.fakes.values import T0
from tests.jobs.verdict_corpus.evidence import read_remains
from tests.jobs.verdict_corpus.pack import archive_of, load_truth, read_archive

pytestmark = pytest.mark.integration

RUNS = read_archive(archive_of("first"))
BUGS = [name for name, files in RUNS.items() if load_truth(files)["cause"] == "program"]
MEANS = RestartResources(process=True, step=True, nodes=4, wanted=2, requeue=True, pool=8)


def count_restarts(trouble, nodes) -> tuple[int, RunAction]:
    """How often a run is started again that fails so each time, on these nodes in turn, and what
    stops it. Each try begins at the same checkpoint and lasts two hours."""
    past: list[PastJobFailure] = []
    for number in range(40):
        again = replace(trouble, at=T0 + timedelta(hours=2 * number), progress=40)
        if trouble.node is not None:
            again = replace(again, node=nodes[number % len(nodes)])
        answer = decide_job_failure_action(RunPolicy(), past, again, MEANS, again.at)
        if answer.action not in RESTARTS:
            return number, answer.action
        past.append(PastJobFailure(again, answer.action))
    pytest.fail("it is started again and again")


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_at_the_same_step_of_the_same_rank_is_not_retried_forever(tmp_path, name) -> None:
    found = diagnose_job_run_end(read_remains(RUNS[name], tmp_path), RunPolicy(), T0)
    assert found.verdict.cause in (FailureCause.PROGRAM, FailureCause.DATA, FailureCause.UNKNOWN)
    trouble = replace(found.trouble, step=50)
    on_one_node, stopped = count_restarts(trouble, ["n1"])
    assert on_one_node <= 3
    assert stopped is RunAction.END
    if trouble.node is not None and trouble.rank is not None:
        moved, stopped = count_restarts(trouble, ["n1", "n2"])
        assert (moved, stopped) == (1, RunAction.END), "no node explains it"
