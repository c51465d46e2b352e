"""Once a day the daemon sets apart what is past, and deletes what is older than anybody wants."""

from datetime import timedelta

import pytest

from benchmarks.world import World, WorldScheduler
from hpctl.daemon.composition import compose_daemon
from hpctl.daemon.kinds import KINDS
from hpctl.engine.journal.events import SignalSeen
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.retirement import AGAIN_S, EVERY_S, FIRST_S, JournalRetirementTask
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import Clock, at, opened

DAY = timedelta(days=1)
RULES = build_fault_rules()


@pytest.fixture
def store(tmp_path):
    store = JournalStore(f"sqlite:///{tmp_path}/journal.db")
    for number in (1, 2):
        rid = f"n-{number}"
        store.append([opened(rid, seconds=number), SignalSeen(at(number), rid, "deadline", "")])
    yield store
    store.close()


def ids(store: JournalStore, *, past: bool) -> list[str]:
    return [event.recovery for event in store.events(past=past) if isinstance(event, SignalSeen)]


class Bench:
    """A loop with its memory, and what sees to it once a day."""

    def __init__(self, store: JournalStore) -> None:
        self.clock = Clock()
        self.memory = JournaledState(store)
        self.retirement = JournalRetirementTask(store, self.memory, self.clock, KINDS)

    def look(self, after: timedelta, keep_days: int = 400) -> None:
        self.clock.at += after
        self.retirement.look(SchedulerView(self.clock.now()), RecoveryPolicy(), RULES, keep_days)


def test_retirement_skips_the_first_minutes_and_runs_daily(store):
    bench = Bench(store)
    bench.clock.at += 200 * DAY
    bench.retirement = JournalRetirementTask(store, bench.memory, bench.clock, KINDS)
    bench.look(timedelta(seconds=FIRST_S - 1))
    assert ids(store, past=False) == ["n-1", "n-2"]
    bench.look(timedelta(seconds=1))
    assert ids(store, past=False) == ["n-2"]
    assert list(bench.memory.state.nodes) == ["n-2"], "memory as after a restart"
    assert bench.memory.state.retired == {"n-1"}
    assert next(iter(store.events(past=True))) == opened("n-1", seconds=1)
    bench.look(timedelta(seconds=EVERY_S - 1), keep_days=1)
    assert ids(store, past=True) == ["n-1", "n-2"]
    bench.look(timedelta(seconds=1), keep_days=1)
    assert ids(store, past=True) == ["n-2"], "the last that was done to the node is kept for ever"


def test_years_are_retired_in_turns(store, monkeypatch):
    monkeypatch.setattr("hpctl.engine.retirement.MOST", 2)
    bench = Bench(store)
    bench.look(200 * DAY)
    assert ids(store, past=False) == ["n-2"]
    assert list(bench.memory.state.nodes) == ["n-1", "n-2"], "it knows too much, and that is all"
    bench.look(timedelta(seconds=AGAIN_S - 1))
    assert not bench.memory.state.retired
    bench.look(timedelta(seconds=1))
    assert (list(bench.memory.state.nodes), bench.memory.state.retired) == (["n-2"], {"n-1"})


def test_the_daemon_sees_to_it_where_slurm_can_be_read(store, tmp_path, monkeypatch):
    config = tmp_path / "hpctl.yaml"
    config.write_text(f"state_dir: {tmp_path}\nkill_switch: {tmp_path}/STOP\n")
    slurm = Reads()
    chosen = "hpctl.daemon.composition.choose_slurm_client_for_daemon"
    monkeypatch.setattr(chosen, lambda _, **__: (slurm, "here"))
    monkeypatch.setattr("hpctl.engine.retirement.FIRST_S", 0.0)
    daemon = compose_daemon(str(config))
    for slurm.away in (True, False):
        daemon.cycle.waker.poke()
        daemon.cycle.run()
        assert ids(store, past=False) == (["n-1", "n-2"] if slurm.away else ["n-2"])
    assert daemon.cycle.loop.state.retired == {"n-1"}
    daemon.held.close()
    daemon.held.state_lock.close()


class Reads(WorldScheduler):
    """An empty cluster's Slurm, which may not answer."""

    away = True

    def __init__(self) -> None:
        super().__init__(World(0, 0))

    def view(self) -> SchedulerView:
        if self.away:
            raise ServiceUnavailable("slurmctld does not answer", "")
        return super().view()

    def show_config(self) -> dict[str, str]:
        raise ServiceUnavailable("slurmctld does not answer", "")
