"""`hpctl acceptance`: test nodes now, look at what tests have found, and search for the culprit."""

from __future__ import annotations

import json
import time
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node
from hpctl.engine.world import World
from hpctl.engine.world_reader import read_world_once
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import AgeCell, Column, Columns, JsonOnly, Layout, RowTable
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import BAD, GOOD
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.model import TEST, TEST_SUMMARY, DeviceVerdict
from hpctl.vocabulary.node_recovery import (
    MARKS,
    TEST_ASKS,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)

if TYPE_CHECKING:
    from hpctl.engine.config import Config
    from hpctl.engine.request_client import RequestsView
    from hpctl.vocabulary.recovery import RecoveryTransitionRecord


LOOK_S = 1.0


_RESULTS = {
    NodeRecoverySignal.TEST_PASSED: "passed",
    NodeRecoverySignal.UNTESTED: "untested",
    **dict.fromkeys(
        (NodeRecoverySignal.TEST_FAILED, NodeRecoverySignal.FAULT_AGAIN, *TEST_ASKS), "failed"
    ),
}


_WORDS = {
    DeviceVerdict.OK: "passed",
    DeviceVerdict.FAIL: "failed",
    DeviceVerdict.UNKNOWN: "skipped",
}


class AcceptanceCommandGroup(LazyCommandGroup):
    """What is no command is a node: `hpctl acceptance gpu-7` is `hpctl acceptance nodes gpu-7`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before click looks for a command."""
        if args and args[0] not in {*self.table, *ctx.help_option_names}:
            args = ["nodes", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=AcceptanceCommandGroup,
    table={
        "nodes": (
            "hpctl.nodes.acceptance.command:nodes",
            "Test idle nodes now; `nodes` may be left out.",
        ),
        "check": (
            "hpctl.nodes.acceptance.check_command:check",
            "Try whether acceptance.command runs, without testing.",
        ),
        "show": (
            "hpctl.nodes.acceptance.command:show",
            "What the newest test of a node has found.",
        ),
        "history": (
            "hpctl.nodes.acceptance.command:history",
            "Which nodes were tested, and how it ended.",
        ),
        "baseline": (
            "hpctl.nodes.acceptance.baseline_command:baseline",
            "What a healthy node must measure.",
        ),
        "culprit": (
            "hpctl.nodes.acceptance.culprit_command:culprit",
            "Name the node of a group that is slow or hangs.",
        ),
    },
)
def acceptance() -> None:
    """Test nodes, and see what tests have found (docs/acceptance.md)."""


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
    from hpctl.engine.request_client import (
        ANSWER_S,
        expand_hostlists,
        print_request_answers_and_exit,
        send_operator_requests,
    )

    loaded = config_loading.load_config(config)
    wanted = dict.fromkeys(expand_hostlists(names))
    view = send_operator_requests(loaded, f"accept-{level}", list(wanted), wait_s=ANSWER_S)
    if not wait:
        print_request_answers_and_exit(view, as_json, waited=True)
        return
    for row in view.requests:
        output.echo(f"hpctl: {row.target}: {row.answer or 'queued'}", err=True)
    ended = _wait_for_acceptance_tests(loaded, view)
    output.show_view("accept", AcceptancesView(output.get_current_utc_time(), ended), as_json)
    taken = all(row.ok for row in view.requests)
    passed = len(ended) == len(view.requests) and all(t.result == "passed" for t in ended)
    output.exit_with_code(ExitCode.FINE if taken and passed else ExitCode.PROBLEM)


def _wait_for_acceptance_tests(config: Config, view: RequestsView) -> tuple[AcceptanceView, ...]:
    """Return the tests that were begun, once all of them have ended."""
    begun = {NodeName(row.target): RecoveryId(row.answer.split()[1]) for row in view.requests
             if row.ok and len(row.answer.split()) > 1}  # fmt: skip
    while True:
        state = read_world_once(config, output.get_current_utc_time()).state
        recs = [state.nodes[rid] for rid in begun.values() if rid in state.nodes]
        if len(recs) == len(begun) and all(rec.ended for rec in recs):
            return tuple(chain.from_iterable(list_recovery_tests(rec)[-1:] for rec in recs))
        time.sleep(LOOK_S)


RESULT_STYLES = {"passed": GOOD, "failed": BAD, "untested": BAD}


class MeasuredView(Struct, frozen=True):
    """One test. `result`: passed, failed or skipped; `remedy`: what a failure asks for."""

    test: str
    result: str
    remedy: str
    reason: str
    figures: dict[str, float]

    columns: ClassVar[Columns] = (
        Column("TEST", "test"),
        Column("RESULT", "result", style=RESULT_STYLES),
        Column("REMEDY", "remedy"),
        Column("FIGURES", "figures_text", fold=True),
        Column("REASON", "reason", fold=True),
    )

    @property
    def figures_text(self) -> str:
        """Return `busbw=412 latency=11`."""
        return " ".join(f"{name}={value:g}" for name, value in self.figures.items())


class AcceptanceView(Struct, frozen=True):
    """One acceptance test of a node. `result`: passed, failed, untested, cancelled, or empty while
    it runs. `measured`: what the newest of its recovery found."""

    id: str
    recovery: str
    node: str
    after: str
    begun: datetime
    ended: datetime | None
    result: str
    why: str
    measured: tuple[MeasuredView, ...] = ()

    columns: ClassVar[Columns] = (
        Column("TEST", "id"),
        Column("NODE", "node"),
        Column("AFTER", "after"),
        Column("BEGUN", AgeCell("begun", suffix=" ago")),
        Column("RESULT", lambda test: test.result or "running", style=RESULT_STYLES),
        Column("WHY", "why", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("recovery", "ended", "measured")


class AcceptancesView(Struct, frozen=True):
    """What `hpctl acceptance show` and `hpctl acceptance history` print, the newest last."""

    as_of: datetime
    tests: tuple[AcceptanceView, ...]

    layout: ClassVar[Layout] = (RowTable("tests", otherwise="No node was tested."),)


class MeasuredTestsView(AcceptancesView, frozen=True):
    """The same for `hpctl acceptance show`, whose text has what each part of a test measured."""

    layout: ClassVar[Layout] = (
        *AcceptancesView.layout,
        RowTable(
            lambda view: list(chain.from_iterable(test.measured for test in view.tests)),
            title="Measured",
        ),
    )


def list_recovery_tests(rec: NodeRecovery) -> tuple[AcceptanceView, ...]:
    """Return the tests of one recovery, oldest first."""
    begun = [
        i for i, move in enumerate(rec.trail) if move.signal == NodeRecoverySignal.ACCEPTANCE_DUE
    ]
    found = []
    for number, i in enumerate(begun, 1):
        newest = number == len(begun)
        moves = rec.trail[i + 1 : None if newest else begun[number]]
        ends = [
            m for m in moves if m.phase == NodeRecoveryPhase.UNRESERVING and m.signal not in MARKS
        ]
        end = ends[-1] if ends else None
        found.append(
            _build_acceptance_test_view(rec, f"{rec.id}-{number}", rec.trail[i], end, newest)
        )
    return tuple(found)


def _build_acceptance_test_view(
    rec: NodeRecovery,
    name: str,
    due: RecoveryTransitionRecord,
    end: RecoveryTransitionRecord | None,
    newest: bool,
) -> AcceptanceView:
    result = "" if end is None else _RESULTS.get(NodeRecoverySignal(end.signal), "cancelled")
    return AcceptanceView(
        id=name,
        recovery=rec.id,
        node=rec.node,
        after=rec.rule,
        begun=due.at,
        ended=end.at if end else None,
        result=result,
        why=end.why if end else due.why,
        measured=_build_test_measurement_views(rec, name) if newest else (),
    )


def _build_test_measurement_views(rec: NodeRecovery, name: str) -> tuple[MeasuredView, ...]:
    rows = (f for f in rec.tests if f.device == name and f.check != TEST_SUMMARY)
    return tuple(
        MeasuredView(
            f.check.removeprefix(TEST),
            _WORDS.get(f.verdict, ""),
            f.code,
            f.detail,
            _parse_finding_evidence_figures(f.evidence),
        )
        for f in rows
    )


def _parse_finding_evidence_figures(evidence: str) -> dict[str, float]:
    """Return the numbers of a finding's JSON; none where a report was cut short."""
    try:
        found = json.loads(evidence or "{}")
    except ValueError:
        return {}
    return {k: v for k, v in found.items() if isinstance(v, int | float)} if found else {}


def make_acceptance_tests_view(w: World, wanted: str) -> AcceptancesView:
    """Return the tests of a node, of a recovery or with an id; of all where nothing is wanted."""
    found = list(chain.from_iterable(map(list_recovery_tests, w.state.nodes.values())))
    names = set(chain.from_iterable((t.node, t.recovery, t.id) for t in found))
    if wanted and wanted not in names:
        raise output.make_not_found_error("accept history", wanted, sorted(names))
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
    found = make_acceptance_tests_view(
        read_world_once(config_loading.load_config(config), output.get_current_utc_time()), target
    )
    view = MeasuredTestsView(found.as_of, found.tests[-1:])
    output.show_view("accept", view, as_json)
    output.exit_with_code(
        ExitCode.FINE if view.tests[0].result in ("passed", "") else ExitCode.PROBLEM
    )


@click.command()
@click.argument("node", metavar="[NODE]", default="", shell_complete=complete_node)
@output.json_option
@output.config_option
def history(node: str, config: str, as_json: bool) -> None:
    """Which nodes were tested, and how it ended."""
    view = make_acceptance_tests_view(
        read_world_once(config_loading.load_config(config), output.get_current_utc_time()), node
    )
    output.show_view("accept", view, as_json)
