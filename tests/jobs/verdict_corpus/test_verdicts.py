"""hpctl's verdicts on the recorded runs, each half held to the same bars."""

import pytest

from tests.jobs.verdict_corpus.pack import archive_of, read_archive
from tests.jobs.verdict_corpus.score import format_table, score_runs, share

pytestmark = pytest.mark.integration

CAUSE_BAR, RANK_BAR = 0.9, 0.9


@pytest.mark.parametrize("half", ["first", "second"])
def test_a_half_meets_the_bars(half):
    scores = score_runs(read_archive(archive_of(half)))
    table = format_table(scores)
    assert len(scores) >= 30
    assert share(one.cause_right for one in scores) >= CAUSE_BAR, table
    assert share(one.rank_right for one in scores) >= RANK_BAR, table
    assert not any(one.node_fault for one in scores), table
