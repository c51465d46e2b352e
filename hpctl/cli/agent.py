"""`hpctl agent`: the node agent, and a single look through its eyes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection import config as detection_config
from hpctl.detection import settings as detection_settings
from hpctl.detection.config import CONFIG, load_agent_config
from hpctl.detection.machine import build_checked_machine
from hpctl.detection.outside.ask import SOCKET
from hpctl.detection.outside.plugins import DIRECTORY, load_check_plugins
from hpctl.detection.outside.sources import FindingSourceLocations
from hpctl.detection.runner import LoadedCheck
from hpctl.faults.table import CHECKS
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    Layout,
    RowTable,
    TextLine,
    make_state_column,
)
from hpctl.vocabulary.identity import InstanceId, NodeName
from hpctl.wire.heads import AGENT_METRICS_PORT, HeadNodeAddress

if TYPE_CHECKING:
    from hpctl.detection.check_once import CheckResultRow
    from hpctl.detection.runner import LoadedCheck


F = TypeVar("F", bound=Callable[..., Any])


def _make_environment_backed_option(flag: str, text: str, **how: Any) -> Callable[[F], F]:
    """Return an option that the environment may give, too, as HPCTL_AGENT_ and its name."""
    variable = f"HPCTL_AGENT_{flag[2:].replace('-', '_').upper()}"
    return click.option(flag, envvar=variable, help=text, **{"show_default": True, **how})


_PATH = click.Path(path_type=Path)
_KMSG = _make_environment_backed_option(
    "--kmsg", "The kernel's log.", type=_PATH, default=detection_settings.KERNEL_LOG
)
_KMSG_ACCEPT_USER = _make_environment_backed_option(
    "--kmsg-accept-user",
    "Believe log lines that user space wrote. For tests only.",
    is_flag=True,
    show_default=False,
)
_ROOT = _make_environment_backed_option(
    "--root",
    "Put before every path under /sys, /proc and /dev that checks read. For tests.",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    show_default=False,
)
_CONFIG = _make_environment_backed_option(
    "--config", "The agent's file (docs/checks.md); it may be missing.", type=_PATH, default=CONFIG
)
_PLUGINS = _make_environment_backed_option(
    "--plugins",
    "Directory of this site's own checks (docs/plugins.md); it may be missing.",
    type=_PATH,
    default=DIRECTORY,
)


@click.command()
@_make_environment_backed_option(
    "--head",
    "Where the daemon listens: http://HOST:PORT. Several are tried in turn.",
    required=True,
    metavar="URL[,URL]",
)
@_make_environment_backed_option(
    "--node",
    "This node's NodeName. Default: Slurm's node with the address that munged vouches for.",
)
@_make_environment_backed_option(
    "--instance-id", "Default: the EC2 instance id that the firmware names, else the node's name."
)
@_make_environment_backed_option(
    "--boot-id-file",
    "Where the kernel says which boot this is.",
    type=_PATH,
    default=detection_settings.BOOT_ID_FILE,
)
@_KMSG
@_make_environment_backed_option("--munge-socket", "Default: libmunge's own.", type=_PATH)
@_make_environment_backed_option(
    "--spool",
    "Directory for what must outlive the agent.",
    type=_PATH,
    default=detection_settings.SPOOL,
)
@_make_environment_backed_option(
    "--heartbeat-s",
    "Seconds between reports without news.",
    type=click.FloatRange(min=0.1),
    default=10.0,
)
@_KMSG_ACCEPT_USER
@_ROOT
@_CONFIG
@_make_environment_backed_option(
    "--socket",
    "Where scripts of this node report (hpctl agent report) and ask for the verdict.",
    type=_PATH,
    default=Path(SOCKET),
)
@_PLUGINS
@_make_environment_backed_option(
    "--hma-log", "The log of HyperPod's health agent. Default: the journal of its unit.", type=_PATH
)
@_make_environment_backed_option(
    "--metrics",
    "HOST:PORT for Prometheus on the head nodes; empty for none.",
    default=f"0.0.0.0:{AGENT_METRICS_PORT}",
)
@_make_environment_backed_option(
    "--metrics-allow", "Networks that may read that, too.", default="", metavar="CIDR[,CIDR]"
)
@click.option("--verbose", "-v", is_flag=True, envvar="HPCTL_AGENT_VERBOSE", help="Log more.")
def run(
    head: str,
    node: str | None,
    instance_id: str | None,
    boot_id_file: Path,
    config: Path,
    socket: Path,
    plugins: Path,
    hma_log: Path | None,
    verbose: bool,
    **settings: Any,
) -> None:
    """Watch this node and report to the head node until SIGTERM."""
    from hpctl.cli.features import list_test_result_readers, make_agent_order_handler
    from hpctl.detection.node_name import find_own_slurm_node_name
    from hpctl.detection.service import NodeAgent

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    name = (
        NodeName(node)
        if node
        else find_own_slurm_node_name(settings["munge_socket"], settings["spool"])
    )
    NodeAgent(
        detection_settings.AgentSettings(
            heads=tuple(HeadNodeAddress.parse(url) for url in head.split(",") if url),
            node=name,
            instance=InstanceId(instance_id)
            if instance_id
            else detection_settings.read_local_ec2_instance_id(name),
            boot=detection_settings.read_local_boot_id(boot_id_file),
            config=load_agent_config(config, CHECKS),
            places=FindingSourceLocations(socket, hma_log, plugins),
            **settings,
        ),
        make_agent_order_handler,
        [read(settings["spool"]) for read in list_test_result_readers()],
    ).run()


@click.command()
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only these checks: a name (host.disk) or the first part of several (host). Repeatable.",
)
@_KMSG
@_KMSG_ACCEPT_USER
@_ROOT
@_CONFIG
@_PLUGINS
@output.json_option
def check(as_json: bool, **given: Any) -> None:
    """Run every check once on this machine and say what it sees.

    Works on any machine: what it lacks is shown as absent. Rates need two looks, and what must
    last a while needs the agent itself: both are not seen here. The kernel's log is judged as by
    `hpctl agent triage`; a note is counted and says nothing against the node, such as a program's
    own Xid. Exit code: 0 fine or only notes and warnings, 1 a check failed, 3 a check cannot tell.
    """
    view = run_agent_checks(**given)
    output.show_view("agent-check", view, as_json)
    output.exit_with_code(output.choose_worst_exit_code(row.state for row in view.checks))


FIRST_SWEEP_S = 30.0
"""How long a driver may take to say its first word: initialising eight GPUs takes seconds."""


QUIET = ("ok", "absent")


class CheckResultTextRow(Struct, frozen=True):
    """The text of a check, or of one thing that it found."""

    check: str
    state: str
    device: str
    what: str

    columns: ClassVar[Columns] = (
        Column("CHECK", "check"),
        make_state_column("STATE", "state"),
        Column("DEVICE", "device"),
        Column("WHAT", "what", fold=True),
    )


def _make_check_text_rows(row: CheckResultRow) -> list[CheckResultTextRow]:
    """Return one row for the check where it is all that there is to say, one for each finding."""
    from hpctl.detection.check_once import LOG

    rows = []
    # The finding on all of the kernel's lines together precedes them.
    if row.state in QUIET or not row.findings or row.check == LOG:
        rows.append(CheckResultTextRow(row.check, row.state, "", row.why))
    for found in row.findings:
        times = f" ({found.count} times)" if found.count > 1 else ""
        what = ": ".join(filter(None, (found.code, found.detail, found.evidence))) + times
        rows.append(CheckResultTextRow(found.check, found.verdict, found.device, what))
    return rows


class AgentCheckView(Struct, frozen=True):
    """One run of the checks: `lost` counts records that the kernel's log had dropped."""

    as_of: datetime
    kmsg: str
    lost: int
    checks: tuple[CheckResultRow, ...]

    layout: ClassVar[Layout] = (
        RowTable(lambda view: list(chain.from_iterable(map(_make_check_text_rows, view.checks)))),
        TextLine("{lost} records of {kmsg} were lost before they were read", when="lost"),
    )


def run_agent_checks(
    only: Sequence[str], kmsg: Path, kmsg_accept_user: bool, root: Path, config: Path, plugins: Path
) -> AgentCheckView:
    """Run the chosen checks. Raises HpctlError for a bad file, UsageError for a bad name."""
    from functools import partial

    from hpctl.detection import check_once, runner
    from hpctl.detection.nvml.client import NvmlClient

    settings = detection_config.load_agent_config(config, CHECKS)
    own = [
        runner.load_check(spec, limits)
        for spec, limits in detection_config.select_enabled_checks(settings, CHECKS)
    ]
    checks = choose_named_checks(only, [*own, *_load_check_plugins(plugins)])
    rows, lost = [], 0
    if not only or check_once.LOG in only:
        row, lost = check_once.check_kernel_log_once(kmsg, accept_user=kmsg_accept_user)
        rows.append(row)
    nvml = NvmlClient(root=root)
    try:
        here = replace(
            build_checked_machine(root, settings.expected), nvml=partial(nvml.wait, FIRST_SWEEP_S)
        )
        rows += check_once.run_node_checks_once(checks, here)
    finally:
        nvml.close()
    return AgentCheckView(output.get_current_utc_time(), str(kmsg), lost, tuple(rows))


def choose_named_checks(only: Sequence[str], checks: Sequence[LoadedCheck]) -> list[LoadedCheck]:
    """Return the checks that the words name; all where there are none. Raises UsageError."""
    from hpctl.detection.check_once import LOG

    names = [check.spec.name for check in checks]
    for part in only:
        if part != LOG and not any(_is_check_matching_name(part, name) for name in names):
            raise _make_unknown_check_error(part, [LOG, *names])
    if not only:
        return list(checks)

    def is_check_selected(check: LoadedCheck) -> bool:
        return any(_is_check_matching_name(part, check.spec.name) for part in only)

    return list(filter(is_check_selected, checks))


def _load_check_plugins(directory: Path) -> list[LoadedCheck]:
    """Return the site's own checks; none where it has no directory for them."""
    if not directory.exists():
        return []

    return [LoadedCheck(c.spec, c.gather, c.judge, {}) for c in load_check_plugins(directory)]


def _make_unknown_check_error(word: str, names: list[str]) -> click.UsageError:
    every = [*names, *{n.partition(".")[0] for n in names}]
    hint = output.suggest_similar_names(word, every, "docs/checks.md names all of them")
    return click.UsageError(f"hpctl agent has no check with the name {word!r}: {hint}")


def _is_check_matching_name(word: str, name: str) -> bool:
    return name == word or name.startswith(f"{word}.")
