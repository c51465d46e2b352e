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

from hpctl.cli.doctor import examine, read_config
from hpctl.cli.install_layout import Step, StepView, machine_at, walk
from hpctl.cli.install_steps import Wish, for_slurms_user, installing, site_parameters
from hpctl.cli.uninstall_steps import uninstalling
from hpctl.toolkit import output
from hpctl.toolkit.checks_view import CHECKLIST, CheckView, DoctorView, verdict
from hpctl.toolkit.declared_view import Blank, Layout, Line, Lines
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import DRY_RUN, Exit
from hpctl.toolkit.tables import BAD, GOOD, WARN, styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.machine import Machine
    from rich.text import Text


PORT = 8470


STYLES = {"done": GOOD, "failed": BAD, "would": WARN, "skipped": WARN}


def _step(step: StepView) -> Text:
    line = styled(f"{step.state:8}", STYLES.get(step.state, ""))
    return line.append(f"  {step.name:14}{step.what}", "default")


class InstallView(Struct, frozen=True):
    """What was done, and what doctor says of it."""

    dry_run: bool
    steps: tuple[StepView, ...]
    checks: tuple[CheckView, ...]

    layout: ClassVar[Layout] = (
        Lines("steps", _step, unbroken=True),
        Line(DRY_RUN, when="dry_run"),
        Blank(when="checks"),
        *CHECKLIST,
    )


_options = output.together(
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
    eager = slurm and _wants_delay(_machine(root, dry_run), yes or dry_run)
    _install(Wish("head", cluster, region, slurm=slurm, eager=eager), dry_run, root, as_json)


def _wants_delay(machine: Machine, agreed: bool) -> bool:
    """Whether batch_sched_delay=0 is to be added to what a site has set; a person is asked."""
    parameters = site_parameters(machine)
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
    steps = for_slurms_user(_machine(root, dry_run), [])
    _show(steps, dry_run, as_json, lambda: ())


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
    urls = ",".join(_url(one) for one in head.split(",") if one.strip())
    _install(Wish("node", head=urls, slurm=slurm), dry_run, root, as_json)


@install.command()
@_SLURM
@_options
def login(slurm: bool, dry_run: bool, root: Path, as_json: bool) -> None:
    """Put hpctl into every user's PATH on a login node."""
    _install(Wish("login", slurm=slurm), dry_run, root, as_json)


@click.command()
@click.option("--purge", is_flag=True, help="Remove the journal, configuration and logs as well.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_options
def uninstall(purge: bool, yes: bool, dry_run: bool, root: Path, as_json: bool) -> None:
    """Undo `hpctl install` on this machine.

    Journal and configuration stay, unless --purge: a later daemon goes on with recoveries that are
    open. Nodes that hpctl drained stay drained.
    """
    machine = _machine(root, dry_run)
    if not (yes or dry_run):
        what = (
            " with its journal and configuration" if purge else "; journal and configuration stay"
        )
        output.confirm(f"Remove hpctl from this machine{what}?", abort=True)
    _show(uninstalling(machine, purge), dry_run, as_json, lambda: ())


def _url(head: str) -> str:
    """`HOST` or `HOST:PORT` as the agent's URL."""
    text = head.strip().rstrip("/")
    if "://" in text:
        return text
    return f"http://{text}" if ":" in text else f"http://{text}:{PORT}"


def _machine(root: Path, dry_run: bool) -> Machine:
    if os.geteuid() != 0 and root == Path("/") and not dry_run:
        raise HpctlError("only root can change this machine", "sudo, or --dry-run to look")
    return machine_at(root)


def _install(wish: Wish, dry_run: bool, root: Path, as_json: bool) -> None:
    machine = _machine(root, dry_run)
    looks = (lambda: ()) if dry_run or not machine.running else (lambda: _doctor(wish))
    _show(installing(machine, wish), dry_run, as_json, looks)


def _show(
    steps: Iterator[Step], dry_run: bool, as_json: bool, looks: Callable[[], tuple[CheckView, ...]]
) -> None:
    taken = tuple(walk(steps, dry_run))
    failed = any(step.state == "failed" for step in taken)
    view = InstallView(dry_run, taken, () if failed else looks())
    output.show("install", view, as_json)
    found = verdict(DoctorView(output.now(), view.checks))
    output.leave(Exit.PROBLEM if failed else found)


def _doctor(wish: Wish) -> tuple[CheckView, ...]:
    """The first look at what was set up: all of doctor's on a head node, else what it needs."""
    now = output.now()
    if wish.role == "head":
        config, first = read_config(output.DEFAULT_CONFIG)
        return (first, *examine(config, now))
    heads = [_reached(url) for url in wish.head.split(",") if url]
    return (*examine(None, now), *heads)


def _reached(url: str) -> CheckView:
    """Whether a daemon listens there."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or PORT), timeout=5).close()
    except OSError as error:
        hint = "install the daemon there, and let this node reach its port"
        return CheckView("head", "fail", f"nobody listens at {url}: {error}", hint)
    return CheckView("head", "ok", f"a daemon listens at {url}", "")
