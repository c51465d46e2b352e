"""The `hpctl` program: a table of commands, each imported only when it is called for.

`hpctl --help` must answer in under 150 ms, so this module imports nothing but click and what
Python has loaded anyway, and the one-line helps stand here beside the names (a test compares them
with the commands' own).
"""

import errno
import gc
import os
import resource
from itertools import chain

import click

from hpctl import __version__
from hpctl.toolkit.lazy_commands import LazyCommandGroup

COMPLETED_IN_S = 3
"""How long completion may ask around, in seconds; names that take longer are not completed."""

MAX_WIDTH = 100
"""Of a help text, in columns."""

SLURM_BIN = "/opt/slurm/bin"
"""Where HyperPod's AMIs have Slurm; neither systemd's units nor sudo look there by themselves."""

START = {
    "hpctl status": "what is wrong now, and what waits for you",
    "hpctl explain NODE": "what happened to it, why, and what comes next",
    "hpctl help COMMAND": "what a command does; --all lists every command",
}
"""The first lines of the help: for a user who only has a node's name."""

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Watch": {
        "status": ("hpctl.cli.status:status", "The cluster and the daemon in one screen."),
        "top": ("hpctl.cli.top:top", "Problems, nodes, jobs and recoveries, live."),
        "explain": ("hpctl.cli.explain:explain", "Explain why hpctl acted or did not act."),
        "events": (
            "hpctl.cli.events:events",
            "What hpctl saw, decided and did, one line an event.",
        ),
        "nodes": ("hpctl.cli.nodes:nodes", "Every node: its health and its recovery."),
        "jobs": ("hpctl.cli.recoveries:jobs", "Affected jobs and the state of their recovery."),
        "recoveries": ("hpctl.cli.recoveries:recoveries", "Open and ended recoveries."),
        "report": (
            "hpctl.insight.report.command:report",
            "What failed, what it cost, and what hpctl saved.",
        ),
    },
    "Act": {
        "approve": ("hpctl.nodes.decisions_command:approve", "Approve a blocked recovery."),
        "cancel": ("hpctl.nodes.decisions_command:cancel", "End a recovery without finishing it."),
        "replace": ("hpctl.nodes.orders_command:replace", "Replace a node's instance."),
        "reboot": ("hpctl.nodes.orders_command:reboot", "Reboot a node's instance."),
        "undrain": (
            "hpctl.nodes.orders_command:undrain",
            "Give a node that hpctl drained back to Slurm.",
        ),
        "evidence": (
            "hpctl.nodes.evidence.command:evidence",
            "What was kept of nodes before their remedy (docs/evidence.md).",
        ),
        "acceptance": (
            "hpctl.nodes.acceptance.command:acceptance",
            "Test nodes, and see what tests have found (docs/acceptance.md).",
        ),
        "pause": ("hpctl.nodes.orders_command:pause", "Stop opening recoveries and taking steps."),
        "unpause": ("hpctl.nodes.orders_command:unpause", "Lift pauses."),
        "maintenance": (
            "hpctl.nodes.windows.command:maintenance",
            "Plan windows in which an administrator has nodes.",
        ),
    },
    "Jobs": {
        "sbatch": (
            "hpctl.jobs.sbatch.command:sbatch",
            "Submit a batch job that resumes from checkpoints.",
        ),
        "run": ("hpctl.jobs.run.command:run", "Run a step that comes back on healthy nodes."),
        "resume": (
            "hpctl.jobs.resume_command:resume",
            "Have a job go on from an earlier checkpoint.",
        ),
        "stacks": (
            "hpctl.jobs.hangs.command:stacks",
            "Show each rank's stack, and which ranks the others wait for.",
        ),
        "checkpoint": ("hpctl.checkpoints.command:checkpoint", "Look at a job's checkpoints."),
        "policy": (
            "hpctl.jobs.policy_command:policy",
            "Check, try and print recovery policies and log rules.",
        ),
    },
    "Cluster": {
        "cluster": (
            "hpctl.clusters.commands:cluster",
            "Create, operate and retire a HyperPod cluster.",
        )
    },
    "Setup": {
        "install": (
            "hpctl.cli.install:install",
            "Set this machine up by hand: head, node or login node.",
        ),
        "doctor": ("hpctl.cli.doctor:doctor", "Check this cluster's settings and name the fixes."),
        "config": ("hpctl.daemon.command:config", "Check and show the daemon's configuration."),
        "notify": (
            "hpctl.service.notify.command:notify",
            "Which sink receives what, and a test message.",
        ),
        "observability": (
            "hpctl.service.observability_command:observability",
            "Prometheus and Grafana for this cluster.",
        ),
        "page": (
            "hpctl.daemon.page_command:page",
            "Serve a read-only web page of what hpctl sees and does.",
        ),
        "journal": (
            "hpctl.cli.journal:journal",
            "Check, back up, restore, export and audit the journal.",
        ),
        "daemon": ("hpctl.daemon.command:daemon", "The head-node daemon, and which head leads."),
        "agent": ("hpctl.cli.main:agent", "The node agent, and what it sees in kernel logs."),
        "sandbox": (
            "hpctl.sandbox.command:sandbox",
            "A real Slurm and an emulated HyperPod on loopback.",
        ),
        "help": ("hpctl.cli.help_command:help_", "Print a command's help, or list every command."),
    },
}
"""The commands of the short list, by the headings of the help."""

RARE: dict[str, tuple[str, str]] = {
    "uninstall": ("hpctl.cli.install:uninstall", "Undo `hpctl install` on this machine."),
    "completion": ("hpctl.cli.main:completion", "Print the shell's completion script."),
}
"""The commands that `hpctl help --all` lists and the short list does not."""

SUBCOMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "cluster": {
        "capacity": (
            "hpctl.clusters.commands.capacity:capacity",
            "What is reserved, running, spare and failed.",
        ),
        "autoscale": (
            "hpctl.capacity.command:autoscale",
            "How groups grow and shrink, and why not.",
        ),
        "forecast": (
            "hpctl.insight.forecast.command:forecast",
            "How likely nodes break in the next days.",
        ),
        "iam": ("hpctl.clusters.commands.iam:iam", "Print IAM policies of least privilege."),
        "lifecycle": (
            "hpctl.clusters.commands.lifecycle:lifecycle",
            "Build, test and upload lifecycle scripts.",
        ),
        "storage": (
            "hpctl.clusters.commands.storage:storage",
            "Link file systems to S3, and load files ahead of use.",
        ),
    },
    "checkpoint": {
        "progress": (
            "hpctl.jobs.run.progress_command:progress",
            "Print a file that reports a run's progress.",
        )
    },
    "journal": {
        "audit": (
            "hpctl.cli.audit:audit",
            "Operators' requests and changes of the daemon's configuration.",
        )
    },
    "daemon": {"failover": ("hpctl.cli.failover:failover", "Let another head node lead.")},
}
"""What a group holds besides the commands of its room."""

ALIASES: dict[str, str] = {
    "return": "undrain",
    "accept": "acceptance",
    "progress": "checkpoint progress",
    "logs": "policy",
    "logs test": "policy test-logs",
    "logs preset": "policy log-rules",
    "capacity": "cluster capacity",
    "autoscale": "cluster autoscale",
    "forecast": "cluster forecast",
    "iam": "cluster iam",
    "lifecycle": "cluster lifecycle",
    "storage": "cluster storage",
    "audit": "journal audit",
    "failover": "daemon failover",
    "triage": "agent triage",
}
"""Earlier names of commands, for scripts that use them."""

EXTRAS = {"sandbox": "pip install 'hpctl[sandbox]'"}
"""How to install the commands that are distributions of their own."""

COMMANDS = dict(chain.from_iterable(rows.items() for rows in (*SECTIONS.values(), RARE)))


class RootCommandGroup(LazyCommandGroup):
    """The group of all commands; its help begins with where to begin."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Return what hpctl is, and the commands that say what is wrong."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Start here"):
            formatter.write_dl([*START.items()])


@click.command(
    cls=RootCommandGroup,
    table=COMMANDS,
    sections=SECTIONS,
    extras=EXTRAS,
    subcommands=SUBCOMMANDS,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH},
    epilog="Exit codes: 0 fine, 1 problem found, 2 usage, 3 cannot tell.",
)
@click.version_option(__version__, prog_name="hpctl")
def cli() -> None:
    """Self-healing Slurm GPU clusters on Amazon SageMaker HyperPod."""


@click.group(
    cls=LazyCommandGroup,
    table={
        "check": (
            "hpctl.cli.agent:check",
            "Run every check once on this machine and say what it sees.",
        ),
        "run": (
            "hpctl.cli.agent:run",
            "Watch this node and report to the head node until SIGTERM.",
        ),
        # A prolog that calls it must not pay for the agent's imports.
        "verdict": (
            "hpctl.detection.report_command:verdict",
            "Print the agent's verdict on this node; probe nothing.",
        ),
        "report": (
            "hpctl.detection.report_command:report",
            "Tell this node's agent what a script has found.",
        ),
        "triage": ("hpctl.detection.triage:triage", "Show what hpctl would make of a kernel log."),
    },
)
def agent() -> None:
    """The node agent, and what it sees in kernel logs."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script.

    \b
    bash: eval "$(hpctl completion bash)" in ~/.bashrc (bash 4.4 or newer)
    zsh:  eval "$(hpctl completion zsh)" in ~/.zshrc
    fish: hpctl completion fish > ~/.config/fish/completions/hpctl.fish
    """
    from click.shell_completion import get_completion_class

    from hpctl.toolkit.output import echo

    script = get_completion_class(shell)
    assert script is not None
    echo(script(cli, {}, "hpctl", "_HPCTL_COMPLETE").source())


def _limit_completion_time() -> None:
    """Complete: a user who presses Tab waits seconds at most and sees no traceback for Ctrl-C."""
    import signal  # 2 ms, for completion alone

    for number in (signal.SIGALRM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    signal.alarm(COMPLETED_IN_S)


def _find_help_width() -> int:
    """Return as click finds it: its own way imports shutil, which takes a twentieth of `--help`."""
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
    except (OSError, ValueError):
        columns = 80
    return max(min(columns, MAX_WIDTH) - 2, 50)


def main() -> None:
    """Run the program, turning an HpctlError into one message, its fix and exit code."""
    if "_HPCTL_COMPLETE" in os.environ:
        _limit_completion_time()
    # Imports make no garbage, and looking for some among them is a tenth of a command's start.
    gc.set_threshold(10_000)
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH") or os.defpath, SLURM_BIN))
    try:
        _run_cli_and_report_errors()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        # Nothing is imported here: that opens a file.
        os.write(2, _describe_file_descriptor_shortage(error).encode(errors="replace"))
        raise SystemExit(3) from None


def _run_cli_and_report_errors() -> None:
    from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown, ServiceUnavailable

    try:
        cli.main(prog_name="hpctl", terminal_width=_find_help_width())
    except HpctlError as error:
        from hpctl.toolkit.output import echo

        echo(f"hpctl: {error}", err=True)
        if error.hint:
            echo(f"  {error.hint}", err=True)
        raise SystemExit(
            3 if isinstance(error, ServiceUnavailable | OrderOutcomeUnknown) else 1
        ) from None


def _describe_file_descriptor_shortage(error: OSError) -> str:
    """Say what was not opened for lack of descriptors, and how many there are."""
    what = f" to open {error.filename}" if error.filename else ""
    if error.errno == errno.ENFILE:
        return (
            f"hpctl: this machine has no file descriptor left{what}\n"
            "  `sysctl fs.file-nr fs.file-max` shows how many are in use and how many there are.\n"
        )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"hpctl: out of file descriptors{what}: this process may have {most}\n"
        "  Allow more in this shell (`ulimit -n 1024`), or by LimitNOFILE= of the unit.\n"
    )
