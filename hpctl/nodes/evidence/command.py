"""`hpctl evidence`: what was kept of nodes before their remedy, and a text for AWS Support."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.engine.completion import complete_any
from hpctl.engine.config import Config
from hpctl.engine.timeline import build_recovery_timeline, format_finding
from hpctl.engine.world import World
from hpctl.engine.world_reader import read_world_once
from hpctl.nodes.evidence.bucket import Progress
from hpctl.nodes.evidence.cloudwatch import write_instance_log_archive
from hpctl.nodes.evidence.fetch import EvidenceArchiveReader
from hpctl.nodes.evidence.store import EvidenceText, InvalidArchiveError, read_archive_texts
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    LabeledValueRow,
    LabeledValueTable,
    Layout,
    RowTable,
    TextLine,
    make_state_column,
)
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.progress_bar import show_transfer_progress
from hpctl.vocabulary.evidence import StoredEvidenceArchive, parse_stored_evidence_archive
from hpctl.vocabulary.node_recovery import NodeRecovery

TIME = "%Y-%m-%d %H:%M:%S UTC"


class EvidenceRow(Struct, frozen=True):
    """The evidence of one recovery. `state`: kept or none. `why`: why there is none."""

    recovery: str
    node: str
    at: datetime
    state: str
    size: int
    path: str
    sha256: str
    why: str

    columns: ClassVar[Columns] = (
        Column("RECOVERY", "recovery"),
        Column("NODE", "node"),
        Column("AT", "at"),
        make_state_column("EVIDENCE", "state"),
        Column("BYTES", "size", right=True),
        Column("WHERE", lambda row: row.path or row.why, fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("sha256",)


class EvidenceListView(Struct, frozen=True):
    """What `hpctl evidence list` shows, newest first."""

    as_of: datetime
    evidence: tuple[EvidenceRow, ...]

    layout: ClassVar[Layout] = (
        RowTable("evidence", otherwise="No recovery has kept evidence, nor tried to."),
    )


class EvidenceShowView(Struct, frozen=True):
    """What `hpctl evidence show` shows. `trouble`: why the archive is not what the node reported;
    empty where it is."""

    recovery: str
    node: str
    instance: str
    at: datetime
    path: str
    size: int
    sha256: str
    why: str
    trouble: str
    texts: tuple[EvidenceText, ...]

    layout: ClassVar[Layout] = (
        LabeledValueTable(
            facts=(
                LabeledValueRow("recovery", "recovery"),
                LabeledValueRow("node", "node"),
                LabeledValueRow("instance", "instance"),
                LabeledValueRow("settled", "at"),
                LabeledValueRow("archive", "path"),
                LabeledValueRow("bytes", lambda view: view.size or ""),
                LabeledValueRow("SHA-256", "sha256"),
            )
        ),
        TextLine("Nothing was kept: {why}.", when="why"),
        TextLine("The archive cannot be used: {trouble}.", when="trouble"),
        ItemTextLines("texts", "{name}  {size} bytes", title="Texts", indent=2, unbroken=True),
    )


class EvidenceFetchView(Struct, frozen=True):
    """What `hpctl evidence fetch` has copied. `cloudwatch`: the archive of the instance's streams.
    A path is empty where that was not copied."""

    recovery: str
    path: str
    size: int
    sha256: str
    cloudwatch: str

    layout: ClassVar[Layout] = (
        TextLine("{path}", when="path", unbroken=True),
        TextLine("{cloudwatch}", when="cloudwatch", unbroken=True),
    )
    json_only: ClassVar[JsonOnly] = ("recovery", "size", "sha256")


class EvidenceCaseView(Struct, frozen=True):
    """The text of `hpctl evidence case`."""

    recovery: str
    text: str

    layout: ClassVar[Layout] = (ItemTextLines(lambda view: view.text.splitlines(), unbroken=True),)
    json_only: ClassVar[JsonOnly] = ("recovery",)


@click.group()
def evidence() -> None:
    """What was kept of nodes before their remedy (docs/evidence.md)."""


_common = output.combine_click_options(output.json_option, output.config_option)
_target = click.argument("target", metavar="RECOVERY", shell_complete=complete_any)


@evidence.command("list")
@click.option("--all", "past", is_flag=True, help="Also recoveries that left memory long ago.")
@_common
def list_(past: bool, config: str, as_json: bool) -> None:
    """List the evidence of each recovery, or why none was kept."""
    world = read_world_once(
        config_loading.load_config(config), output.get_current_utc_time(), past=past
    )
    output.show_view("evidence-list", make_evidence_list_view(world), as_json)


@evidence.command()
@_target
@_common
def show(target: str, config: str, as_json: bool) -> None:
    """Check an archive and list its texts.

    RECOVERY may be a node: its newest recovery with evidence. Exit code: 0 it is whole, 1 it is
    not, or nothing was kept.
    """
    loaded = config_loading.load_config(config)
    rec = find_recovery_by_target(loaded, target)
    with show_transfer_progress() as progress:
        view = make_evidence_show_view(rec, make_evidence_archive_reader(loaded, progress))
    output.show_view("evidence-show", view, as_json)
    if view.trouble or view.why:
        output.exit_with_code(ExitCode.PROBLEM)


@evidence.command()
@_target
@click.option(
    "--to", "place", metavar="DIR", default=".", show_default=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the copy goes; an existing file is not overwritten.",
)  # fmt: skip
@click.option(
    "--cloudwatch", is_flag=True,
    help="Also the instance's streams of CloudWatch Logs, as where no archive was kept.",
)  # fmt: skip
@_common
def fetch(target: str, place: Path, cloudwatch: bool, config: str, as_json: bool) -> None:
    """Copy an archive here, where it is what the node reported.

    Of a node that kept none, the streams that CloudWatch Logs has of its instance.
    """
    loaded = config_loading.load_config(config)
    rec = find_recovery_by_target(loaded, target)
    archive = find_evidence_archive(rec)
    copy, logs, size, sha256 = "", "", 0, ""
    if archive is not None:
        with show_transfer_progress() as progress:
            copy = str(make_evidence_archive_reader(loaded, progress).fetch(archive, place))
        size, sha256 = archive.size, archive.sha256
    if archive is None or cloudwatch:
        logs = str(write_recovery_instance_logs(loaded, rec, place))
    view = EvidenceFetchView(rec.id, copy, size, sha256, logs)
    output.show_view("evidence-fetch", view, as_json)


def write_recovery_instance_logs(config: Config, rec: NodeRecovery, place: Path) -> Path:
    """Write the streams of a recovery's instance into a directory; return the archive. Raises
    HpctlError, where nothing else was kept with the reason for that."""
    cluster = config.cluster
    none = (
        ""
        if find_evidence_archive(rec)
        else f"no evidence was kept for {rec.id}: {_explain_missing_archive(rec)}"
    )
    if cluster.provider == "none":
        raise HpctlError(none or "no cluster.provider is set: CloudWatch is not asked")
    aws = make_aws_client_for_command(cluster.profile, cluster.region, cluster.endpoint_url)
    try:
        return write_instance_log_archive(aws, cluster.name, rec.opened_for.instance, rec.id, place)
    except HpctlError as error:
        if not none:
            raise
        raise HpctlError(f"{none}; {error}", error.hint) from error


@evidence.command()
@_target
@_common
def case(target: str, config: str, as_json: bool) -> None:
    """Print a text for a case with AWS Support."""
    loaded = config_loading.load_config(config)
    world = read_world_once(loaded, output.get_current_utc_time(), past=True)
    rec = find_evidence_recovery(world, target)
    text = format_aws_support_case_text(
        rec, world, loaded.cluster.name, loaded.cluster.region or ""
    )
    output.show_view("evidence-case", EvidenceCaseView(rec.id, text), as_json)


def make_evidence_archive_reader(
    config: Config, progress: Progress | None
) -> EvidenceArchiveReader:
    """Return what reads archives with the configuration's account."""
    return EvidenceArchiveReader(config.cluster.profile, config.cluster.region, progress)


def find_recovery_by_target(config: Config, target: str) -> NodeRecovery:
    """Return the recovery that a target names. Raises HpctlError."""
    return find_evidence_recovery(
        read_world_once(config, output.get_current_utc_time(), past=True), target
    )


def find_evidence_recovery(w: World, target: str) -> NodeRecovery:
    """Return a recovery by its id, or the newest with evidence of a node. Raises HpctlError."""
    for rec in sorted(w.state.nodes.values(), key=lambda r: (r.opened, r.id), reverse=True):
        of_node = rec.node == target and rec.evidence is not None
        if rec.id == target or of_node:
            return rec
    names = [*w.state.nodes, *(r.node for r in w.state.nodes.values())]
    hint = output.suggest_similar_names(target, names, "`hpctl evidence list` lists the evidence")
    raise HpctlError(f"hpctl has no evidence of a node or recovery {target!r}", hint)


def make_evidence_list_view(w: World) -> EvidenceListView:
    """Return the list as a value."""
    rows = [_make_evidence_row(rec) for rec in w.state.nodes.values() if rec.evidence is not None]
    rows.sort(key=lambda row: (row.at, row.recovery), reverse=True)
    return EvidenceListView(w.now, tuple(rows))


def _make_evidence_row(rec: NodeRecovery) -> EvidenceRow:
    archive, move = find_evidence_archive(rec), rec.evidence
    if archive is None:
        why = move.why if move is not None else ""
        at = move.at if move is not None else rec.opened
        return EvidenceRow(rec.id, rec.node, at, "none", 0, "", "", why)
    at = move.at if move is not None else rec.opened
    return EvidenceRow(rec.id, rec.node, at, "kept", archive.size, archive.path, archive.sha256, "")


def find_evidence_archive(rec: NodeRecovery) -> StoredEvidenceArchive | None:
    """Return the archive that a recovery's journal names; None where nothing was kept."""
    return parse_stored_evidence_archive(rec.evidence.why) if rec.evidence is not None else None


def _explain_missing_archive(rec: NodeRecovery) -> str:
    if rec.evidence is not None:
        return rec.evidence.why
    return "no remedy has begun that would destroy anything, or `evidence.directory` is not set"


def make_evidence_show_view(rec: NodeRecovery, reader: EvidenceArchiveReader) -> EvidenceShowView:
    """Return one recovery's evidence, looking at the archive."""
    row, why, trouble, texts = _make_evidence_row(rec), "", "", []
    archive = find_evidence_archive(rec)
    if archive is None:
        why = _explain_missing_archive(rec)
    else:
        try:
            with reader.open(archive) as file:
                texts = read_archive_texts(file)
        except InvalidArchiveError as error:
            trouble = str(error)
    return EvidenceShowView(
        recovery=rec.id,
        node=rec.node,
        instance=rec.opened_for.instance,
        at=row.at,
        path=row.path,
        size=row.size,
        sha256=row.sha256,
        why=why,
        trouble=trouble,
        texts=tuple(texts),
    )


def format_aws_support_case_text(rec: NodeRecovery, w: World, cluster: str, region: str) -> str:
    """Return what AWS Support needs of a recovery: the instance, the fault, the times, the file."""
    where = f"HyperPod cluster {cluster or '(name)'}" + (f" in {region}" if region else "")
    lines = [
        f"Subject: {where}: {rec.meaning or rec.rule} on instance {rec.opened_for.instance}",
        "",
        f"Cluster: {cluster or '(not configured)'}",
        f"Region: {region or '(not configured)'}",
        f"Instance: {rec.opened_for.instance} (Slurm node {rec.node}, boot {rec.opened_for.boot})",
        f"Fault: {rec.rule}, {rec.meaning}",
        f"Detected: {rec.opened:{TIME}}",
        "",
        "What the node reported:",
        *(f"  {f.first:{TIME}}  {format_finding(f)}  {f.evidence}".rstrip() for f in rec.findings),
        "",
        "What was done:",
        *(f"  {line.at:{TIME}}  {line.text}" for line in build_recovery_timeline(rec, w.state)),
        "",
    ]
    archive = find_evidence_archive(rec)
    if archive is not None:
        lines += [
            "Attachment (secrets are redacted):",
            f"  {archive.path}",
            f"  {archive.size} bytes, SHA-256 {archive.sha256}",
        ]
    else:
        lines.append(f"No logs of the node were kept: {_explain_missing_archive(rec)}.")
    lines += [
        "In CloudWatch Logs the instance's own streams outlive it:",
        f"  /aws/sagemaker/Clusters/{cluster or 'NAME'}/ID: LifecycleConfig/GROUP/"
        f"{rec.opened_for.instance} and SagemakerHealthMonitoringAgent/GROUP/"
        f"{rec.opened_for.instance}",
        f"  (`hpctl evidence fetch {rec.id} --cloudwatch` copies them)",
    ]
    return "\n".join(lines)
