"""What one node holds of a job's saves, and what its helper does with it when it is asked.

In the directory lie the steps as the job's ranks wrote them, each a directory or a single file;
below META what is hpctl's: the ledger, copies of other nodes' files (`copies/ORIGIN/STEP`, whole
once `STEP.json` lies next to it), what a restore gathers, and what it moved away. A helper bounds
what it takes of its node: of the network, and of the job's memory.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import lru_cache
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import msgspec
from xxhash import xxh3_64

from hpctl.checkpoints.fast.peer import (
    Answer,
    FileAnswerBody,
    PeerConnection,
    PeerError,
    TransferRateLimiter,
    write_all_bytes_to_file,
)
from hpctl.checkpoints.fast.spec import (
    META,
    FastCheckpointSaveSpec,
    FastSavedFile,
    FastSavedStep,
    compute_free_memory,
    find_file_system_type,
    is_directory_writable_by_user_only,
    load_step_ledger,
    store_step_ledger,
)
from hpctl.checkpoints.files import TEMPORARY, parse_step_from_name
from hpctl.checkpoints.formats.torch_files import SUFFIXES
from hpctl.checkpoints.search import has_temporary_name, is_non_checkpoint_file

MOST_FILES = 100_000
"""Files of a node's saves that are looked at."""
LOCK_S = 5.0
"""How long a helper waits for the helper of the run before to exit."""
_MOVED = "aside"
"""Directory below META for the steps that a restore moved away. Jobs have it on their disks, so the
name stays as it was first."""
_AT_ONCE = 4
"""Files that are pulled side by side."""

_MOST_OTHERS = 100
"""Names of files of no known kind that are listed."""

File = tuple[str, int, int, int]
"""Path within its step ("" for a step that is a single file), size, mtime in ns, inode."""


class PeerFileCopy(msgspec.Struct, frozen=True):
    """A copy of another node's file, and the XXH3 of what was written."""

    file: FastSavedFile
    digest: int


class JobStartRecord(msgspec.Struct, frozen=True):
    """What this node knows of the job's start. Its file's mtime is when this attempt's ranks began:
    older saves are of an earlier attempt.

    `job`: a digest of the spec's secret. `epoch` grows with each restore within it; `above`: what
    was newer than this step then was moved away.
    """

    job: str
    epoch: int = 0
    above: int | None = None


class StepBackgroundTask(msgspec.Struct):
    """Work for a request on a step, of which each kind continues separately. `errors`: what went
    wrong."""

    step: str
    errors: list[str]
    thread: threading.Thread
    given_up: threading.Event


class DirectoryLockHolder(msgspec.Struct, frozen=True):
    """Who locks a node's directory: a helper, in its lock file.

    `start`: a digest of the spec's secret. `pid` and `began` are the helper's process and when the
    kernel started it, `parent` and `parent_began` the process that starts it again.
    """

    job: str
    host: str
    start: str
    boot: str
    pid: int
    began: str
    parent: int
    parent_began: str

    @classmethod
    def from_current_process(cls, spec: FastCheckpointSaveSpec, host: str) -> DirectoryLockHolder:
        """Return the process that calls."""
        pid, parent = os.getpid(), os.getppid()
        return cls(
            job=spec.job,
            host=host,
            start=_compute_spec_digest(spec),
            boot=_read_boot_id(),
            pid=pid,
            began=_read_process_start_time(pid),
            parent=parent,
            parent_began=_read_process_start_time(parent),
        )


class NodeSaveStore:
    """One node's share. Its methods run on the helper's threads."""

    def __init__(self, spec: FastCheckpointSaveSpec, host: str) -> None:
        self.spec, self.host = spec, host
        self.root = Path(spec.saves.dir)
        self.meta = self.root / META
        self.copies = self.meta / "copies"
        # Not its parents: where a disk is not mounted, the saves would fill the root file system.
        self.root.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(self.root)
        if spec.saves.memory and (kind := find_file_system_type(self.root)) != "tmpfs":
            raise PeerError(f"{self.root} is not in memory: its file system is {kind}, not tmpfs")
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PeerError(f"{self.root} is not a directory of this user")
        self.root.chmod(0o700)
        self.copies.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._holder = DirectoryLockHolder.from_current_process(spec, host)
        self.lock_save_directory()
        for unfinished in self.copies.glob(f"*/*{TEMPORARY}"):  # by a helper that was killed
            shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
        self.rows = load_step_ledger(self._ledger_path)
        self._touched = object()
        """Another one whenever hpctl itself has changed what lies here."""
        self._lock = threading.RLock()
        """For the ledger, and for what moves or removes steps: a restore, and the leader's orders
        during it, come on threads of their own."""
        self.stranger = ""
        """Whose saves lay here: another run's checkpoint directory."""
        self._discard_saves_of_other_run()
        self.living: tuple[str, ...] = spec.hosts
        self.version = time.time_ns()
        """Another one whenever what `_handle_inventory` answers has changed, also of another
        process."""
        self.changed: deque[str] = deque()
        """Hosts that have reported a change, this one too: for the leader to look at."""
        self.begun_ns = 0
        self.news = threading.Event()
        """Set where there is something to copy."""
        self.released = threading.Event()
        """Set where the leader no longer needs this node."""
        self.over = False
        """The job does not start again."""
        self._pace = TransferRateLimiter(spec.saves.rate)
        self._tasks: dict[str, StepBackgroundTask] = {}
        self._seen: object = None
        job, mark = _compute_spec_digest(spec), self.meta / "start"
        self.start = JobStartRecord("")
        with suppress(OSError, msgspec.MsgspecError):
            self.start = msgspec.json.decode(mark.read_bytes(), type=JobStartRecord)
            self.begun_ns = mark.stat().st_mtime_ns
        if self.start.job != job:  # else this helper has been started again
            self.begin(JobStartRecord(job))

    @property
    def _ledger_path(self) -> Path:
        return self.meta / "ledger.json"

    def lock_save_directory(self) -> None:
        """Lock the directory as long as this process lives. Raises PeerError.

        A helper of the run before that is killed holds the lock until it has exited, and at its
        low priority that takes a while on a busy node.
        """
        lock = os.open(self.meta / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_S
        while not try_lock_file(lock):
            holder = _read_lock_holder(lock)
            if holder is not None and self._is_helper_of_earlier_start_running(holder):
                _kill_old_helper(holder)
            if time.monotonic() >= deadline:
                os.close(lock)
                raise PeerError(self._describe_lock_conflict(holder))
            time.sleep(0.05)
        os.ftruncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(self._holder), 0)

    def _is_helper_of_earlier_start_running(self, holder: DirectoryLockHolder) -> bool:
        """Return whether a helper of an earlier start of this job on this node still runs."""
        same_place = (holder.job, holder.host, holder.boot) == (
            self.spec.job,
            self.host,
            self._holder.boot,
        )
        return same_place and holder.start != self._holder.start

    def _describe_lock_conflict(self, holder: DirectoryLockHolder | None) -> str:
        """Return why the directory cannot be locked."""
        if holder is None:
            return f"another helper uses {self.root}"
        if holder.job != self.spec.job:
            return f"the helper of job {holder.job} uses {self.root}"
        if holder.host != self.host:
            return self._describe_shared_directory_error(holder)
        return f"a helper of an earlier start of this job (process {holder.pid}) uses {self.root}"

    def _describe_shared_directory_error(self, holder: DirectoryLockHolder) -> str:
        return (
            f"{self.root} is the same directory as on {holder.host}:"
            " fast saves need a disk of each node's own"
        )

    def _discard_saves_of_other_run(self) -> None:
        """What another run left here is not this one's to resume."""
        mark, mine = self.meta / "run", os.fsencode(f"{self.spec.shared}\n")
        with suppress(FileNotFoundError):
            theirs = mark.read_bytes()
            if theirs == mine:
                return
            self.move_newer_steps_away(None, None)
            self.stranger = os.fsdecode(theirs).strip()
        mark.write_bytes(mine)

    def begin(self, start: JobStartRecord, when_ns: int = 0) -> None:
        """The ranks begin, now or at that time: what lies here was written before it."""
        mark, raw = self.meta / "start", msgspec.json.encode(start)
        made = mark.with_suffix(TEMPORARY)
        try:
            made.write_bytes(raw)
            made.rename(mark)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not mark.exists():
                raise
            made.unlink(missing_ok=True)
            with open(mark, "r+b") as file:  # in the room that it has
                file.write(raw)
                file.truncate()
        if when_ns:
            os.utime(mark, ns=(when_ns, when_ns))
        else:
            os.utime(mark)  # by the file system's clock, as the saves' are
        self.start, self.begun_ns = start, mark.stat().st_mtime_ns
        self._touched = object()

    def look(self) -> bool:
        """Return whether the saves or the copies have changed since the last look."""
        seen = self._touched, self.live(), self.others()
        if seen == self._seen:
            return False
        self._seen, self.version = seen, self.version + 1
        self.changed.append(self.host)
        return True

    def live(self) -> dict[str, list[File]]:
        """Return the files of each step that lies here: a directory, or a file that may be a
        checkpoint without others. Raises OSError."""
        found, count = {}, 0
        for name in self._list_step_names():
            files = _list_step_files(self.root, name)
            found[name] = sorted(files)
            count += len(files)
            if count > MOST_FILES:
                raise OSError(errno.EFBIG, f"more than {MOST_FILES} files in {self.root}")
        return {name: files for name, files in found.items() if files}

    def _list_step_names(self) -> list[str]:
        """Return what may be a step by its name and kind, in order."""
        with os.scandir(self.root) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
                or (entry.is_file(follow_symlinks=False) and entry.name.endswith(SUFFIXES))
            ]
        return sorted(filter(_is_step_name, names))

    def others(self) -> list[str]:
        """Names of files beside the steps that no format knows as a checkpoint, and that are no
        logs: the program may take them for one. At most _MOST_OTHERS."""
        with os.scandir(self.root) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.is_file(follow_symlinks=False)
                and not entry.name.endswith(SUFFIXES)
                and not is_non_checkpoint_file(entry.name)
            ]
        return sorted(filter(_is_step_name, names))[:_MOST_OTHERS]

    def list_copies_from_other_nodes(self) -> dict[str, dict[str, list[File]]]:
        """Whole copies of other nodes' files, by origin and step."""
        found: dict[str, dict[str, list[File]]] = {}
        for mark in self.copies.glob("*/*.json"):
            step, origin = mark.name.removesuffix(".json"), mark.parent.name
            rows = self._read_step_copy_digests(step, origin)
            if rows:
                files = [(f.path, f.size, f.mtime_ns, 0) for f in rows]
                found.setdefault(origin, {})[step] = files
        return found

    def _read_step_copy_digests(self, step: str, origin: str) -> dict[FastSavedFile, int]:
        """Return the files of a whole copy with their digests; none where there is no such copy."""
        with suppress(OSError, msgspec.MsgspecError):
            mark = (
                self.copies / _check_path_component(origin) / f"{_check_path_component(step)}.json"
            )
            status = mark.stat()
            return _read_recorded_copy_digests(mark, (status.st_ino, status.st_mtime_ns))
        return {}

    def handle(self, request: dict[str, Any]) -> Answer:
        """Answer a helper of this job, or a restore. Raises OSError, ValueError."""
        return _HANDLERS[str(request["do"])](self, request)

    def _handle_ping(self, _request: dict[str, Any]) -> Answer:
        return {"version": self.version, "now": time.time_ns()}

    def _ready(self, _request: dict[str, Any]) -> Answer:
        """Say that this node takes part, or why it does not: where locks are of one node alone,
        another one may have taken the directory, too."""
        with open(self.meta / "lock", "rb") as file:
            holder = _read_lock_holder(file.fileno())
        if holder is None or holder == self._holder:
            return {"off": ""}
        return {"off": self._describe_lock_conflict(holder)}

    def _handle_files_changed(self, request: dict[str, Any]) -> Answer:
        """Another node has saved or copied something."""
        self.changed.append(str(request["by"]))
        return {}

    def _handle_inventory(self, _request: dict[str, Any]) -> Answer:
        # The version comes first: a change during the answer makes a newer one, so that the leader
        # asks again.
        version = self.version
        rows = msgspec.to_builtins(list(self.rows.values()))
        mine = {
            "live": self.live(),
            "copies": self.list_copies_from_other_nodes(),
            "rows": rows,
            "used": self.measure_disk_usage(),
        }
        mine["others"] = self.others()
        start = {"begun": self.begun_ns, "epoch": self.start.epoch, "above": self.start.above}
        return {**mine, **start, "now": time.time_ns(), "version": version}

    def _read(self, request: dict[str, Any]) -> Answer:
        """Return some bytes of a file that is as it was listed."""
        with self.open(str(request["step"]), str(request["path"])) as file:
            status = os.fstat(file.fileno())
            if [status.st_size, status.st_mtime_ns, status.st_ino] != request["tag"]:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            length = min(int(request["length"]), 16 << 20)
            raw = os.pread(file.fileno(), length, int(request["offset"]))
        return FileAnswerBody(raw)

    def _handle_get_file(self, request: dict[str, Any]) -> Answer:
        """Return a whole file, this node's own or a copy."""
        wanted = msgspec.convert(request["file"], FastSavedFile)
        step, origin = str(request["step"]), str(request.get("origin") or "")
        file = self.open(step, wanted.path, origin)
        status = os.fstat(file.fileno())
        if not wanted.same(status.st_size, status.st_mtime_ns):
            file.close()
            raise _make_changed_file_error(wanted.path or step)
        return FileAnswerBody(file, status.st_size, self._find_copy_digest(step, wanted, origin))

    def _handle_check_files_unchanged(self, request: dict[str, Any]) -> Answer:
        """Raise OSError where this node's files of a step have changed."""
        wanted = msgspec.convert(request["files"], list[FastSavedFile])
        self._check_files_unchanged(str(request["step"]), wanted)
        return {}

    def _check_files_unchanged(self, step: str, files: Iterable[FastSavedFile]) -> None:
        """Raise OSError where a file is not as it was when its step was proved: a program that
        saves in place may have written to it while it was read."""
        for file in files:
            with self.open(step, file.path) as found:
                status = os.fstat(found.fileno())
            if not file.same(status.st_size, status.st_mtime_ns):
                raise _make_changed_file_error(file.path or step)

    def _handle_verified_step(self, request: dict[str, Any]) -> Answer:
        """Return the leader has proved a step."""
        row = msgspec.convert(request["row"], FastSavedStep)
        with self._lock:
            known = self.rows.get(_check_path_component(row.name), row)
            if row.seen_s >= known.seen_s:  # else a restore has moved the step meanwhile
                self.rows[row.name] = row
                store_step_ledger(self.rows, self._ledger_path)
        self.living = tuple(map(str, request["living"]))
        self.news.set()
        return {}

    def _handle_delete_steps(self, request: dict[str, Any]) -> Answer:
        """Drop older steps, which are no longer needed."""
        self.drop([_check_path_component(str(name)) for name in request["names"]])
        return {}

    def drop(self, names: Iterable[str]) -> None:
        """Remove steps, and copies of them, that the ledger knows."""
        with self._lock:
            for name in names:
                if self.rows.pop(name, None) is not None:
                    _remove_step(self.root / name)
                    for origin in self.copies.iterdir():
                        (origin / f"{name}.json").unlink(missing_ok=True)
                        _remove_step(origin / name)
            store_step_ledger(self.rows, self._ledger_path)
        self._touched = object()

    def _handle_assemble_step(self, request: dict[str, Any]) -> Answer:
        """Gather a step here, of what lies here and what others send."""
        row = msgspec.convert(request["row"], FastSavedStep)
        plan = []
        for file, sources in request["plan"]:
            places = [(str(host), str(origin)) for host, origin in sources]
            plan.append((msgspec.convert(file, FastSavedFile), places))
        self._start_step_task("gather", row.name, lambda _: self.assemble(row, plan))
        return {}

    def _handle_install_assembled_step(self, request: dict[str, Any]) -> Answer:
        """Put what was gathered in its place, once every node has gathered it: until then others
        read what lies there."""
        row = msgspec.convert(request["row"], FastSavedStep)
        with self._lock:
            self.move_newer_steps_away(row.step, row.name)
            (self.meta / "new" / _check_path_component(row.name)).rename(self.root / row.name)
            self.rows[row.name] = row
            store_step_ledger(self.rows, self._ledger_path)
            self._record_restored_job_start(int(request["epoch"]), row.step)
        return {}

    def _handle_move_newer_steps_away(self, request: dict[str, Any]) -> Answer:
        """Prepare to resume from a step, or none: what is newer than it is moved away."""
        above = request.get("above")
        with self._lock:
            self.move_newer_steps_away(above, None)
            self._record_restored_job_start(int(request["epoch"]), above)
        return {}

    def _handle_missed_restore(self, request: dict[str, Any]) -> Answer:
        """There was a restore while this helper was silent. Ranks may write here by now: what is
        older than their start does not count, and nothing of theirs is moved. Of a restore that
        is still under way, this node may have heard meanwhile."""
        above, epoch = request.get("above"), int(request["epoch"])
        with self._lock:
            if epoch > self.start.epoch:
                self._remove_newer_ledger_steps(above, None)
                self._record_restored_job_start(epoch, above, int(request["begun"]))
        return {}

    def _record_restored_job_start(self, epoch: int, above: int | None, when_ns: int = 0) -> None:
        self.begin(JobStartRecord(self.start.job, epoch, above), when_ns)

    def _handle_flush_to_shared_directory(self, request: dict[str, Any]) -> Answer:
        """Write files into the shared directory."""
        files = msgspec.convert(request["files"], list[tuple[FastSavedFile, str]])
        name, into = str(request["name"]), Path(str(request["into"]))
        if not into.is_relative_to(self.spec.shared):
            raise ValueError("not in the checkpoint directory")
        if not is_directory_writable_by_user_only(Path(self.spec.shared) / META):
            raise PeerError(f"{META} in the checkpoint directory is not this user's alone")

        def write_files(given_up: threading.Event) -> None:
            for file, origin in files:
                with self.open(name, file.path, origin) as source:
                    digest = self._find_copy_digest(name, file, origin)
                    _copy_stream_to_new_file(
                        source, into / _parse_path_within_step(file.path), file, digest, given_up
                    )
            self._check_files_unchanged(name, [file for file, origin in files if not origin])

        before = self._tasks.get("flush")
        if before:  # into another directory
            before.given_up.set()
        self._start_step_task("flush", name, write_files, beside=True)
        return {}

    def _handle_task_state(self, request: dict[str, Any]) -> Answer:
        task = self._tasks.get(str(request["kind"]))
        running = bool(task and task.thread.is_alive())
        return {"running": running, "errors": task.errors if task else []}

    def _handle_shutdown(self, request: dict[str, Any]) -> Answer:
        """Release this node, which the leader no longer needs. If two helpers lead at the end, as
        one was silent for a while, the first may release the nodes before the second has flushed:
        what the first says of the job's end stays true."""
        self.over = self.over or request.get("over") is True
        self.released.set()
        return {}

    def _start_step_task(
        self, kind: str, step: str, work: Callable[[threading.Event], None], *, beside: bool = False
    ) -> None:
        before = self._tasks.get(kind)
        if before is not None and before.thread.is_alive() and not beside:
            raise OSError(errno.EBUSY, "it is at work for another request")
        errors: list[str] = []
        given_up = threading.Event()

        def run_step_work() -> None:
            try:
                work(given_up)
            except (OSError, ValueError) as error:
                errors.append(f"{self.host}: {error}")

        task = StepBackgroundTask(
            step, errors, threading.Thread(target=run_step_work, daemon=True), given_up
        )
        self._tasks[kind] = task
        task.thread.start()

    def open(self, step: str, path: str, origin: str = "") -> BinaryIO:
        """Return a file of a step, this node's own or of a copy. Raises OSError, ValueError."""
        below = self.copies / _check_path_component(origin) if origin else self.root
        name = below / _check_path_component(step) / _parse_path_within_step(path)
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(handle)
            raise OSError(errno.EPERM, f"{path} is no file of this user")
        return open(handle, "rb")

    def _find_copy_digest(self, step: str, file: FastSavedFile, origin: str) -> int | None:
        """Return a copy's, None for this node's own file."""
        return self._read_step_copy_digests(step, origin).get(file) if origin else None

    def copy(self, row: FastSavedStep, origin: str, peer: PeerConnection) -> None:
        """Bring one node's files of a step here, whole or not at all. Raises OSError."""
        files, home = row.of(origin), self.copies / _check_path_component(origin)
        home.mkdir(mode=0o700, exist_ok=True)
        mark, made = home / f"{row.name}.json", home / f"{row.name}{TEMPORARY}"
        _remove_step(made)
        self.check_space_for_new_files(sum(file.size for file in files))
        try:
            copied = [
                PeerFileCopy(
                    file,
                    self._download_file(
                        peer, row.name, file, "", made / _parse_path_within_step(file.path)
                    ),
                )
                for file in files
            ]
            peer.ask("same", step=row.name, files=msgspec.to_builtins(files))
            with self._lock:
                self._move_copy_into_place(row, mark, made, copied)
        except BaseException:
            _remove_step(made)
            raise

    def _move_copy_into_place(
        self, row: FastSavedStep, mark: Path, made: Path, copied: Sequence[PeerFileCopy]
    ) -> None:
        """Put what was copied in its place. Raises OSError where its step was dropped meanwhile:
        nothing would remove it later."""
        if row.name not in self.rows:
            raise OSError(errno.ESTALE, f"{row.name} is no longer kept")
        place = mark.with_suffix("")
        mark.unlink(missing_ok=True)
        _remove_step(place)
        made.rename(place)
        unfinished = mark.with_suffix(TEMPORARY)
        unfinished.write_bytes(msgspec.json.encode(copied))
        unfinished.rename(mark)
        self._touched = object()

    def check_space_for_new_files(self, size: int) -> None:
        """Refuse what would be too much for the directory or the job's memory. Raises OSError."""
        most = self.spec.saves.size
        if most and self.measure_disk_usage() + size > most:
            raise OSError(errno.ENOSPC, f"it would be more than --fast-size {most >> 20} MiB")
        if self.spec.saves.memory and (room := compute_free_memory()) is not None and size > room:
            raise OSError(
                errno.ENOMEM, f"{size >> 20} MiB, and {room >> 20} MiB are left of the job's memory"
            )

    def measure_disk_usage(self) -> int:
        """Return the bytes of all files here, also unfinished or moved away by a restore."""
        found = {}
        for place, _, names in os.walk(self.root):
            for name in names:
                with suppress(FileNotFoundError):
                    status = os.lstat(os.path.join(place, name))
                    found[status.st_dev, status.st_ino] = status.st_size  # a restore makes links
        return sum(found.values())

    def remove(self) -> None:
        """The job is over: nothing of it stays."""
        for name in self.live():
            _remove_step(self.root / name)
        shutil.rmtree(self.meta, ignore_errors=True)
        with suppress(OSError):
            self.root.rmdir()

    def copy_steps_of_partner_nodes(self) -> list[str]:
        """Copy what this node is a partner for, newest step first, until there is a newer one yet;
        what went wrong."""
        errors: list[str] = []
        for row in sorted(self.rows.values(), key=lambda row: row.order, reverse=True):
            for origin in row.list_origin_nodes():
                if self.news.is_set():
                    return errors
                if self._is_step_copy_needed(row, origin):
                    try:
                        with closing(self.peer(origin)) as peer:
                            self.copy(row, origin, peer)
                    except OSError as error:
                        if error.errno in (errno.ENOSPC, errno.EDQUOT):
                            self._free_disk_space(row)
                        if row.name in self.rows:  # else a newer one has replaced it meanwhile
                            errors.append(f"{row.name} of {origin}: {error.strerror or error}")
        return errors

    def _is_step_copy_needed(self, row: FastSavedStep, origin: str) -> bool:
        if origin == self.host or origin not in self.living or origin not in self.spec.hosts:
            return False
        if self.host not in self.spec.partners(origin, self.living) or self.holds(row, origin):
            return False
        here = {
            path: (size, mtime_ns)
            for path, size, mtime_ns, _ in _list_step_files(self.root, row.name)
        }
        return not all(f.path in here and f.same(*here[f.path]) for f in row.of(origin))

    def _free_disk_space(self, wanted: FastSavedStep) -> None:
        """The disk is full: what a restore moved away goes, or the oldest step, never the newest
        whole one."""
        moved = self.meta / _MOVED
        if moved.is_dir() and wanted.seen_s * 1e9 > self.begun_ns:  # the job has saved since then
            with self._lock:
                shutil.rmtree(moved, ignore_errors=True)
            self._touched = object()
            return
        task = self._tasks.get("flush")
        busy = task.step if task and task.thread.is_alive() else ""
        rows = sorted(self.rows.values(), key=lambda row: row.order)
        rows = [row for row in rows if row.name != busy]
        if rows and rows[0] != wanted:
            self.drop([rows[0].name])

    def holds(self, row: FastSavedStep, origin: str) -> bool:
        """Return whether a whole copy of that node's files of the step lies here."""
        return tuple(self._read_step_copy_digests(row.name, origin)) == row.of(origin)

    def assemble(
        self, row: FastSavedStep, plan: list[tuple[FastSavedFile, list[tuple[str, str]]]]
    ) -> None:
        """Gather a step beside the others. Raises OSError."""
        made = self.meta / "new" / _check_path_component(row.name)
        shutil.rmtree(made.parent, ignore_errors=True)

        def fetch_file(one: tuple[FastSavedFile, list[tuple[str, str]]]) -> None:
            file, sources = one
            self._fetch_step_file(
                row.name, file, sources, made / _parse_path_within_step(file.path)
            )

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch_file, plan))

    def _fetch_step_file(
        self, step: str, file: FastSavedFile, sources: list[tuple[str, str]], to: Path
    ) -> None:
        last: OSError = PeerError(f"no node holds {file.path or step}")
        for host, origin in sorted(sources, key=lambda s: s[0] != self.host):
            try:
                if host != self.host:
                    with closing(self.peer(host)) as peer:
                        self._download_file(peer, step, file, origin, to, restored=True)
                    return
                with self.open(step, file.path, origin) as source:
                    status = os.fstat(source.fileno())
                    if file.same(status.st_size, status.st_mtime_ns):
                        if origin:  # a rank may write over the file: the copy must stay
                            _copy_stream_to_new_file(
                                source, to, file, self._find_copy_digest(step, file, origin)
                            )
                        else:
                            _link_or_copy_file(source, self.root / step / file.path, to, file)
                        return
            except OSError as error:
                to.unlink(missing_ok=True)
                last = error
        raise last

    def _download_file(  # noqa: PLR0913 -- which file of which step goes where
        self,
        peer: PeerConnection,
        step: str,
        file: FastSavedFile,
        origin: str,
        to: Path,
        *,
        restored: bool = False,
    ) -> int:
        """Bring a file here; its digest. What a rank reads soon goes through the page cache."""
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        given = {"step": step, "origin": origin, "file": msgspec.to_builtins(file)}
        with open(to, "wb", 0, opener=None if restored else _open_with_direct_io) as target:
            pace = (lambda _: None) if restored else self._pace
            digest = peer.receive_file(
                lambda piece: write_all_bytes_to_file(target, piece), pace, "get", **given
            )
            _sync_file_and_set_mtime(target, file, restored=restored)
        return digest

    def peer(self, host: str) -> PeerConnection:
        """Return a new connection to a helper. Raises PeerError."""
        return PeerConnection(self.spec, host)

    def move_newer_steps_away(self, above: int | None, name: str | None) -> None:
        """Move away what is newer than a step, or has its name: a later save of the same number
        would mix with it. What was moved away before is removed."""
        moved = self.meta / _MOVED
        shutil.rmtree(moved, ignore_errors=True)
        moved.mkdir(mode=0o700)
        for found in self.live():
            step = parse_step_from_name(found)
            if found == name or (step is not None and not _is_step_number_at_most(step, above)):
                (self.root / found).rename(moved / found)
        self._remove_newer_ledger_steps(above, name)

    def _remove_newer_ledger_steps(self, above: int | None, name: str | None) -> None:
        """Keep in the ledger only steps up to `above`, and copies only of those and of `name`."""
        with self._lock:
            self.rows = {
                n: r for n, r in self.rows.items() if _is_step_number_at_most(r.step, above)
            }
        for mark in self.copies.glob("*/*.json"):
            copied = mark.name.removesuffix(".json")
            if copied not in self.rows and copied != name:
                mark.unlink(missing_ok=True)
                _remove_step(mark.with_suffix(""))
        with self._lock:  # once there is room for it
            store_step_ledger(self.rows, self._ledger_path)
        self._touched = object()


_HANDLERS: dict[str, Callable[[NodeSaveStore, dict[str, Any]], Answer]] = {
    "ping": NodeSaveStore._handle_ping,
    "ready": NodeSaveStore._ready,
    "changed": NodeSaveStore._handle_files_changed,
    "inventory": NodeSaveStore._handle_inventory,
    "read": NodeSaveStore._read,
    "get": NodeSaveStore._handle_get_file,
    "same": NodeSaveStore._handle_check_files_unchanged,
    "row": NodeSaveStore._handle_verified_step,
    "drop": NodeSaveStore._handle_delete_steps,
    "assemble": NodeSaveStore._handle_assemble_step,
    "adopt": NodeSaveStore._handle_install_assembled_step,
    "aside": NodeSaveStore._handle_move_newer_steps_away,
    "missed": NodeSaveStore._handle_missed_restore,
    "flush": NodeSaveStore._handle_flush_to_shared_directory,
    "task": NodeSaveStore._handle_task_state,
    "bye": NodeSaveStore._handle_shutdown,
}


def try_lock_file(file: int) -> bool:
    """Lock an open file for this process; False where another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_lock_holder(lock: int) -> DirectoryLockHolder | None:
    """Return who has locked an open lock file; None where it says nothing, or something else."""
    try:
        return msgspec.json.decode(os.pread(lock, 4096, 0), type=DirectoryLockHolder)
    except (OSError, msgspec.MsgspecError):
        return None


def _kill_old_helper(holder: DirectoryLockHolder) -> None:
    """Kill a helper, first the process that would start it again. They are the user's own."""
    own = (os.getpid(), os.getppid())
    for pid, began in ((holder.parent, holder.parent_began), (holder.pid, holder.began)):
        if began and pid not in own and _read_process_start_time(pid) == began:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _read_process_start_time(pid: int) -> str:
    """Return when the kernel started a process, "" where there is none: with its id, what it is."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    after_name = stat_line.rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else ""


def _read_boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _compute_spec_digest(spec: FastCheckpointSaveSpec) -> str:
    """Return what tells one start of a job from another."""
    return hashlib.sha256(spec.secret.encode()).hexdigest()


@lru_cache(maxsize=8)
def _read_recorded_copy_digests(mark: Path, _stamp: tuple[int, int]) -> dict[FastSavedFile, int]:
    """Read once while it stays the same: each file of a copy asks for its own digest."""
    rows = msgspec.json.decode(mark.read_bytes(), type=list[PeerFileCopy])
    return {row.file: row.digest for row in rows}


def _is_step_name(name: str) -> bool:
    return not name.startswith(".") and not has_temporary_name(name) and name.isprintable()


def _list_step_files(root: Path, name: str) -> list[File]:
    """Return the files of a step, a directory or a single file; none where it is not there."""
    with suppress(FileNotFoundError):
        status = os.lstat(root / name)
        if stat.S_ISDIR(status.st_mode):
            return list(_scan_regular_files_of_user(root / name))
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return [("", status.st_size, status.st_mtime_ns, status.st_ino)]
    return []


def _remove_step(step: Path) -> None:
    """Remove a step, a directory or a single file, as far as that is possible."""
    if step.is_dir() and not step.is_symlink():
        shutil.rmtree(step, ignore_errors=True)
        return
    with suppress(OSError):
        step.unlink()


def _make_changed_file_error(name: str) -> OSError:
    return OSError(errno.ESTALE, f"{name} has changed")


def _scan_regular_files_of_user(step: Path, inside: str = "") -> Iterator[File]:
    """Regular files of this user, at any depth. Links, FIFOs and others' files are none."""
    with suppress(FileNotFoundError), os.scandir(step) as entries:
        for entry in entries:
            path = f"{inside}{entry.name}"
            if not entry.name.isprintable() or has_temporary_name(entry.name):
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid != os.geteuid():
                    continue
                if stat.S_ISDIR(status.st_mode):
                    yield from _scan_regular_files_of_user(step / entry.name, f"{path}/")
                elif stat.S_ISREG(status.st_mode):
                    yield path, status.st_size, status.st_mtime_ns, status.st_ino


def _is_step_number_at_most(step: int | None, above: int | None) -> bool:
    return step is not None and above is not None and step <= above


def _check_path_component(name: str) -> str:
    """Return a step's or a host's name: one part of a path. Raises ValueError."""
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise ValueError(f"no name: {name!r:.80}")
    return name


def _parse_path_within_step(path: str) -> PurePosixPath:
    """Return a path within a step, "" for a step that is a single file. Raises ValueError where it
    leads out of it."""
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or not path.isprintable():
        raise ValueError(f"no path within a step: {path!r:.80}")
    return found


def _link_or_copy_file(source: BinaryIO, path: Path, to: Path, file: FastSavedFile) -> None:
    """The same file at another place, where the file system can; it was opened as `source`."""
    to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.link(path, to, follow_symlinks=False)
        if not os.path.samestat(os.lstat(to), os.fstat(source.fileno())):
            to.unlink()
            raise OSError(errno.ESTALE, f"{file.path} has changed")
        os.utime(to, ns=(file.written_ns, file.written_ns), follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise
        to.unlink(missing_ok=True)
        _copy_stream_to_new_file(source, to, file)


def _copy_stream_to_new_file(
    source: BinaryIO,
    to: Path,
    file: FastSavedFile,
    digest: int | None = None,
    given_up: threading.Event | None = None,
) -> None:
    """A new file; never through a link that another has put there."""
    to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = xxh3_64()
    with open(to, "xb") as target:
        while piece := source.read(1 << 20):
            if given_up is not None and given_up.is_set():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            found.update(piece)
            target.write(piece)
        if digest not in (None, found.intdigest()):
            raise OSError(errno.EIO, f"the disk has damaged the copy of {file.path}")
        _sync_file_and_set_mtime(target, file, restored=True)


def _open_with_direct_io(path: str, flags: int) -> int:
    """Past the page cache, where the file system can: a copy is not read soon, its pages would
    count against the job's memory, and writing them takes twice the processor time."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o600)


def _sync_file_and_set_mtime(
    target: BinaryIO | FileIO, file: FastSavedFile, *, restored: bool
) -> None:
    """On the disk, of the right size, with its time. Raises OSError."""
    target.flush()
    if os.fstat(target.fileno()).st_size != file.size:
        raise OSError(errno.ESTALE, f"{file.path} has changed")
    os.fsync(target.fileno())
    when = file.written_ns if restored else file.mtime_ns
    os.utime(target.fileno(), ns=(when, when))
