"""Loading files of a linked Lustre directory before somebody reads them: `lfs hsm_restore`.

A file whose contents are in S3 alone is `released` in `lfs hsm_state`; a restore brings them back,
and the call returns before they are there. So restores go out in bounded batches, a bounded
number of files is under way at a time, and `hsm_state` says which have arrived.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hpctl.errors import HpctlError

BATCH: Final = 200
"""Files in one call: an argument list stays well under the kernel's limit."""

UNDER_WAY: Final = 2000
"""Files that are being restored at a time: more only fill the file system's queue."""

CALL_S: Final = 300.0
"""How long one call of lfs may take."""

STALLED_S: Final = 900.0
"""How long no file may arrive before something is wrong."""

_STATE = re.compile(r": \(0x([0-9a-f]+)\)(.*)")


@dataclass(frozen=True, slots=True)
class Preload:
    """How far it is. `files` were found, `released` of them had no contents here at first."""

    path: str
    files: int = 0
    released: int = 0
    loaded: int = 0
    under_way: int = 0
    loaded_bytes: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    """Files that would not load, each with what lfs said; the first hundred."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to load."""
        return self.loaded + len(self.failed) >= self.released and not self.under_way


@dataclass(slots=True)
class Lfs:
    """The `lfs` program. Raises HpctlError where there is none."""

    program: str = field(default_factory=lambda: shutil.which("lfs") or "")
    call_s: float = CALL_S

    def __post_init__(self) -> None:
        if not self.program:
            raise HpctlError(
                "there is no lfs program on this machine",
                "run this on a node that mounts the file system, with lustre-client installed",
            )

    def released(self, files: Sequence[str]) -> set[str]:
        """Those of the files whose contents are in S3 alone. Raises HpctlError.

        One that is deleted meanwhile, by somebody here or in S3, is none of them.
        """
        found = set[str]()
        for batch in _batches(files):
            done = self._run("hsm_state", batch)
            if done.returncode != 0:
                if len(left := [name for name in batch if os.path.lexists(name)]) < len(batch):
                    found |= self.released(left)
                    continue
                raise HpctlError(f"lfs hsm_state: {_said(done)}", _hint(_said(done)))
            found |= _released(batch, done.stdout)
        return found

    def restore(self, files: Sequence[str]) -> dict[str, str]:
        """Ask for the contents of some files; what lfs said of those that it would not load."""
        done = self._run("hsm_restore", files)
        if done.returncode == 0:
            return {}
        if len(files) == 1:
            return {files[0]: _said(done)}
        # One bad file fails the call: ask for each alone.
        return {name: why for one in files for name, why in self.restore([one]).items()}

    def _run(self, verb: str, files: Sequence[str]) -> subprocess.CompletedProcess[str]:
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
                f"lfs {verb} did not answer within {self.call_s:g} s",
                "is the file system reachable? `lfs check servers` tells",
            ) from error
        except OSError as error:
            raise HpctlError(f"cannot run {self.program}: {error.strerror}") from error


def preload(
    path: Path,
    lfs: Lfs,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    poll_s: float = 2.0,
    stalled_s: float = STALLED_S,
) -> Iterator[Preload]:
    """Load everything below a path; how far it is, after each look. Raises HpctlError.

    Interrupted, what was asked for goes on, and a second call finds what is left.
    """
    files = list(_files(path))
    todo = sorted(lfs.released(files))
    state = Preload(str(path), len(files), len(todo))
    yield state
    under_way: list[str] = []
    moved = clock()
    while todo or under_way:
        while todo and len(under_way) < UNDER_WAY:
            batch, todo = todo[:BATCH], todo[BATCH:]
            refused = lfs.restore(batch)
            under_way += [name for name in batch if name not in refused]
            state = replace(state, failed=(*state.failed, *refused.items())[:100])
        still = lfs.released(under_way)
        arrived = [name for name in under_way if name not in still]
        if arrived:
            moved = clock()
        under_way = [name for name in under_way if name in still]
        state = replace(
            state,
            loaded=state.loaded + len(arrived),
            loaded_bytes=state.loaded_bytes + sum(map(_size, arrived)),
            under_way=len(under_way),
        )
        yield state
        if under_way and clock() - moved >= stalled_s:
            raise HpctlError(
                f"no file has arrived for {stalled_s:g} s; {len(under_way)} are awaited, the first "
                f"is {under_way[0]}",
                "look at the association (`hpctl storage ls`) and `lfs hsm_action FILE`",
            )
        if under_way:
            sleep(poll_s)


def _files(path: Path) -> Iterator[str]:
    """The regular files below a path, or the path itself. Raises HpctlError."""
    if path.is_file():
        yield str(path)
        return
    if not path.is_dir():
        raise HpctlError(f"there is no {path}", "name a file or a directory of the mount")

    def failed(error: OSError) -> None:
        raise HpctlError(f"{error.filename} cannot be listed: {error.strerror}") from error

    for directory, _, names in os.walk(path, onerror=failed):
        for name in names:
            full = os.path.join(directory, name)
            if os.path.isfile(full) and not os.path.islink(full):
                yield full


def _batches(files: Sequence[str]) -> Iterator[list[str]]:
    """Bounded batches; a name with a newline goes alone, so that its answer can be told apart."""
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


def _released(batch: Sequence[str], text: str) -> set[str]:
    """Which files `hsm_state` calls released. Raises HpctlError where it is silent about one."""
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
                f"lfs hsm_state says nothing of {name}",
                "is it on a Lustre file system that is linked to S3? `hpctl storage ls` tells",
            )
        if "released" in found[2].split(",")[0].split():
            released.add(name)
    return released


def _size(name: str) -> int:
    try:
        return os.stat(name).st_size
    except OSError:
        return 0  # deleted meanwhile: nothing was loaded


def _said(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def _hint(said: str) -> str:
    if "ermission denied" in said or "not permitted" in said:
        return "run it as root: only root may ask for a restore"
    if "Inappropriate ioctl" in said or "not supported" in said:
        return "the path is not on a Lustre file system"
    return "`lfs hsm_state FILE` shows the same"
