"""`hpctl install` and `hpctl uninstall`: by hand what lifecycle scripts do at a node's birth."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from msgspec import Struct

from hpctl import __version__
from hpctl.cli import output
from hpctl.cli.doctor import (
    CheckView,
    DoctorView,
    draw_checks,
    examine,
    grant,
    grants,
    read_config,
    slurms_user,
    verdict,
)
from hpctl.cli.output import DRY_RUN, Exit
from hpctl.cli.tables import styled
from hpctl.clusters import bundle
from hpctl.config import DEFAULT_PATH, Cluster, Config, example, load
from hpctl.errors import HpctlError
from hpctl.protocol.heads import SLURM_USER, slurm_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.machine import Machine
    from lifecycle.node import Node
    from rich.console import Console

HOME = "/opt/hpctl"
PLUGINS = "/opt/hpctl/slurm"
PACKAGE = "/usr/lib/hpctl/id"
"""There where the Debian package is installed."""

LINK = "/usr/local/bin/hpctl"
PROGRAM = "/opt/hpctl/bin/hpctl"
AGENT_ENV = "/etc/hpctl/agent.env"
DROP_IN = "/etc/systemd/system/hpctl-daemon.service.d/slurm-user.conf"
UNITS = {
    "head": ("hpctl-daemon.service", "hpctl-daemon.socket"),
    "node": ("hpctl-agent.service", "hpctl.slice"),
}
"""The service of a role, and what it needs beside it."""

ROLES = {"head": "controller", "node": "compute", "login": "login"}
"""Ours, and the lifecycle scripts' words for them."""

KEPT = ("/etc/hpctl", "/var/lib/hpctl", "/var/log/hpctl")
SLURM_FILES = ("slurm.conf", "plugstack.conf")


class StepView(Struct, frozen=True):
    """One step. `state` is already, done, would (`--dry-run`), skipped or failed."""

    name: str
    state: str
    what: str


class Step(Struct, frozen=True):
    """What is to be so, whether it is, and how it becomes so. `absent`: why it cannot be here."""

    name: str
    what: str
    done: Callable[[], bool]
    run: Callable[[], Any]
    absent: str = ""


def machine_at(root: Path) -> Machine:
    """The machine below a root, as the lifecycle scripts see it."""
    scripts = str(bundle.lifecycle_scripts())
    if scripts not in sys.path:
        sys.path.append(scripts)
    from lifecycle.machine import Machine

    return Machine(str(root))


def walk(steps: Iterator[Step], dry_run: bool) -> Iterator[StepView]:
    """Take the steps in order; the first that fails is the last."""
    from lifecycle.failure import Failure

    for step in steps:
        try:
            if step.absent:
                yield StepView(step.name, "skipped", step.absent)
            elif step.done():
                yield StepView(step.name, "already", step.what)
            elif dry_run:
                yield StepView(step.name, "would", step.what)
            else:
                with redirect_stdout(StringIO()) as printed:
                    step.run()
                what = "; ".join([step.what, *printed.getvalue().splitlines()])
                yield StepView(step.name, "done", what)
        except (Failure, HpctlError, OSError) as error:
            yield StepView(step.name, "failed", f"{step.what}: {error}")
            return


# --- install ----------------------------------------------------------------------------------


_DELAY = "batch_sched_delay=0"
_ADDED = "# batch_sched_delay: added by hpctl install"


class Wish(Struct, frozen=True):
    """What the command line asks for. `head` is the daemon's URL, for nodes.

    `eager`: batch_sched_delay=0 is added to the SchedulerParameters that a site has set.
    """

    role: str
    cluster: str = ""
    region: str = ""
    head: str = ""
    slurm: bool = False
    eager: bool = False


def installing(machine: Machine, wish: Wish) -> Iterator[Step]:
    """The steps of a role. Raises HpctlError, before the first, where a word is missing."""
    environment = _agent_env(machine, wish.head) if wish.role == "node" else ""
    changed: list[str] = []
    yield _program(machine, changed)
    yield _link(machine)
    if wish.role == "head":
        yield _hpctl_yaml(machine, wish)
    if wish.role == "node":
        yield _file(machine, AGENT_ENV, environment, changed)
    names = UNITS.get(wish.role, ())
    units = bundle.lifecycle_scripts() / "systemd"
    for name in names:
        text = (units / name).read_text()
        if machine.unit_text(name) != text:
            yield _file(machine, f"/etc/systemd/system/{name}", text, changed)
    if wish.eager:
        yield _eager(machine)
    if wish.slurm:
        yield _slurm(machine, wish.role)
    if wish.role == "head":
        yield from for_slurms_user(machine, changed)
    if names:
        yield _service(machine, names[0], changed)


def _program(machine: Machine, changed: list[str]) -> Step:
    what = f"hpctl {__version__} in {HOME}"
    program = machine.path(PROGRAM)

    def done() -> bool:
        if machine.path(PACKAGE).exists() or not machine.real:
            return program.is_symlink() or program.exists()
        return machine.works(PROGRAM, "--version") and __version__ in machine.run(
            PROGRAM, "--version"
        )

    absent = ""
    if not machine.real and not done():
        absent = f"put the Debian package into {machine.root} (make package): an environment of"
        absent = f"{absent} Python cannot be made from outside"
    return Step("program", what, done, lambda: _environment(machine, changed), absent)


def _environment(machine: Machine, changed: list[str]) -> None:
    """An environment of its own from the very wheels that are installed here; no network."""
    from hpctl.clusters.bundle_wheels import installed

    with tempfile.TemporaryDirectory() as room:
        wheels = Path(room)
        installed(wheels, f"{sys.version_info.major}.{sys.version_info.minor}")
        base = getattr(sys, "_base_executable", sys.executable)
        machine.run(base, "-m", "venv", "--without-pip", HOME, timeout=120)
        pip = next(wheels.glob("pip-*.whl"))
        options = ["--quiet", "--no-index", "--no-cache-dir", "--disable-pip-version-check"]
        options += ["--force-reinstall"]  # what a run that was killed left may be half a package
        env = {"PIP_CONFIG_FILE": os.devnull}
        find = ("--find-links", room, "hpctl")
        python = f"{HOME}/bin/python"
        machine.run(python, f"{pip}/pip", "install", *options, *find, timeout=500, env=env)
    changed.append(HOME)


def _link(machine: Machine) -> Step:
    """In every user's PATH: the package has it in /usr/bin."""
    link = machine.path(LINK)

    def done() -> bool:
        if machine.path("/usr/bin/hpctl").is_symlink():
            return True
        return link.is_symlink() and os.readlink(link) == PROGRAM

    def run() -> None:
        if link.exists() or link.is_symlink():
            raise HpctlError("another hpctl is there", f"look at it, and remove it: {link}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(PROGRAM)

    return Step("PATH", f"{LINK} -> {PROGRAM}", done, run)


def _hpctl_yaml(machine: Machine, wish: Wish) -> Step:
    """Every key with its default; the cluster's name from the words, else from HyperPod's file."""
    path = machine.path(DEFAULT_PATH)
    cluster, region = wish.cluster, wish.region
    if not cluster:
        cluster, region = _on_hyperpod(machine)
    named = f" for cluster {cluster}" if cluster else ", provider none: drain and requeue only"
    what = f"{DEFAULT_PATH} with every default{named}"
    if path.exists():
        what = f"{DEFAULT_PATH} stays as it is"
    given = Cluster(name=cluster, region=region or None) if cluster else Cluster(provider="none")
    text = example(Config(cluster=given))
    return Step("configuration", what, path.exists, lambda: machine.write(path, text))


def _on_hyperpod(machine: Machine) -> tuple[str, str]:
    """Cluster and region, as HyperPod left them on the node; empty elsewhere."""
    path = machine.path("/opt/ml/config/resource_config.json")
    try:
        cluster = json.loads(path.read_text())["ClusterConfig"]
        return str(cluster["ClusterName"]), str(cluster["ClusterArn"]).split(":")[3]
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""


def _agent_env(machine: Machine, head: str) -> str:
    """The file as it is, with its HPCTL_AGENT_HEAD line, where one is asked for."""
    from lifecycle.slurm_files import set_line

    path = machine.path(AGENT_ENV)
    text = path.read_text() if path.is_file() else ""
    if not head:
        if "HPCTL_AGENT_HEAD=" in text:
            return text
        raise HpctlError(
            "the agent must know where its daemon listens",
            "name the head node: --head HOST (`scontrol ping` shows it)",
        )
    return str(set_line(text, "HPCTL_AGENT_HEAD=", f"HPCTL_AGENT_HEAD={head}"))


def _file(machine: Machine, path: str, text: str, changed: list[str]) -> Step:
    from lifecycle.machine import holds

    def run() -> None:
        machine.write(machine.path(path), text)
        changed.append(path)

    return Step("file", path, lambda: holds(machine.path(path), text), run)


def _service(machine: Machine, unit: str, changed: list[str]) -> Step:
    """Enabled, and running where systemd does; restarted where its files are new."""
    if not shutil.which("systemctl"):
        return Step("service", unit, bool, bool, f"no systemd here: {unit} is not enabled")
    if machine.real:
        what = f"{unit} enabled" + (" and running" if machine.running else "")
        return Step(
            "service",
            what,
            lambda: not changed and machine.up(unit),
            lambda: machine.start(unit, again=bool(changed)),
        )
    options = (f"--root={machine.root}", "--quiet")
    return Step(
        "service",
        f"{unit} enabled",
        lambda: machine.works("systemctl", *options, "is-enabled", unit),
        lambda: machine.run("systemctl", *options, "enable", unit),
    )


def for_slurms_user(machine: Machine, changed: list[str]) -> Iterator[Step]:
    """The unit runs the daemon as SlurmUser, who alone may read the secrets it needs."""
    config, drop_in = None, machine.path(DROP_IN)
    with suppress(HpctlError):  # doctor says what is wrong with it
        config = load(DEFAULT_PATH) if machine.real else None
    user = slurms_user(config) if machine.real else slurm_user(machine.root)
    if user != SLURM_USER or drop_in.exists():
        yield _file(machine, DROP_IN, f"# SlurmUser\n[Service]\nUser={user}\n", changed)
        if machine.running and changed:
            machine.run("systemctl", "daemon-reload")
    for path in grants(config, user) if config else ():
        what = f"{path} is for {user} to read"
        yield Step("daemon's user", what, lambda: False, partial(grant, path, user))
        changed.append(str(path))


def site_parameters(machine: Machine) -> str:
    """The SchedulerParameters that a site's slurm.conf sets without batch_sched_delay, else ""."""
    from lifecycle.slurm_files import value

    found = value(_node(machine, "head").slurm_etc / "slurm.conf", "SchedulerParameters") or ""
    return "" if "batch_sched_delay" in found.lower() else found


def _eager(machine: Machine) -> Step:
    """batch_sched_delay=0 among a site's own SchedulerParameters, which uninstall takes out."""
    conf = _node(machine, "head").slurm_etc / "slurm.conf"

    def run() -> None:
        text = re.sub(
            r"(?im)^([ \t]*SchedulerParameters[ \t]*=[ \t]*[^\s#]+)",
            rf"{_ADDED}\n\1,{_DELAY}",
            conf.read_text(),
        )
        machine.write(conf.resolve(), text, conf.stat().st_mode & 0o7777)
        _reconfigure(machine)

    what = f"{_DELAY} in {conf}"
    return Step("scheduler", what, lambda: not site_parameters(machine), run)


def _reconfigure(machine: Machine) -> None:
    from lifecycle.slurm_files import program

    if machine.running and machine.up("slurmctld.service"):
        machine.run(program("scontrol"), "reconfigure", timeout=60)


def _slurm(machine: Machine, role: str) -> Step:
    """Epilog, prolog and, where it can be compiled, the SPANK plugin: the lifecycle's own step."""
    from lifecycle.steps import slurm_plugins

    node = _node(machine, role)
    here = slurm_plugins.applies(node)
    what = f"{PLUGINS}: the epilog that wakes the daemon, --resilient where it compiles"
    return Step(
        "Slurm plugins",
        what,
        lambda: bool(slurm_plugins.done(node)),
        lambda: slurm_plugins.run(node),
        "" if here else str(here),
    )


def _node(machine: Machine, role: str) -> Node:
    """As much of a node as the steps look at that know nothing of HyperPod."""
    from lifecycle import config, node

    scripts = bundle.lifecycle_scripts()
    named: Mapping[str, Any] = dict.fromkeys(
        ("cluster", "arn", "group", "instance_type", "instance_name", "instance_id", "address"), ""
    )
    return node.Node(
        mode="OnInitComplete",
        bundle=scripts,
        machine=machine,
        config=config.load(scripts / "config.json", ["slurm_plugins"]),
        parameters={},
        role=ROLES[role],
        controllers=(),
        **named,
    )


# --- uninstall --------------------------------------------------------------------------------


def uninstalling(machine: Machine, purge: bool) -> Iterator[Step]:
    """Everything that is not the Debian package's; journal and configuration only to purge."""
    yield _unlisted(machine)
    # A socket first: it would start its service again.
    for unit in sorted(chain(*UNITS.values()), key=lambda name: not name.endswith(".socket")):
        yield _no_unit(machine, unit)
    link = machine.path(LINK)
    yield Step("PATH", f"no {LINK}", lambda: not link.is_symlink(), link.unlink)
    yield _gone(machine)
    for name in KEPT:
        kept = machine.path(name)
        if kept.exists() and purge:
            yield Step("purge", f"no {name}", lambda: False, partial(shutil.rmtree, kept))
        elif kept.exists():
            yield Step("kept", f"{name} (--purge removes it)", lambda: True, bool)


def _gone(machine: Machine) -> Step:
    """The program; where this very process runs from it, when that ends."""
    home = machine.path(PLUGINS if machine.path(PACKAGE).exists() else HOME)
    what = f"no {HOME}"
    if home.name != Path(HOME).name:
        what = f"no {PLUGINS}; `apt-get remove hpctl` removes the rest"
    own = Path(sys.prefix).is_relative_to(home)
    run = partial(atexit.register, shutil.rmtree, home) if own else partial(shutil.rmtree, home)
    return Step("program", what, lambda: not home.exists(), run)


def _unlisted(machine: Machine) -> Step:
    """Slurm's files name no script of ours any more: a Prolog that is gone drains every node."""
    directory = _node(machine, "head").slurm_etc
    ours = re.compile(
        rf"(?m)^(?:[^#\n]*{re.escape(HOME)}/.*|SchedulerParameters={_DELAY}$)\n?"
        rf"|^{_ADDED}\n(.*),{_DELAY}"
    )
    files = [path for path in (directory / name for name in SLURM_FILES) if path.is_file()]

    def done() -> bool:
        return not any(ours.search(path.read_text()) for path in files)

    def run() -> None:
        for path in files:
            mode = path.stat().st_mode & 0o7777
            machine.write(path.resolve(), ours.sub(r"\1", path.read_text()), mode)
        _reconfigure(machine)

    return Step("Slurm plugins", f"none of ours in {directory}", done, run)


def _no_unit(machine: Machine, unit: str) -> Step:
    """Stopped, disabled, and without a file of ours in /etc."""
    own = machine.path("/etc/systemd/system")
    drop_in = [machine.path(DROP_IN)] if unit == UNITS["head"][0] else []
    files = [
        own / unit,
        *drop_in,
        *(own / f"{by}.target.wants" / unit for by in ("multi-user", "sockets")),
    ]

    def done() -> bool:
        runs = machine.running and machine.works("systemctl", "is-active", "--quiet", unit)
        return not (runs or any(file.is_symlink() or file.exists() for file in files))

    def run() -> None:
        if machine.running:
            machine.run("systemctl", "stop", unit, timeout=180, ok=(0, 5))
        for left in files:
            left.unlink(missing_ok=True)
        with suppress(OSError):  # a site's own drop-in stays, or there was none
            machine.path(DROP_IN).parent.rmdir()
        if machine.running:
            machine.run("systemctl", "daemon-reload")

    return Step("service", f"{unit} stopped and disabled", done, run)


PORT = 8470


class InstallView(Struct, frozen=True):
    """What was done, and what doctor says of it."""

    dry_run: bool
    steps: tuple[StepView, ...]
    checks: tuple[CheckView, ...]


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
    output.show("install", view, as_json, _draw)
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


def _draw(out: Console, view: InstallView) -> None:
    styles = {"done": "green", "failed": "red", "would": "yellow", "skipped": "yellow"}
    for step in view.steps:
        line = styled(f"{step.state:8}", styles.get(step.state, ""))
        out.print(line.append(f"  {step.name:14}{step.what}", "default"), soft_wrap=True)
    if view.dry_run:
        out.print(DRY_RUN)
    if view.checks:
        out.print()
        draw_checks(out, DoctorView(output.now(), view.checks))
