"""One fresh run of each kind, at steps that the seed chooses, and hpctl's verdict on it."""

import os
import random
from importlib.util import find_spec

import pytest

from tests.examples import SEED
from tests.jobs.verdict_corpus.__main__ import PARTS, make_runs
from tests.jobs.verdict_corpus.cases import CAUSES, vary_cases
from tests.jobs.verdict_corpus.outside import MEMORY_GROUPS
from tests.jobs.verdict_corpus.pack import read_run
from tests.jobs.verdict_corpus.score import format_table, score_runs

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces, mounts and control groups need root"),
]
MOST_WRONG = 1
"""Of the kinds: one run each, and the recorded parts hold nine of ten."""


def choose_cases(seed):
    """Return one case of each kind. A machine with control groups of version 2 only has none of the
    cases that bound a group's memory, and one without a library none that needs it."""
    choice = random.Random(seed)
    every = vary_cases([case for cases in PARTS.values() for case in cases], seed)
    every = [case for case in every if MEMORY_GROUPS.is_dir() or not case.memory_mib]
    needs = [("accelerate", "accelerate"), ("deepspeed", "deepspeed")]
    needs += [("lightning", "sixth/lit.py"), ("lightning", "seventh/classifier.py")]
    needs += [("transformers", "sixth/huggingface.py"), ("transformers", "seventh/instructed.py")]
    for library, name in needs:
        if find_spec(library) is None:
            every = [case for case in every if name not in f"{case.program} {case.launcher}"]
    return [choice.choice([case for case in every if case.kind == kind]) for kind in CAUSES]


def test_a_fresh_run_of_each_kind_gets_the_right_verdict(tmp_path):
    pytest.importorskip("torch")
    cases = choose_cases(SEED)
    made = make_runs(cases, tmp_path, at_once=2)
    assert sorted(made) == sorted(case.name for case in cases)
    scores = score_runs({name: read_run(tmp_path / name) for name in made})
    table = format_table(scores)
    assert sum(not one.cause_right for one in scores) <= MOST_WRONG, table
    assert sum(not one.rank_right for one in scores) <= MOST_WRONG, table
    assert not any(one.node_fault for one in scores), table
