"""`hpctl install` and `hpctl uninstall`: by hand what lifecycle scripts do at a node's birth."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import click
from msgspec import Struct

from hpctl.cli.doctor import check_configuration_file, run_doctor_checks
from hpctl.cli.install_layout import (
    InstallStep,
    InstallStepView,
    open_machine_at_root,
    run_install_steps,
)
from hpctl.cli.install_steps import (
    InstallOptions,
    list_daemon_slurm_user_steps,
    plan_install_steps,
    read_scheduler_parameters,
)
from hpctl.cli.uninstall_steps import plan_uninstall_steps
from hpctl.toolkit import output
from hpctl.toolkit.checks_view import CHECKLIST, CheckView, DoctorView, choose_doctor_exit_code
from hpctl.toolkit.declared_view import BlankLine, ItemTextLines, Layout, TextLine
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import DRY_RUN, ExitCode
from hpctl.toolkit.tables import BAD, GOOD, WARN, style_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.machine import Machine
    from rich.text import Text


PORT = 8470


STYLES = {"done": GOOD, "failed": BAD, "would": WARN, "skipped": WARN}


def _render_install_step(step: InstallStepView) -> Text:
    line = style_text(f"{step.state:8}", STYLES.get(step.state, ""))
    return line.append(f"  {step.name:14}{step.what}", "default")


class InstallView(Struct, frozen=True):
    """What was done, and what `hpctl doctor` says of it."""

    dry_run: bool
    steps: tuple[InstallStepView, ...]
    checks: tuple[CheckView, ...]

    layout: ClassVar[Layout] = (
        ItemTextLines("steps", _render_install_step, unbroken=True),
        TextLine(DRY_RUN, when="dry_run"),
        BlankLine(when="checks"),
        *CHECKLIST,
    )


_options = output.combine_click_options(
    click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing."),
    click.option(
        "--root",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        default=Path("/"),
        help="A machine's files below this directory (an image): nothing is started.",
    ),
    output.json_option,
)


_SLURM = click.option(
    "--slurm",
    is_flag=True,
    help="Also Slurm's plugins: on the head node EpilogSlurmctld and batch_sched_delay=0, where"
    " slurm.conf sets no EpilogSlurmctld or SchedulerParameters; --resilient, where it compiles.",
)


@click.group(short_help="Set this machine up by hand: head, node or login node.")
def install() -> None:
    """Set this machine up by hand: head, node or login node.

    Does what lifecycle scripts do at a node's birth. Each step looks first, so it may be run again;
    a configuration that is there stays as it is. Then the first `hpctl doctor`: its exit code.
    """


@install.command()
@click.option("--cluster", default="", help="The HyperPod cluster. Default: this node's own.")
@click.option("--region", default="", help="The cluster's region.")
@_SLURM
@click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="With --slurm: add batch_sched_delay=0 to the site's SchedulerParameters without asking.",
)
@_options
def head(
    cluster: str, region: str, slurm: bool, yes: bool, dry_run: bool, root: Path, as_json: bool
) -> None:
    """Install the daemon on a head node (controller)."""
    eager = slurm and _should_set_batch_sched_delay(
        _open_target_machine(root, dry_run), yes or dry_run
    )
    _install_machine_role(
        InstallOptions("head", cluster, region, slurm=slurm, eager=eager), dry_run, root, as_json
    )


def _should_set_batch_sched_delay(machine: Machine, agreed: bool) -> bool:
    """Return whether batch_sched_delay=0 is to be added to what a site has set; a person is
    asked."""
    parameters = read_scheduler_parameters(machine)
    if not parameters or agreed:
        return bool(parameters)
    question = (
        f"slurm.conf sets SchedulerParameters={parameters}. Add batch_sched_delay=0, so that a"
        " restarted job does not wait up to 3 s for slurmctld?"
    )
    return sys.stdin.isatty() and output.confirm(question)


@install.command("daemon-user")
@_options
def daemon_user(dry_run: bool, root: Path, as_json: bool) -> None:
    """Let the daemon of a head node run as SlurmUser.

    Says in its unit who that is, and has that user's group read hpctl.yaml and the daemon's
    secrets. Restarts nothing; `install head` does the same.
    """
    steps = list_daemon_slurm_user_steps(_open_target_machine(root, dry_run), [])
    _run_and_show_install_steps(steps, dry_run, as_json, lambda: ())


@install.command()
@click.option(
    "--head",
    default="",
    metavar="HOST",
    help=f"Where the daemon listens: HOST, HOST:PORT ({PORT}) or URL; several by commas."
    " Default: what agent.env says.",
)
@_SLURM
@_options
def node(head: str, slurm: bool, dry_run: bool, root: Path, as_json: bool) -> None:
    """Install the agent on a compute node."""
    urls = ",".join(_parse_head_node_url(one) for one in head.split(",") if one.strip())
    _install_machine_role(InstallOptions("node", head=urls, slurm=slurm), dry_run, root, as_json)


@install.command()
@_SLURM
@_options
def login(slurm: bool, dry_run: bool, root: Path, as_json: bool) -> None:
    """Put hpctl into every user's PATH on a login node."""
    _install_machine_role(InstallOptions("login", slurm=slurm), dry_run, root, as_json)


@click.command()
@click.option("--purge", is_flag=True, help="Remove the journal, configuration and logs as well.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_options
def uninstall(purge: bool, yes: bool, dry_run: bool, root: Path, as_json: bool) -> None:
    """Undo `hpctl install` on this machine.

    Journal and configuration stay, unless --purge: a later daemon continues recoveries that are
    open. Nodes that hpctl drained stay drained.
    """
    machine = _open_target_machine(root, dry_run)
    if not (yes or dry_run):
        what = (
            " with its journal and configuration" if purge else "; journal and configuration stay"
        )
        output.confirm(f"Remove hpctl from this machine{what}?", abort=True)
    _run_and_show_install_steps(plan_uninstall_steps(machine, purge), dry_run, as_json, lambda: ())


def _parse_head_node_url(head: str) -> str:
    """`HOST` or `HOST:PORT` as the agent's URL."""
    text = head.strip().rstrip("/")
    if "://" in text:
        return text
    return f"http://{text}" if ":" in text else f"http://{text}:{PORT}"


def _open_target_machine(root: Path, dry_run: bool) -> Machine:
    if os.geteuid() != 0 and root == Path("/") and not dry_run:
        raise HpctlError(
            "only root can install hpctl on this machine",
            "run the same command with sudo, or with --dry-run to see what it would change",
        )
    return open_machine_at_root(root)


def _install_machine_role(wish: InstallOptions, dry_run: bool, root: Path, as_json: bool) -> None:
    machine = _open_target_machine(root, dry_run)
    looks = (lambda: ()) if dry_run or not machine.running else (lambda: _check_installation(wish))
    _run_and_show_install_steps(plan_install_steps(machine, wish), dry_run, as_json, looks)


def _run_and_show_install_steps(
    steps: Iterator[InstallStep],
    dry_run: bool,
    as_json: bool,
    looks: Callable[[], tuple[CheckView, ...]],
) -> None:
    taken = tuple(run_install_steps(steps, dry_run))
    failed = any(step.state == "failed" for step in taken)
    view = InstallView(dry_run, taken, () if failed else looks())
    output.show_view("install", view, as_json)
    found = choose_doctor_exit_code(DoctorView(output.get_current_utc_time(), view.checks))
    output.exit_with_code(ExitCode.PROBLEM if failed else found)


def _check_installation(wish: InstallOptions) -> tuple[CheckView, ...]:
    """Check what was set up: all of `hpctl doctor` on a head node, else what it needs."""
    now = output.get_current_utc_time()
    if wish.role == "head":
        config, first = check_configuration_file(output.DEFAULT_CONFIG)
        return (first, *run_doctor_checks(config, now))
    heads = [_check_head_daemon_connection(url) for url in wish.head.split(",") if url]
    return (*run_doctor_checks(None, now), *heads)


def _check_head_daemon_connection(url: str) -> CheckView:
    """Return whether a daemon listens there."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or PORT), timeout=5).close()
    except OSError as error:
        hint = "install the daemon there, and let this node reach its port"
        return CheckView("head", "fail", f"no daemon listens at {url}: {error}", hint)
    return CheckView("head", "ok", f"a daemon listens at {url}", "")
