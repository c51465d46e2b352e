"""`hpctl lifecycle bundle`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctl.cli.arguments import ThereType
from hpctl.cli.output import Exit, json_option, leave, show
from hpctl.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.clusters.bundle import Bundle
    from hpctl.clusters.bundle_checks import Problem
    from hpctl.clusters.bundle_wheels import Target

FILE = ThereType(path_type=Path, exists=True, dir_okay=False)
DIRECTORY = ThereType(path_type=Path, exists=True, file_okay=False)

DEFAULT_SPEC = "cluster.yaml"


@dataclass(frozen=True, slots=True)
class BundleView:
    """What `hpctl lifecycle bundle` shows."""

    directory: str
    digest: str
    files: int
    size: int
    wheels: tuple[str, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("lifecycle-bundle"),
    show_default=True,
    help="The directory to make; an older bundle there is replaced.",
)
@click.option("--config", "settings", type=FILE, help="config.json (docs/lifecycle.md).")
@click.option(
    "--add",
    multiple=True,
    type=ThereType(path_type=Path, exists=True),
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
    output: Path,
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
    """Pack what nodes run at birth, and check it.

    Without --wheels, --installed or --wheelhouse the nodes get everything but hpctl itself. A
    bundle with a problem is not kept.
    """
    from hpctl.cli import render_lifecycle
    from hpctl.clusters import bundle as bundles
    from hpctl.clusters import bundle_checks, bundle_wheels

    if sum(map(bool, (wheels, installed, wheelhouse))) > 1:
        raise click.UsageError("give one of --wheels, --installed and --wheelhouse")
    target = _target(python_version, machine, python)
    output = output.absolute()
    bundles.replaceable(output)
    with _room_beside(output) as room:
        made = room / "bundle"
        made.mkdir()
        house = wheelhouse
        if wheels or installed:
            house = room / "wheels"
            if wheels:
                bundle_wheels.download(house, target)
            else:
                bundle_wheels.installed(house, target.python)
        packed = bundle_wheels.given(house) if house else ()
        bundles.lay(made, settings, add, packed, python, asdict(target))
        told = _told(made, spec_file)
        found = bundle_checks.problems(made)
        signed = bundles.sign(made)
        if not found:
            made.chmod(0o755)
            bundles.replace(made, output)
    view = _view(output, signed, found, target, told)
    show("lifecycle-bundle", view, as_json, render_lifecycle.bundle)
    leave(Exit.PROBLEM if found else Exit.FINE)


def _target(version: str | None, machine: str, packed: Path | None) -> Target:
    from hpctl.clusters import bundle_wheels

    inside = bundle_wheels.packed_python(packed) if packed else ""
    wanted = version or inside or bundle_wheels.DEFAULT_PYTHON
    if not bundle_wheels.VERSION.fullmatch(wanted):
        raise click.UsageError(f"--python-version: {wanted!r} is not of the form 3.10")
    return bundle_wheels.Target(wanted, machine)


@contextmanager
def _room_beside(output: Path) -> Iterator[Path]:
    """Where a bundle is made, on the same file system: it moves to its place whole or not at all.

    Raises HpctlError where that cannot be written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as room:
            yield Path(room)
    except OSError as error:
        raise HpctlError(
            f"{output} cannot be made: {error.strerror or error}",
            "name a place that can be written and has room in --output",
        ) from error


def _told(made: Path, spec_file: Path | None) -> str:
    """Give the bundle the roles of the groups; what is said of it. Raises HpctlError."""
    from hpctl.clusters import spec
    from hpctl.clusters.provisioning import write_roles

    path = spec_file or Path(DEFAULT_SPEC)
    if not path.is_file():
        return ""
    where = write_roles(made, spec.read(str(path)))
    return f"{where} has the groups' roles, as {path} says them" if where else ""


def _view(
    output: Path, signed: Bundle, found: tuple[Problem, ...], target: Target, told: str
) -> BundleView:
    notes = [told] if told else []
    if not signed.wheels:
        notes.append("no wheels: nodes come up without hpctl (--wheels, --wheelhouse)")
    else:
        notes.append(f"hpctl will run with {target}: the nodes must have it, or --python bring it")
    return BundleView(
        str(output),
        signed.digest,
        len(signed.files),
        signed.size,
        signed.wheels,
        found,
        tuple(notes),
    )
