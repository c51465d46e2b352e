"""hpctl's verdicts on the recorded runs.

What the rules said of a part when they first met it is its measure; all later figures are of rules
that know it.

| part | runs | at first sight: cause | rank | false node faults | now: cause | rank |
|---|---|---|---|---|---|---|
| first half | 35 | - | - | 0 | 35 | 34 |
| second half | 35 | 32 (91 %) | 30 (86 %) | 0 | 34 | 32 |
| third part | 42 | 38 (90 %) | 39 (93 %) | 0 | 42 | 42 |
| fourth part | 36 | 35 (97 %) | 32 (89 %) | 0 | 36 | 34 |
| fifth part | 39 | 33 (85 %) | 32 (82 %) | 0 | 39 | 38 |
| sixth part | 40 | 32 (80 %) | 27 (68 %) | 0 | 36 | 35 |
| seventh part | 40 | 36 (90 %) | 37 (92 %) | 0 | 36 | 37 |

So of a run that no rule has seen the cause is right in 206 of 232 (89 %) and the rank in 197 (85
%), and the test below holds rules to what they have seen. No rule has been changed since the
seventh part was met (ADR 0129). The rates are those of `diagnose_job_run_end`, which gets all
evidence of a run at once; `tests/jobs/run/test_verdict_live.py` has `hpctl run` judge real steps
that end as some of the runs did.

Missed now: where gloo reports a longer message and no rank left a dump, the rank that reports it is
named, and it may be the one that is right (wrong_shape-2, -5, -9, -11). Under a launcher that does
not say which rank reports it, none is named (wrong_shape-12). In skipped_collective-4 three ranks
of four left no dump, and in network_cut-4 the ranks were busy writing theirs. Processes of `spawn`
and of Lightning's own launcher do not say their rank, so that no stack of theirs is read
(skipped_collective-16, slow_rank-13, gil_held-19). gloo records no point-to-point operation
(slow_rank-14, wrong_shape-16).
"""

import pytest

from tests.jobs.verdict_corpus.__main__ import PARTS
from tests.jobs.verdict_corpus.pack import archive_of, read_archive
from tests.jobs.verdict_corpus.score import format_table, score_runs, share

pytestmark = pytest.mark.integration

BAR = 0.9
LESS = {"sixth": (0.9, 0.875)}
"""Shares of causes and ranks of a part that misses the bar: what is right stays so."""


@pytest.mark.parametrize("part", PARTS)
def test_a_part_meets_the_bars(part):
    scores = score_runs(read_archive(archive_of(part)))
    table = format_table(scores)
    assert len(scores) >= 35
    causes, ranks = LESS.get(part, (BAR, BAR))
    assert share(one.cause_right for one in scores) >= causes, table
    assert share(one.rank_right for one in scores) >= ranks, table
    assert not any(one.node_fault for one in scores), table
