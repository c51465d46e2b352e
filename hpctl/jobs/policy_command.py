"""`hpctl policy`: what a recovery policy says, what is wrong with it, and what it would do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct
from msgspec.structs import asdict

from hpctl.engine import config_loading
from hpctl.toolkit import output
from hpctl.toolkit.arguments import convert_errors_to_usage_errors
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    Layout,
    RepeatedLayoutParts,
    RowTable,
    TextLine,
)
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.toolkit.output import ExitCode

if TYPE_CHECKING:
    from hpctl.jobs.rehearsal import SimulatedEvent
    from hpctl.vocabulary.policy_file import RunPolicyFile


def _format_scenario_event(entry: SimulatedEvent) -> str:
    # The same signature again is what holds a job: two that differ must look so.
    return " ".join(filter(None, [entry.event, entry.node, entry.signature]))


def _format_action_reason(entry: SimulatedEvent) -> str:
    """Return the reason, with everything else that the answer says."""
    parts = [entry.why]
    if entry.save_first_s:
        parts.append(f"saves first, at most {entry.save_first_s:g} s")
    if entry.after_s:
        parts.append(f"waits {entry.after_s:.0f} s")
    if entry.exclude:
        parts.append(f"stays off {','.join(entry.exclude)}")
    return "; ".join(parts)


def _format_elapsed_time(entry: SimulatedEvent) -> str:
    """Return `1:02:03` since the start."""
    whole = int(entry.at_s)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


EVENT_COLUMNS = (
    Column("AT", _format_elapsed_time),
    Column("EVENT", _format_scenario_event),
    Column("ACTION", "action"),
    Column("NODES", "nodes"),
    Column("WHY", _format_action_reason, fold=True),
)


class PolicyTestView(Struct, frozen=True):
    """What `hpctl policy test` shows. `held`, `ended`: why the run is held, or left to end."""

    policies: tuple[str, ...]
    scenario: str
    events: tuple[SimulatedEvent, ...]
    restarts: int
    held: str
    ended: str = ""

    layout: ClassVar[Layout] = (
        RowTable("events", EVENT_COLUMNS),
        TextLine("{restarts} restarts; {end}", gap=True),
    )
    json_only: ClassVar[JsonOnly] = ("policies", "scenario")

    @property
    def end(self) -> str:
        """Return how the run ends."""
        if self.held:
            return f"held: {self.held}"
        if self.ended:
            return f"left to end: {self.ended}"
        return "the run continues" if self.events[-1].nodes else "nothing runs at the end"


class CheckedFile(Struct, frozen=True):
    """One file that was looked at. `notes`: what it says, laid over the defaults, that can never
    happen."""

    path: str
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Return what was found, in a word or two."""
        if self.problems:
            return f"{len(self.problems)} problem(s)"
        return "valid, but" if self.notes else "fine"


class PolicyCheckView(Struct, frozen=True):
    """What `hpctl policy check` shows."""

    files: tuple[CheckedFile, ...]

    layout: ClassVar[Layout] = (
        RepeatedLayoutParts(
            "files",
            (
                TextLine("{path}: {verdict}"),
                ItemTextLines("problems", "  {}", unbroken=True),
                ItemTextLines("notes", "  {}", unbroken=True),
            ),
        ),
    )


class PolicyKey(Struct, frozen=True):
    """One key, what it is, and which file says so last."""

    key: str
    value: str
    source: str

    columns: ClassVar[Columns] = (
        Column("KEY", "key"),
        Column("VALUE", "value", fold=True),
        Column("FROM", "source"),
    )


class PolicyShowView(Struct, frozen=True):
    """What `hpctl policy show` shows."""

    partition: str
    keys: tuple[PolicyKey, ...]

    layout: ClassVar[Layout] = (RowTable("keys"),)
    json_only: ClassVar[JsonOnly] = ("partition",)


@click.group(
    cls=LazyCommandGroup,
    table={
        "test-logs": (
            "hpctl.jobs.logs.command:test_logs",
            "Show which log rules would have fired, and where.",
        ),
        "log-rules": (
            "hpctl.jobs.logs.command:log_rules",
            "Print a preset's log rules, to copy and change.",
        ),
    },
    short_help="Check, try and print recovery policies and log rules.",
)
def policy() -> None:
    """Check, try and print recovery policies and log rules (docs/policies.md, docs/logs.md)."""


@policy.command()
@click.argument("policies", nargs=-1, metavar="POLICY...", type=click.Path(readable=False))
@click.option(
    "--scenario",
    required=True,
    metavar="FILE",
    type=click.Path(readable=False),
    help="What happens to the run.",
)
@output.json_option
def test(policies: tuple[str, ...], scenario: str, as_json: bool) -> None:
    """Show what POLICY would do, event by event, and why.

    Of several files the later ones win; without any, the defaults are tried. Nothing but the files
    is read. Exit code: 0 the run continues, 1 it is held or ends, 2 a file is
    wrong.
    """
    from hpctl.jobs import rehearsal
    from hpctl.vocabulary.policy_file import merge_run_policy_files, read_run_policy_file
    from hpctl.vocabulary.run_policy import STOPS, RunAction

    with convert_errors_to_usage_errors():
        files, story = (
            [read_run_policy_file(path) for path in policies],
            rehearsal.read_policy_scenario(scenario),
        )
    entries = rehearsal.simulate_policy_scenario(merge_run_policy_files(files), story)
    stop = next((p for p in reversed(entries) if p.action in STOPS), None)
    stop = stop if entries[-1].nodes == 0 else None
    view = PolicyTestView(
        policies,
        scenario,
        entries,
        rehearsal.count_simulated_restarts(entries),
        held=stop.why if stop is not None and stop.action == RunAction.HOLD else "",
        ended=stop.why if stop is not None and stop.action == RunAction.END else "",
    )
    output.show_view("policy-test", view, as_json)
    output.exit_with_code(ExitCode.FINE if stop is None else ExitCode.PROBLEM)


@policy.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(readable=False)
)
@output.json_option
def check(files: tuple[str, ...], as_json: bool) -> None:
    """Validate policy files: every problem at once, with its place. Exit code 1 where one is."""
    from hpctl.jobs.decide import list_unreachable_escalation_actions
    from hpctl.vocabulary.policy_file import (
        PolicyFileError,
        merge_run_policy_files,
        read_run_policy_file,
    )
    from hpctl.vocabulary.run_policy import RunPolicy

    usual = list_unreachable_escalation_actions(RunPolicy())

    def check_policy_file(path: str) -> CheckedFile:
        try:
            found = list_unreachable_escalation_actions(
                merge_run_policy_files([read_run_policy_file(path)])
            )
        except PolicyFileError as error:
            return CheckedFile(path, error.problems)
        return CheckedFile(path, (), tuple(note for note in found if note not in usual))

    view = PolicyCheckView(tuple(map(check_policy_file, files)))
    output.show_view("policy-check", view, as_json)
    output.exit_with_code(
        ExitCode.PROBLEM if any(file.problems for file in view.files) else ExitCode.FINE
    )


@policy.command(short_help="Print a policy with every key, and the reasons.")
def example() -> None:
    """Print a policy with every key at its default, and the reasons for them."""
    from hpctl.vocabulary.policy_file import format_example_policy_file as text

    output.echo(text(), nl=False)


@policy.command()
@click.argument("files", nargs=-1, metavar="[FILE...]", type=click.Path(readable=False))
@click.option("--partition", default="", metavar="NAME", help="The partition that the job is in.")
@output.config_option
@output.json_option
def show(files: tuple[str, ...], partition: str, config: str, as_json: bool) -> None:
    """Print what holds for a job, key by key, and which file says so.

    The cluster's policy and the partition's come from the daemon's configuration, a job's own
    from FILE; the later wins. On a machine without that configuration, such as a login node, it
    says so and shows what FILE makes of the defaults. Exit code 2: a FILE is wrong.
    """
    from hpctl.vocabulary.policy_file import read_run_policy_file

    with convert_errors_to_usage_errors():
        own = [read_run_policy_file(path) for path in files]
    layers = [*_load_cluster_policy_layers(config, partition), *own]
    names = ["cluster", f"partition {partition}"][: len(layers) - len(files)]
    view = PolicyShowView(partition, _list_policy_keys(layers, [*names, *files]))
    output.show_view("policy-show", view, as_json)


def _load_cluster_policy_layers(config: str, partition: str) -> tuple[RunPolicyFile, ...]:
    """Return the cluster's layers; none where this machine has no configuration and none was
    named."""
    if config == output.DEFAULT_CONFIG and not os.path.lexists(config):
        output.echo(
            f"hpctl: no {config} on this machine: the cluster's and the partition's policy are not"
            " counted in (--config names another)",
            err=True,
        )
        return ()
    return config_loading.load_config(config).list_run_policy_layers(partition)


def _list_policy_keys(layers: list[RunPolicyFile], names: list[str]) -> tuple[PolicyKey, ...]:
    """Return every key with its value; a section's keys by their dotted names."""
    from hpctl.vocabulary.policy_file import (
        RestartBackoffSection,
        RunPolicyFile,
        TroubleTreatmentSection,
        merge_run_policy_files,
    )
    from hpctl.vocabulary.trouble import TroubleKind

    whole = merge_run_policy_files(layers)

    def find_policy_key_source(*path: str) -> str:
        for layer, name in zip(reversed(layers), reversed(names), strict=True):
            value: object = layer.compact()
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                return name
        return "default"

    plain = [name for name in RunPolicyFile.__struct_fields__ if name not in ("backoff", "on")]
    keys = [
        PolicyKey(name, _format_policy_value(getattr(whole, name)), find_policy_key_source(name))
        for name in plain
    ]
    for name in RestartBackoffSection.__struct_fields__:
        value = _format_policy_value(getattr(whole.backoff, name))
        keys.append(PolicyKey(f"backoff.{name}", value, find_policy_key_source("backoff", name)))
    for kind in TroubleKind:
        treatment = asdict(whole.treatment(kind))
        for name in TroubleTreatmentSection.__struct_fields__:
            where = find_policy_key_source("on", kind, name)
            if name == "ladder" or treatment[name] or where != "default":
                keys.append(
                    PolicyKey(f"on.{kind}.{name}", _format_policy_value(treatment[name]), where)
                )
    return tuple(keys)


def _format_policy_value(value: object) -> str:
    """Return a value as a person would write it in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
