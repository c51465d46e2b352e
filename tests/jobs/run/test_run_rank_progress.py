"""Ranks that report, over real sockets."""

import pickle
import threading
import time

import pytest

from hpctl import progress
from hpctl.jobs.hangs.ras_judge import HangWithRasEvidence
from hpctl.jobs.hangs.ras_report import RasAddress
from hpctl.jobs.hangs.stack_groups import NodeStacks, RankStack, StackFrame
from hpctl.jobs.hangs.stacks import diagnose_hang_from_step_stacks
from hpctl.jobs.run.output import RankProgressListener
from hpctl.jobs.run.progress_notes import find_progress_notes_in_log
from hpctl.jobs.run.timeouts import CollectiveTimeoutInvestigation
from hpctl.jobs.run_failure import FailedRunContext, diagnose_run_hang
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.waiting import PATIENCE_S, until

NOBODY = RasAddress("127.0.0.1", 1)
HERE = {"127.0.0.1": "n1"}
EAGER = RunPolicy(hang_floor_s=0.3, hang_factor=1.0, hang_start_s=0.3)


def looked(
    ranks: RankProgressListener, troubles: list[Trouble], seconds: float = PATIENCE_S
) -> list[Trouble]:
    limit = time.monotonic() + seconds
    while not troubles and time.monotonic() < limit:
        if (trouble := ranks.look()) is not None:
            troubles.append(trouble)
        time.sleep(0.02)
    return troubles


@pytest.mark.parametrize("here", [True, False])
def test_silence_after_steps_is_a_hang(here):
    troubles: list[Trouble] = []
    ranks = RankProgressListener(EAGER, NOBODY, troubles.append)
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
    # A machine that is slow for less than a minute is no reason for a hang either.
    patient = RunPolicy(hang_floor_s=60.0, hang_factor=1.0, hang_start_s=60.0)
    ranks = RankProgressListener(patient, NOBODY, troubles.append)
    rank = progress.Reporter({"HPCTL_PROGRESS": ranks.begin(HERE, here=True), "RANK": "0"})
    rank.step(1, None, None, {})
    rank.close()
    until(lambda: ranks.look() is None and ranks.step == 1)
    slept, monotonic = 3600.0, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + slept)
    assert ranks.look() is None
    assert troubles == []
    ranks.end()


def test_an_older_steps_ranks_are_not_heard():
    ranks = RankProgressListener(EAGER, NOBODY, lambda _: None)
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
    ranks = RankProgressListener(EAGER, NOBODY, troubles.append)
    ranks.begin(HERE, here=True)
    for note in find_progress_notes_in_log(
        b"hpctl-progress step=1\nhpctl-progress step=2 loss=0.5\n"
    ):
        ranks.add_progress_note_from_log(note)
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
    ranks = RankProgressListener(EAGER, NOBODY, troubles.append)
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


def collect_stacks(job, nodes, **_):
    """What the nodes' collectors say of three ranks, of which the last reads its data."""
    assert job == 7
    waits = (StackFrame("all_reduce", "torch/distributed/distributed_c10d.py", 3),)
    stacks = [waits, waits, (StackFrame("load", "data.py", 9, own=True),)]
    ranks = [RankStack(n, frames=frames) for n, frames in enumerate(stacks)]
    return [NodeStacks(node, ranks=tuple(ranks)) for node in nodes[:1]]


def watch_hang(monkeypatch, collect, prefix: str) -> Trouble:
    """The hang that a supervisor finds, by stacks from `collect` and dumps at `prefix`."""
    monkeypatch.setattr("hpctl.jobs.hangs.stacks.collect_job_stacks", collect)
    inquiry = CollectiveTimeoutInvestigation(
        NOBODY, lambda nodes: diagnose_hang_from_step_stacks(7, nodes, None)
    )
    inquiry.begin(("n1",), HERE, prefix, 3)
    troubles: list[Trouble] = []

    def explain(hang: HangWithRasEvidence) -> Trouble:
        return diagnose_run_hang(
            hang.trouble, FailedRunContext(), lambda: inquiry.look(hang.finding, {}), EAGER
        )

    ranks = RankProgressListener(EAGER, NOBODY, troubles.append, explain)
    ranks.begin(HERE, here=True)
    ranks.add_progress_note_from_log(find_progress_notes_in_log(b"hpctl-progress step=1\n")[0])
    (trouble,) = looked(ranks, troubles)
    ranks.end()
    return trouble


def test_hang_is_reported_with_the_stacks_of_the_ranks(monkeypatch):
    trouble = watch_hang(monkeypatch, collect_stacks, "")
    assert (trouble.kind, trouble.rank, trouble.node) == (TroubleKind.HANG, 2, "n1")
    assert trouble.why.startswith("rank 2 on n1 is in load (data.py:9)")
    assert "; no step for " in trouble.why
    assert "is in load (data.py:9)" in trouble.evidence


def test_a_run_that_moves_while_its_stacks_are_read_is_not_ended():
    troubles: list[Trouble] = []
    steps = iter(range(2, 1_000_000))

    def explain(hang: HangWithRasEvidence) -> Trouble:
        ranks.add_progress_note_from_log(
            find_progress_notes_in_log(b"hpctl-progress step=%d\n" % next(steps))[0]
        )
        return hang.trouble

    ranks = RankProgressListener(EAGER, NOBODY, troubles.append, explain)
    ranks.begin(HERE, here=True)
    ranks.add_progress_note_from_log(find_progress_notes_in_log(b"hpctl-progress step=1\n")[0])
    until(lambda: ranks.look() is None and (ranks.step or 0) >= 3)
    assert troubles == []
    ranks.end()


def test_a_hang_whose_stacks_cannot_be_read_says_why(monkeypatch):
    def refuse(*_, **__):
        raise HpctlError("cannot collect stack traces", "")

    trouble = watch_hang(monkeypatch, refuse, "")
    assert (trouble.kind, trouble.rank) == (TroubleKind.HANG, None)
    assert trouble.why.startswith("no step for ")
    assert trouble.evidence.startswith("stacks: cannot collect stack traces")


def test_a_hang_waits_for_the_dump_of_a_rank_that_is_slow_to_write_it(monkeypatch, tmp_path):
    """Reading a rank's stack asks it for a dump, which takes a rank seconds. The dumps, which go
    before the stacks, show who did not come, and the slow one is no rank that cannot dump."""
    prefix = f"{tmp_path}/fr-"
    rows = {0: 2, 1: 2, 2: 1}

    def dump(rank: int) -> None:
        path = tmp_path / f"part-{rank}"
        path.write_bytes(make_dump(rows[rank], world=3))
        path.rename(f"{prefix}{rank}")

    def collect(job, nodes, **more):
        dump(0)
        dump(2)
        slow = threading.Timer(2.0, dump, (1,))
        slow.daemon = True
        slow.start()
        return collect_stacks(job, nodes, **more)

    trouble = watch_hang(monkeypatch, collect, prefix)
    assert trouble.evidence.startswith("flight recorder (3 dumps)"), trouble.evidence
    assert (trouble.kind, trouble.rank) == (TroubleKind.HANG, 2)
    assert trouble.why.startswith("rank 2 on n1 did not come to collective 2")


def make_dump(collectives: int, world: int) -> bytes:
    """A dump of a rank that has issued so many collectives and completed all but the last."""
    rows = [
        {
            "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
            "is_p2p": False, "profiling_name": "nccl:all_reduce", "input_sizes": [[4]],
            "input_dtypes": ["Float"], "retired": False, "record_id": number - 1,
            "state": "completed" if number == 1 else "scheduled",
        }
        for number in range(1, collectives + 1)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": rows})
