"""`hpctl acceptance check`: whether acceptance.command runs on a node, before a node needs it."""

from __future__ import annotations

import shlex
from itertools import chain
from typing import TYPE_CHECKING

import click

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node
from hpctl.toolkit import output
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.checks_view import CheckView, DoctorView, choose_doctor_exit_code
from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from hpctl.engine.config import Config
    from hpctl.slurm.run import SlurmCommandRunner
    from hpctl.vocabulary.identity import NodeName
    from hpctl.vocabulary.slurm_facts import SchedulerView

OUR_TESTS = "hpctl.nodes.acceptance.run"
START_S = 60
"""How long the step may wait for its node."""
LIMIT_S = 90.0


def make_acceptance_check_script(command: str, level: str) -> str:
    """Return what a node's shell runs to try a command of hpctl's tests, or a site's own.

    hpctl's own prints which tests would run. Of a site's only the program is looked for, because
    hpctl does not know what its options do.
    """
    if OUR_TESTS in command:
        return f"exec {command} --level {level} --check"
    words = [word for word in shlex.split(command) if word != "env" and "=" not in word]
    return f"command -v {shlex.quote(words[0])}" if words else "exit 127"


def try_acceptance_command(
    runner: SlurmCommandRunner, node: str, level: str, command: str
) -> CheckView:
    """Run the check in a step on a node, and return what came of it. Raises nothing."""
    ran = runner.run(
        "srun",
        *("--nodes=1", "--ntasks=1", f"--nodelist={node}", f"--immediate={START_S}", "--quiet"),
        *("--time=2", "sh", "-c", make_acceptance_check_script(command, level)),
        timeout=LIMIT_S,
    )
    said = "; ".join(make_printable(ran.text, lines=True).split("\n")).strip("; ")
    if ran.ok:
        return CheckView(node, "ok", f"{level}: {said}", "")
    why = make_printable(" ".join(ran.message.split()))
    hint = f"fix acceptance.command ({command}), or install what it needs on the node"
    return CheckView(node, "fail", f"{level}: {why or 'it failed'}", hint)


@click.command()
@click.argument("names", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)
@click.option(
    "--level", type=click.Choice(["quick", "full"]), default="quick", show_default=True,
    help="Which tests.",
)  # fmt: skip
@output.json_option
@output.config_option
def check(names: tuple[str, ...], level: str, config: str, as_json: bool) -> None:
    """Try whether acceptance.command runs on nodes, without testing them.

    NODE may be a hostlist; without one an idle node is taken. Run it as the daemon's user. Exit
    code 1 where the command does not run.
    """
    from hpctl.engine.adapters import make_slurm_command_client
    from hpctl.engine.request_client import expand_hostlists

    loaded = config_loading.load_config(config)
    scheduler = make_slurm_command_client(loaded)
    named = dict.fromkeys(expand_hostlists(names))
    wanted = list(named) or [find_idle_node(scheduler.view())]
    command = loaded.acceptance.command
    rows = tuple(try_acceptance_command(scheduler.runner, node, level, command) for node in wanted)
    view = DoctorView(output.get_current_utc_time(), rows)
    output.show_view("doctor", view, as_json)
    output.exit_with_code(choose_doctor_exit_code(view))


def find_idle_node(view: SchedulerView) -> NodeName:
    """Return the first node that is idle and in service. Raises HpctlError where none is."""
    nodes = view.nodes.values()
    idle = sorted(n.name for n in nodes if n.state == "IDLE" and n.in_service and n.responding)
    if not idle:
        raise HpctlError(
            "cannot choose a node to test: no node is idle",
            "Name a node: `hpctl acceptance check NODE`.",
        )
    return idle[0]


def check_acceptance_command(config: Config, now: datetime) -> Iterator[CheckView]:
    """Check that the tests before nodes serve have run, and that the newest had a result.

    Raises HpctlError where the journal cannot be read.
    """
    from hpctl.engine.world_reader import read_world_once
    from hpctl.nodes.acceptance.command import list_recovery_tests

    if all(level == "off" for level in config.acceptance.levels):
        return
    recoveries = read_world_once(config, now).state.nodes.values()
    tests = chain.from_iterable(map(list_recovery_tests, recoveries))
    ended = [test for test in tests if test.result]
    if not ended:
        what = "no node has been tested yet: whether acceptance.command runs is not known"
        yield CheckView("acceptance", "warn", what, "hpctl acceptance check")
        return
    last = max(ended, key=lambda test: test.begun)
    if last.result == "untested":
        what = f"the newest test, of {last.node}, has no result: {last.why}"
        yield CheckView("acceptance", "fail", what, f"hpctl acceptance check {last.node}")
    else:
        yield CheckView("acceptance", "ok", f"the newest test: {last.node} {last.result}", "")
