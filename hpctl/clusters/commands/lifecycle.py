"""`hpctl cluster lifecycle`: the bundle of scripts that nodes run at birth."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct
from msgspec.structs import asdict

from hpctl.clusters.arguments import S3PrefixType
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output as toolkit_output
from hpctl.toolkit.arguments import ExistingPathType, aws_options
from hpctl.toolkit.declared_view import (
    BlankLine,
    ItemTextLines,
    JsonOnly,
    Layout,
    RepeatedLayoutParts,
    RowTable,
    TextLine,
)
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.toolkit.output import DRY_RUN, ExitCode, exit_with_code, json_option
from hpctl.toolkit.tables import BAD, GOOD

if TYPE_CHECKING:
    from hpctl.clusters.bundle import LifecycleBundle, S3Prefix
    from hpctl.clusters.bundle_checks import BundleProblem, BundleTrialRun, LifecycleStepState
    from hpctl.clusters.bundle_wheels import WheelTargetPlatform


@click.group(
    cls=LazyCommandGroup,
    epilog="Exit codes: 0 fine, 1 problem found or refused, 2 usage, 3 cannot tell.",
)
def lifecycle() -> None:
    """Build, test and upload lifecycle scripts."""


FILE = ExistingPathType(path_type=Path, exists=True, dir_okay=False)
DIRECTORY = ExistingPathType(path_type=Path, exists=True, file_okay=False)

_bundle = click.argument(
    "directory", metavar="BUNDLE", type=ExistingPathType(path_type=Path, exists=True)
)

DEFAULT_SPEC = "cluster.yaml"

PROBLEMS = (
    TextLine(
        lambda view: f"{len(view.problems)} problem(s), no bundle",
        style=BAD,
        unbroken=True,
        when="problems",
    ),
    ItemTextLines("problems", "  {path}: {what}", unbroken=True),
)


class LifecycleBundleView(Struct, frozen=True):
    """What `hpctl cluster lifecycle bundle` shows."""

    directory: str
    digest: str
    files: int
    size: int
    wheels: tuple[str, ...]
    problems: tuple[BundleProblem, ...]
    notes: tuple[str, ...]

    # Paths and digests are copied from the screen: they are not broken into lines.
    layout: ClassVar[Layout] = (
        *PROBLEMS,
        TextLine("bundle  {directory}", unbroken=True, when="is_made"),
        TextLine(
            "holds   {files} files, {megabytes}, {wheel_count}", unbroken=True, when="is_made"
        ),
        TextLine("digest  {digest}", unbroken=True, when="is_made"),
        ItemTextLines("notes", "note    {}", unbroken=True, when="is_made"),
    )

    @property
    def is_made(self) -> bool:
        """Return whether there is a bundle."""
        return not self.problems

    @property
    def megabytes(self) -> str:
        """`1.5 MB`."""
        return f"{self.size / 1e6:.1f} MB"

    @property
    def wheel_count(self) -> str:
        """`3 wheels`."""
        return f"{len(self.wheels)} wheels" if self.wheels else "no wheels"


@lifecycle.command()
@click.option(
    "--output",
    "-o",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("lifecycle-bundle"),
    show_default=True,
    help="The directory to make; an older bundle there is replaced.",
)
@click.option("--config", "settings", type=FILE, help="config.json (docs/lifecycle.md).")
@click.option(
    "--add",
    multiple=True,
    type=ExistingPathType(path_type=Path, exists=True),
    metavar="PATH",
    help="A file or directory for the top of the bundle: shared_users.txt, site.d, debs, ...",
)
@click.option(
    "--spec",
    "spec_file",
    type=FILE,
    help="The cluster's file, for its groups' roles; cluster.yaml where there is one.",
)
@click.option("--wheelhouse", type=DIRECTORY, help="A directory of wheels: hpctl's, pip's, all.")
@click.option("--wheels", is_flag=True, help="Fetch the wheels by pip, for the node's machine.")
@click.option(
    "--installed", is_flag=True, help="Take the wheels that are installed here, from no network."
)
@click.option(
    "--python-version",
    metavar="3.X",
    help="The Python that will run hpctl on the node: 3.10, or that of --python.",
)
@click.option(
    "--machine",
    type=click.Choice(["x86_64", "aarch64"]),
    default="x86_64",
    show_default=True,
    help="The node's architecture.",
)
@click.option(
    "--python",
    type=FILE,
    metavar="TAR.GZ",
    help="A relocatable Python 3.10 or later, for AMIs that have none.",
)
@json_option
def bundle(
    directory: Path,
    settings: Path | None,
    add: tuple[Path, ...],
    spec_file: Path | None,
    wheelhouse: Path | None,
    wheels: bool,
    installed: bool,
    python_version: str | None,
    machine: str,
    python: Path | None,
    as_json: bool,
) -> None:
    """Build and check a bundle of lifecycle scripts.

    Without --wheels, --installed or --wheelhouse the nodes get everything but hpctl itself. A
    bundle with a problem is not kept.
    """
    from hpctl.clusters import bundle as bundles
    from hpctl.clusters import bundle_checks, bundle_wheels

    if sum(map(bool, (wheels, installed, wheelhouse))) > 1:
        raise click.UsageError(
            "several sources of Python packages are given: use only one of --wheels, --installed "
            "and --wheelhouse"
        )
    target = _parse_wheel_target_platform(python_version, machine, python)
    directory = directory.absolute()
    bundles.require_replaceable_bundle_directory(directory)
    with _open_bundle_build_directory(directory) as room:
        made = room / "bundle"
        made.mkdir()
        house = wheelhouse
        if wheels or installed:
            house = room / "wheels"
            if wheels:
                bundle_wheels.download_wheels_with_dependencies(house, target)
            else:
                bundle_wheels.copy_wheels_of_installed_packages(house, target.python)
        packed = bundle_wheels.list_wheels(house) if house else ()
        parts = bundles.LifecycleBundleAdditions(
            config=settings, additions=add, wheels=packed, python=python, made_for=asdict(target)
        )
        bundles.write_bundle_files(made, parts)
        note = _write_group_roles_into_bundle(made, spec_file)
        found = bundle_checks.find_bundle_problems(made)
        signed = bundles.write_bundle_manifest(made)
        if not found:
            made.chmod(0o755)
            bundles.replace_bundle_directory(made, directory)
    view = _make_lifecycle_bundle_view(directory, signed, found, target, note)
    toolkit_output.show_view("lifecycle-bundle", view, as_json)
    exit_with_code(ExitCode.PROBLEM if found else ExitCode.FINE)


def _parse_wheel_target_platform(
    version: str | None, machine: str, packed: Path | None
) -> WheelTargetPlatform:
    from hpctl.clusters import bundle_wheels

    inside = bundle_wheels.find_python_version_in_archive(packed) if packed else ""
    wanted = version or inside or bundle_wheels.DEFAULT_PYTHON
    if not bundle_wheels.VERSION.fullmatch(wanted):
        raise click.UsageError(
            f"--python-version {wanted!r} is not a version of Python: write one such as 3.10"
        )
    return bundle_wheels.WheelTargetPlatform(wanted, machine)


@contextmanager
def _open_bundle_build_directory(target_file: Path) -> Iterator[Path]:
    """Where a bundle is made, on the same file system: it moves to its place whole or not at all.

    Raises HpctlError where that cannot be written.
    """
    try:
        target_file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{target_file.name}-", dir=target_file.parent
        ) as room:
            yield Path(room)
    except OSError as error:
        raise HpctlError(
            f"cannot create {target_file}: {error.strerror or error}",
            "give --output a path in a directory that is writable and has free space",
        ) from error


def _write_group_roles_into_bundle(made: Path, spec_file: Path | None) -> str:
    """Give the bundle the roles of the groups; the note on it. Raises HpctlError."""
    from hpctl.clusters import spec
    from hpctl.clusters.request import write_group_roles_to_bundle

    path = spec_file or Path(DEFAULT_SPEC)
    if not path.is_file():
        return ""
    where = write_group_roles_to_bundle(made, spec.read_cluster_spec(str(path)))
    return f"{where} has the groups' roles, as {path} says them" if where else ""


def _make_lifecycle_bundle_view(
    output: Path,
    signed: LifecycleBundle,
    found: tuple[BundleProblem, ...],
    target: WheelTargetPlatform,
    note: str,
) -> LifecycleBundleView:
    notes = [note] if note else []
    if not signed.wheels:
        notes.append("no wheels: nodes come up without hpctl (--wheels, --wheelhouse)")
    else:
        notes.append(f"hpctl will run with {target}: the nodes must have it, or --python bring it")
    return LifecycleBundleView(
        directory=str(output),
        digest=signed.digest,
        files=len(signed.files),
        size=signed.size,
        wheels=signed.wheels,
        problems=found,
        notes=tuple(notes),
    )


class BundleUploadView(Struct, frozen=True):
    """What `hpctl cluster lifecycle push` shows. `dry_run`: nothing was sent."""

    source_s3_uri: str
    digest: str
    dry_run: bool
    sent: tuple[str, ...]
    unchanged: int
    left_over: tuple[str, ...]
    pruned: bool

    layout: ClassVar[Layout] = (
        TextLine("s3 uri  {source_s3_uri}", unbroken=True),
        TextLine("digest  {digest}", unbroken=True),
        TextLine("sent    {counts}", unbroken=True, when=lambda view: not view.dry_run),
        TextLine("would send {counts}", unbroken=True, when="dry_run"),
        ItemTextLines("sent", "  {}", unbroken=True, when="dry_run"),
        TextLine("{left_over_text}", unbroken=True),
        TextLine(DRY_RUN, when="dry_run"),
    )

    @property
    def counts(self) -> str:
        """Return how many files are sent, and how many need not be."""
        return f"{len(self.sent)} files; {self.unchanged} lie there already"

    @property
    def left_over_text(self) -> str:
        """Return what lies there that no bundle has, and whether it was deleted."""
        names = ", ".join(self.left_over)
        if not names:
            return ""
        if self.pruned:
            return f"deleted {names}"
        return f"left    {names} (--prune deletes what is in no bundle)"


@lifecycle.command()
@_bundle
@click.argument("target", metavar="S3://BUCKET/PREFIX", type=S3PrefixType())
@click.option("--prune", is_flag=True, help="Delete objects under the prefix that no bundle has.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before --prune deletes.")
@aws_options
@json_option
def push(
    directory: Path,
    target: S3Prefix,
    prune: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **account: str | None,
) -> None:
    """Upload a bundle to S3, what changed of it.

    MANIFEST goes last: a node that starts meanwhile rejects files that it does not list. Nodes
    that are up are not touched; new and replaced ones run the new scripts.
    """
    from hpctl.clusters import bundle as bundles
    from hpctl.clusters import bundle_checks
    from hpctl.clusters.commands.waiting import confirm_or_exit

    if prune and not target.prefix:
        raise click.UsageError(
            f"--prune would delete all other objects in the bucket {target}: add a prefix, as in "
            "s3://BUCKET/PREFIX"
        )
    read = bundles.read_lifecycle_bundle(directory)
    found = bundle_checks.find_bundle_problems(directory)
    if found:
        raise HpctlError(f"{found[0].path} {found[0].what}", "see: hpctl cluster lifecycle bundle")
    aws = make_aws_client_for_command(**account)
    plan = bundles.plan_bundle_upload(aws, read, target)
    deletes = prune and bool(plan.left_over)
    if deletes and not dry_run:
        confirm_or_exit(f"Delete {len(plan.left_over)} objects in {target}?", yes)
    if not dry_run:

        def print_uploaded_file_path(path: str) -> None:
            if not as_json:
                toolkit_output.echo(f"sending {path}", err=True)

        bundles.upload_bundle_to_s3(aws, read, target, plan, print_uploaded_file_path)
        if deletes:
            bundles.delete_stale_bundle_objects(aws, target, plan)
    view = BundleUploadView(
        source_s3_uri=str(target),
        digest=read.digest,
        dry_run=dry_run,
        sent=plan.send,
        unchanged=len(plan.unchanged),
        left_over=plan.left_over,
        pruned=deletes and not dry_run,
    )
    toolkit_output.show_view("lifecycle-push", view, as_json)
    exit_with_code(ExitCode.FINE)


def _list_executed_lifecycle_steps(trial: BundleTrialRun) -> list[LifecycleStepState]:
    steps = trial.run.steps if trial.run else ()
    return [step for step in steps if step.state not in ("not_applicable", "off")]


def _describe_skipped_lifecycle_steps(trial: BundleTrialRun) -> str:
    """Return the steps that need what a directory lacks and a node has."""
    steps = trial.run.steps if trial.run else ()
    left = [step.step for step in steps if " below /" in step.why]
    return f"not tried below a directory: {', '.join(left)}" if left else ""


class BundleTestView(Struct, frozen=True):
    """What `hpctl cluster lifecycle test` shows. `slurm`: how an instance did, or why none did."""

    digest: str
    mode: str
    problems: tuple[BundleProblem, ...]
    trials: tuple[BundleTrialRun, ...]
    slurm: str
    passed: bool

    layout: ClassVar[Layout] = (
        *PROBLEMS,
        RepeatedLayoutParts(
            "trials",
            (
                TextLine(
                    "{role}: {last}", style=lambda trial: BAD if trial.code else "", unbroken=True
                ),
                RowTable(_list_executed_lifecycle_steps),
                TextLine(_describe_skipped_lifecycle_steps),
                BlankLine(),
            ),
        ),
        TextLine("slurm   {slurm}", unbroken=True),
        TextLine("digest  {digest}", unbroken=True),
        TextLine(
            lambda view: "passed" if view.passed else "FAILED",
            style=lambda view: GOOD if view.passed else BAD,
        ),
    )
    json_only: ClassVar[JsonOnly] = ("mode",)


@lifecycle.command()
@_bundle
@click.option(
    "--mode",
    type=click.Choice(["OnCreate", "OnInitComplete"]),
    default="OnCreate",
    show_default=True,
    help="Which entry point.",
)
@click.option("--no-slurm", is_flag=True, help="Start no Slurm: run the scripts alone.")
@json_option
def test(directory: Path, mode: str, no_slurm: bool, as_json: bool) -> None:
    """Test a bundle on this machine.

    As a node of each role, below a directory; then as a sandbox's instance, which must join a real
    Slurm. What needs systemd, mounts or accounts is left out: hpctl cluster lifecycle show says so.
    """
    from hpctl.clusters import bundle as bundles
    from hpctl.clusters import bundle_checks
    from hpctl.clusters import bundle_checks as bundle_trial

    directory = directory.absolute()
    read = bundles.read_lifecycle_bundle(directory)
    found = bundle_checks.find_bundle_problems(directory)
    trials: tuple[BundleTrialRun, ...] = ()
    slurm = "not tried"
    if not found:
        with tempfile.TemporaryDirectory(prefix="hpctl-lifecycle-") as room:
            trials = tuple(
                bundle_trial.run_bundle_as_node_role(directory, role, mode, Path(room) / role)
                for role in bundle_trial.list_bundle_roles(directory)
            )
        if not no_slurm and all(trial.code == 0 for trial in trials):
            slurm = _test_bundle_in_sandbox(directory)
    passed = not found and all(trial.code == 0 for trial in trials) and "failed" not in slurm
    view = BundleTestView(read.digest, mode, found, trials, slurm, passed)
    toolkit_output.show_view("lifecycle-test", view, as_json)
    exit_with_code(ExitCode.FINE if passed else ExitCode.PROBLEM)


def _test_bundle_in_sandbox(directory: Path) -> str:
    """Boot a sandbox of one node from the bundle: what became of it, in words."""
    try:
        trial = import_module("hpctl.sandbox.lifecycle_trial")
    except ModuleNotFoundError:
        return "not tried: the sandbox is not installed; pip install 'hpctl[sandbox]' brings it"
    outcome: str = trial.try_bundle(directory)
    return outcome


@lifecycle.command()
@click.option(
    "--root",
    type=ExistingPathType(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="Where the node's files are, if not at / (a sandbox's node).",
)
@json_option
def show(root: Path, as_json: bool) -> None:
    """Show the result of each step on this node."""
    from hpctl.clusters.bundle_checks import read_lifecycle_run_state

    run = read_lifecycle_run_state(root)
    if run is None:
        raise ServiceUnavailable(
            "cannot show the log: no lifecycle script of hpctl has run on this machine",
            "read HyperPod's log of lifecycle scripts: /var/log/provision/provisioning.log",
        )
    toolkit_output.show_view("lifecycle-show", run, as_json)
    exit_with_code(ExitCode.PROBLEM if run.state == "failed" else ExitCode.FINE)
