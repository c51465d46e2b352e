"""`hpctl acceptance culprit`: search a group for the node that is slow or hangs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node
from hpctl.nodes.culprit import CulpritSearchResult as Found
from hpctl.nodes.culprit import (
    Group,
    NextTestRound,
    Round,
    compute_max_test_rounds,
    make_group_test_results,
    search_culprits,
)
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import ItemTextLines, JsonOnly, Layout, TextLine
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist, fold_hostlist
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.identity import NodeName

if TYPE_CHECKING:
    from hpctl.nodes.acceptance.result import AcceptanceTestResult
    from hpctl.slurm.cli import CliScheduler


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


class CulpritSearchView(Struct, frozen=True):
    """A search. `beliefs`: how likely each of the nodes is bad, by all tests."""

    culprits: tuple[str, ...]
    rounds: int
    beliefs: dict[str, float]
    tests: tuple[GroupTestView, ...]

    layout: ClassVar[Layout] = (
        TextLine("{verdict} ({rounds} rounds)"),
        ItemTextLines("uncleared_node_probabilities", "not cleared: {}"),
    )
    json_only: ClassVar[JsonOnly] = ("tests",)

    @property
    def verdict(self) -> str:
        """Return the nodes that the tests name."""
        if self.culprits:
            return f"culprit: {', '.join(self.culprits)}"
        return "no culprit: the tests name no node"

    @property
    def uncleared_node_probabilities(self) -> list[str]:
        """Return the other nodes that may be bad, and how likely, the likeliest first."""
        rest = {n: p for n, p in self.beliefs.items() if p > 0.1 and n not in self.culprits}
        ordered = sorted(rest.items(), key=lambda pair: -pair[1])
        return [f"{node} ({likely:.0%})" for node, likely in ordered]


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
    nothing. Exit code: 0 no node is named, 1 a culprit is, 3 the tests cannot run.
    """
    from hpctl.engine.adapters import make_slurm_command_client

    suspects, healthy = _parse_nodes(names), _parse_nodes(partners)
    if len({*suspects, *healthy}) < 2:
        raise click.UsageError(
            "cannot find the faulty node among one node: add healthy nodes to test it with, in "
            "--healthy NODES"
        )
    places = {"reservation": reservation, "partition": partition}
    options = [f"--{name}={value}" for name, value in places.items() if value]
    tester = _CulpritGroupTester(
        make_slurm_command_client(config_loading.load_config(config)),
        (*options, *srun_option),
        timeout,
        (*suspects, *healthy),
    )
    done: list[Round] = []
    tests: list[GroupTestView] = []
    while not isinstance(step := search_culprits(suspects, done, healthy), Found):
        most = compute_max_test_rounds(len({*suspects, *healthy}))
        groups = ", ".join(fold_hostlist(group) for group in step.groups)
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
    found = CulpritSearchView(tuple(map(str, step.culprits)), step.rounds, beliefs, tuple(tests))
    output.show_view("accept-culprit", found, as_json)
    output.exit_with_code(ExitCode.PROBLEM if found.culprits else ExitCode.FINE)


def _parse_nodes(names: Sequence[str]) -> tuple[NodeName, ...]:
    try:
        nodes = map(NodeName, chain.from_iterable(map(expand_hostlist, names)))
        return tuple(dict.fromkeys(nodes))
    except HostlistError as error:
        raise HpctlError(str(error), "Write gpu-1 gpu-2, or gpu-[1-32].") from error


class _CulpritGroupTester:
    """The runner of the groups of a round, in parallel."""

    def __init__(
        self,
        scheduler: CliScheduler,
        options: Sequence[str],
        limit_s: float,
        nodes: Sequence[NodeName],
    ) -> None:
        from hpctl.slurm.read import SlurmCommandReader

        self._runner, self._options, self._limit_s = scheduler.runner, tuple(options), limit_s
        known = SlurmCommandReader(scheduler.runner, output.get_current_utc_time).nodes(nodes)
        for node in nodes:
            if node not in known:
                raise HpctlError(f"Slurm has no node {node}", "`hpctl nodes` lists the nodes.")
        self._addresses = {name: node.address or str(name) for name, node in known.items()}

    def round(self, asked: NextTestRound) -> tuple[Round, list[GroupTestView]]:
        """Return every group's result. Raise Unavailable where no group can be tested at all."""
        with ThreadPoolExecutor(len(asked.groups)) as pool:
            measured = dict(
                zip(asked.groups, pool.map(self._test_node_group, asked.groups), strict=True)
            )
        reasons = {why for _, why, ran in measured.values() if not ran}
        if not any(ran for _, _, ran in measured.values()):
            raise ServiceUnavailable(
                f"hpctl could not test any group of the nodes: {'; '.join(sorted(reasons))[:300]}",
                "Check that the nodes are idle and that the Python in HPCTL_TEST_PYTHON has torch "
                "(docs/acceptance.md).",
            )
        results = make_group_test_results(
            {group: figure for group, (figure, _, _) in measured.items()}
        )
        views = [
            GroupTestView(
                asked.number,
                fold_hostlist(r.nodes),
                r.failed,
                measured[r.nodes][0],
                measured[r.nodes][1],
            )
            for r in results
        ]
        return results, views

    def _test_node_group(self, group: Group) -> tuple[float | None, str, bool]:
        """Test a group and return its figure, why it has none, and whether it was tested at all."""
        from hpctl.nodes.acceptance.run import (
            run_acceptance_tests_on_nodes,
            select_forwarded_environment_variables,
            summarize_failed_tests,
        )

        digest = hashlib.blake2b(",".join(group).encode(), digest_size=4).digest()
        port = PORTS[int.from_bytes(digest, "big") % len(PORTS)]
        environ = select_forwarded_environment_variables() | {
            "HPCTL_GROUP_HEAD": self._addresses[group[0]],
            "HPCTL_GROUP_PORT": str(port),
        }
        seconds = int(self._limit_s)
        limits = (f"--immediate={seconds}", "--exclusive", "--job-name=hpctl-culprit")
        found, error = run_acceptance_tests_on_nodes(
            self._runner, group, LEVEL, self._limit_s, (*limits, *self._options), environ
        )
        results = list(chain.from_iterable(found.get(node, ()) for node in group))
        why = summarize_failed_tests(results)
        if why:
            return None, why, True
        if all(each.status == "Skipped" for each in results) and (results or error):
            return None, results[0].reason if results else error, False
        silent = [node for node in group if node not in found]
        if silent:
            return (
                None,
                f"no result of {fold_hostlist(silent)}: {error or 'its test ended without'}",
                True,
            )
        return _find_slowest_figure(results), "", True


def _find_slowest_figure(results: Sequence[AcceptanceTestResult]) -> float:
    """Return the first figure of the first test that has one, of the node where it is the least."""
    figures: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for name, value in result.figures.items():
            figures.setdefault((result.test, name), []).append(value)
    return min(next(iter(figures.values()), [1.0]))
