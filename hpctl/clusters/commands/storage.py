"""`hpctl cluster storage`: directories of FSx for Lustre that show what is under an S3 prefix.

A file whose contents are in S3 alone is `released` in `lfs hsm_state`; `lfs hsm_restore` brings
them back, and returns before they are there. So `preload` asks for bounded batches, has a bounded
number of files under way, and reads from `hsm_state` which have arrived.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import click
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.clusters.storage import (
    DataRepositoryLink,
    RequestedDataRepositoryLink,
    find_existing_data_repository_link,
    list_data_repository_links,
    watch_data_repository_link,
)
from hpctl.clusters.storage import create_data_repository_link as make
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import (
    FILE_SYSTEM,
    DurationType,
    ExistingPathType,
    aws_options,
    make_usage_error,
)
from hpctl.toolkit.declared_view import Column, ItemTextLines, JsonOnly, Layout, RowTable, TextLine
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.toolkit.output import DRY_RUN, make_console


@click.group(
    cls=LazyCommandGroup,
    epilog="Exit codes: 0 done or fine, 1 problem found or refused, 2 usage, 3 cannot tell.",
)
def storage() -> None:
    """Link file systems to S3, and load files ahead of use."""


class DataRepositoryLinkView(Struct, frozen=True):
    """What `hpctl cluster storage link` shows. `made`: by this call; false where it was there.

    `dry_run`: nothing was asked for; a `link` without an id is what would be.
    """

    link: DataRepositoryLink
    made: bool
    dry_run: bool = False

    layout: ClassVar[Layout] = (
        TextLine("{result}"),
        TextLine("  {link.why}", when=lambda view: view.exists and view.link.why),
        TextLine("{next_step}", when="exists"),
        TextLine(DRY_RUN, when="dry_run"),
    )

    @property
    def exists(self) -> bool:
        """Return whether the link is there."""
        return bool(self.link.id) or not self.dry_run

    @property
    def result(self) -> str:
        """Return what is linked to what, or would be."""
        one = self.link
        what = f"{one.file_system}{one.path} to {one.s3}"
        if not self.exists:
            return f"Would link {what}"
        verb = "linked" if self.made else "was linked already"
        return f"{one.id}: {what} {verb}, {one.lifecycle}"

    @property
    def next_step(self) -> str:
        """Return what the link means for the first reader; empty where it failed."""
        one = self.link
        if one.lifecycle == "AVAILABLE":
            return (
                "The names are there; contents come from S3 at the first read."
                f" Load them ahead: hpctl cluster storage preload MOUNT{one.path}"
            )
        if one.is_settled:
            return ""
        return f"It continues in the service: hpctl cluster storage ls {one.file_system}"


@storage.command()
@click.argument("file_system", metavar="FS", type=FILE_SYSTEM)
@click.argument("s3", metavar="S3_URI")
@click.option("--path", required=True, help="The directory, from the file system's root: /data.")
@click.option(
    "--auto-import/--no-auto-import",
    default=True,
    show_default=True,
    help="Keep the names as S3 has them when objects come, change and go.",
)
@click.option(
    "--auto-export/--no-auto-export",
    default=False,
    show_default=True,
    help="Write what is written there to S3.",
)
@click.option("--wait/--no-wait", "waits", default=True, show_default=True, help="Until available.")
@click.option(
    "--timeout",
    "timeout_s",
    type=DurationType(),
    default="30min",
    show_default=True,
    help="When to stop waiting; the work continues.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be asked for.")
@aws_options
@output.json_option
def link(
    file_system: str,
    s3: str,
    path: str,
    auto_import: bool,
    auto_export: bool,
    waits: bool,
    timeout_s: float,
    dry_run: bool,
    as_json: bool,
    **account: str | None,
) -> None:
    """Link an FSx for Lustre directory to S3.

    The names below S3_URI (s3://bucket/prefix) appear at once; a file's contents are loaded from
    S3 when it is first read, which is slow for the first reader. `hpctl cluster storage preload`
    loads them ahead.
    """
    try:
        wanted = RequestedDataRepositoryLink.of(
            file_system, s3, path, auto_import=auto_import, auto_export=auto_export
        )
    except HpctlError as error:
        raise make_usage_error(error) from error
    aws = make_aws_client_for_command(**account)
    if dry_run:
        there = find_existing_data_repository_link(aws, wanted)
        planned = there or DataRepositoryLink("", wanted.file_system, wanted.path, wanted.s3, "")
        view = DataRepositoryLinkView(planned, False, True)
        output.show_view("storage-link", view, as_json)
        return
    known, made = make(aws, wanted)
    if waits:
        known = _print_data_repository_link_states(
            watch_data_repository_link(aws, known, timeout_s=timeout_s), quiet=as_json
        )
    output.show_view("storage-link", DataRepositoryLinkView(known, made), as_json)
    if known.lifecycle in ("FAILED", "MISCONFIGURED"):
        output.exit_with_code(output.ExitCode.PROBLEM)
    if waits and not known.is_settled:
        output.exit_with_code(output.ExitCode.CANNOT_TELL)


def _print_data_repository_link_states(
    looks: Iterator[DataRepositoryLink], *, quiet: bool
) -> DataRepositoryLink:
    """Return the last look; each new state is printed on standard error."""
    shown, known = "", None
    for known in looks:
        if known.lifecycle != shown and not quiet:
            output.echo(f"  {known.id} is {known.lifecycle} ...", err=True)
        shown = known.lifecycle
    assert known is not None
    return known


def _format_events(events: tuple[str, ...]) -> str:
    return ",".join(event.lower() for event in events) or "-"


LINK_COLUMNS = (
    Column("FILE SYSTEM", "file_system"),
    Column("PATH", "path"),
    Column("S3", "s3", fold=True),
    Column("STATE", "lifecycle"),
    Column("IMPORT", lambda link: _format_events(link.auto_import), wide=True),
    Column("EXPORT", lambda link: _format_events(link.auto_export), wide=True),
    Column("ID", "id", wide=True),
)


class DataRepositoryLinkListView(Struct, frozen=True):
    """What `hpctl cluster storage ls` shows. `file_system`: the one asked for, empty for all."""

    links: tuple[DataRepositoryLink, ...]
    file_system: str = ""

    layout: ClassVar[Layout] = (
        RowTable("links", LINK_COLUMNS, otherwise="{none_linked}"),
        ItemTextLines("troubled_links", "{file_system}{path} ({id}): {why}"),
    )

    @property
    def none_linked(self) -> str:
        """Return what is not linked to S3."""
        if self.file_system:
            return f"{self.file_system} is not linked to S3."
        return "No file system here is linked to S3."

    @property
    def troubled_links(self) -> list[DataRepositoryLink]:
        """Return the links of which FSx says what is wrong."""
        return [link for link in self.links if link.why]


@storage.command()
@click.argument("file_system", metavar="[FS]", type=FILE_SYSTEM, required=False)
@aws_options
@output.json_option
def ls(file_system: str | None, as_json: bool, **account: str | None) -> None:
    """The links between file systems and S3.

    Of one file system, or of all in the region. Exit code 1 where one of them does not serve.
    """
    found = list_data_repository_links(make_aws_client_for_command(**account), file_system)
    output.show_view("storage-ls", DataRepositoryLinkListView(found, file_system or ""), as_json)
    if any(one.lifecycle in ("FAILED", "MISCONFIGURED") for one in found):
        output.exit_with_code(output.ExitCode.PROBLEM)


@storage.command()
@click.argument("path", type=ExistingPathType(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Count what would be loaded.")
@output.json_option
def preload(path: Path, dry_run: bool, as_json: bool) -> None:
    """Load files from S3 before they are read.

    PATH is a file or a directory of a mounted FSx for Lustre file system. Interrupted, what was
    asked for continues; called again, it loads what is left.
    """
    looks = preload_files_from_s3(path, LustreLfsProgram())
    last = next(looks) if dry_run else show_preload_progress(looks, quiet=as_json)
    output.show_view("storage-preload", last, as_json)
    if dry_run and not as_json:
        output.echo(output.DRY_RUN)
    if last.failed:
        output.exit_with_code(output.ExitCode.PROBLEM)


BATCH: Final = 200
"""Files in one call: an argument list stays well under the kernel's limit."""

UNDER_WAY: Final = 2000
"""Files that are being restored at a time: more only fill the file system's queue."""

CALL_S: Final = 300.0
"""How long one call of lfs may take."""

STALLED_S: Final = 900.0
"""How long no file may arrive before something is wrong."""

_STATE = re.compile(r": \(0x([0-9a-f]+)\)(.*)")


class FilePreloadProgress(Struct, frozen=True):
    """How far it is. `files` were found, `released` of them had no contents here at first."""

    path: str
    files: int = 0
    released: int = 0
    loaded: int = 0
    under_way: int = 0
    loaded_bytes: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    """Files that would not load, each with the error of lfs; the first hundred."""

    layout: ClassVar[Layout] = (
        TextLine("{path}: {files} files, {here} were here, {loaded} loaded ({loaded_size})"),
        TextLine("{left} are in S3 alone", when="left"),
        ItemTextLines("failed", "  {0[0]}: {0[1]}", unbroken=True),
    )
    json_only: ClassVar[JsonOnly] = ("under_way",)

    @property
    def here(self) -> int:
        """Return how many files had their contents here at first."""
        return self.files - self.released

    @property
    def left(self) -> int:
        """Return how many files have no contents here now."""
        return self.released - self.loaded - len(self.failed)

    @property
    def loaded_size(self) -> str:
        """`1.5 GiB`."""
        return format_binary_size(self.loaded_bytes)

    @property
    def done(self) -> bool:
        """Return whether nothing is left to load."""
        return self.loaded + len(self.failed) >= self.released and not self.under_way


class LustreLfsProgram(Struct):
    """The `lfs` program. Raises HpctlError where there is none."""

    program: str = field(default_factory=lambda: shutil.which("lfs") or "")
    call_s: float = CALL_S

    def __post_init__(self) -> None:
        if not self.program:
            raise HpctlError(
                "cannot use the file system: Lustre's program lfs is not installed on this machine",
                "run the command on a node that mounts the file system and has lustre-client "
                "installed",
            )

    def find_released_files(self, files: Sequence[str]) -> set[str]:
        """Return those of the files whose contents are in S3 alone. Raises HpctlError.

        One that is deleted meanwhile, by a user here or in S3, is none of them.
        """
        found = set[str]()
        for batch in _split_files_into_batches(files):
            done = self._run_lfs("hsm_state", batch)
            if done.returncode != 0:
                left = [name for name in batch if os.path.lexists(name)]
                if len(left) < len(batch):
                    found |= self.find_released_files(left)
                    continue
                raise HpctlError(
                    f"the command lfs hsm_state failed: {_format_lfs_error(done)}",
                    _choose_lfs_error_hint(_format_lfs_error(done)),
                )
            found |= _parse_released_file_names(batch, done.stdout)
        return found

    def restore(self, files: Sequence[str]) -> dict[str, str]:
        """Ask for the contents of some files; the error of lfs for those that it would not load."""
        done = self._run_lfs("hsm_restore", files)
        if done.returncode == 0:
            return {}
        if len(files) == 1:
            return {files[0]: _format_lfs_error(done)}
        # One bad file fails the call: ask for each alone.
        refused: dict[str, str] = {}
        for file in files:
            refused |= self.restore([file])
        return refused

    def _run_lfs(self, verb: str, files: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self.program, verb, *files],
                capture_output=True,
                text=True,
                errors="surrogateescape",
                timeout=self.call_s,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired as error:
            raise HpctlError(
                f"the command lfs {verb} did not finish within {self.call_s:g} s",
                "check that the file system is reachable: lfs check servers",
            ) from error
        except OSError as error:
            raise HpctlError(
                f"cannot run the program {self.program}: {error.strerror}",
                "check that lustre-client is installed on this machine",
            ) from error


def preload_files_from_s3(
    path: Path,
    lfs: LustreLfsProgram,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    poll_s: float = 2.0,
    stalled_s: float = STALLED_S,
) -> Iterator[FilePreloadProgress]:
    """Load everything below a path; how far it is, after each look. Raises HpctlError.

    Interrupted, what was asked for continues, and a second call finds what is left.
    """
    files = list(_walk_regular_files(path))
    todo = sorted(lfs.find_released_files(files))
    state = FilePreloadProgress(str(path), len(files), len(todo))
    yield state
    under_way: list[str] = []
    moved = clock()
    while todo or under_way:
        while todo and len(under_way) < UNDER_WAY:
            batch, todo = todo[:BATCH], todo[BATCH:]
            refused = lfs.restore(batch)
            under_way += [name for name in batch if name not in refused]
            state = replace(state, failed=(*state.failed, *refused.items())[:100])
        still = lfs.find_released_files(under_way)
        arrived = [name for name in under_way if name not in still]
        if arrived:
            moved = clock()
        under_way = [name for name in under_way if name in still]
        state = replace(
            state,
            loaded=state.loaded + len(arrived),
            loaded_bytes=state.loaded_bytes + sum(map(_read_size, arrived)),
            under_way=len(under_way),
        )
        yield state
        if under_way and clock() - moved >= stalled_s:
            raise HpctlError(
                f"no file was loaded from S3 in the last {stalled_s:g} s; {len(under_way)} are "
                "missing, the first "
                f"is {under_way[0]}",
                "check the file system's link to S3 (`hpctl cluster storage ls`) and `lfs "
                "hsm_action FILE`",
            )
        if under_way:
            sleep(poll_s)


def _walk_regular_files(path: Path) -> Iterator[str]:
    """Yield the regular files below a path, or the path itself. Raises HpctlError."""
    if path.is_file():
        yield str(path)
        return
    if not path.is_dir():
        raise HpctlError(
            f"the path {path} does not exist",
            "name a file or a directory in the mounted file system",
        )

    def raise_walk_error(error: OSError) -> None:
        raise HpctlError(
            f"cannot list the directory {error.filename}: {error.strerror}",
            "run the command as a user who may read the directory",
        ) from error

    for directory, _, names in os.walk(path, onerror=raise_walk_error):
        for name in names:
            full = os.path.join(directory, name)
            if os.path.isfile(full) and not os.path.islink(full):
                yield full


def _split_files_into_batches(files: Sequence[str]) -> Iterator[list[str]]:
    """Yield bounded batches; a name with a newline is sent separately, to identify its answer."""
    batch: list[str] = []
    for name in files:
        if "\n" in name:
            yield [name]
            continue
        batch.append(name)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _parse_released_file_names(batch: Sequence[str], text: str) -> set[str]:
    """Return which files `hsm_state` calls released. Raises HpctlError where it is silent about
    one."""
    rest = {name: text if len(batch) == 1 else "" for name in batch}
    if len(batch) > 1:
        for line in text.splitlines():
            found = _STATE.search(line)
            if found is not None:
                rest[line[: found.start()]] = line
    released = set[str]()
    for name in batch:
        found = _STATE.search(rest[name].removeprefix(name))
        if found is None:
            raise HpctlError(
                f"the command lfs hsm_state gave no answer for the file {name}",
                "check that the file is on a Lustre file system that is linked to S3: hpctl "
                "cluster storage ls",
            )
        if "released" in found[2].split(",")[0].split():
            released.add(name)
    return released


def _read_size(name: str) -> int:
    try:
        return os.stat(name).st_size
    except OSError:
        return 0  # deleted meanwhile: nothing was loaded


def _format_lfs_error(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def _choose_lfs_error_hint(shown: str) -> str:
    if "ermission denied" in shown or "not permitted" in shown:
        return "run it as root: only root may ask for a restore"
    if "Inappropriate ioctl" in shown or "not supported" in shown:
        return "the path is not on a Lustre file system"
    return "`lfs hsm_state FILE` shows the same"


def show_preload_progress(
    looks: Iterator[FilePreloadProgress], *, quiet: bool
) -> FilePreloadProgress:
    """Go through the looks under a bar on standard error; the last one."""
    from rich import progress as bars

    err = make_console(err=True)
    bar = bars.Progress(
        bars.TextColumn("loading"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[loaded]}"),
        bars.TimeRemainingColumn(),
        console=err,
        disable=quiet or not err.is_terminal,
    )
    last = next(looks)
    with bar:
        task = bar.add_task("", total=last.released, loaded="")
        for last in looks:
            done = last.loaded + len(last.failed)
            bar.update(task, completed=done, loaded=format_binary_size(last.loaded_bytes))
    return last


def format_binary_size(count: int) -> str:
    """`3 B`, `1.5 GiB`."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
