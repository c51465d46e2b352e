"""`hpctl accept`: test nodes now, look at what tests have found, and search for the culprit."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.cli import output
from hpctl.cli.arguments import complete_node
from hpctl.cli.gather import World, gather
from hpctl.cli.lazy import LazyGroup
from hpctl.cli.output import Exit
from hpctl.cli.tables import BAD, GOOD, ago, heading, styled, table, wrapped
from hpctl.core.acceptance import NO_FLOORS, PEERS, Floors, explain_slow, limits, measured, slow
from hpctl.core.culprit import Group, NextRound, Round, failed, most_rounds, search
from hpctl.core.culprit import SearchResult as Found
from hpctl.core.hostlist import HostlistError, expand, fold
from hpctl.core.model import TEST, TEST_SUMMARY, NodeName, RecoveryId, Verdict
from hpctl.core.node_recovery import MARKS, TEST_ASKS, NodePhase, NodeRecovery, NodeSignal
from hpctl.errors import HpctlError, Unavailable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from hpctl.acceptance.result import Result
    from hpctl.cli.requests import RequestsView
    from hpctl.config import Config
    from hpctl.core.recovery import Trail
    from hpctl.core.view import View
    from hpctl.slurm.cli import CliScheduler

LOOK_S = 1.0
_RESULTS = {
    NodeSignal.TEST_PASSED: "passed",
    NodeSignal.UNTESTED: "untested",
    **dict.fromkeys((NodeSignal.TEST_FAILED, NodeSignal.FAULT_AGAIN, *TEST_ASKS), "failed"),
}
_WORDS = {Verdict.OK: "passed", Verdict.FAIL: "failed", Verdict.UNKNOWN: "skipped"}


class AcceptGroup(LazyGroup):
    """What is no command is a node: `hpctl accept gpu-7` is `hpctl accept nodes gpu-7`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Before click looks for a command."""
        if args and args[0] not in {*self.table, *ctx.help_option_names}:
            args = ["nodes", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=AcceptGroup,
    table={
        "nodes": ("hpctl.cli.accept:nodes", "Test idle nodes now; `nodes` may be left out."),
        "show": ("hpctl.cli.accept:show", "What the newest test of a node has found."),
        "history": ("hpctl.cli.accept:history", "Which nodes were tested, and how it ended."),
        "baseline": ("hpctl.cli.accept:baseline", "What a healthy node must measure."),
        "culprit": ("hpctl.cli.accept:culprit", "Name the node of a group that is slow or hangs."),
    },
)
def accept() -> None:
    """Test nodes, and see what tests have found (docs/acceptance.md)."""


# --- ask for tests ----------------------------------------------------------------------------


@click.command()
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@click.option(
    "--level", type=click.Choice(["quick", "full"]), default="quick", show_default=True,
    help="Which tests.",
)  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait until every test has ended: exit 1 if one failed.")
@output.json_option
@output.config_option
def nodes(names: tuple[str, ...], level: str, wait: bool, config: str, as_json: bool) -> None:
    """Test idle nodes now.

    NODE may be a hostlist. A node on which a job runs is refused: ask again when it has ended. The
    node is drained for a moment and then tested in a reservation; one that fails stays drained.
    """
    from hpctl.cli.requests import ANSWER_S, ask, hosts, report

    loaded = output.load_config(config)
    wanted = dict.fromkeys(name for target in names for name in hosts(target))
    view = ask(loaded, f"accept-{level}", list(wanted), wait_s=ANSWER_S)
    if not wait:
        report(view, as_json, waited=True)
        return
    for row in view.requests:
        output.echo(f"hpctl: {row.target}: {row.answer or 'queued'}", err=True)
    ended = _ended(loaded, view)
    output.show("accept", AcceptancesView(output.now(), ended), as_json, draw_history)
    taken = all(row.ok for row in view.requests)
    passed = len(ended) == len(view.requests) and all(t.result == "passed" for t in ended)
    output.leave(Exit.FINE if taken and passed else Exit.PROBLEM)


def _ended(config: Config, view: RequestsView) -> tuple[AcceptanceView, ...]:
    """The tests that were begun, once all of them have ended."""
    begun = {NodeName(row.target): RecoveryId(row.answer.split()[1]) for row in view.requests
             if row.ok and len(row.answer.split()) > 1}  # fmt: skip
    while True:
        state = gather(config, output.now()).state
        recs = [state.nodes[rid] for rid in begun.values() if rid in state.nodes]
        if all(rec.ended for rec in recs):
            return tuple(t for rec in recs for t in tests_of(rec)[-1:])
        time.sleep(LOOK_S)


# --- what they found --------------------------------------------------------------------------


class MeasuredView(Struct, frozen=True):
    """One test. `result`: passed, failed or skipped; `remedy`: what a failure asks for."""

    test: str
    result: str
    remedy: str
    reason: str
    figures: dict[str, float]


class AcceptanceView(Struct, frozen=True):
    """One acceptance test of a node. `result`: passed, failed, untested, cancelled, or empty while
    it goes on. `measured`: what the newest of its recovery found."""

    id: str
    recovery: str
    node: str
    after: str
    begun: datetime
    ended: datetime | None
    result: str
    why: str
    measured: tuple[MeasuredView, ...] = ()


class AcceptancesView(Struct, frozen=True):
    """What `hpctl accept show` and `hpctl accept history` print, the newest last."""

    as_of: datetime
    tests: tuple[AcceptanceView, ...]


def tests_of(rec: NodeRecovery) -> tuple[AcceptanceView, ...]:
    """The tests of one recovery, oldest first."""
    begun = [i for i, move in enumerate(rec.trail) if move.signal == NodeSignal.ACCEPTANCE_DUE]
    found = []
    for number, i in enumerate(begun, 1):
        newest = number == len(begun)
        moves = rec.trail[i + 1 : None if newest else begun[number]]
        ends = [m for m in moves if m.phase == NodePhase.UNRESERVING and m.signal not in MARKS]
        end = ends[-1] if ends else None
        found.append(_test(rec, f"{rec.id}-{number}", rec.trail[i], end, newest))
    return tuple(found)


def _test(
    rec: NodeRecovery, name: str, due: Trail, end: Trail | None, newest: bool
) -> AcceptanceView:
    result = "" if end is None else _RESULTS.get(NodeSignal(end.signal), "cancelled")
    return AcceptanceView(
        id=name,
        recovery=rec.id,
        node=rec.node,
        after=rec.rule,
        begun=due.at,
        ended=end.at if end else None,
        result=result,
        why=end.why if end else due.why,
        measured=_measured(rec, name) if newest else (),
    )


def _measured(rec: NodeRecovery, name: str) -> tuple[MeasuredView, ...]:
    rows = (f for f in rec.tests if f.device == name and f.check != TEST_SUMMARY)
    return tuple(
        MeasuredView(
            f.check.removeprefix(TEST),
            _WORDS.get(f.verdict, ""),
            f.code,
            f.detail,
            _figures(f.evidence),
        )
        for f in rows
    )


def _figures(evidence: str) -> dict[str, float]:
    """The numbers of a finding's JSON; none where a report was cut short."""
    try:
        found = json.loads(evidence or "{}")
    except ValueError:
        return {}
    return {k: v for k, v in found.items() if isinstance(v, int | float)} if found else {}


def tests_view(w: World, wanted: str) -> AcceptancesView:
    """The tests of a node, of a recovery or with an id; of all where nothing is wanted."""
    found = [t for rec in w.state.nodes.values() for t in tests_of(rec)]
    names = {name for t in found for name in (t.node, t.recovery, t.id)}
    if wanted and wanted not in names:
        raise output.no_such("accept history", wanted, sorted(names))
    chosen = (t for t in found if wanted in ("", t.node, t.recovery, t.id))
    return AcceptancesView(w.now, tuple(sorted(chosen, key=lambda t: t.begun)))


@click.command()
@click.argument("target", metavar="NODE|ID", shell_complete=complete_node)
@output.json_option
@output.config_option
def show(target: str, config: str, as_json: bool) -> None:
    """What the newest test of a node has found.

    Exit code 1 where it failed or came to no result.
    """
    found = tests_view(gather(output.load_config(config), output.now()), target)
    view = AcceptancesView(found.as_of, found.tests[-1:])
    output.show("accept", view, as_json, draw_show)
    output.leave(Exit.FINE if view.tests[0].result in ("passed", "") else Exit.PROBLEM)


@click.command()
@click.argument("node", metavar="[NODE]", default="", shell_complete=complete_node)
@output.json_option
@output.config_option
def history(node: str, config: str, as_json: bool) -> None:
    """Which nodes were tested, and how it ended."""
    view = tests_view(gather(output.load_config(config), output.now()), node)
    output.show("accept", view, as_json, draw_history)


def draw_history(out: Console, view: AcceptancesView) -> None:
    """One line a test."""
    if not view.tests:
        out.print("No node was tested.")
        return
    heads = ("TEST", "NODE", "AFTER", "BEGUN", "RESULT", wrapped("WHY"))
    rows = [
        (t.id, t.node, t.after, ago(t.begun, view.as_of), _colored(t.result or "running"), t.why)
        for t in view.tests
    ]
    table(out, heads, rows)


def draw_show(out: Console, view: AcceptancesView) -> None:
    """One test, and what each part of it measured."""
    draw_history(out, view)
    rows = []
    for m in (m for t in view.tests for m in t.measured):
        figures = " ".join(f"{name}={value:g}" for name, value in m.figures.items())
        rows.append((m.test, _colored(m.result), m.remedy, figures, m.reason))
    if rows:
        heading(out, "Measured")
        table(out, ("TEST", "RESULT", "REMEDY", wrapped("FIGURES"), wrapped("REASON")), rows)


def _colored(result: str) -> Text:
    return styled(result, {"passed": GOOD, "failed": BAD, "untested": BAD}.get(result, ""))


class LimitView(Struct, frozen=True):
    """One limit. `by`: fleet, or where the floor is from: measured, published, data sheet or site.

    `median` and `mad` over `nodes`, 0 for a floor. `expected`: what a healthy card gives in this
    test, `source`: who says so; 0 and empty but for a card's floor.
    """

    instance_type: str
    test: str
    figure: str
    limit: float
    by: str
    median: float
    mad: float
    nodes: int
    card: str = ""
    expected: float = 0.0
    source: str = ""


class SlowView(Struct, frozen=True):
    """A node that is slow by its latest tests. `sure`: it is no noise."""

    node: str
    test: str
    figure: str
    value: float
    sure: bool
    why: str


class BaselineView(Struct, frozen=True):
    """The limits, and the nodes whose latest tests are not within them."""

    limits: tuple[LimitView, ...]
    slow: tuple[SlowView, ...]


@click.command()
@output.json_option
@output.config_option
def baseline(config: str, as_json: bool) -> None:
    """What a healthy node must measure.

    By instance type and GPU: the median of the nodes that passed their tests, less a margin by its
    spread. Where fewer than five nodes were tested, and below that median, the card's floor counts
    (docs/cards.md), or that of `acceptance.floors`.
    """
    from hpctl.cli.gather import gather

    loaded = output.load_config(config)
    world = gather(loaded, output.now(), cloud=True)
    view = baseline_view(world.view(), loaded.acceptance.floors)
    output.show("accept-baseline", view, as_json, draw_baseline)


def baseline_view(view: View, site: Floors = NO_FLOORS) -> BaselineView:
    """The limits by what is on record and by the floors, and the nodes that miss them."""
    runs = measured(view)
    known = limits(runs, site)
    rows = [
        LimitView(
            instance_type=k.instance_type,
            test=k.test,
            figure=k.figure,
            limit=k.limit,
            by=k.by,
            median=k.median,
            mad=k.mad,
            nodes=k.nodes,
            card=k.card,
            expected=k.expected,
            source=k.source,
        )
        for k in known
    ]
    nodes = sorted({run.node for run in runs})
    behind = [
        SlowView(node, s.limit.test, s.limit.figure, s.value, not s.again, explain_slow([s]))
        for node in nodes
        for s in slow([run for run in runs if run.node == node], known)
    ]
    return BaselineView(tuple(rows), tuple(behind))


def draw_baseline(out: Console, view: BaselineView) -> None:
    """One line a limit, one line a node that is slow."""
    if not view.limits:
        out.print(f"No limits yet: fewer than {PEERS} nodes of a type have passed their tests.")
        return
    heads = ("TYPE", "CARD", "TEST", "FIGURE", "LIMIT", "MEDIAN", "MAD", "NODES", "BY")
    rows = [
        (
            k.instance_type,
            k.card,
            k.test,
            k.figure,
            f"{k.limit:.4g}",
            f"{k.median:.4g}",
            f"{k.mad:.2g}",
            k.nodes,
            k.by,
        )
        for k in view.limits
    ]
    table(out, heads, rows)
    if view.slow:
        heading(out, "Slow")
        sure = {True: "slow", False: "may be"}
        table(
            out,
            ("NODE", "SURE", wrapped("WHY")),
            [(s.node, sure[s.sure], s.why) for s in view.slow],
        )


PORTS = range(29500, 31500)
LIMIT_S = 120.0
LEVEL = "group"


class GroupTestView(Struct, frozen=True):
    """One group test: `round` from 1, `figure` in the test's own unit, None where it failed."""

    round: int
    nodes: str
    failed: bool
    figure: float | None
    why: str


class CulpritView(Struct, frozen=True):
    """A search. `beliefs`: how likely each of the nodes is bad, by all tests."""

    culprits: tuple[str, ...]
    rounds: int
    beliefs: dict[str, float]
    tests: tuple[GroupTestView, ...]


@click.command()
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@click.option(
    "--healthy", "partners", multiple=True, metavar="NODE", shell_complete=complete_node,
    help="A partner that is not suspected; repeatable.",
)  # fmt: skip
@click.option("--reservation", metavar="NAME", help="Slurm reservation to run in.")
@click.option("--partition", metavar="NAME", help="Slurm partition to run in.")
@click.option("--srun-option", multiple=True, metavar="OPTION", help="A further option of srun.")
@click.option(
    "--timeout", type=click.FloatRange(10, 3600), default=LIMIT_S, metavar="SECONDS",
    show_default=True, help="How long a round may take: what takes longer hangs.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the groups of the first round; run nothing.")
@output.json_option
@output.config_option
def culprit(
    names: tuple[str, ...],
    partners: tuple[str, ...],
    reservation: str | None,
    partition: str | None,
    srun_option: tuple[str, ...],
    timeout: float,
    dry_run: bool,
    config: str,
    as_json: bool,
) -> None:
    """Name the node of a group that is slow or hangs.

    Runs the tests of level `group` on pairs of the nodes, then on halves, each as a Slurm job of
    its own that needs whole nodes: at most log2(n) + 2 rounds. NODE may be a hostlist. It drains
    nothing. Exit code: 0 nobody is named, 1 a culprit is, 3 the tests cannot run.
    """
    from hpctl.wiring import make_scheduler

    suspects, healthy = _nodes(names), _nodes(partners)
    if len({*suspects, *healthy}) < 2:
        raise click.UsageError("one node is not enough: add partners with --healthy")
    places = {"reservation": reservation, "partition": partition}
    options = [f"--{name}={value}" for name, value in places.items() if value]
    tester = _Tester(
        make_scheduler(output.load_config(config)), (*options, *srun_option), timeout,
        (*suspects, *healthy),
    )  # fmt: skip
    done: list[Round] = []
    tests: list[GroupTestView] = []
    while not isinstance(step := search(suspects, done, healthy), Found):
        most = most_rounds(len({*suspects, *healthy}))
        groups = ", ".join(fold(group) for group in step.groups)
        output.echo(f"round {step.number} of at most {most}: {groups}", err=True)
        if dry_run:
            return
        round_, views = tester.round(step)
        done.append(round_)
        tests += views
        for view in views:
            if view.failed:
                output.echo(f"  {view.nodes}: {view.why or f'slow: {view.figure:.4g}'}", err=True)
    beliefs = {str(node): round(p, 6) for node, p in step.beliefs.items()}
    found = CulpritView(tuple(map(str, step.culprits)), step.rounds, beliefs, tuple(tests))
    output.show("accept-culprit", found, as_json, draw_culprit)
    output.leave(Exit.PROBLEM if found.culprits else Exit.FINE)


def _nodes(names: Sequence[str]) -> tuple[NodeName, ...]:
    try:
        return tuple(dict.fromkeys(NodeName(n) for text in names for n in expand(text)))
    except HostlistError as error:
        raise HpctlError(str(error), "Write gpu-1 gpu-2, or gpu-[1-32].") from error


class _Tester:
    """Runs the groups of a round side by side."""

    def __init__(
        self,
        scheduler: CliScheduler,
        options: Sequence[str],
        limit_s: float,
        nodes: Sequence[NodeName],
    ) -> None:
        from hpctl.slurm.read import Reader

        self._runner, self._options, self._limit_s = scheduler.runner, tuple(options), limit_s
        known = Reader(scheduler.runner, output.now).nodes(nodes)
        for node in nodes:
            if node not in known:
                raise HpctlError(f"Slurm has no node {node}", "`hpctl nodes` lists what there is.")
        self._addresses = {name: node.address or str(name) for name, node in known.items()}

    def round(self, asked: NextRound) -> tuple[Round, list[GroupTestView]]:
        """Every group's result. Raises Unavailable where no group can be tested at all."""
        with ThreadPoolExecutor(len(asked.groups)) as pool:
            measured = dict(zip(asked.groups, pool.map(self._test, asked.groups), strict=True))
        reasons = {why for _, why, ran in measured.values() if not ran}
        if not any(ran for _, _, ran in measured.values()):
            raise Unavailable(
                f"no group could be tested: {'; '.join(sorted(reasons))[:300]}",
                "The nodes must be idle, and HPCTL_TEST_PYTHON have torch (docs/acceptance.md).",
            )
        results = failed({group: figure for group, (figure, _, _) in measured.items()})
        views = [
            GroupTestView(
                asked.number, fold(r.nodes), r.failed, measured[r.nodes][0], measured[r.nodes][1]
            )
            for r in results
        ]
        return results, views

    def _test(self, group: Group) -> tuple[float | None, str, bool]:
        """Its figure, why it has none, and whether it was tested at all."""
        from hpctl.acceptance.run import on_nodes, passed_on, worst

        digest = hashlib.blake2b(",".join(group).encode(), digest_size=4).digest()
        port = PORTS[int.from_bytes(digest, "big") % len(PORTS)]
        environ = passed_on() | {
            "HPCTL_GROUP_HEAD": self._addresses[group[0]],
            "HPCTL_GROUP_PORT": str(port),
        }
        seconds = int(self._limit_s)
        limits = (f"--immediate={seconds}", "--exclusive", "--job-name=hpctl-culprit")
        found, error = on_nodes(
            self._runner, group, LEVEL, self._limit_s, (*limits, *self._options), environ
        )
        results = [each for node in group for each in found.get(node, ())]
        if why := worst(results):
            return None, why, True
        if all(each.status == "Skipped" for each in results) and (results or error):
            return None, results[0].reason if results else error, False
        if silent := [node for node in group if node not in found]:
            return None, f"no result of {fold(silent)}: {error or 'its test ended without'}", True
        return _slowest(results), "", True


def _slowest(results: Sequence[Result]) -> float:
    """The first figure of the first test that has one, of the node where it is the least."""
    figures: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for name, value in result.figures.items():
            figures.setdefault((result.test, name), []).append(value)
    return min(next(iter(figures.values()), [1.0]))


def draw_culprit(out: Console, view: CulpritView) -> None:
    """The verdict, and who else is not cleared."""
    if view.culprits:
        out.print(f"culprit: {', '.join(view.culprits)} ({view.rounds} rounds)")
    else:
        out.print(f"no culprit: the tests name no node ({view.rounds} rounds)")
    rest = {n: p for n, p in view.beliefs.items() if p > 0.1 and n not in view.culprits}
    for node, likely in sorted(rest.items(), key=lambda pair: -pair[1]):
        out.print(f"not cleared: {node} ({likely:.0%})")
