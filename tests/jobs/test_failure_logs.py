"""The verdict on logs of launchers and libraries that no run of the corpus has."""

import pytest

from hpctl.jobs.run.post_mortem import RunRemains, judge_run
from hpctl.vocabulary.run_policy import RunPolicy
from tests.fakes.values import T0
from tests.jobs.failure_logs import CAUGHT, CLASSES, CONSEQUENCES, PREFIXES, FailureLog

NODES = {rank: f"n{rank + 1}" for rank in range(4)}
NAMES = {"ids": lambda log: log.name}


def check_verdict(log: FailureLog) -> None:
    ends = log.list_ends()
    code = ends[0].code if ends else 1
    remains = RunRemains(exit_code=code, tail=log.tail, ends=ends, world=4, rank_nodes=NODES)
    verdict = judge_run(remains, RunPolicy(), T0).verdict
    assert verdict is not None
    assert verdict.cause.value in log.causes, verdict.reasons
    assert verdict.rank == log.rank, verdict.reasons


@pytest.mark.parametrize("log", PREFIXES, **NAMES)
def test_an_exception_is_read_behind_the_prefix_of_a_launcher(log):
    check_verdict(log)


@pytest.mark.parametrize("log", CONSEQUENCES, **NAMES)
def test_a_lost_connection_is_put_down_to_the_rank_that_left(log):
    check_verdict(log)


@pytest.mark.parametrize("log", CAUGHT, **NAMES)
def test_an_error_that_the_program_got_over_is_not_the_cause(log):
    check_verdict(log)


@pytest.mark.parametrize("log", CLASSES, **NAMES)
def test_an_error_is_known_by_its_class_or_the_words_of_its_library(log):
    check_verdict(log)
