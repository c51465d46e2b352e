"""Save checkpoints of any format so that hpctl can prove them whole: one file, no hpctl needed.

    import hpctl_checkpoint

    with hpctl_checkpoint.saving(step) as save:
        with open(save.path("state.json"), "w") as file:
            json.dump(state, file)

Copy it next to the program (`hpctl checkpoint helper > hpctl_checkpoint.py`). It takes Python 3.8
or later and only the standard library; hpctl itself writes its manifests with it.

Each file that `save.path()` named is synced when the block ends, then listed in `manifest.json`
with its size and SHA-256; last, the directory gets its final name. Killed at any point, a save
leaves a directory with `.tmp` in its name, which hpctl passes over. docs/checkpoints.md has the
format.

Where several ranks save, each calls `saving()` for the same step, with its own file names. A rank's
files are described in a part next to them; rank 0 waits for all parts and finishes. Parts of
another start of the same job are never used: the name of the start is in the directory's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path, PurePosixPath
from typing import Any, Iterator, Mapping, Union

NAME = "manifest.json"
FORMAT = "hpctl-checkpoint"
VERSION = 1
MARKS = ".hpctl-marks"
"""The directory where `hpctl resume` and `hpctl checkpoint mark` record which checkpoints are
passed over."""
WAIT_S = 600.0
"""How long rank 0 waits for the other ranks' parts."""

_CHUNK = 8 << 20
_POLL_S = 0.05
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    # Not SLURM_NTASKS: a batch script has that too, and is one process.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_START = (
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_JOB_START_TIME",
    "SLURM_STEP_ID",
    "HPCTL_ATTEMPT",
    "TORCHELASTIC_RESTART_COUNT",
    "PMIX_NAMESPACE",
)
"""The id of one start of a job's ranks, the same for all of them."""

Name = Union[str, "os.PathLike[str]"]


@contextlib.contextmanager
def saving(  # noqa: PLR0913 -- the interface of training programs, by keyword
    step: int,
    directory: Name | None = None,
    *,
    rank: int | None = None,
    ranks: int | None = None,
    attempt: str | None = None,
    meta: Mapping[str, str] | None = None,
    wait_s: float = WAIT_S,
) -> Iterator[Save]:
    """Save the checkpoint of `step` below `directory` (else HPCTL_CHECKPOINT_DIR).

    `rank` of `ranks` are those that save, by default as the launcher sets them: pass `ranks=1`
    where only rank 0 saves. `attempt` identifies this start of the ranks; it is needed where
    several save outside of Slurm. `meta` are your own strings.

    When the block ends in rank 0, the checkpoint is on stable storage. Where it raises, no
    checkpoint is published. Raises OSError, ValueError for names that cannot be in a checkpoint,
    TimeoutError.
    """
    where = directory or os.environ.get("HPCTL_CHECKPOINT_DIR")
    if not where:
        raise ValueError("no directory to save in, and HPCTL_CHECKPOINT_DIR is not set")
    launched = _read_rank_and_world_size()
    ranks = launched[1] if ranks is None else ranks
    rank = (launched[0] if ranks > 1 else 0) if rank is None else rank
    save = Save(
        Path(where) / f"step-{int(step):08d}",
        rank,
        ranks,
        attempt or _make_save_attempt_name(ranks),
    )
    try:
        yield save
    except BaseException:
        if ranks == 1:
            shutil.rmtree(save.temporary, ignore_errors=True)
        raise
    save.finish(int(step), dict(meta or {}), wait_s)


class Save:
    """One rank's share in a checkpoint that is being saved; `final` is its later place."""

    def __init__(self, final: Path, rank: int, ranks: int, attempt: str) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks} ranks")
        self.final = final
        self.temporary = final.with_name(f"{final.name}.tmp-{attempt}")
        self._rank, self._ranks = rank, ranks
        self._named: list[Path] = []
        self.temporary.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._make_rank_manifest_path(rank).unlink()

    def path(self, name: Name) -> Path:
        """Return where to write `name`, a file or a directory of files of only this rank."""
        inside = PurePosixPath(name)
        first = inside.parts[0] if inside.parts else ""
        if inside.is_absolute() or ".." in inside.parts or first in ("", NAME):
            raise ValueError(f"{str(name)!r} cannot be the name of a checkpoint's file")
        where = self.temporary / inside
        where.parent.mkdir(parents=True, exist_ok=True)
        self._named.append(where)
        return where

    def finish(self, step: int, meta: dict[str, str], wait_s: float) -> None:
        """Sync and describe this rank's files; in rank 0 publish the checkpoint."""
        files = self._make_manifest_entries_of_rank()
        if self._ranks > 1:
            part = {"step": step, "ranks": self._ranks, "files": files}
            write_file_atomically(
                self._make_rank_manifest_path(self._rank), json.dumps(part).encode()
            )
            if self._rank:
                return
            files = self._await_manifest_entries_of_all_ranks(step, wait_s)
        if not files:
            raise ValueError(f"no files were saved for {self.final}")
        for rank in range(self._ranks if self._ranks > 1 else 0):
            self._make_rank_manifest_path(rank).unlink()
        document = {
            "format": FORMAT,
            "version": VERSION,
            "step": step,
            "world_size": self._ranks,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": files,
            "meta": meta,
        }
        write_file_atomically(self.temporary / NAME, encode_manifest_document(document))
        publish_checkpoint(self.temporary, self.final)

    def _make_manifest_entries_of_rank(self) -> list[dict[str, Any]]:
        found = {}
        for named in self._named:
            for path in [named, *named.rglob("*")]:
                if path.is_dir() and not path.is_symlink():
                    sync_directory(path)
                    continue
                path.lstat()
                if path.is_symlink() or not path.is_file():
                    raise ValueError(f"{path} is not a regular file")
                found[path.relative_to(self.temporary).as_posix()] = path
            for parent in named.parents:
                sync_directory(parent)
                if parent == self.temporary:
                    break
        return [make_manifest_entry(name, path) for name, path in sorted(found.items())]

    def _make_rank_manifest_path(self, rank: int) -> Path:
        return self.temporary / f".part-{rank:05d}.json"

    def _await_manifest_entries_of_all_ranks(
        self, step: int, wait_s: float
    ) -> list[dict[str, Any]]:
        """Return the files of all ranks, once each rank has reported that its own are on stable
        storage."""
        end = time.monotonic() + wait_s
        files: dict[str, dict[str, Any]] = {}
        for rank in range(self._ranks):
            while not self._make_rank_manifest_path(rank).exists():
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"rank {rank} of {self._ranks} saved nothing for {self.final} in"
                        f" {wait_s:g} s (where rank 0 alone saves, give ranks=1)"
                    )
                time.sleep(_POLL_S)
            part = json.loads(self._make_rank_manifest_path(rank).read_bytes())
            if (part["step"], part["ranks"]) != (step, self._ranks):
                raise ValueError(f"rank {rank} saves step {part['step']} of {part['ranks']} ranks")
            for each in part["files"]:
                if files.setdefault(each["path"], each) is not each:
                    raise ValueError(f"two ranks saved {each['path']}")
        return [files[name] for name in sorted(files)]


def publish_checkpoint(temporary: Path, final: Path) -> bool:
    """Give a finished checkpoint its final name; False where a whole one is there already.

    A damaged one is renamed, never deleted: it may be the only copy. So is one that a run has saved
    from which the job went back. Raises OSError.
    """
    for _ in range(2):
        # rename(2) refuses a directory that is not empty: of two attempts exactly one wins.
        try:
            temporary.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            sync_directory(final.parent)
            return True
        attempt = temporary.name.partition(".tmp-")[2]
        if _is_older_than_start_or_mark(final):
            final.rename(final.with_name(f"{final.name}.passed-over-{attempt}"))
            continue
        if _is_complete_checkpoint(final):
            shutil.rmtree(temporary)
            return False
        final.rename(final.with_name(f"{final.name}.damaged-{attempt}"))
    raise OSError(errno.EEXIST, "another writer keeps taking this name", str(final))


def _is_older_than_start_or_mark(final: Path) -> bool:
    """Return whether a checkpoint is from before a start, or a mark, in a directory that has
    marks."""
    try:
        marks = [final.parent / MARKS / name for name in os.listdir(final.parent / MARKS)]
        if not marks:
            return False
        written = (final / NAME).stat().st_mtime_ns
    except OSError:
        return False
    for path in [final.parent / ".hpctl-starts", *marks]:
        with contextlib.suppress(OSError):
            if written < path.lstat().st_mtime_ns:
                return True
    return False


def encode_manifest_document(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of `manifest.json`: the document with its checksum, as indented JSON."""
    whole = dict(document, checksum=compute_manifest_checksum(document))
    return json.dumps(whole, indent=1, sort_keys=True).encode() + b"\n"


def compute_manifest_checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the document without `checksum`, as JSON with sorted keys and no
    spaces."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_file_atomically(path: Path, raw: bytes) -> None:
    """Write a small file completely or not at all, and sync it and its directory.

    A reader may read at any time, and an in-place writer does not end with a rename of the
    directory.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames and creations in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_manifest_entry(name: str, path: Path) -> dict[str, Any]:
    """Return the manifest's entry for a file, which is synced and read once."""
    sha, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        for block in iter(lambda: file.read(_CHUNK), b""):
            sha.update(block)
            size += len(block)
    return {"path": name, "sha256": sha.hexdigest(), "size": size}


def _is_complete_checkpoint(directory: Path) -> bool:
    """Return whether a checkpoint that is there holds, to the byte, what its manifest lists."""
    try:
        document = json.loads((directory / NAME).read_bytes())
        recorded = document.pop("checksum")
        files = document["files"]
        same = all(
            make_manifest_entry(f["path"], directory / f["path"]).items() >= f.items()
            for f in files
        )
        return bool(files) and recorded == compute_manifest_checksum(document) and same
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _read_rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, as its launcher sets them; a single rank
    without a launcher."""
    for rank, ranks in _RANKS:
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ[rank]), int(os.environ[ranks])
    return 0, 1


def _make_save_attempt_name(ranks: int) -> str:
    identity = [os.environ.get(name, "") for name in _START]
    if ranks == 1:
        identity += [os.uname().nodename, str(os.getpid()), str(time.monotonic_ns())]
    elif not identity[0]:
        raise ValueError(
            "several ranks outside of Slurm need attempt=TEXT: the same for all of them, and"
            " another one at each start"
        )
    return "-".join(re.sub(r"[^\w.]", "_", each) for each in identity if each)
