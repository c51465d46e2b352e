"""Ranks that report, over real sockets."""

import time
from functools import partial

import pytest

from hpctl import progress
from hpctl.jobs.hangs.ras_report import Address
from hpctl.jobs.hangs.stack_groups import Frame, NodeStacks, RankStack
from hpctl.jobs.hangs.stacks import explain_hang
from hpctl.jobs.run.output import RankProgress
from hpctl.jobs.run.progress_notes import in_log
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

NOBODY = Address("127.0.0.1", 1)
HERE = {"127.0.0.1": "n1"}
EAGER = RunPolicy(hang_floor_s=0.3, hang_factor=1.0, hang_start_s=0.3)


def looked(ranks: RankProgress, troubles: list[Trouble], seconds: float = 5.0) -> list[Trouble]:
    limit = time.monotonic() + seconds
    while not troubles and time.monotonic() < limit:
        if (trouble := ranks.look()) is not None:
            troubles.append(trouble)
        time.sleep(0.02)
    return troubles


@pytest.mark.parametrize("here", [True, False])
def test_silence_after_steps_is_a_hang(here):
    troubles: list[Trouble] = []
    ranks = RankProgress(EAGER, NOBODY, troubles.append)
    rank = progress.Reporter({"HPCTL_PROGRESS": ranks.begin(HERE, here=here), "RANK": "3"})
    for step in range(3):
        rank.step(step, None, None, {})
        time.sleep(0.02)
    rank.close()
    (trouble,) = looked(ranks, troubles)
    assert (trouble.kind, trouble.step, ranks.step) == (TroubleKind.HANG, 2, 2)
    ranks.end()


def test_a_supervisor_that_was_stopped_itself_finds_no_hang(monkeypatch):
    troubles: list[Trouble] = []
    ranks = RankProgress(EAGER, NOBODY, troubles.append)
    rank = progress.Reporter({"HPCTL_PROGRESS": ranks.begin(HERE, here=True), "RANK": "0"})
    rank.step(1, None, None, {})
    rank.close()
    time.sleep(0.1)
    assert ranks.look() is None
    slept, monotonic = 3600.0, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + slept)
    assert ranks.look() is None
    assert troubles == []
    ranks.end()


def test_an_older_steps_ranks_are_not_heard():
    ranks = RankProgress(EAGER, NOBODY, lambda _: None)
    old = progress.Reporter({"HPCTL_PROGRESS": ranks.begin(HERE, here=False), "RANK": "0"})
    ranks.begin(HERE, here=False)
    old.step(99, None, None, {})
    old.close()
    time.sleep(0.1)
    ranks.look()
    assert ranks.step is None
    ranks.end()


def test_silence_after_steps_in_the_log_is_a_hang():
    troubles: list[Trouble] = []
    ranks = RankProgress(EAGER, NOBODY, troubles.append)
    ranks.begin(HERE, here=True)
    for note in in_log(b"hpctl-progress step=1\nhpctl-progress step=2 loss=0.5\n"):
        ranks.logged(note)
    (trouble,) = looked(ranks, troubles)
    assert (trouble.kind, trouble.step) == (TroubleKind.HANG, 2)
    ranks.begin(HERE, here=True)
    troubles.clear()
    (trouble,) = looked(ranks, troubles)
    assert (trouble.kind, trouble.step) == (TroubleKind.HANG, None), (
        "the next step never reports anything"
    )
    ranks.end()


def test_a_file_of_the_users_own_is_read_from_where_it_ends_at_the_start(tmp_path):
    troubles: list[Trouble] = []
    file = tmp_path / "progress"
    file.write_text("step=99\n")
    ranks = RankProgress(EAGER, NOBODY, troubles.append)
    address = ranks.begin(HERE, here=False, file=file)
    assert address == f"file:{file}"
    assert ranks.look() is None
    assert ranks.step is None
    rank = progress.Reporter({"HPCTL_PROGRESS": address, "RANK": "0"})
    rank.step(4, None, None, {})
    rank.close()
    (trouble,) = looked(ranks, troubles)
    assert (trouble.kind, trouble.step) == (TroubleKind.HANG, 4)
    ranks.end()


def test_hang_is_reported_with_the_stacks_of_the_ranks(monkeypatch):
    def collect(job, nodes, **_):
        assert (job, list(nodes)) == (7, sorted(set(HERE.values())))
        waits = (Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3),)
        stacks = [waits, waits, (Frame("load", "data.py", 9, own=True),)]
        ranks = [RankStack(n, frames=frames) for n, frames in enumerate(stacks)]
        return [NodeStacks(node, ranks=tuple(ranks)) for node in nodes[:1]]

    monkeypatch.setattr("hpctl.jobs.hangs.stacks.collect_stacks", collect)
    troubles: list[Trouble] = []
    told = partial(explain_hang, job=7, bin_dir=None)
    ranks = RankProgress(EAGER, NOBODY, troubles.append, lambda t, nodes: told(t, nodes=nodes))
    ranks.begin(HERE, here=True)
    ranks.logged(in_log(b"hpctl-progress step=1\n")[0])
    (trouble,) = looked(ranks, troubles)
    assert (trouble.rank, trouble.node) == (2, sorted(HERE.values())[0])
    assert "rank 2 on" in trouble.why
    assert "stands in load (data.py:9)" in trouble.evidence
    ranks.end()
