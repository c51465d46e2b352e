"""The model-based machine: the real core, loop and executor against a hostile simulated world.

Every rule is something that happens to a cluster, to the daemon or at a keyboard. After each,
the oracle checks the promises of the design; at the end the faults stop and every recovery must
end. `make test` runs at least STEPS rules; `make nightly` runs more, from a seed it prints.
"""

import os
import random
import sys
from datetime import timedelta
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.faults.hma_marks import MARKS
from hpctl.vocabulary.policy import (
    AcceptanceTestPolicy,
    ConcurrentRecoveryBudgets,
    JobRecoveryPolicy,
    NodeRecoveryPolicy,
    OperatingMode,
    RecoveryPolicy,
    UnrecoverableJobAction,
)
from tests.engine.machine.daemon import Daemon, calm_down
from tests.engine.machine.job_rules import COMMENTS, JobRules, few, then, which
from tests.engine.machine.oracle import Oracle, Violation
from tests.engine.machine.world import DEFECTS, Defect, World

pytestmark = pytest.mark.slow

STEPS = 4_000
STEPS_A_RUN = 50
RUNS = 130
"""Some are shorter than STEPS_A_RUN."""
SOAKS = 4
RULES = catalogue_rules()
SIZE = 8
CODES = ("", "InternalServerError", "InvalidInstanceStatus", "InstanceIdInUse")
VERBS = ("approve", "cancel", "cancel", "replace-now", "replace", "reboot-now", "return")
VERBS += ("accept-quick",)

COMMON = {
    "node": "cordon_seen jobs_gone remedy_accepted new_generation_seen rejoined fault_again"
    " return_seen needs_human deadline operator_took_over operator_cancelled marked replace_asked"
    " acceptance_due test_passed test_asks_replace unreserved",
    "job": "stop_wanted save_wanted queued started running_seen proved operator_cancelled"
    " supervised excised went_on failed_again",
}
"""Signals that 20,000 steps must meet, whatever they are; the unit tests have the others."""
WANTED = {(kind, signal) for kind, words in COMMON.items() for signal in words.split()}
spells = st.sampled_from((10.0, 40.0, 100.0, 700.0))
defects = st.sampled_from(DEFECTS)


class Count:
    """How many rules were run, over all examples."""

    steps = 0
    crashes = 0
    recoveries = 0
    examples = 0
    signals: ClassVar[set[tuple[str, str]]] = set()


class ClusterMachine(JobRules):
    """One cluster, one daemon after another, one oracle."""

    world: World
    daemon: Daemon
    oracle: Oracle

    @initialize(
        mode=st.sampled_from(
            (OperatingMode.OWN,) * 6 + (OperatingMode.ASSIST,) * 2 + (OperatingMode.OBSERVE,)
        ),
        kill=st.booleans(), automatic=st.sampled_from((False,) * 5 + (True,)),
        budget=st.sampled_from((2, 2, 4)),
        jobs=st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from(COMMENTS), st.booleans()),
            min_size=1, max_size=4,
        ),
        ghosts=st.booleans(), tests=st.sampled_from(("off", "quick")),
    )  # fmt: skip
    def begin(self, mode, kill, automatic, budget, jobs, ghosts, tests):
        node = NodeRecoveryPolicy(
            unrecoverable_jobs=UnrecoverableJobAction.KILL if kill else UnrecoverableJobAction.WAIT
        )
        budgets = ConcurrentRecoveryBudgets(
            open_min=budget, partition_min=budget, per_hour=5 * budget
        )
        job = JobRecoveryPolicy(max_restarts=2 if kill else 10)
        after = AcceptanceTestPolicy(replace=tests, reboot=tests, returned=tests)
        self.policy = RecoveryPolicy(
            mode=mode, node=node, job=job, budgets=budgets, acceptance=after
        )
        self.world = World(SIZE, automatic=automatic, protected=1)
        self.world.slurm.ghosts = ghosts
        for size, comment, requeue in jobs:
            self.submit(size, 50_000.0, requeue, comment)
        self.oracle = Oracle(self.world, self.policy)
        self.daemon = Daemon(self.world, self.policy, RULES, watcher=self.oracle)
        self.oracle.daemon = self.daemon
        self.daemon.run()
        Count.examples += 1
        Violation.seen = False

    def _node(self, index: int) -> str:
        """Any node, or one that is under treatment, half and half."""
        treated = list(self.daemon.loop.state.open_nodes)
        if index >= SIZE and treated:
            return treated[index % len(treated)]
        return self.world.names[index % SIZE]

    def pass_time(self, seconds: float) -> None:
        self.world.passes(seconds)
        self.daemon.run()

    @rule(node=which, defect=defects, after=then)
    def hardware_fails(self, node: int, defect: Defect, after: float) -> None:
        self.world.breaks(self._node(node), defect)
        self.pass_time(after)

    @rule(node=which, defect=defects, after=then)
    def hardware_fails_under_a_job(self, node: int, defect: Defect, after: float) -> None:
        busy = [n for j in self.world.slurm.jobs.values() if j.running for n in j.nodes]
        if busy:
            self.world.breaks(busy[node % len(busy)], defect)
        self.pass_time(after)

    @rule(first=which, count=st.integers(2, 5), defect=defects, after=then)
    def many_fail(self, first: int, count: int, defect: Defect, after: float) -> None:
        for i in range(count):
            self.world.breaks(self.world.names[(first + i) % SIZE], defect)
        self.pass_time(after)

    @rule(node=which)
    def hardware_heals(self, node: int) -> None:
        self.world.heals(self._node(node))

    @rule(node=which, silent=st.booleans(), after=then)
    def agent_falls_silent_or_speaks(self, node: int, silent: bool, after: float) -> None:
        self.world.machines[self._node(node)].agent_silent = silent
        self.pass_time(after)

    @rule(node=which, dead=st.booleans(), after=then, times=st.integers(0, 8))
    def slurmd_dies_or_starts(self, node: int, dead: bool, after: float, times: int) -> None:
        """The agent lives on; Slurm calls the node DOWN in the end."""
        self.world.machines[self._node(node)].slurmd_dead = dead
        self.pass_time(after)
        for _ in range(times):
            self.pass_time(20.0)

    @rule(node=which, times=st.integers(4, 10))
    def agent_hangs_for_minutes(self, node: int, times: int) -> None:
        self.world.machines[self._node(node)].agent_silent = True
        for _ in range(times):
            self.pass_time(20.0)

    @rule(lose=st.integers(0, 20), delay=st.integers(0, 10), double=st.integers(0, 5))
    def network_misbehaves(self, lose: int, delay: int, double: int) -> None:
        net = self.world.network
        net.lose, net.delay, net.double = lose, delay, double

    @rule(seconds=st.sampled_from((0.1, 1.0, 2.0, 5.0, 12.0, 65.0, 125.0, 190.0, 400.0)))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(seconds=st.sampled_from((1.0, 3.0, 10.0, 35.0)), times=st.integers(2, 12))
    def loop_turns(self, seconds: float, times: int) -> None:
        for _ in range(times):
            self.pass_time(seconds)

    @precondition(lambda self: self.oracle.told)
    @rule(seconds=st.sampled_from((700.0, 2000.0, 6000.0, 90_000.0)))
    def daemon_sleeps(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(seconds=st.sampled_from((-3600.0, -90.0, -5.0, 5.0, 90.0, 3600.0)))
    def clock_jumps(self, seconds: float) -> None:
        self.world.clock.offset += timedelta(seconds=seconds)
        self.daemon.run()

    @rule(ahead=st.integers(1, 6), after=st.booleans(), wait=then)
    def daemon_will_crash(self, ahead: int, after: bool, wait: float) -> None:
        self.daemon.boundary.arm(ahead, after)
        self.pass_time(wait)

    @rule()
    def daemon_restarts(self) -> None:
        self.daemon.start()
        self.daemon.run()

    @rule(seconds=spells, after=then)
    def slurm_is_away(self, seconds: float, after: float) -> None:
        self.world.away("slurm", seconds)
        self.pass_time(after)

    @rule(seconds=spells, after=then)
    def cloud_is_away(self, seconds: float, after: float) -> None:
        self.world.away("cloud", seconds)
        self.pass_time(after)

    @rule(before=st.integers(0, 2), after=st.integers(0, 2))
    def slurm_loses_replies(self, before: int, after: int) -> None:
        mishaps = self.daemon.scheduler.mishaps
        mishaps.lost_before, mishaps.lost_after = before, after

    @rule(what=st.sampled_from(("lose_reply", "throttle", "deny", "no_capacity", "stick")), n=few)
    def cloud_misbehaves(self, what: str, n: int) -> None:
        getattr(self.world.provider, what)(n)

    @rule()
    def cloud_unsticks(self) -> None:
        self.world.provider.unstick()

    @rule(node=which, code=st.sampled_from(CODES), accepted=st.booleans())
    def batch_fails_in_part(self, node: int, code: str, accepted: bool) -> None:
        instance = self.world.provider.instance_of(self._node(node))
        done = accepted and code in ("", "InternalServerError")
        self.world.provider.fail(instance, code, accepted=done)

    @rule(node=which, seconds=st.sampled_from((5.0, 60.0)))
    def cloud_forgets_a_node(self, node: int, seconds: float) -> None:
        self.world.provider.vanish(self._node(node), seconds)

    @rule(node=which, after=then)
    def service_replaces_without_order(self, node: int, after: float) -> None:
        provider = self.world.provider
        provider.start_unrequested_recovery(provider.instance_of(self._node(node)))
        self.pass_time(after)

    @rule(
        node=which, mark=st.sampled_from(tuple(MARKS)), drain=st.booleans(), after=then,
        again=st.booleans(),
    )  # fmt: skip
    def health_agent_marks(self, node, mark, drain, after, again):
        """HyperPod's own, rightly, wrongly, early, late; once more before anybody looks again."""
        name = self._node(node)
        self.world.marks(name, mark, drain=drain)
        self.pass_time(after)
        if again:
            self.world.marks(name, mark)
            self.pass_time(after)

    @rule(node=which, defect=defects, mark=st.sampled_from(tuple(MARKS)), early=st.booleans())
    def hardware_fails_and_is_marked(self, node, defect, mark, early):
        name = self._node(node)
        if early:
            self.world.marks(name, mark)
        self.world.breaks(name, defect)
        self.pass_time(5.0)
        if not early:
            self.world.marks(name, mark)
        self.pass_time(5.0)

    @rule(
        node=which, why=st.sampled_from(("bad fan", "NHC says down", "hpctl is wrong")), after=then
    )
    def operator_drains(self, node: int, why: str, after: float) -> None:
        self.world.slurm.operator(self._node(node), drain=why)
        self.pass_time(after)

    @rule(node=which, after=then)
    def operator_resumes(self, node: int, after: float) -> None:
        self.world.slurm.operator(self._node(node), resume=True)
        self.pass_time(after)

    @rule(seconds=spells, switch=st.booleans(), after=then)
    def operator_pauses(self, seconds: float, switch: bool, after: float) -> None:
        """For a while, by request or by the kill-switch file."""
        if switch:
            self.daemon.kill_switch.on = True
        else:
            self.daemon.ask("pause")
        self.pass_time(after)
        self.pass_time(seconds)
        self.daemon.kill_switch.on = False
        self.daemon.ask("unpause")

    @rule(verb=st.sampled_from(VERBS), node=which, after=then)
    def operator_orders(self, verb: str, node: int, after: float) -> None:
        self.daemon.ask(verb, self._node(node))
        self.pass_time(after)

    @precondition(lambda self: bool(self._left_drained()))
    @rule(number=few, verb=st.sampled_from(("return", "return", "replace")), after=then)
    def operator_tends_a_drained_node(self, number: int, verb: str, after: float) -> None:
        left = self._left_drained()
        self.daemon.ask(verb, left[number % len(left)])
        self.pass_time(after)

    def _left_drained(self) -> list[str]:
        """Nodes with our Reason that nobody treats any more."""
        treated = self.daemon.loop.state.open_nodes
        slurm = self.world.slurm.nodes
        return [n for n, v in slurm.items() if v.drained and not v.foreign and n not in treated]

    @precondition(lambda self: bool(self.daemon.loop.state.open_jobs))
    @rule(number=few)
    def operator_cancels_a_job_recovery(self, number: int) -> None:
        rids = list(self.daemon.loop.state.open_jobs.values())
        self.daemon.ask("cancel", rids[number % len(rids)])
        self.daemon.run()

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "oracle"):
            Count.steps += 1
            self.oracle.check()

    def teardown(self) -> None:
        if hasattr(self, "oracle") and not Violation.seen:
            calm_down(self.world, self.daemon)
            self.oracle.ended_well()
            Count.crashes += self.daemon.crashes
            Count.recoveries += len(self.oracle.told)
            Count.signals |= self.oracle.signals


def _run(examples, steps, machine=ClusterMachine, **more):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


@pytest.mark.timeout(1200)
def test_machine_keeps_every_promise() -> None:
    """At least STEPS rules, the same ones on every run of the same source.

    The time limit is a machine's that is five times as slow: what ends the test is taken by
    Hypothesis for a failure, and is then looked for again.

    Hypothesis draws from a digest of `ClusterMachine`'s text, and which rules may run depends on
    what hpctl did: any change of either makes other examples. What one finds goes to
    test_machine_found.py, which plays it without Hypothesis.
    """
    Count.steps = Count.crashes = Count.recoveries = Count.examples = 0
    Count.signals = set()
    _run(RUNS, STEPS_A_RUN, derandomize=True, database=None)
    sys.stdout.write(
        f"\nmachine: {Count.steps} steps, {Count.examples} runs, {Count.crashes} crashes,"
        f" {Count.recoveries} recoveries\n"
    )
    assert Count.steps >= STEPS
    # Which of them a slice meets depends on what this Python's Hypothesis draws.
    assert len(WANTED & Count.signals) > len(WANTED) / 2
    assert Count.recoveries > STEPS / 100
    assert Count.crashes > STEPS / 1000


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_machine_soaks() -> None:
    """20 000 rules and more from a seed of their own, printed; HPCTL_SEED repeats one.

    One seed in three does not draw the rarest signal (`save_wanted`), so up to SOAKS seeds in a row
    are run until all were met. A broken promise fails the test under any of them.
    """
    Count.steps, Count.signals = 0, set()
    number = int(os.environ.get("HPCTL_SEED", random.SystemRandom().randrange(2**32)))
    for soak in range(SOAKS):
        sys.stdout.write(f"\nHPCTL_SEED={number + soak}\n")
        seeded = type("SeededClusterMachine", (ClusterMachine,), {})
        _run(400, 100, with_seed(number + soak)(seeded), database=None)
        if Count.signals >= WANTED:
            break
    assert Count.steps >= 20_000
    assert Count.signals >= WANTED
