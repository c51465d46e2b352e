"""What a policy would do in a made-up run: the very `decide` of supervisor and daemon, on paper."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from hpctl.jobs.decide import (
    PastJobFailure,
    RestartResources,
    decide_job_failure_action,
    is_restart_on_more_nodes_worthwhile,
)
from hpctl.toolkit import yaml_files
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import InvalidFileError
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.policy import Seconds, SecondsOrNone
from hpctl.vocabulary.policy_file import Count
from hpctl.vocabulary.run_policy import RESTARTS, STOPS, RunAction, RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind


class InvalidPolicyScenarioError(InvalidFileError):
    """A scenario with problems: all of them, each with its place."""

    hint_text = "see docs/policies.md"


class PolicyScenarioEvent(Struct, frozen=True):
    """A trouble (`kind`), nodes that are back in service, or a hold that is released."""

    at: SecondsOrNone
    kind: TroubleKind | None = None
    why: str = ""
    node: str | None = None
    rank: Count | None = None
    signature: str = ""
    exit_code: int | None = None
    step: Count | None = None
    progress: Count | None = None
    alive: bool | None = None
    repeat: Annotated[int, Meta(ge=1, le=1000)] = 1
    every_s: Seconds = 60.0
    returned: tuple[str, ...] = ()
    released: bool = False

    def __post_init__(self) -> None:
        if (self.kind is not None) + bool(self.returned) + self.released != 1:
            raise ValueError("is one of: kind, returned, released")


class PolicyTestScenario(Struct, frozen=True):
    """A job on a cluster, and what happens to it. `pool`: nodes other than the job's and its
    spares."""

    nodes: Annotated[int, Meta(ge=1, le=10_000)]
    events: Annotated[tuple[PolicyScenarioEvent, ...], Meta(min_length=1, max_length=1000)]
    spares: Count = 0
    pool: Count | None = None
    names: tuple[str, ...] = ()
    process: bool = False
    requeue: bool = True
    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    remaining_s: SecondsOrNone = 7 * 86400.0
    restart_cost_s: SecondsOrNone = 120.0

    def __post_init__(self) -> None:
        known = self.cluster
        if len(known) < self.nodes + self.spares:
            raise ValueError(f"names has fewer than nodes + spares = {self.nodes + self.spares}")
        problems = []
        for number, event in enumerate(self.events, 1):
            named = (*event.returned, *filter(None, [event.node]))
            for name in named:
                if name not in known:
                    guess = yaml_files.suggest_similar_word(name, list(known))
                    problems.append(f"event {number}: there is no node {name!r}{guess}")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def cluster(self) -> tuple[NodeName, ...]:
        """Return all nodes: the job's, its spares, then the pool; n1, n2, ... where none are
        named."""
        pool = self.nodes if self.pool is None else self.pool
        count = self.nodes + self.spares + pool
        return tuple(map(NodeName, self.names or (f"n{i}" for i in range(1, count + 1))))


def read_policy_scenario(path: str | Path) -> PolicyTestScenario:
    """Read and validate a file. Raises InvalidPolicyScenarioError with every problem it has."""
    return parse_policy_scenario(
        yaml_files.read_size_limited_text(path, InvalidPolicyScenarioError), str(path)
    )


def parse_policy_scenario(text: str, place: str = "<text>") -> PolicyTestScenario:
    """Validate YAML text. Raises InvalidPolicyScenarioError with every problem it has."""
    return yaml_files.parse_yaml_struct(PolicyTestScenario, text, place, InvalidPolicyScenarioError)


class SimulatedEvent(Struct, frozen=True):
    """One event and what came of it. `nodes` is how many the run has afterwards, 0 for none."""

    at_s: float
    event: str
    node: str = ""
    rank: int | None = None
    action: str = "none"
    after_s: float = 0.0
    save_first_s: float = 0.0
    exclude: tuple[str, ...] = ()
    nodes: int = 0
    why: str = ""
    signature: str = ""


class _SimulatedJobRun(Struct):
    """The job between two events."""

    policy: RunPolicy
    scenario: PolicyTestScenario
    allocation: list[NodeName]
    running: list[NodeName]
    past: list[PastJobFailure] = field(default_factory=list)
    down: set[NodeName] = field(default_factory=set)
    returned: set[NodeName] = field(default_factory=set)
    over: str = ""


def simulate_policy_scenario(
    policy: RunPolicy, scenario: PolicyTestScenario
) -> tuple[SimulatedEvent, ...]:
    """Return the scenario's events in the order of their times, each with its answer. Pure."""
    size = scenario.nodes
    run = _SimulatedJobRun(
        policy,
        scenario,
        list(scenario.cluster[: size + scenario.spares]),
        list(scenario.cluster[:size]),
    )
    times = []
    for number, event in enumerate(scenario.events):
        for again in range(event.repeat):
            times.append((event.at + event.every_s * again, number, event))
    return tuple(
        _simulate_scenario_event(run, at, event)
        for at, _, event in sorted(times, key=lambda t: t[:2])
    )


def _simulate_scenario_event(
    run: _SimulatedJobRun, at_s: float, event: PolicyScenarioEvent
) -> SimulatedEvent:
    if event.returned:
        return _simulate_returned_nodes(run, at_s, event)
    if event.released:
        why = "nothing is held or has ended"
        if run.past and run.past[-1].action in STOPS:
            why, run.over = f"let go again: {run.over}", ""
            _simulate_new_allocation(run, ())
        return SimulatedEvent(at_s, "released", nodes=len(run.running), why=why)
    if run.over or event.kind is None:
        why = f"nothing runs: {run.over}"
        return SimulatedEvent(at_s, str(event.kind), event.node or "", event.rank, why=why)
    return _simulate_job_failure(run, at_s, event, event.kind)


def _simulate_job_failure(
    run: _SimulatedJobRun, at_s: float, event: PolicyScenarioEvent, kind: TroubleKind
) -> SimulatedEvent:
    now = run.scenario.start + timedelta(seconds=at_s)
    node = None if event.node is None else NodeName(event.node)
    if node is not None and kind is TroubleKind.NODE:
        run.down.add(node)
    trouble = Trouble(
        kind,
        now,
        event.why or event.signature or str(kind),
        event.signature,
        node,
        event.rank,
        exit_code=event.exit_code,
        step=event.step,
        progress=event.progress,
    )
    means = _find_restart_resources(run, event.alive)
    if node is not None:
        run.returned.discard(node)
    answer = decide_job_failure_action(run.policy, run.past, trouble, means, now)
    run.past.append(PastJobFailure(trouble, answer.action))
    if answer.action is RunAction.STEP:
        fit = [n for n in run.allocation if n not in run.down and n not in answer.exclude]
        stay = [n for n in fit if n in run.running]
        run.running = [*stay, *(n for n in fit if n not in stay)][: answer.size]
    elif answer.action is RunAction.REQUEUE or kind is TroubleKind.PREEMPTED:
        _simulate_new_allocation(run, answer.exclude)
    elif answer.action in STOPS:
        run.over, run.running = answer.why, []
    elif kind is TroubleKind.FINAL:
        run.over, run.running = "the run asked not to be run again", []
    waits = "" if run.running or run.over else "; the job waits in the queue for nodes"
    return SimulatedEvent(
        at_s,
        str(kind),
        event.node or "",
        event.rank,
        str(answer.action),
        answer.after_s,
        answer.save_first_s,
        answer.exclude,
        len(run.running),
        answer.why + waits,
        event.signature,
    )


def _find_restart_resources(run: _SimulatedJobRun, alive: bool | None) -> RestartResources:
    healthy = tuple(n for n in run.allocation if n not in run.down)
    return RestartResources(
        process=run.scenario.process and not run.down & set(run.running),
        step=bool(healthy),
        nodes=len(healthy),
        wanted=run.scenario.nodes,
        requeue=run.scenario.requeue,
        names=healthy,
        pool=sum(n not in run.down for n in run.scenario.cluster),
        healed=tuple(sorted(run.returned)),
        alive=alive,
    )


def _simulate_new_allocation(run: _SimulatedJobRun, exclude: Sequence[NodeName]) -> None:
    """Make a new allocation, as Slurm would give it: all nodes and spares, or at least enough."""
    fit = [n for n in run.scenario.cluster if n not in run.down and n not in exclude]
    size = run.scenario.nodes
    least = size if run.policy.nodes is None else min(size, run.policy.nodes[0])
    run.allocation = fit[: size + run.scenario.spares] if len(fit) >= least else []
    run.running = run.allocation[:size]


def _simulate_returned_nodes(
    run: _SimulatedJobRun, at_s: float, event: PolicyScenarioEvent
) -> SimulatedEvent:
    names = set(map(NodeName, event.returned))
    run.down -= names
    run.returned |= names
    action, why = _decide_use_of_returned_nodes(run)
    node = event.node or ",".join(event.returned)
    return SimulatedEvent(
        at_s, "returned", node, event.rank, action, nodes=len(run.running), why=why
    )


def _decide_use_of_returned_nodes(run: _SimulatedJobRun) -> tuple[str, str]:
    """Return what the run does with the nodes that are back, and why."""
    if not run.running and not run.over:
        _simulate_new_allocation(run, ())
        return "none", "the job that waited for nodes starts"
    have, size = len(run.running), run.scenario.nodes
    inside = min(size, len(_find_restart_resources(run, None).names))
    could = min(size, sum(n not in run.down for n in run.scenario.cluster))
    cost, left = run.scenario.restart_cost_s, run.scenario.remaining_s
    if not have or not is_restart_on_more_nodes_worthwhile(run.policy, have, could, left, cost):
        return "none", "nothing to do"
    how = "at its next checkpoint"
    if inside < could:
        # Slurm gives a running job no further node: it has to come back.
        _simulate_new_allocation(run, ())
        how += ", by a requeue"
    run.running = [n for n in run.allocation if n not in run.down][:could]
    return "grow", f"grows from {have} to {could} nodes {how}: the gain is worth the restart"


def count_simulated_restarts(entries: Sequence[SimulatedEvent]) -> int:
    """Return how many of the answers ran the program again."""
    return sum(one.action in RESTARTS for one in entries)
