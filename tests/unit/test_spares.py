"""Which nodes are kept as spares, and when one is released."""

from msgspec.structs import replace

from hpctl.core.capacity import RESERVATION
from hpctl.core.change import ChangeOpened, Signal
from hpctl.core.job_recovery import Phase as JobPhase
from hpctl.core.journal import Event, JobRecoveryOpened, SignalSeen, replay
from hpctl.core.model import RecoveryId, own_reason
from hpctl.core.plan_capacity import plan_capacity
from hpctl.core.policy import Policy
from hpctl.core.view import View
from tests.fakes.capacity import N1, N2, N3, SPARE, cluster, moves, pending
from tests.fakes.values import at, attempt, faulty, node_name, opened
from tests.unflawed import unflawed

NAME = f"{RESERVATION}workers"


def wanted(view: View, policy: Policy = SPARE) -> ChangeOpened | None:
    changes = unflawed(plan_capacity(view, policy, at(0)))
    assert len(changes) <= 1
    return changes[0] if changes else None


def test_as_many_idle_healthy_nodes_are_kept_as_wanted_and_no_more() -> None:
    change = wanted(cluster(sick=[faulty(N1)]))
    assert change is not None
    assert change.nodes == (N2, N3)
    assert wanted(cluster(reservations={NAME: (N2, N3)})) is None
    fewer = wanted(cluster(reservations={NAME: (N1, N2, N3)}))
    assert fewer is not None
    assert fewer.nodes == (N1, N2)
    none = wanted(cluster(reservations={NAME: (N1,)}), replace(SPARE, spares={"workers": 0}))
    assert none is not None
    assert none.nodes == ()


def test_what_was_kept_for_a_group_that_is_named_no_more_is_let_go() -> None:
    change = wanted(cluster(reservations={NAME: (N1, N2)}), replace(SPARE, spares={}))
    assert change is not None
    assert (change.group, change.nodes) == ("workers", ())


def test_a_node_that_is_verified_is_kept_before_it_is_given_back() -> None:
    log: tuple[Event, ...] = (opened(node=N1),)
    for signal in ("cordon_seen", "jobs_gone", "nothing_to_remedy"):
        log += (SignalSeen(at(0), RecoveryId("n-1"), signal, "x"),)
    shut = {"flags": frozenset({"DRAIN"}), "reason": own_reason(RecoveryId("n-1"), "x")}
    change = wanted(cluster(idle=1, log=log, change={N1: shut}))
    assert change is not None
    assert change.nodes == (N1,)


def victim(wants: int, phase: JobPhase = JobPhase.STARTING) -> tuple[Event, ...]:
    """Job 9 lost n8 and is about to start again."""
    rid = RecoveryId("j-1")
    begun = JobRecoveryOpened(
        at(-20), rid, attempt(9), RecoveryId(""), (node_name(8),), "hit", partition="all"
    )
    log: tuple[Event, ...] = (begun,)
    for signal in ("stop_wanted", "queued", "started"):
        log += (SignalSeen(at(-10), rid, signal, "x"),)
    state = replay(log)
    assert state.jobs[rid].phase is phase
    return log


def test_a_victim_that_is_short_of_nodes_gets_as_many_as_it_lost() -> None:
    job = pending(9, wants=5, submit=attempt(9).submit, excluded=(node_name(8),))
    kept = {NAME: (N1, N2)}
    free = {n: {"flags": frozenset({"RESERVED"})} for n in (N1, N2)}
    # slurmctld shows the flag seconds later than the reservation.
    for seen in (free, {}):
        view = cluster(idle=5, jobs=(job,), log=victim(5), reservations=kept, change=seen)
        change = wanted(view)
        assert change is not None
        assert (change.released, change.nodes, change.cause) == ((N1,), (N2,), "j-1")
    done = (change, SignalSeen(at(0), change.recovery, Signal.SET_SEEN, "x"))
    after = cluster(
        idle=5, jobs=(job,), log=(*victim(5), *done), reservations={NAME: (N2,)},
        change={N2: free[N2]},
    )  # fmt: skip
    assert wanted(after) is None, "it has had what it lost, and what it has is not taken back"


def test_a_victim_that_finds_enough_free_nodes_gets_no_spare() -> None:
    job = pending(9, wants=3, submit=attempt(9).submit)
    free = {n: {"flags": frozenset({"RESERVED"})} for n in (N1, N2)}
    view = cluster(idle=5, jobs=(job,), log=victim(3), reservations={NAME: (N1, N2)}, change=free)
    assert wanted(view) is None


def test_a_refused_reservation_is_left_alone_for_a_while() -> None:
    first = wanted(cluster())
    assert first is not None
    log = (first, SignalSeen(at(0), first.recovery, Signal.REFUSED, "busy"))
    assert wanted(cluster(log=log)) is None
    later = cluster(log=log, seconds=31)
    assert unflawed(plan_capacity(later, SPARE, at(31)))


def test_a_spare_that_got_a_job_meanwhile_is_not_asked_for_again() -> None:
    change = wanted(cluster())
    assert change is not None
    taken = {change.nodes[0]: {"state": "ALLOCATED"}}
    view = cluster(log=(change,), change=taken)
    assert moves(view, SPARE, 0) == [Signal.REFUSED]
    log = (change, SignalSeen(at(0), change.recovery, Signal.REFUSED, "x"))
    other = wanted(cluster(log=log, change=taken))
    assert other is not None, "others are asked for at once"
    assert change.nodes[0] not in other.nodes
