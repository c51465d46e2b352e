"""`hpctl sandbox`: a real Slurm and an emulated HyperPod on loopback."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctl.toolkit import output
from hpctl.toolkit.tables import style_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpctl.sandbox.api import Sandbox
    from hpctl.sandbox.demo import DemoResult


_shown = partial(click.option, show_default=True)
_name = _shown("--name", default="default", help="Which sandbox.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_prefix = click.option(
    "--slurm-prefix", "prefix", default="", help="Another Slurm: its bin and sbin."
)
_adapter = _shown(
    "--adapter",
    type=click.Choice(["auto", "cli", "pyslurm"]),
    default="auto",
    envvar="HPCTL_SANDBOX_ADAPTER",
    help="How the daemon reads Slurm: slurm.adapter.",
)


@click.group()
def sandbox() -> None:
    """A real Slurm and an emulated HyperPod on loopback."""


def _open_sandbox(name: str, **settings: Any) -> Sandbox:
    from hpctl.sandbox.api import Sandbox

    return Sandbox(name, **settings)


@sandbox.command()
@_name
@_shown("--heads", default=1, type=click.IntRange(1, 2), help="Head nodes; two need root.")
@click.option(
    "--database", type=click.Choice(["mariadb", "postgresql"]), help="Which one two heads share."
)
@_shown("--nodes", default=8, help="How many worker nodes.")
@_shown("--groups", default=1, help="In how many worker groups.")
@_shown("--boot-time", default=0.0, help="Seconds a new instance takes.")
@_prefix
@_adapter
@click.option(
    "--lifecycle",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="The lifecycle scripts; this directory stands for their S3 prefix.",
)
@click.option("--netns", is_flag=True, help="A network namespace for each node (root).")
@click.option("--disks", is_flag=True, help="A disk for each node at STATE/nvme (root).")
@_shown(
    "--mode",
    type=click.Choice(["observe", "assist", "own"]),
    default="observe",
    help="The mode in the daemon's configuration.",
)
@click.option("--daemon/--no-daemon", default=False, help="Start the daemon too.")
@_shown(
    "--node-recovery",
    type=click.Choice(["None", "Automatic"]),
    default="None",
    help="HyperPod's own: Automatic replaces dead instances automatically.",
)
@click.option("--hma", is_flag=True, help="HyperPod's health agents mark nodes in Slurm.")
@_shown("--hma-latency", default="5..30", help="Seconds from a fault to the mark, least and most.")
@click.option("--hma-false-marks", default=0.0, help="Marks on healthy nodes, in an hour.")
@click.option(
    "--hardware",
    multiple=True,
    metavar="KIND=COUNT",
    help="What each node has: efa=16, neuron=16. Repeatable.",
)
@click.option(
    "--agent-config",
    type=click.Path(exists=True, dir_okay=False),
    help="The agent.yaml of every new node.",
)
@click.option(
    "--plugins",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Checks of your own, which every node's agent runs (docs/plugins.md).",
)
@click.option(
    "--health-check/--no-health-check",
    default=True,
    help="slurm.conf names hpctl's HealthCheckProgram.",
)
@click.option("--moto/--no-moto", default=False, help="Start moto's S3, IAM, EC2, ... too.")
@click.option("--slots", default=0, help="How many nodes there may be when groups grow.")
@click.option(
    "--empty", is_flag=True, help="No cluster yet: `hpctl cluster create` makes it, of --nodes."
)
@_shown(
    "--node-names",
    type=click.Choice(["ip", "group"]),
    default="ip",
    help="Slurm's names: ip-127-0-1-2, or gpu-compute-2, which replacements keep at new addresses.",
)
@click.option(
    "--cluster-name", default="demo", help="With --empty: the cluster of the daemon's file."
)
@_as_json
def up(name: str, as_json: bool, **settings: Any) -> None:
    """Start a sandbox; it runs until `down`."""
    settings |= {key: settings[key] or "" for key in ("database", "lifecycle", "plugins")}
    settings["hardware"] = _parse_hardware_counts(settings["hardware"])
    settings["hma_latency"] = _parse_seconds_range(settings["hma_latency"])
    settings["agent_config"] = _read_agent_config(settings["agent_config"])
    one = _open_sandbox(name, **settings)
    one.up(lambda line: output.echo(f"  {line} ...", err=True), detach=True)
    if as_json:
        output.echo(json.dumps(one.status(), indent=2))
        return
    hint = "" if name == "default" else f" --name {name}"
    if settings["empty"]:
        state = f"no cluster yet, up to {len(one.nodes)} nodes"
    else:
        state = f"{len(one.nodes)} nodes idle"
    output.echo(f"Sandbox {name} is up: {state}, state in {one.state_dir}")
    output.echo(f'Use it:  eval "$(hpctl sandbox env{hint})"')
    if settings["empty"]:
        output.echo(f"Fill it: hpctl cluster create {one.cluster_file}")


def _parse_hardware_counts(args: Iterable[str]) -> dict[str, int]:
    counts = _parse_key_value_arguments(args)
    for kind, count in counts.items():
        if not count.isdigit():
            raise click.UsageError(f"--hardware {kind}={count}: {count!r} is not a number")
    return {kind: int(count) for kind, count in counts.items()}


def _parse_seconds_range(text: str) -> tuple[float, float]:
    """`5..30`, or `5` for always the same. Raises UsageError."""
    least, _, most = text.partition("..")
    try:
        span = float(least), float(most or least)
    except ValueError:
        span = (0.0, -1.0)
    if not 0 <= span[0] <= span[1] < float("inf"):
        raise click.UsageError(
            f"--hma-latency {text!r} is not a range of seconds: write one such as 5..30"
        )
    return span


def _read_agent_config(file: str | None) -> dict[str, Any]:
    """Return the agent's file, so that a mistake shows here and not in six agents' logs."""
    if not file:
        return {}
    import yaml

    from hpctl.detection.config import load_agent_config
    from hpctl.faults.table import CHECKS

    load_agent_config(Path(file), CHECKS)
    return yaml.safe_load(Path(file).read_text()) or {}


@sandbox.command()
@_name
@_as_json
def status(name: str, as_json: bool) -> None:
    """What runs in a sandbox."""
    state = _open_sandbox(name).status()
    if as_json:
        output.echo(json.dumps(state, indent=2))
        return
    services = ", ".join(f"{k} {v or 'ended'}" for k, v in state["services"].items())
    output.echo(f"Sandbox {state['name']}, Slurm {state['slurm_version']}, {state['state_dir']}")
    output.echo(f"  {services}")
    for node in state["nodes"]:
        lives = "alive" if node["alive"] else "dead"
        instance = node.get("instance_id", "")
        output.echo(f"  {node['node']:<16} {lives:<6} {instance:<20} {node.get('name', '')}")


@sandbox.command()
@_name
def down(name: str) -> None:
    """End a sandbox and remove its files. No error when there is none."""
    import os

    one = _open_sandbox(name)
    there = one.state_dir.exists()
    points = os.environ.get("HPCTL_CONFIG") == str(one.state_dir / "hpctl.yaml")
    exports = one.exports if points and (one.state_dir / "spec.json").exists() else {}
    one.down()
    output.echo(f"Sandbox {name} is gone." if there else f"There is no sandbox {name}.")
    if exports:
        names = " ".join(key for key in exports if key != "PATH")
        output.echo(f"This shell still points to it: unset {names}")


@sandbox.command()
@_name
@click.argument("mode", type=click.Choice(["observe", "assist", "own"]))
def mode(name: str, mode: str) -> None:
    """Set how far the sandbox's daemon may go."""
    one = _open_sandbox(name)
    one.set_mode(mode)
    output.echo(f"Sandbox {name} is in mode {mode}: {one.config_path}")


@sandbox.command()
@_name
@click.argument("service", type=click.Choice(["daemon", "slurmctld"]))
@click.argument("do", type=click.Choice(["kill", "freeze", "thaw", "start"]))
@_shown("--head", "number", default=1, type=click.IntRange(1, 2), help="Which head node.")
def head(name: str, service: str, do: str, number: int) -> None:
    """Kill, freeze, thaw or start a head node's daemon or slurmctld."""
    one, which = _open_sandbox(name), service if number == 1 else f"{service}-{number}"
    if do == "start":
        one.start_service(which)
    else:
        signals = {"kill": "SIGKILL", "freeze": "SIGSTOP", "thaw": "SIGCONT"}
        one.signal_service(which, signals[do])
    output.echo(f"{which}: {do}")


@sandbox.command()
@_name
@click.argument("fault", nargs=-1)
@click.option("--pci", default="", help="The device, as in 0000:53:00.")
@click.option("--text", default="", help="What follows the code in the line; a file's content.")
@click.option("--real-kmsg", is_flag=True, help="Write to the real /dev/kmsg instead (root).")
@click.option("--path", default="", help="A file of the node: /sys/class/infiniband/...")
@click.option("--remove", is_flag=True, help="Remove that file, link or folder.")
@click.option("--kind", "device", default="", help="Hardware: efa or neuron.")
@click.option("--count", type=int, help="How many of it the node has from now on.")
@click.option("--index", type=int, help="Which GPU; without it, the node or `gpu*.`.")
@click.option("--set", "answers", multiple=True, metavar="NAME=VALUE", help="What NVML answers.")
@click.option("--lasting", is_flag=True, help="A reboot does not fix it, only a replacement.")
def inject(name: str, fault: tuple[str, ...], **options: Any) -> None:
    """Break something: NODE FAULT, or api FAULT [KEY=VALUE ...].

    \b
    NODE xid N | sxid N | kmsg --text LINE
    NODE hang-agent | kill-agent | kill-slurmd
    NODE kill-node | boot-node | freeze-node | thaw-node
    NODE hma-replace | hma-reboot               (the health agent marks it)
    NODE file --path PATH --text VALUE | --remove
    NODE hardware --kind efa|neuron --count N
    NODE gpu [--index N] --set field230=2       (needs simulated GPUs)
    NODE partition | heal                       (needs up --netns)
    api throttle | latency | drop-reply | partial | no-capacity | stuck-replace | no-dns |
        capacity ml.p5.48xlarge=3 | spot-interruption node=NODE | second-actor | clear
    """
    if len(fault) < 2:
        raise click.UsageError(
            "the command needs a node and a fault, as in: hpctl sandbox inject NODE xid 79"
        )
    one = _open_sandbox(name)
    target, kind, *rest = fault
    if target == "api":
        output.echo(one.inject_api(kind, **_parse_key_value_arguments(rest)))
        return
    output.echo(one.inject(target, kind, **_parse_fault_details(target, kind, rest, options)))


def _parse_fault_details(
    target: str, kind: str, rest: list[str], options: dict[str, Any]
) -> dict[str, Any]:
    """Return the details of a fault, from its arguments and options. Raises UsageError."""
    how: dict[str, Any] = {}
    if kind in ("xid", "sxid"):
        if len(rest) != 1 or not rest[0].isdigit():
            raise click.UsageError(
                f"the fault {kind} needs a number, as in: hpctl sandbox inject {target} {kind} 79"
            )
        how = {"code": int(rest[0]), "pci": options["pci"]}
    elif rest:
        raise click.UsageError(f"the fault {kind} takes no argument, but {rest[0]!r} was given")
    if kind in ("xid", "sxid", "kmsg"):
        return how | {"text": options["text"], "real_kmsg": options["real_kmsg"]}
    if kind not in _DEVICE_FAULTS:
        return how
    needed, others = _DEVICE_FAULTS[kind]
    for option, value in needed.items():
        if options[option] in ("", None, ()):
            raise click.UsageError(
                f"the fault {kind} needs the argument {value}: hpctl sandbox inject {target} "
                f"{kind} {value}"
            )
    how = {option: options[option] for option in (*needed, *others, "lasting")}
    if kind == "gpu":
        how["answers"] = _parse_key_value_arguments(options["answers"])
    return how


_DEVICE_FAULTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "file": ({"path": "--path /sys/class/..."}, ("text", "remove")),
    "hardware": ({"device": "--kind efa", "count": "--count 4"}, ()),
    "gpu": ({"answers": "--set field230=2"}, ("index",)),
}
"""Faults of what a node's checks look at: what they need, and what else they take."""


def _parse_key_value_arguments(args: Iterable[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in args)
    return {key: value for key, _, value in pairs}


@sandbox.command(short_help="Print the ends of its logs.")
@_name
@click.argument("part", default="")
@click.option("-n", "lines", default=20, show_default=True, help="How many lines of each.")
def logs(name: str, part: str, lines: int) -> None:
    """Print the ends of the logs whose name contains PART (slurmctld, agent, a node, ...)."""
    one = _open_sandbox(name)
    found = [path for path in one.log_files() if part in path.name or part in path.parent.name]
    if not found:
        names = ", ".join(sorted({path.name for path in one.log_files()}))
        raise click.UsageError(
            f"the sandbox has no log with the name {part!r}; choose one of: {names}"
        )
    for path in found:
        tail = path.read_text(errors="replace").splitlines()[-lines:]
        if tail:
            output.echo(f"==> {path}")
            output.echo("\n".join(tail))


@sandbox.command()
@_name
@_as_json
def env(name: str, as_json: bool) -> None:
    """Print the exports that put a shell on the sandbox's cluster."""
    import shlex

    exports = _open_sandbox(name).exports
    if as_json:
        output.echo(json.dumps(exports, indent=2))
        return
    for key, value in exports.items():
        output.echo(f"export {key}={shlex.quote(value)}")


@sandbox.command("exec", context_settings={"ignore_unknown_options": True})
@_name
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, command: tuple[str, ...]) -> None:
    """Run a command on the sandbox's head node: exec -- sbatch job.sh."""
    import os

    one = _open_sandbox(name)
    args = one.command(command)
    try:
        os.execvpe(args[0], args, one.env)  # noqa: S606 -- the user's own command, as given
    except OSError as error:
        raise click.ClickException(f"{args[0]}: {error.strerror}") from None


@sandbox.command(short_help="Break a node under a job and watch it heal.")
@click.option("--nodes", default=8, show_default=True, help="How many worker nodes each.")
@click.option("--xid", default=79, show_default=True, help="The Xid that the kernel logs.")
@_prefix
@_adapter
@click.option("--hma", is_flag=True, help="HyperPod's health agent marks the node too.")
@click.option("--json", "file", type=click.Path(dir_okay=False), help="Write the figures there.")
def demo(nodes: int, xid: int, hma: bool, file: str | None, **slurm: str) -> None:
    """Break a node under a training job and watch it heal, in a race with plain Slurm.

    Takes about four minutes, most of them plain Slurm's wait. Exit code 0 only if the node was
    drained, the job resumed, the weights are identical and the instance was replaced once.
    """
    from hpctl.sandbox.demo import Demo

    with TerminalScreen() as where:
        result = Demo(where, nodes=nodes, xid=xid, hma=hma, **slurm).run()
    if file:
        Path(file).write_text(json.dumps(result.document(), indent=2) + "\n", encoding="utf-8")
    print_demo_result(result)
    raise SystemExit(1 if result.problems else 0)


_STYLES = {"hpctl": "bold green", "plain": "yellow", "both": "cyan"}


class TerminalScreen:
    """One line a thing that happened; on a terminal, the current state below them."""

    def __init__(self) -> None:
        self._console = output.make_console()
        self._now = self._console.status("")
        self._title, self._begun = "", time.monotonic()

    def __enter__(self) -> TerminalScreen:
        self._now.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._now.__exit__(*error)

    def chapter(self, title: str) -> None:
        """A heading."""
        self._title = title
        self._console.print(f"\n== {title}", style="bold")

    def line(self, who: str, text: str, seconds: float | None) -> None:
        """One thing, with the seconds since the fault."""
        row = style_text(f"{_format_seconds_as_clock(seconds)}  ").append(
            f"{who:<6} ", _STYLES.get(who, "")
        )
        self._console.print(row.append(text, "default"), soft_wrap=True)

    def progress(self, facts: dict[str, str]) -> None:
        """Draw the current state; a pipe wants no repetition."""
        now = [f"{name}: {value}" for name, value in facts.items()]
        title = f"{self._title}, {time.monotonic() - self._begun:.0f} s"
        self._now.update(style_text("\n  ".join([title, *now])))


def print_demo_result(result: DemoResult) -> None:
    """The timeline and the figures."""
    from rich.table import Table

    console = output.make_console()
    table = Table(title="Seconds from the fault", title_justify="left", show_edge=False)
    table.add_column("what")
    table.add_column("hpctl", justify="right", style="bold green")
    table.add_column("plain Slurm", justify="right", style="yellow")
    for name, mine, theirs in _list_result_rows(result):
        table.add_row(name, mine, theirs)
    console.print()
    console.print(table)
    console.print()
    if result.problems:
        for problem in result.problems:
            console.print(f"NOT SO: {problem}", style="bold red")
        return
    console.print(
        f"The job ran again {result.speedup:g} times sooner than by plain Slurm's requeue,"
        f" lost {result.steps_lost} steps, and its final weights are bit-identical to the"
        f" undisturbed run's ({result.weights_sha256[:16]}). {result.instance_before} was"
        f" replaced by {result.instance_after}, with {result.api_replace_calls} call.",
        style="bold",
    )


def _list_result_rows(r: DemoResult) -> list[tuple[str, str, str]]:
    return [
        ("faulty node closed to new work", _format_seconds(r.fault_to_drained_s), "by hand"),
        (
            "job running on healthy nodes",
            _format_seconds(r.fault_to_job_running_s),
            _format_seconds(r.plain_requeue_s),
        ),
        ("first new training step", _format_seconds(r.fault_to_first_step_s), ""),
        (
            "instance replaced, verified, in service",
            _format_seconds(r.fault_to_node_returned_s),
            "never",
        ),
        (
            "floor: scancel and a fresh sbatch",
            _format_seconds(r.floor_s),
            _format_seconds(r.floor_s),
        ),
    ]


def _format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


def _format_seconds_as_clock(seconds: float | None) -> str:
    return " " * 9 if seconds is None else f"{seconds:+8.2f}s"
