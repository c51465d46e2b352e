"""The steps that install hpctl on a head or a compute node."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpctl import __version__
from hpctl.cli.daemon_user import (
    find_slurm_user,
    grant_group_read_access,
    list_files_needing_permission_changes,
)
from hpctl.cli.install_layout import (
    AGENT_ENV,
    DROP_IN,
    HOME,
    LINK,
    PACKAGE,
    PLUGINS,
    PROGRAM,
    ROLES,
    UNITS,
    InstallStep,
)
from hpctl.clusters import bundle
from hpctl.engine.config import (
    DEFAULT_PATH,
    ClusterSection,
    Config,
    JournalSection,
    format_example_config,
    read_config_file,
)
from hpctl.engine.journal.creation import create_journal
from hpctl.toolkit.errors import HpctlError
from hpctl.wire.heads import SLURM_USER, read_slurm_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.machine import Machine
    from lifecycle.node import Node


DELAY_SETTING = "batch_sched_delay=0"


ADDED_LINE = "# batch_sched_delay: added by hpctl install"


class InstallOptions(Struct, frozen=True):
    """What the command line asks for. `head` is the daemon's URL, for nodes.

    `eager`: batch_sched_delay=0 is added to the SchedulerParameters that a site has set.
    """

    role: str
    cluster: str = ""
    region: str = ""
    head: str = ""
    slurm: bool = False
    eager: bool = False


def plan_install_steps(machine: Machine, wish: InstallOptions) -> Iterator[InstallStep]:
    """Yield the steps of a role. Raises HpctlError, before the first, where a word is missing."""
    environment = _render_agent_environment_file(machine, wish.head) if wish.role == "node" else ""
    changed: list[str] = []
    is_new = not machine.path(DEFAULT_PATH).exists()
    yield _make_program_install_step(machine, changed)
    yield _make_command_symlink_step(machine)
    if wish.role == "head":
        yield _make_configuration_step(machine, wish)
        yield _make_journal_step(machine, is_new)
    if wish.role == "node":
        yield _make_file_write_step(machine, AGENT_ENV, environment, changed)
    names = UNITS.get(wish.role, ())
    units = bundle.find_lifecycle_script_directory() / "systemd"
    for name in names:
        text = (units / name).read_text()
        if machine.unit_text(name) != text:
            yield _make_file_write_step(machine, f"/etc/systemd/system/{name}", text, changed)
    if wish.eager:
        yield _make_batch_delay_step(machine)
    if wish.slurm:
        yield _make_slurm_plugins_step(machine, wish.role)
    if wish.role == "head":
        yield from list_daemon_slurm_user_steps(machine, changed)
    if names:
        yield _make_service_step(machine, names[0], changed)


def _make_program_install_step(machine: Machine, changed: list[str]) -> InstallStep:
    what = f"hpctl {__version__} in {HOME}"
    program = machine.path(PROGRAM)

    def is_program_installed() -> bool:
        if machine.path(PACKAGE).exists() or not machine.real:
            return program.is_symlink() or program.exists()
        return machine.works(PROGRAM, "--version") and __version__ in machine.run(
            PROGRAM, "--version"
        )

    absent = ""
    if not machine.real and not is_program_installed():
        absent = f"put the Debian package into {machine.root} (make package): an environment of"
        absent = f"{absent} Python cannot be made from outside"
    return InstallStep(
        "program",
        what,
        is_program_installed,
        lambda: _create_virtual_environment(machine, changed),
        absent,
    )


def _create_virtual_environment(machine: Machine, changed: list[str]) -> None:
    """Make a separate environment from the wheels that are installed here; no network."""
    from hpctl.clusters.bundle_wheels import copy_wheels_of_installed_packages

    with tempfile.TemporaryDirectory() as room:
        wheels = Path(room)
        copy_wheels_of_installed_packages(
            wheels, f"{sys.version_info.major}.{sys.version_info.minor}"
        )
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


def _make_command_symlink_step(machine: Machine) -> InstallStep:
    """In every user's PATH: the package has it in /usr/bin."""
    link = machine.path(LINK)

    def is_link_present() -> bool:
        if machine.path("/usr/bin/hpctl").is_symlink():
            return True
        return link.is_symlink() and os.readlink(link) == PROGRAM

    def create_link() -> None:
        if link.exists() or link.is_symlink():
            raise HpctlError(
                f"cannot install: {link} exists and belongs to another installation of hpctl",
                "check what the file is, remove it, and run the installation again",
            )
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(PROGRAM)

    return InstallStep("PATH", f"{LINK} -> {PROGRAM}", is_link_present, create_link)


def _make_configuration_step(machine: Machine, wish: InstallOptions) -> InstallStep:
    """Return every key with its default; the cluster's name from the words, else from HyperPod's
    file."""
    path = machine.path(DEFAULT_PATH)
    cluster, region = wish.cluster, wish.region
    if not cluster:
        cluster, region = _read_hyperpod_cluster_and_region(machine)
    named = f" for cluster {cluster}" if cluster else ", provider none: drain and requeue only"
    what = f"{DEFAULT_PATH} with every default{named}"
    if path.exists():
        what = f"{DEFAULT_PATH} stays as it is"
    given = (
        ClusterSection(name=cluster, region=region or None)
        if cluster
        else ClusterSection(provider="none")
    )
    # An image has no SlurmUser yet who could own a journal: there the first daemon begins it.
    journal = JournalSection(create=not machine.real)
    text = format_example_config(Config(cluster=given, journal=journal))
    return InstallStep("configuration", what, path.exists, lambda: machine.write(path, text))


def _make_journal_step(machine: Machine, is_new: bool) -> InstallStep:
    """Create the journal of a configuration that this installation has written.

    Under an older configuration it is not created: an absent file may mean that the file system of
    the state directory is not mounted.
    """
    config = Config(journal=JournalSection(create=not machine.real))
    if machine.real and Path(DEFAULT_PATH).exists():
        with suppress(HpctlError):  # `hpctl doctor` says what is wrong with it
            config = read_config_file(DEFAULT_PATH)
    file = config.state_dir / "journal.db"
    if config.journal.create or config.database_url:
        what = "the daemon begins it where there is none (journal.create)"
        return InstallStep("journal", what, lambda: True, bool)
    absent = ""
    if not is_new and not file.exists():
        absent = f"{file} is not there: mount its file system, or hpctl journal create"

    def create_empty_journal() -> None:
        _create_state_directory(config)
        # SlurmUser may not read the environment that this program runs from.
        python = machine.path(f"{HOME}/bin/python")
        create_journal(config.url, DEFAULT_PATH, str(python) if python.exists() else "")

    return InstallStep("journal", str(file), file.exists, create_empty_journal, absent)


def _create_state_directory(config: Config) -> None:
    """Make the daemon's directory where it is missing, as its unit would. Raises OSError,
    HpctlError."""
    try:
        config.state_dir.mkdir(0o711)
    except FileExistsError:
        return
    user = find_slurm_user(config)
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise HpctlError(
            f"cannot install: the user that the daemon will run as, {user}, has no account on "
            "this machine",
            "create the account, or set SlurmUser in slurm.conf to an existing one",
        ) from None
    os.chown(config.state_dir, account.pw_uid, account.pw_gid)
    config.state_dir.chmod(0o711)


def _read_hyperpod_cluster_and_region(machine: Machine) -> tuple[str, str]:
    """Cluster and region, as HyperPod left them on the node; empty elsewhere."""
    path = machine.path("/opt/ml/config/resource_config.json")
    try:
        cluster = json.loads(path.read_text())["ClusterConfig"]
        return str(cluster["ClusterName"]), str(cluster["ClusterArn"]).split(":")[3]
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""


def _render_agent_environment_file(machine: Machine, head: str) -> str:
    """Return the file as it is, with its HPCTL_AGENT_HEAD line, where one is asked for."""
    from lifecycle.slurm_files import set_line

    path = machine.path(AGENT_ENV)
    text = path.read_text() if path.is_file() else ""
    if not head:
        if "HPCTL_AGENT_HEAD=" in text:
            return text
        raise HpctlError(
            "cannot install the agent: no head node is given, and the agent needs its address to "
            "send reports",
            "name the head node with --head HOST (`scontrol ping` shows its name)",
        )
    return str(set_line(text, "HPCTL_AGENT_HEAD=", f"HPCTL_AGENT_HEAD={head}"))


def _make_file_write_step(
    machine: Machine, path: str, text: str, changed: list[str]
) -> InstallStep:
    from lifecycle.machine import holds

    def write_file() -> None:
        machine.write(machine.path(path), text)
        changed.append(path)

    return InstallStep("file", path, lambda: holds(machine.path(path), text), write_file)


def _make_service_step(machine: Machine, unit: str, changed: list[str]) -> InstallStep:
    """Enabled, and running where systemd does; restarted where its files are new."""
    if not shutil.which("systemctl"):
        return InstallStep("service", unit, bool, bool, f"no systemd here: {unit} is not enabled")
    if machine.real:
        what = f"{unit} enabled" + (" and running" if machine.running else "")
        return InstallStep(
            "service",
            what,
            lambda: not changed and machine.up(unit),
            lambda: machine.start(unit, again=bool(changed)),
        )
    options = (f"--root={machine.root}", "--quiet")
    return InstallStep(
        "service",
        f"{unit} enabled",
        lambda: machine.works("systemctl", *options, "is-enabled", unit),
        lambda: machine.run("systemctl", *options, "enable", unit),
    )


def list_daemon_slurm_user_steps(machine: Machine, changed: list[str]) -> Iterator[InstallStep]:
    """Check that the unit runs the daemon as SlurmUser, who alone may read the secrets it needs."""
    config, drop_in = None, machine.path(DROP_IN)
    with suppress(HpctlError):  # `hpctl doctor` says what is wrong with it
        config = read_config_file(DEFAULT_PATH) if machine.real else None
    user = find_slurm_user(config) if machine.real else read_slurm_user(machine.root)
    if user != SLURM_USER or drop_in.exists():
        yield _make_file_write_step(
            machine, DROP_IN, f"# SlurmUser\n[Service]\nUser={user}\n", changed
        )
        if machine.running and changed:
            machine.run("systemctl", "daemon-reload")
    for path in list_files_needing_permission_changes(config, user) if config else ():
        what = f"{path} is for {user} to read"
        yield InstallStep(
            "daemon's user", what, lambda: False, partial(grant_group_read_access, path, user)
        )
        changed.append(str(path))


def read_scheduler_parameters(machine: Machine) -> str:
    """Return the SchedulerParameters that a site's slurm.conf sets without batch_sched_delay, else
    ""."""
    from lifecycle.slurm_files import value

    found = (
        value(
            make_lifecycle_script_node(machine, "head").slurm_etc / "slurm.conf",
            "SchedulerParameters",
        )
        or ""
    )
    return "" if "batch_sched_delay" in found.lower() else found


def _make_batch_delay_step(machine: Machine) -> InstallStep:
    """batch_sched_delay=0 among a site's own SchedulerParameters, which uninstall takes out."""
    conf = make_lifecycle_script_node(machine, "head").slurm_etc / "slurm.conf"

    def add_batch_sched_delay() -> None:
        text = re.sub(
            r"(?im)^([ \t]*SchedulerParameters[ \t]*=[ \t]*[^\s#]+)",
            rf"{ADDED_LINE}\n\1,{DELAY_SETTING}",
            conf.read_text(),
        )
        machine.write(conf.resolve(), text, conf.stat().st_mode & 0o7777)
        reconfigure_slurm(machine)

    what = f"{DELAY_SETTING} in {conf}"
    return InstallStep(
        "scheduler", what, lambda: not read_scheduler_parameters(machine), add_batch_sched_delay
    )


def reconfigure_slurm(machine: Machine) -> None:
    """Have slurmctld read its configuration again, where it runs."""
    from lifecycle.slurm_files import program

    if machine.running and machine.up("slurmctld.service"):
        machine.run(program("scontrol"), "reconfigure", timeout=60)


def describe_health_check_program(conf: Path) -> str:
    """Describe in a few words whether and how a slurm.conf sets HealthCheckProgram."""
    from lifecycle.slurm_files import value

    if not conf.is_file():
        return f"HealthCheckProgram is set on the head node (no {conf} here)"
    program = value(conf, "HealthCheckProgram")
    if program is None:
        return f"HealthCheckProgram is not set ({PLUGINS}/health_check.sh can be)"
    return f"HealthCheckProgram={program}, every {value(conf, 'HealthCheckInterval') or 0} s"


def _make_slurm_plugins_step(machine: Machine, role: str) -> InstallStep:
    """Epilog, prolog and, where it can be compiled, the SPANK plugin: the lifecycle's own step."""
    from lifecycle.steps import slurm_plugins

    node = make_lifecycle_script_node(machine, role)
    here = slurm_plugins.applies(node)
    what = (
        f"{PLUGINS}: the epilog that wakes the daemon, --resilient where it compiles;"
        f" {describe_health_check_program(node.slurm_etc / 'slurm.conf')}"
    )
    return InstallStep(
        "Slurm plugins",
        what,
        lambda: bool(slurm_plugins.done(node)),
        lambda: slurm_plugins.run(node),
        "" if here else str(here),
    )


def make_lifecycle_script_node(machine: Machine, role: str) -> Node:
    """Describe a node as far as steps that are not specific to HyperPod need it."""
    from lifecycle import config, node

    scripts = bundle.find_lifecycle_script_directory()
    named: Mapping[str, Any] = dict.fromkeys(
        ("cluster", "arn", "group", "instance_type", "instance_name", "instance_id", "address"), ""
    )
    settings = config.load(scripts / "config.json", ["slurm_plugins"])
    # Nodes are installed one by one: slurm.conf must not name a file that others lack.
    settings["hpctl"]["health_check"] = False
    return node.Node(
        mode="OnInitComplete",
        bundle=scripts,
        machine=machine,
        config=settings,
        parameters={},
        role=ROLES[role],
        controllers=(),
        **named,
    )
