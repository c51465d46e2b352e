"""A node that autoscaling takes out, under crashes, lost replies, refusals, work and a second hand.

The core is the real one, journal events included; the node, slurmctld and the service are played.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.capacity.plan import make_empty_node_risks, plan_all_capacity_changes
from hpctl.engine.journal.events import Event, StepResolved, StepStarted
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import group_jobs_by_node
from hpctl.faults.catalogue import build_fault_rules
from hpctl.vocabulary.change import ChangeKind, ChangeOpened
from hpctl.vocabulary.cloud_facts import CloudProviderView, InstanceStatus
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason, parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import StepKind, StepStartDecision
from tests.examples import examples
from tests.fakes.capacity import N1, SCALE, cluster, removal
from tests.fakes.engine import advance_all, plan
from tests.fakes.values import at, slurm_job
from tests.unflawed import unflawed

OLD = "i-n1"
WAYS = ("done", "lost", "crash before", "crash after", "busy", "refused", "gone")
HAPPENS = ("nothing", "work", "work ends", "resume", "drain", "cloud away", "cloud back")


class LeavingNode:
    """One node of eight that leaves; all others are as they are."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = EngineState()
        self.drained, self.reason, self.job = False, "", False
        self.going: float | None = None
        self.seen, self.cloud_away = cluster().provider, False
        self.by_hand = False
        self.deleted_with_work, self.deletions = False, 0

    def append(self, events: list[Event]) -> None:
        for event in events:
            self.state.fold(event)

    def happen(self, what: str) -> None:
        lives = self.going is None or self.now < self.going - 60
        if what == "work":
            self.job = self.job or (lives and not self.drained)
        elif what == "work ends":
            self.job = False
        elif what == "resume" and self.drained:
            self.drained, self.reason, self.by_hand = False, "", True
        elif what == "drain" and not self.drained:
            self.drained, self.reason = True, "disk swap, Ada"
        elif what.startswith("cloud"):
            self.cloud_away = what == "cloud away"

    def view(self):
        if not self.cloud_away:
            self.seen = self._cloud()
        jobs = (slurm_job(5, nodes=(N1,)),) if self.job else ()
        node = {
            "state": "ALLOCATED" if self.job else "IDLE",
            "flags": frozenset({"DRAIN"}) if self.drained else frozenset(),
            "reason": self.reason,
        }
        view = cluster(jobs=jobs, change={N1: node}, seconds=self.now, state=self.state)
        quiet = {n: replace(x, last_busy=None) for n, x in view.scheduler.nodes.items()}
        instances = {x.node: x for x in self.seen.instances.values() if x.node}
        scheduler = replace(view.scheduler, nodes=quiet)
        return replace(view, provider=self.seen, scheduler=scheduler, instances=instances)

    def _cloud(self) -> CloudProviderView:
        whole = cluster(seconds=self.now).provider
        listed = dict(whole.instances)
        if self.going is not None and self.now >= self.going:
            del listed[OLD]
        elif self.going is not None and self.now >= self.going - 60:
            listed[OLD] = replace(listed[OLD], status=InstanceStatus.SHUTTING_DOWN)
        return replace(whole, instances=listed)

    def carry_out(self, owner: str, do: StepStartDecision, way: str) -> None:
        now = at(self.now)
        self.append([StepStarted(now, owner, do.kind, do.attempt, do.target)])
        gone = do.kind is StepKind.REMOVE
        assert not gone or do.target == OLD, "another instance"
        outcome = self._delete(way) if gone else self._slurm(do, owner, way)
        if not way.startswith("crash"):
            self.append([StepResolved(now, owner, do.kind, do.attempt, outcome)])

    def _delete(self, way: str) -> Outcome:
        if self.going is not None:
            sure = way == "refused"
            return Outcome.rejected("ValidationException" if sure else "x", transient=not sure)
        if way in ("busy", "refused", "gone"):
            code = {"busy": "NodeIdInUse", "refused": "ValidationException"}.get(way, "x")
            return Outcome.rejected(code, transient=way == "busy")
        if way != "crash before":
            self.deletions += 1
            self.deleted_with_work |= self.job and not self.by_hand
            # The service takes its time to begin: nobody can see that it was told.
            self.going = self.now + 400
        return Outcome.ambiguous("timeout") if way == "lost" else Outcome.accepted()

    def _slurm(self, do: StepStartDecision, owner: str, way: str) -> Outcome:
        theirs = parse_recovery_id_from_reason(self.reason)
        if way == "refused":
            return Outcome.rejected("ESLURM_ACCESS_DENIED")
        if way != "crash before" and do.kind is StepKind.DRAIN:
            if self.drained and theirs is None:
                return Outcome.rejected("foreign_drain")
            self.drained, self.reason = True, format_hpctl_node_reason(owner, "x")
        elif way != "crash before" and self.drained:
            if theirs != owner:
                return Outcome.rejected("not_ours")
            self.drained, self.reason = False, ""
        return Outcome.ambiguous("timeout") if way == "lost" else Outcome.accepted()

    def turn(self, way: str, seconds: float) -> None:
        """A cycle of the daemon, then time. Work that came may be on a node that goes."""
        view, here = (
            self.view(),
            group_jobs_by_node(list(self.state.open_nodes), self.view().scheduler.jobs),
        )
        self.append([*plan(view, SCALE, build_fault_rules(), here, at(self.now)).opens])
        self.append(
            [
                *unflawed(
                    plan_all_capacity_changes(
                        self.view(), SCALE, at(self.now), make_empty_node_risks
                    )
                )
            ]
        )
        for _ in range(20):
            progress = advance_all(self.view(), SCALE, at(self.now))
            if not progress.moves:
                break
            self.append([*progress.moves])
        for due in progress.due:
            self.carry_out(due.recovery, due.do, way)
        self.now += seconds
        if self.going is not None and self.now >= self.going - 60:
            self.deleted_with_work |= self.job and not self.by_hand


TURNS = st.lists(
    st.tuples(
        st.sampled_from(HAPPENS), st.sampled_from(WAYS), st.sampled_from((1.0, 15.0, 200.0, 1000.0))
    ),
    max_size=25,
)


REFUSED_AFTER_A_DOUBT = [
    ("nothing", "done", 1.0), ("nothing", "lost", 200.0), ("nothing", "refused", 1.0),
    ("nothing", "done", 1.0), ("work", "done", 200.0),
]  # fmt: skip


OF_EARLIER = ChangeOpened(at(0), "s-1", ChangeKind.REMOVE, "workers", "idle", node=N1, instance=OLD)


@pytest.mark.slow
@pytest.mark.parametrize("first", [removal(), OF_EARLIER], ids=["removal", "earlier version"])
@settings(max_examples=examples(30))
@given(turns=TURNS)
@example(turns=REFUSED_AFTER_A_DOUBT)
@example(turns=[("nothing", "crash before", 1.0), ("cloud away", "done", 1000.0)] * 5)
def test_no_node_is_deleted_with_work_and_none_is_left_closed_for_nothing(first, turns):
    played = LeavingNode()
    played.append([first])
    for what, way, seconds in turns:
        played.happen(what)
        played.turn(way, seconds)
    assert not played.deleted_with_work
    played.happen("cloud back")
    played.job = False
    for _ in range(60):
        played.turn("done", 120)
    rec = played.state.nodes[first.recovery]
    assert not played.state.open_nodes
    assert not played.deleted_with_work
    assert played.deletions <= 1
    unsure = [
        s for s in rec.steps
        if s.kind is StepKind.REMOVE
        and (s.in_doubt or (s.outcome and s.outcome.kind is OutcomeKind.ACCEPTED))
    ]  # fmt: skip
    if played.going is None and not unsure:
        assert parse_recovery_id_from_reason(played.reason) is None, (
            "left closed, and nobody deletes it"
        )
    assert 5 not in played.view().scheduler.jobs
