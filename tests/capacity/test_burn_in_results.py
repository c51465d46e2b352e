"""What the result of a burn-in means for its node, judged by the acceptance room."""

import pytest
from msgspec.structs import replace

from hpctl.capacity.facts import collect_change_facts
from hpctl.engine.journal.events import SignalSeen
from hpctl.faults.catalogue import build_fault_rules
from hpctl.nodes.acceptance.daemon import judge_reported_test_findings
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.model import DeviceVerdict, NodeHealth
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import StepKind
from tests.capacity.test_burn_in import (
    BROKEN,
    BURN,
    DAY,
    PASSED,
    RAN,
    answered,
    begun,
    past,
    runs,
    taken,
)
from tests.fakes.capacity import N1, N2, cluster, moves, steps
from tests.fakes.engine import plan
from tests.fakes.values import at, generation, node_name, opened


def results_of_card(policy: RecoveryPolicy, hbm_gbs: float) -> DeviceVerdict:
    """What becomes of an H200 that is the first to be tested, and copies so fast."""
    change = begun(taken, answered, runs)
    speed = replace(PASSED, device=change.id, evidence=f'{{"hbm_gbs": {hbm_gbs}}}')
    closing = replace(RAN, device=change.id, evidence='{"name": "NVIDIA H200"}')
    view = cluster()
    health = {**view.health, N1: NodeHealth(generation(N1), at(0), (speed, closing))}
    found = collect_change_facts(
        change, replace(view, health=health), policy, at(2), judge_reported_test_findings
    ).results
    return found[0].verdict


def test_the_agent_of_the_node_tells_the_result_judged_by_the_fleet() -> None:
    change = begun(taken, answered, runs)
    mine = [replace(f, device=change.id) for f in (PASSED, BROKEN, RAN)]

    def results(*findings, of=N1):
        fast = replace(PASSED, evidence='{"hbm_gbs": 3000.0}')
        other = SignalSeen(at(0), "n-1", "operator_cancelled", "", tests=(fast,))
        view = cluster(log=(opened(node=N2), other))
        health = {**view.health, of: NodeHealth(generation(of), at(0), findings)}
        return collect_change_facts(
            change, replace(view, health=health), BURN, at(2), judge_reported_test_findings
        ).results

    assert results(*mine) == tuple(mine)
    assert results(*mine[:2]) == results(*mine, of=N2) == results(PASSED, RAN) == ()
    slow = replace(mine[0], evidence='{"hbm_gbs": 100.0}')
    assert [f.verdict for f in results(slow, mine[2])] == [DeviceVerdict.FAIL, DeviceVerdict.OK]
    # Without any peers the floor of its card counts, or the site's.
    capped = replace(BURN, acceptance=replace(BURN.acceptance, floors={"NVIDIA H200": {}}))
    assert results_of_card(capped, 3800.0) is DeviceVerdict.FAIL
    lower = replace(BURN.acceptance, floors={"NVIDIA H200": {"hbm_gbs": 3700.0}})
    assert results_of_card(replace(BURN, acceptance=lower), 3800.0) is DeviceVerdict.OK


def failed(node, day=-0.01, **more):
    """A burn-in of a node that failed on a day."""
    *first, last = past(node, day, **more)
    return [*first, replace(last, why="failed: gemm: GPU 3", tests=(BROKEN,))]


def treated(log, policy=BURN, **more):
    """What is opened of the nodes, and which gates hold what is not."""
    found = plan(cluster(log=log, **more), policy, build_fault_rules(), {}, at(0))
    assert not found.flaws
    return list(found.opens), [(h.target, h.gate) for h in found.holds]


def test_a_node_that_failed_is_drained_for_a_person_with_its_evidence() -> None:
    (rec,), _ = treated(failed(N1))
    assert (rec.generation, rec.rule) == (generation(N1), "burn-in-failed")
    assert (rec.ladder, rec.urgency) == ((Remedy.ASK_HUMAN,), Urgency.AFTER_JOBS)
    assert (rec.why, rec.findings) == ("failed: gemm: GPU 3", (BROKEN,))
    view = cluster(log=[*failed(N1), rec])
    assert [(s.kind, s.target) for s in steps(view, BURN)] == [(StepKind.DRAIN, N1)]
    shut = {"flags": frozenset({"DRAIN"}), "reason": format_hpctl_node_reason(rec.recovery, "x")}
    log = [*failed(N1), rec]
    for signal in ("cordon_seen", "jobs_gone"):
        log.append(SignalSeen(at(1), rec.recovery, signal, ""))
    assert moves(cluster(log=log, change={N1: shut}), BURN) == ["needs_human"]


@pytest.mark.parametrize(
    "log",
    [
        past(N1, -0.01), failed(N1, instance="i-before"), [*failed(N1, -2), *past(N1, -0.5)],
        [*failed(N1), opened("n-1"), SignalSeen(at(0), "n-1", "operator_cancelled", "eve")],
    ],
)  # fmt: skip
def test_what_passed_since_or_was_treated_since_or_is_another_machine_is_left_alone(log) -> None:
    assert treated(log) == ([], [])


def test_a_node_that_failed_after_it_was_treated_is_treated_again() -> None:
    old = [opened("n-1", seconds=-DAY), SignalSeen(at(-DAY), "n-1", "operator_cancelled", "eve")]
    assert len(treated([*old, *failed(N1)])[0]) == 1


def test_a_broken_test_does_not_take_the_cluster() -> None:
    log = [e for n in range(1, 7) for e in failed(node_name(n))]
    opens, holds = treated(log)
    assert (opens, {gate for _, gate in holds}) == ([], {"correlated"})
    one, held = treated(failed(N1), replace(BURN, mode=OperatingMode.OBSERVE))
    assert (one, held) == ([], [(N1, "observing")])
